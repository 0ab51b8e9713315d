"""The scale-space correlation equals its equation, in every sampling."""

import itertools
from typing import Any

import numpy as np
import pytest
import reference
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from reference import MATRICES, MODES, QUINCUNX, assert_levels, paper_lift, refusals
from torch.nn import functional as F
from torch.testing import assert_close

from scalespaces import ScaleSpace, lift, scale_shift
from scalespaces.functional import _conv as conv
from scalespaces.functional import scale_conv
from scalespaces.functional._correlate import correlate
from scalespaces.functional._fast import _choice
from scalespaces.nn import ScaleConv2d
from scalespaces.space._grid import Window
from scalespaces.theory._arguments import NUMPY_PADDING

SAMPLINGS = ["dense", "pyramid", 2, 1.5]


@given(
    size=st.lists(st.integers(3, 6), min_size=1, max_size=2),
    num_levels=st.integers(1, 4),
    depth=st.integers(1, 3),
    base=st.sampled_from([2.0, 3.0, 1.5, 2**0.5]),
    sampling=st.sampled_from(SAMPLINGS),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    scale_padding=st.sampled_from(["zeros", "replicate", "valid"]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 1000),
)
def test_equals_the_equation(
    size, num_levels, depth, base, sampling, kernel, stride, dilation, scale_padding, dtype, seed
):
    depth = min(depth, num_levels)
    torch.manual_seed(seed)
    x = paper_lift(torch.randn(1, 2, *size, dtype=dtype), num_levels, base, sampling=sampling)
    weight = torch.randn(2, 2, depth, *[kernel] * len(size), dtype=dtype)
    bias = torch.randn(2, dtype=dtype)
    settings: Any = {"stride": stride, "dilation": dilation, "scale_padding": scale_padding}
    out = scale_conv(x, weight, bias, **settings)
    levels = [level.double().numpy() for level in x.levels]
    expected = reference.scale_conv(levels, x.steps, base, weight.double().numpy(), bias.double().numpy(), **settings)
    assert out.dtype == dtype
    limit = 1e-4 if dtype == torch.float32 else 1e-10
    assert_levels(out, expected, limit, limit)


@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_padding_counts_taps(padding, sampling):
    x = paper_lift(torch.randn(1, 1, 19, dtype=torch.float64), 3, sampling=sampling)
    weight = torch.randn(1, 1, 2, 3, dtype=torch.float64)
    out = scale_conv(x, weight, padding=padding)
    levels = [level.numpy() for level in x.levels]
    assert_levels(out, reference.scale_conv(levels, x.steps, 2.0, weight.numpy(), None, padding=(padding, padding)))
    # Without padding, sample 0 of level k moves by one tap, c^k samples of level 0.
    assert [o[0] for o in out.origins] == [2**k * (1 - padding) for k in range(3)]


@given(
    size=st.lists(st.integers(1, 7), min_size=1, max_size=2),
    taps=st.integers(1, 3),
    stride=st.integers(1, 3),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    dilation=st.integers(1, 2),
    spacing=st.sampled_from([1.0, 2.0, 3.0, 1.5, 2**0.5]),
)
@example(size=[7, 6], taps=3, stride=3, padding=(0, 2), dilation=1, spacing=1.5)
@example(size=[7, 6], taps=3, stride=3, padding=(3, 1), dilation=2, spacing=2.0)
def test_one_level_with_other_padding_on_either_side(size, taps, stride, padding, dilation, spacing):
    dims = len(size)
    assume(all(n - 1 + spacing * (sum(padding) - dilation * (taps - 1)) >= 0 for n in size))
    f, bias = torch.randn(1, 2, *size, dtype=torch.float64), torch.randn(2, dtype=torch.float64)
    weight = torch.randn(2, 2, 1, *[taps] * dims, dtype=torch.float64)
    window = Window((taps,) * dims, (stride,) * dims, (padding,) * dims, (dilation,) * dims)
    got = correlate(f, weight[:, :, 0], bias, window=window, spacing=spacing)
    arrays, settings = [a.numpy() for a in (f, weight, bias)], {"stride": stride, "dilation": dilation}
    expected = reference.scale_conv([arrays[0]], [1 / spacing], 1.0, *arrays[1:], padding=padding, **settings)
    assert_levels([got], expected, 1e-10, 1e-10)


@given(
    n=st.sampled_from([1, 2, 3, 5, 11]),
    taps=st.integers(1, 4),
    base=st.sampled_from([2.0, 1.5, 1.2]),
    mode=st.sampled_from(MODES),
)
def test_padding_modes_read_a_padded_image(n, taps, base, mode):
    """Padding far enough by hand, and correlating inside, is the same."""
    f, weight = torch.randn(1, 1, n, dtype=torch.float64), torch.randn(1, 1, taps, dtype=torch.float64)
    far = 20  # whole samples, so that the padded grid has the same positions
    wide = torch.tensor(np.pad(f.numpy(), [(0, 0), (0, 0), (far, far)], mode=NUMPY_PADDING[mode]))
    got = scale_conv(ScaleSpace((f, f, f), base), weight, padding_mode=mode)
    expected = scale_conv(ScaleSpace((wide, wide, wide), base), weight)
    assert_levels(got, [level[:, :, far : far + n] for level in expected.levels])


def test_dense_is_a_dilated_convolution_per_level():
    x = paper_lift(torch.randn(2, 3, 17, 20), 4)
    weight = torch.randn(5, 3, 1, 3, 3)
    for k, level in enumerate(scale_conv(x, weight).levels):
        assert_close(level, F.conv2d(x.levels[k], weight[:, :, 0], padding=2**k, dilation=2**k))


@pytest.mark.parametrize("size", [(16, 16), (17, 23)])
def test_pyramid_is_dense_on_the_coarse_grid(size):
    dense = paper_lift(torch.randn(1, 2, *size, dtype=torch.float64), 4)
    sub = [level[..., :: 2**k, :: 2**k] for k, level in enumerate(dense.levels)]
    pyramid = ScaleSpace(tuple(sub), steps=(1, 2, 4, 8))
    weight = torch.randn(3, 2, 1, 3, 3, dtype=torch.float64)
    for k, level in enumerate(scale_conv(pyramid, weight).levels):
        assert_close(level, scale_conv(dense, weight).levels[k][..., :: 2**k, :: 2**k])


@pytest.mark.parametrize("mode", MODES)
def test_a_single_level_is_a_plain_convolution(mode):
    f, settings = torch.randn(2, 4, 12, 9), dict[str, Any](stride=2, padding=2, dilation=2, groups=2)
    plain = torch.nn.Conv2d(4, 6, 3, padding_mode=mode, **settings)
    out = scale_conv(ScaleSpace((f,)), plain.weight, plain.bias, padding_mode=mode, **settings)
    assert_close(out.levels[0], plain(f))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_groups_are_separate_layers(sampling):
    x = paper_lift(torch.randn(1, 4, 12, 12), 3, sampling=sampling)
    weight = torch.randn(6, 2, 2, 3, 3)
    halves: Any = [scale_conv(x[:, 2 * g : 2 * g + 2], weight[3 * g : 3 * g + 3]) for g in range(2)]
    joined: Any = torch.cat(halves, 1)
    assert_levels(scale_conv(x, weight, groups=2), joined, rtol=1e-4, atol=1e-5)


GRIDS: list[Any] = [("dense", 2.0, "zeros"), ("pyramid", 2**0.5, "zeros"), (2, 2.0, "reflect")]
GRIDS += itertools.product(["dense"], [1.5, QUINCUNX], MODES)


@pytest.mark.parametrize(("sampling", "base", "mode"), GRIDS)
def test_gradients(sampling, base, mode):
    x = paper_lift(torch.randn(1, 1, 4, 5, dtype=torch.float64), 3, base, sampling=sampling)
    weight = torch.randn(2, 1, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(2, dtype=torch.float64, requires_grad=True)

    def function(weight, bias, *levels):
        return scale_conv(x.replace(levels), weight, bias, padding_mode=mode).levels

    levels = tuple(level.clone().requires_grad_() for level in x.levels)
    assert torch.autograd.gradcheck(function, (weight, bias, *levels))


KINDS = [("dense", 2.0), ("dense", 3.0), ("pyramid", 2.0), ("pyramid", 2**0.5), ("pyramid", 1.3), (2, 2.0), (4, 2.0)]


@given(
    size=st.tuples(st.integers(2, 23), st.integers(2, 40)),
    kind=st.sampled_from(KINDS),
    n=st.integers(1, 2),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 1000),
)
@example(size=(23, 40), kind=(2, 2.0), n=1, dtype=torch.float64, seed=0)
@example(size=(23, 40), kind=(4, 2.0), n=1, dtype=torch.float64, seed=0)
def test_commutes_with_scale_shift(size, kind, n, dtype, seed):
    """Random levels on the grids of a sampling: the law needs no lifted image."""
    torch.manual_seed(seed)
    sampling, base = kind
    x = paper_lift(torch.zeros(1, 2, *size, dtype=dtype), 5, base, sampling=sampling).map(torch.randn_like)
    weight = torch.randn(3, 2, 2, 3, 3, dtype=dtype)
    first = scale_shift(scale_conv(x, weight, scale_padding="valid"), n)
    then = scale_conv(scale_shift(x, n), weight, scale_padding="valid")
    limit = 1e-5 if dtype == torch.float32 else 1e-12
    for a, b in zip(first.levels, then.levels, strict=True):
        assert_close(a, b, rtol=0, atol=limit * max(1.0, a.abs().max().item()))


def test_scale_paddings_agree_below_the_last_level():
    x = paper_lift(torch.randn(1, 2, 16, 16), 4, sampling="pyramid")
    weight = torch.randn(3, 2, 2, 3, 3)
    zero, replicate, valid = (scale_conv(x, weight, scale_padding=p) for p in ("zeros", "replicate", "valid"))
    assert (zero.num_levels, replicate.num_levels, valid.num_levels) == (4, 4, 3)
    for a, b, c in zip(zero.levels, replicate.levels, valid.levels, strict=False):
        assert_close(a, b)
        assert_close(a, c)
    doubled = F.conv2d(x.levels[3], weight.sum(2), padding=1)
    assert_close(replicate.levels[3], doubled, rtol=1e-4, atol=1e-5)


IMAGE, WEIGHT = torch.randn(1, 3, 16, 16), torch.randn(2, 3, 2, 3, 3)
SPACE, TURNED = paper_lift(IMAGE, 4), paper_lift(IMAGE, 4, QUINCUNX)
UNKNOWN: Any = "none"

test_refusals = refusals(
    (lambda: scale_conv(TURNED, WEIGHT, padding=0), 'a matrix base needs padding="same"'),
    (lambda: scale_conv(SPACE, torch.randn(2, 4, 2, 3, 3)), "the filter takes 4 channels, got 3"),
    (lambda: scale_conv(SPACE, torch.randn(2, 3, 3)), "5 axes, got shape"),
    (lambda: scale_conv(SPACE.keep(1), WEIGHT, scale_padding="valid"), "as many levels as the filter has, got 1 level"),
    (lambda: scale_conv(SPACE, WEIGHT, scale_padding=UNKNOWN), "is one of zeros, replicate, valid, got 'none'"),
    (lambda: scale_conv(SPACE, WEIGHT, padding=0), r"level 3 has \(16, 16\) samples, too few for .* \(3, 3\) taps 8"),
    (lambda: scale_conv(SPACE, WEIGHT, padding_mode=UNKNOWN), "padding_mode is one of"),
    (lambda: scale_conv(SPACE, WEIGHT, stride=(1, 2, 3)), "stride is an integer or one for each of 2 axes"),
)


@pytest.mark.parametrize("base", MATRICES.values(), ids=MATRICES)
@pytest.mark.parametrize("stride", [1, 2])
def test_matrices_equal_the_equation(base, stride):
    x = paper_lift(torch.randn(1, 1, 7, 8, dtype=torch.float64), 3, base)
    weight = torch.randn(1, 1, 2, 3, 3, dtype=torch.float64)
    out = scale_conv(x, weight, stride=stride)
    for k in range(3):
        matrix = np.linalg.matrix_power(np.array(base), k).astype(int)
        for place in np.ndindex(*out.sizes(k)):
            value = 0.0
            for el in range(min(2, 3 - k)):
                f = x.levels[k + el][0, 0].numpy()
                for y in np.ndindex(3, 3):
                    i, j = matrix @ (np.array(y) - 1) + stride * np.array(place)
                    if 0 <= i < 7 and 0 <= j < 8:
                        value += weight[0, 0, el, y[0], y[1]].item() * f[i, j]
            assert out.levels[k][0, 0][place].item() == pytest.approx(value, abs=1e-12)


def test_quincunx_commutes_with_scale_shift_inside():
    x = paper_lift(torch.zeros(1, 1, 41, 41, dtype=torch.float64), 4, QUINCUNX).map(torch.randn_like)
    weight = torch.randn(1, 1, 2, 3, 3, dtype=torch.float64)
    first = scale_shift(scale_conv(x, weight, scale_padding="valid"), 1)
    then = scale_conv(scale_shift(x, 1), weight, scale_padding="valid")
    # The grid turns by 45 degrees: compare where every tap lies inside both.
    inside = scale_shift(scale_conv(x.map(torch.ones_like), torch.ones_like(weight), scale_padding="valid"), 1)
    for a, b, taps in zip(first.levels, then.levels, inside.levels, strict=True):
        whole = (taps == 18) & (a != 0)
        assert whole.sum() > 200
        assert_close(a[whole], b[whole], rtol=0, atol=1e-12)


@pytest.mark.parametrize("sampling", ["dense", "pyramid", 2])
@pytest.mark.parametrize("settings", [{}, {"stride": 2}, {"scale_padding": "replicate"}, {"padding_mode": "reflect"}])
def test_channels_last_changes_no_result(monkeypatch, sampling, settings):
    x = paper_lift(torch.randn(2, 32, 24, 20), 3, sampling=sampling)
    weight, bias = torch.randn(8, 32, 2, 3, 3), torch.randn(8)
    used: list[bool] = []
    monkeypatch.setattr(conv, "runs_channels_last", lambda *a: used.append(_choice.runs_channels_last(*a)) or used[-1])
    assert not _choice.runs_channels_last(x.levels[0], 1)  # with gradients
    with torch.no_grad():
        fast = scale_conv(x, weight, bias, **settings)
        assert all(used)
        monkeypatch.setattr(_choice, "_SMALL_MAP", 0)
        slow = scale_conv(x, weight, bias, **settings)
        assert not any(used[3:])
    for a, b in zip(fast.levels, slow.levels, strict=True):
        assert (a - b).norm() <= 1e-6 * b.norm()


@torch.no_grad()
def test_channels_last_is_for_our_layers_and_torchs_keep_their_bits():
    x, layer = lift(torch.randn(1, 32, 16, 16), 2), ScaleConv2d(32, 8, 3)
    expected = [F.conv2d(level, layer.weight, layer.bias, padding=1) for level in x.levels]
    plain: Any = F.conv2d
    torchs = plain(x, layer.weight, layer.bias, padding=1)
    for ours, theirs, level in zip(layer(x).levels, torchs.levels, expected, strict=True):
        assert ours.stride(1) == 1 != level.stride(1)
        assert (ours - level).norm() <= 1e-6 * level.norm()
        assert torch.equal(theirs, level)
