"""torch's own functions on scale-spaces: each lattice sees the plain function, and grids are where they say."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from scalespaces import ScaleSpace, functional, lift
from scalespaces.semigroups._causal import causal_lift

F: Any = nn.functional  # its functions are declared for tensors only
NUMBERS_OF_LEVELS = pytest.mark.skipif(
    torch.__version__ < "2.13", reason="older ones refuse such numbers before they ask whose they are"
)
SAMPLINGS = ["pyramid", "dense", 2, 4]
rand = partial(torch.rand, dtype=torch.float64)


def space(size: tuple[int, ...] = (33, 41), sampling: Any = "dense", num_levels: int = 4, base: float = 2.0) -> Any:
    return lift(rand(2, 4, *size) - 0.5, num_levels, base, method="cascade", sampling=sampling)


def lattice(level: Tensor, spacing: int) -> Tensor:
    """What a filter with taps that far apart sees, from the first sample on."""
    return level[(..., *[slice(None, None, spacing)] * (level.ndim - 2))]


def assert_on_every_lattice(x: Any, function: Callable[[Any], Any], missing: int = 1) -> ScaleSpace:
    """Level k of the result, at every q-th sample, is the function of every q-th sample of level k."""
    got = function(x)
    for k, level in enumerate(x.levels):
        q = round(x.spacing(k))
        expected, part = function(lattice(level, q)), lattice(got.levels[k], q)
        for m, n in zip(expected.shape, part.shape, strict=True):
            assert 0 <= m - n <= missing if q > 1 else m == n
        common = tuple(slice(min(m, n)) for m, n in zip(expected.shape, part.shape, strict=True))
        rtol, atol = (0.0, 0.0) if q == 1 else (1e-9, 1e-12)
        assert_close(part[common], expected[common], rtol=rtol, atol=atol)
        assert expected[common].numel() > 0
        assert got.levels[k].isfinite().all()
    return got


W3, W2, W1 = (rand(6, 4, n, n) - 0.5 for n in (3, 2, 1))
T4, T3, T2 = (rand(4, 6, n, n) - 0.5 for n in (4, 3, 2))
BIAS = rand(6)

SLIDING: dict[str, Callable[[Any], Any]] = {
    "conv": lambda x: F.conv2d(x, W3, BIAS),
    "conv, stride": lambda x: torch.conv2d(x, W3, BIAS, 2, 1),
    "conv, stem": lambda x: F.conv2d(x, W3, None, (2, 1), (1, 0), (1, 2)),
    "conv, dilated": lambda x: F.conv2d(x, W3, padding=2, dilation=2),
    "conv, same": lambda x: F.conv2d(x, W3, padding="same"),
    "conv, same, even": lambda x: F.conv2d(x, W2, padding="same"),
    "conv, groups": lambda x: F.conv2d(x, W3[:, :2], padding=1, groups=2),
    "conv, depthwise": lambda x: F.conv2d(x, W3[:4, :1], padding=1, groups=4),
    "conv, 1x1 stride 2": lambda x: F.conv2d(x, W1, stride=2),
    "max": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max, ceil": lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True),
    "max, ceil, padded": lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "max, ceil, far apart": lambda x: F.max_pool2d(x, 2, 4, ceil_mode=True),
    "avg, ceil, far apart": lambda x: F.avg_pool2d(x, (1, 2), 4, ceil_mode=True),
    "max, dilated": lambda x: F.max_pool2d(x, 2, 1, 1, 2),
    "avg": lambda x: F.avg_pool2d(x, 2),
    "avg, ceil": lambda x: F.avg_pool2d(x, 2, ceil_mode=True),
    "avg, ceil, padded": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    "avg, not the padding": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "avg, ceil, not the padding": lambda x: F.avg_pool2d(x, 2, 2, 0, ceil_mode=True, count_include_pad=False),
    "avg, divisor": lambda x: F.avg_pool2d(x, (3, 2), (2, 2), divisor_override=5),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1)),
    "pad channels, too": lambda x: F.pad(x, (1, 0, 2, 0, 1, 0)),
    "crop": lambda x: F.pad(x, (-1, 0, -1, 0)),
    "reflect": lambda x: F.conv2d(F.pad(x, (1, 0, 2, 0), mode="reflect"), W3),
}
FINER: dict[str, Callable[[Any], Any]] = {
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "nearest, 3": lambda x: F.interpolate(x, scale_factor=(3, 2), mode="nearest"),
    "nearest-exact": lambda x: F.interpolate(x, scale_factor=2, mode="nearest-exact"),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bilinear, 4": lambda x: F.interpolate(x, scale_factor=4, mode="bilinear", align_corners=False),
    "nn.Upsample": nn.Upsample(scale_factor=2, mode="bilinear"),
    "coarser": lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear"),
    "transposed 2": lambda x: F.conv_transpose2d(x, T2, BIAS, stride=2),
    "transposed 4": lambda x: F.conv_transpose2d(x, T4, BIAS, stride=2, padding=1),
    "transposed 3": lambda x: F.conv_transpose2d(x, T3, stride=2, padding=1, output_padding=1),
    "transposed, dilated": lambda x: F.conv_transpose2d(x, T3, stride=2, padding=2, dilation=2, output_padding=1),
    "transposed, groups": lambda x: F.conv_transpose2d(x, T2[:, :3], stride=2, groups=2),
    "transposed, stride 1": lambda x: F.conv_transpose2d(x, T3, padding=1),
    "transposed 3, stride 3": lambda x: F.conv_transpose2d(x, T3, stride=3),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", [*SLIDING, *FINER])
def test_every_lattice_sees_the_plain_function(name, sampling):
    for size in ((33, 41), (32, 48)):
        assert_on_every_lattice(space(size, sampling), (SLIDING | FINER)[name], missing=4 if name in FINER else 1)


@pytest.mark.parametrize("sampling", ["dense", 3])
def test_a_base_of_three(sampling):
    for name in ("conv, stride", "max, ceil", "bilinear", "transposed 4"):
        assert_on_every_lattice(space((40, 55), sampling, 3, 3.0), (SLIDING | FINER)[name], missing=4)


@pytest.mark.parametrize("name", [*SLIDING, *FINER])
def test_commutes_with_scale(name):
    """Between any two levels, not only with level 0."""
    x, function = space((65, 49)), (SLIDING | FINER)[name]
    got, expected = functional.scale_shift(function(x), 1), function(functional.scale_shift(x, 1))
    assert (got.unit, got.steps) == (expected.unit, expected.steps)
    np.testing.assert_allclose(got.origins, expected.origins)
    for a, b in zip(got.levels, expected.levels, strict=True):
        assert all(abs(m - n) <= 4 for m, n in zip(a.shape, b.shape, strict=True))
        common = tuple(slice(min(m, n)) for m, n in zip(a.shape, b.shape, strict=True))
        assert_close(a[common], b[common])


def filter_of(*taps: float) -> Tensor:
    return torch.tensor([[taps]], dtype=torch.float64)


RAMPS: dict[str, Callable[[Any], Any]] = {
    "conv": lambda x: F.conv1d(x, filter_of(*[1 / 3] * 3)),
    "conv, stride": lambda x: F.conv1d(x, filter_of(*[1 / 4] * 4), stride=2, padding=1),
    "conv, dilated": lambda x: F.conv1d(x, filter_of(0.5, 0.5), dilation=3, padding=2),
    "avg": lambda x: F.avg_pool1d(x, 2),
    "avg 3": lambda x: F.avg_pool1d(x, 3, 2),
    "pad": lambda x: F.pad(x, (2, 1)),
    "crop": lambda x: F.pad(x, (-2, 0)),
    "linear": lambda x: F.interpolate(x, scale_factor=2, mode="linear"),
    "linear, coarser": lambda x: F.interpolate(x, scale_factor=0.5, mode="linear"),
    "transposed": lambda x: F.conv_transpose1d(x, filter_of(0.25, 0.75, 0.75, 0.25), stride=2, padding=1),
    "transposed, odd": lambda x: F.conv_transpose1d(x, filter_of(0.5, 1.0, 0.5), stride=2, padding=1),
    "down and up": lambda x: F.interpolate(F.avg_pool1d(x, 2), scale_factor=2, mode="linear"),
}


def ramp(x: ScaleSpace) -> ScaleSpace:
    """The positions of the samples, in pixels of the image."""
    samples = (torch.arange(level.shape[2], dtype=torch.float64).reshape(1, 1, -1) for level in x.levels)
    places = zip(x.origins, x.steps, samples, strict=True)
    return x.replace(tuple(x.unit[0] * (origin + step * i) for (origin,), step, i in places))


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", RAMPS)
def test_samples_are_where_the_geometry_says(name, sampling):
    """Averages of positions are positions; but near the borders."""
    got = RAMPS[name](ramp(functional.avg_pool(lift(rand(1, 1, 500), 4, sampling=sampling, dims=1), 3, 2)))
    for k, (level, expected) in enumerate(zip(got.levels, ramp(got).levels, strict=True)):
        margin = 3 * round(got.spacing(k)) + 2
        assert level.shape[2] > 2 * margin + 2
        assert_close(level[..., margin:-margin], expected[..., margin:-margin])


OTHER_MODES: list[dict[str, Any]] = [{"mode": "bicubic"}, {"mode": "area"}, {"mode": "bilinear", "antialias": True}]


class TestUpsampling:
    def test_what_runs_where_taps_are_samples(self):
        x = space((32, 48), "pyramid")
        for options in OTHER_MODES:
            assert_on_every_lattice(x, partial(F.interpolate, scale_factor=2, **options))
        up = assert_on_every_lattice(x, lambda x: F.pixel_shuffle(x, 2))
        back = assert_on_every_lattice(up, lambda x: F.pixel_unshuffle(x, 2))
        assert (back.origins, back.unit) == (x.origins, x.unit)
        assert_close(back.levels, x.levels)
        for name in ("bilinear", "transposed 2"):
            assert_on_every_lattice(space(sampling="pyramid", base=1.5), FINER[name])

    @pytest.mark.parametrize("n", [8, 9, 21])
    @pytest.mark.parametrize(
        ("q", "s", "size", "padding", "dilation"), [(2, 2, 2, 0, 1), (4, 2, 4, 1, 1), (4, 3, 3, 1, 2)]
    )
    def test_transposed_convolution_as_loops(self, n, q, s, size, padding, dilation):
        """out(q u + r) = sum over y with s | u + p - d y of w(y) F(q (u + p - d y) / s + r / s)."""
        f, w = rand(n), rand(size)
        x: Any = ScaleSpace((rand(1, 1, n), rand(1, 1, n), f.reshape(1, 1, n))[-1 - int(math.log2(q)) :])
        (got,) = F.conv_transpose1d(x, w.reshape(1, 1, -1), None, s, padding, 0, 1, dilation).levels[-1]
        lattices = (n - 1) // q + 1

        def read(index: int) -> float:
            while index >= n:
                index -= q
            return float(f[max(index, 0)])

        def between(m: int, r: int) -> float:
            """Sample r / s after sample q m, between neighbors as far apart as the power of two in r."""
            apart = next(p for p in (4, 2, 1) if r % p == 0 and (p < q or r == 0))
            apart = min(apart, q // 2) if r else 1
            steps, rest = divmod(r, apart * s)
            low = q * m + steps * apart
            return read(low) + (read(low + apart) - read(low)) * rest / (apart * s)

        for j, value in enumerate(got[0].tolist()):
            u, r = divmod(j, q)
            terms = [
                float(w[y]) * between((u + padding - dilation * y) // s, r)
                for y in range(size)
                if (u + padding - dilation * y) % s == 0 and 0 <= (u + padding - dilation * y) // s < lattices
            ]
            assert value == pytest.approx(sum(terms))

    @pytest.mark.parametrize("sampling", SAMPLINGS)
    @pytest.mark.parametrize("down", [lambda x: F.max_pool2d(x, 2), lambda x: F.conv2d(x, W3[:4], None, 2, 1)])
    @pytest.mark.parametrize("up", ["transposed 2", "transposed 3", "transposed 4", "bilinear", "nearest"])
    def test_down_and_up_is_back_on_the_grid(self, down, up, sampling):
        x = space((64, 96), sampling)
        got = FINER[up](down(x))
        assert (got.shape[2:], got.unit) == (x.shape[2:], x.unit)
        assert torch.cat([got, x], 1).shape[1] == got.shape[1] + 4

    @pytest.mark.parametrize("sampling", SAMPLINGS)
    @pytest.mark.parametrize(
        "options", [{"mode": "nearest"}, {"mode": "bilinear"}, {"mode": "bilinear", "align_corners": True}]
    )
    def test_to_the_size_of_a_skip_connection(self, options, sampling):
        """Odd sizes: torch stretches the map, and so do lattices."""
        x = space((65, 51), sampling)
        small = F.max_pool2d(x, 3, 2, 1)
        got: Any = F.interpolate(small, size=x.shape[-2:], **options)
        assert (got.unit, got.shape[2:]) == (x.unit, x.shape[2:])
        for k in range(4):
            q = round(x.spacing(k))
            target = lattice(x.levels[k], q).shape[2:]
            assert_close(lattice(got.levels[k], q), F.interpolate(lattice(small.levels[k], q), size=target, **options))


@pytest.mark.parametrize("sampling", SAMPLINGS)
class TestGlobalAndAdaptive:
    @pytest.mark.parametrize(
        "pool",
        [
            lambda x: F.adaptive_avg_pool2d(x, 1),
            lambda x: F.adaptive_max_pool2d(x, (1, 1)),
            nn.AdaptiveAvgPool2d((None, 1)),
            pytest.param(lambda x: F.avg_pool2d(x, x.shape[2:]), marks=NUMBERS_OF_LEVELS),
            lambda x: F.max_pool2d(x, kernel_size=x.size()[2:]),
            lambda x: x.mean((2, 3), keepdim=True),
            lambda x: x.mean([-2, -1], keepdim=True),
        ],
    )
    def test_one_sample_is_left_which_meets_any_grid(self, pool, sampling):
        x = space(sampling=sampling)
        got = pool(x)
        assert got.axes == (2, 3)
        assert_close(got.levels, tuple(pool(level) for level in x.levels), rtol=0, atol=0)
        excited = x * torch.sigmoid(F.conv2d(got, W1[:4]))
        assert (excited.origins, excited.unit) == (x.origins, x.unit)
        for k, level in enumerate(x.levels):
            assert_close(excited.levels[k], level * torch.sigmoid(F.conv2d(pool(level), W1[:4])))

    def test_parts_of_the_image_lie_on_no_grid(self, sampling):
        x = space(sampling=sampling)
        got = nn.AdaptiveAvgPool2d((7, 7))(x)
        assert (got.axes, got.shape) == ((), (2, 4, 7, 7))
        one = partial(F.adaptive_avg_pool2d, output_size=1)
        for allowed in (lambda x: x.flatten(1), lambda x: F.conv2d(x, W1), F.relu, one):
            assert_close(allowed(got).levels, tuple(allowed(F.adaptive_avg_pool2d(f, 7)) for f in x.levels))
        for refused in (lambda x: F.conv2d(x, W3), lambda x: F.max_pool2d(x, 2), lambda x: F.conv_transpose2d(x, T2)):
            with pytest.raises(ValueError, match="needs neighbors on a grid"):
                refused(got)

    def test_a_filter_as_large_as_the_image_is_a_linear_layer(self, sampling):
        x = F.adaptive_avg_pool2d(space(sampling=sampling), 3)
        got = F.conv2d(F.conv2d(x, W3, BIAS), W1.transpose(0, 1))
        assert_close(got.levels, tuple(F.conv2d(F.conv2d(f, W3, BIAS), W1.transpose(0, 1)) for f in x.levels))
        both = functional.scale_conv(x, torch.stack([W3, 2 * W3], 2), padding=0)
        for k in range(3):
            assert_close(both.levels[k], F.conv2d(x.levels[k], W3) + 2 * F.conv2d(x.levels[k + 1], W3))
        with pytest.raises(ValueError, match="needs neighbors on a grid"):
            F.conv2d(x, W3, padding=1)

    @pytest.mark.parametrize("n", [1, 3])
    def test_interpolated_back_it_meets_the_grid_again(self, n, sampling):
        x = F.max_pool2d(space(sampling=sampling), 2)

        def pyramid_pooling(x: Any) -> Any:
            pooled = F.interpolate(F.conv2d(F.adaptive_avg_pool2d(x, n), W1), size=x.shape[-2:], mode="bilinear")
            return torch.cat([x, pooled], 1)

        got = pyramid_pooling(x)
        assert (got.origins, got.unit, got.axes) == (x.origins, x.unit, x.axes)
        assert_close(got.levels, tuple(map(pyramid_pooling, x.levels)))
        fixed = F.interpolate(x, size=(8, 8))  # one size for all levels is on no grid
        assert fixed.axes == ()
        assert_close(fixed.levels, tuple(F.interpolate(level, size=(8, 8)) for level in x.levels))


class TestNorms:
    @pytest.mark.parametrize("sampling", SAMPLINGS)
    def test_batch_norm_is_ours(self, sampling):
        x, plain, twin = space(sampling=sampling), nn.BatchNorm2d(4).double(), nn.BatchNorm2d(4).double()
        expected = functional.scale_batch_norm(x, twin.running_mean, twin.running_var, twin.weight, twin.bias, True)
        assert_close(plain(x).levels, expected.levels)
        assert_close((plain.running_mean, plain.running_var), (twin.running_mean, twin.running_var))
        assert int(plain.num_batches_tracked or 0) == 1
        assert_close(plain.eval()(x).levels, tuple(plain(level) for level in x.levels), rtol=0, atol=0)

    def test_others_see_each_level_by_itself(self):
        x, tracked = space(sampling="pyramid"), nn.InstanceNorm2d(4, track_running_stats=True).eval()
        norms = [nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True), nn.LocalResponseNorm(2), nn.Dropout2d().eval()]
        for norm in (*norms, tracked):
            assert_close(norm.double()(x).levels, tuple(norm(level) for level in x.levels), rtol=0, atol=0)


REFUSED: dict[str, tuple[Any, str, list[Any]]] = {
    "a causal space looked at ahead": (
        lambda: causal_lift(rand(1, 4, 32), 3),
        "causal space",
        [nn.Conv1d(4, 2, 3), nn.MaxPool1d(2), nn.ConvTranspose1d(4, 2, 2), nn.Upsample(None, 2), nn.ZeroPad1d(1)],
    ),
    "other numbers of axes": (
        space,
        r"slides over \d spatial axes",
        [nn.Conv3d(4, 2, 3), nn.Conv1d(4, 2, 3), nn.MaxPool3d(2), nn.AvgPool1d(2)],
    ),
    "weights of other axes than channels": (
        space,
        "permute the channels there first",
        [
            *(nn.Linear(41, 3), nn.LayerNorm(41), nn.LayerNorm([33, 41])),
            lambda x: x @ rand(41, 3),
            lambda x: rand(3, 33) @ x,
            lambda x: F.batch_norm(x.transpose(1, 2), None, None, training=True),
            lambda x: F.group_norm(x.transpose(1, 2), 3),
        ],
    ),
    "fractional spacings": (
        lambda: space(base=1.5),
        r'needs taps on samples.*sampling="pyramid"',
        [nn.Upsample(scale_factor=2), nn.ConvTranspose2d(4, 6, 2, stride=2)],
    ),
    "modes that need neighbors": (
        space,
        r'samples apart is not supported; use sampling="pyramid"',
        [partial(F.interpolate, scale_factor=2, **options) for options in OTHER_MODES],
    ),
    "shuffled pixels": (space, r'pixel_shuffle.*sampling="pyramid"', [nn.PixelShuffle(2)]),
    "running statistics": (space, "turn track_running_stats off", [nn.InstanceNorm2d(4, track_running_stats=True)]),
    "a filter of each level": (space, "one filter for all levels", [lambda x: F.conv2d(x, x)]),
    "levels too small": (lambda: space((16, 16), "pyramid"), "too few for a window", [nn.MaxPool2d(3)]),
}


class TestRefusals:
    @pytest.mark.parametrize("name", REFUSED)
    def test_with_the_reason(self, name):
        make, message, calls = REFUSED[name]
        for call in calls:
            with pytest.raises((TypeError, ValueError), match=message):
                (call.double() if isinstance(call, nn.Module) else call)(make())

    @NUMBERS_OF_LEVELS
    def test_windows_of_each_level_and_errors_of_one(self):
        x = space((16, 24), "pyramid")
        with pytest.raises(ValueError, match="use adaptive pooling"):
            F.avg_pool2d(x, x.size(2))
        with pytest.raises(RuntimeError) as error:
            nn.Linear(4 * 384, 3).double()(x.flatten(1))
        assert any("at level 1" in note for note in error.value.__notes__)

    def test_padding_of_each_level_counts_samples(self):
        """As networks compute it from sizes, to a multiple of 8 here."""
        x = space((33, 41), "pyramid")

        def pad(x: Any) -> Any:
            height, width = x.shape[-2:]
            return F.pad(x, (0, -width % 8, 0, -height % 8))

        got = pad(x)
        assert_close(got.levels, tuple(map(pad, x.levels)))
        assert got.origins == x.origins


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_gradients(sampling):
    """Those of the levels by themselves where taps are samples; finite differences elsewhere."""
    image, weight, up = rand(1, 2, 7, 6), rand(2, 2, 3, 3).requires_grad_(), rand(2, 1, 2, 2).requires_grad_()

    def network(weight: Tensor, up: Tensor) -> tuple[Tensor, ...]:
        x: Any = lift(image, 3, sampling=sampling)
        x = F.max_pool2d(torch.tanh(F.conv2d(x, weight, padding=1)), 2, 2, ceil_mode=True)
        x = F.interpolate(F.conv_transpose2d(x, up, stride=2), scale_factor=2, mode="bilinear")
        return F.avg_pool2d(x, 2, 2, 1, ceil_mode=True).levels

    assert torch.autograd.gradcheck(network, (weight, up))
