"""Pooling against torch and loops, and the promise that levels stay where they are."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from reference import QUINCUNX, at, paper_lift, refusals
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from scalespaces import ScaleSpace, resample, scale_shift
from scalespaces._choices import SCALE_MODES
from scalespaces.functional import avg_pool, blur_pool, global_pool, max_pool, scale_pool

POOLED = [mode for mode in SCALE_MODES if mode not in ("image", "trust")]  # what takes all levels, without parameters
AVG = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
TO_3, STRIDES = st.integers(1, 3), st.sampled_from([None, 1, 2, 3])
POOLS: list[Any] = [lambda x: avg_pool(x, 2), lambda x: max_pool(x, 2), blur_pool]


def random_space(shape: tuple[int, ...], num_levels: int = 3, base: float = 2.0, **settings: Any) -> ScaleSpace:
    """The grids of a lift, with levels that are independent noise."""
    x = paper_lift(torch.zeros(2, 3, *shape, dtype=torch.float64), num_levels, base, **settings)
    return x.map(torch.randn_like)


def pool_naively(x: ScaleSpace, k: int, size: int, stride: int, padding: int, reduce: Any, outside: Any) -> Tensor:
    """Windows over one channel, taps c^k apart, the first ``padding`` taps before sample 0, while they fit."""
    assert isinstance(x.base, float)
    f, apart, counts = x.levels[k][1, 2].numpy(), x.base**k / x.steps[k], []
    for n in f.shape:
        fits = (i * stride + apart * (size - 1 - padding) <= n - 1 + apart * padding + 1e-9 for i in itertools.count())
        counts.append(len(list(itertools.takewhile(bool, fits))))
    out = torch.zeros(*counts, dtype=torch.float64)
    for place in np.ndindex(*counts):
        taps = itertools.product(*([i * stride + apart * (t - padding) for t in range(size)] for i in place))
        out[place] = reduce([at(f, tap, outside) for tap in taps])
    return out


class TestAgainstTorch:
    @given(TO_3, st.sampled_from([4, 5, 7, 9]), TO_3, STRIDES, st.integers(0, 1), st.sampled_from([2.0, 1.5]))
    def test_on_a_pyramid_every_level_is_pooled_plainly(self, dims, n, size, stride, padding, base):
        assume(2 * padding <= size)
        x = random_space((n,) * dims, 2, base, sampling="pyramid")
        # torch's avg_pool3d does not count the padding when it asks whether the window fits.
        assume(x.levels[1].shape[2] + 2 * padding * (dims < 3) >= size)
        for ours, theirs in ((avg_pool, AVG[dims]), (max_pool, MAX[dims])):
            for window in ("dilated", "plain"):
                got = ours(x, size, stride, padding, window=window)
                for level, f in zip(got.levels, x.levels, strict=True):
                    assert_close(level, theirs(f, size, stride, padding))

    @given(st.sampled_from([6, 9]), st.integers(1, 3), st.sampled_from([None, 1, 2, (2, 1)]), st.booleans())
    def test_plain_windows_on_dense_levels(self, n, size, stride, padded):
        """Arguments may be one number per axis."""
        x, padding = random_space((n, n + 1)), (size // 2 if padded else 0, 0)
        for ours, theirs in ((avg_pool, F.avg_pool2d), (max_pool, F.max_pool2d)):
            got = ours(x, (size, size), stride, padding, window="plain")
            assert_close(got.levels, tuple(theirs(f, size, stride, padding) for f in x.levels))
            assert got.unit == ((2.0, 1.0) if isinstance(stride, tuple) else (stride or size,) * 2)


class TestAgainstLoops:
    @pytest.mark.parametrize("base", [2.0, 3.0, 1.5, 2**0.5])
    @pytest.mark.parametrize(("size", "stride", "padding"), [(2, 2, 0), (2, 1, 0), (3, 2, 1), (3, 1, 1), (1, 2, 0)])
    @pytest.mark.parametrize("sampling", ["dense", 2])
    def test_windows_are_dilated(self, base, size, stride, padding, sampling):
        x = random_space((11, 10), 2, base, sampling=sampling)
        for pool, reduce, outside in ((avg_pool, np.mean, 0.0), (max_pool, np.max, -math.inf)):
            if pool is max_pool and padding and base not in (2.0, 3.0):
                continue
            for k, level in enumerate(pool(x, size, stride, padding).levels):
                expected = pool_naively(x, k, size, stride, padding, reduce, outside)
                assert_close(level[1, 2], expected, rtol=1e-7, atol=1e-7)

    @pytest.mark.parametrize("base", [2.0, 1.5])
    @pytest.mark.parametrize(("size", "stride"), [(3, 2), (3, 1), (5, 2)])
    @pytest.mark.parametrize("sampling", ["dense", "pyramid", 2])
    def test_blur(self, base, size, stride, sampling):
        x = random_space((9, 8), 2, base, sampling=sampling)
        line = np.array([math.comb(size - 1, i) for i in range(size)]) / 2 ** (size - 1)
        weights = np.outer(line, line).ravel()
        for k, level in enumerate(blur_pool(x, size, stride).levels):
            expected = pool_naively(x, k, size, stride, size // 2, weights.dot, "edge")
            assert_close(level[1, 2], expected, rtol=1e-7, atol=1e-7)

    def test_padding_never_wins(self):
        """Not even against minus infinity, as in torch."""
        levels = (torch.full((1, 1, 4, 4), -math.inf), torch.full((1, 1, 4, 4), -1e30))
        for level, f in zip(max_pool(ScaleSpace(levels), 3, 1, 1).levels, levels, strict=True):
            assert_close(level, f)

    @pytest.mark.parametrize("base", [2.0, 1.5])
    @pytest.mark.parametrize("pool", POOLS)
    def test_gradient_and_type(self, base, pool):
        x = paper_lift(torch.zeros(1, 1, 5, 4), 2, base)
        f = torch.rand(1, 1, 5, 4, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda f: pool(x.replace((f, f**2))).levels, f)

        # Types are kept; under autocast a space still has one, whatever arithmetic each level was pooled with.
        x = paper_lift(torch.rand(1, 2, 12, 12), 3, base)
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            assert {level.dtype for level in pool(x.to(dtype)).levels} == {dtype}
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert len({level.dtype for level in pool(x).levels}) == 1


def read_position(x: ScaleSpace, index: int) -> np.ndarray:
    """Where a level's blob is, in pixels of the image: its center of mass, read off the geometry."""
    f = x.levels[index][0, 0].numpy()
    grids = np.meshgrid(
        *(u * (o + x.steps[index] * np.arange(n)) for u, o, n in zip(x.unit, x.origins[index], f.shape, strict=True)),
        indexing="ij",
    )
    return np.array([(f * grid).sum() / f.sum() for grid in grids])


class TestGeometry:
    @pytest.mark.parametrize("sampling", ["dense", "pyramid", 2])
    @pytest.mark.parametrize("window", ["dilated", "plain"])
    @pytest.mark.parametrize("pool", [avg_pool, max_pool])
    def test_a_blob_stays_put_through_three_poolings(self, sampling, window, pool):
        n, center, sigma = 448, np.array([221.3, 230.6]), 40.0
        line = np.exp(-((np.arange(n)[None] - center[:, None]) ** 2) / (2 * sigma**2))
        x = paper_lift(torch.tensor(np.outer(*line))[None, None], 3, sampling=sampling)
        for _ in range(3):
            x = pool(x, 2, window=window)
        assert x.unit == (8.0, 8.0)
        for y in (x, resample(x)):
            for index in range(3):
                assert_allclose(read_position(y, index), center, atol=0.1)

    @pytest.mark.parametrize("sampling", ["dense", "pyramid", 2, 4])
    @pytest.mark.parametrize(
        "pool", [lambda x: avg_pool(x, 2), lambda x: max_pool(x, 2), lambda x: avg_pool(x, 3, 2, 1), blur_pool]
    )
    def test_dilated_windows_commute_with_scale(self, sampling, pool):
        """Where both sides have a sample; a window of the coarse side fits in fewer places at the far border."""
        x = paper_lift(torch.rand(1, 2, 33, 33, dtype=torch.float64), 3, sampling=sampling)
        for got, expected in zip(pool(scale_shift(x, 1)).levels, scale_shift(pool(x), 1).levels, strict=True):
            common = tuple(slice(min(a, b) - 1) for a, b in zip(got.shape[2:], expected.shape[2:], strict=True))
            assert all(abs(a - b) <= 1 for a, b in zip(got.shape, expected.shape, strict=True))
            assert_close(got[:, :, *common], expected[:, :, *common])


SPACE: Any = random_space((8, 8))

test_refusals = refusals(
    (lambda: avg_pool(SPACE, 0), "kernel_size is at least 1"),
    (lambda: avg_pool(SPACE, 2, 0), "stride is at least 1"),
    (lambda: max_pool(SPACE, 2, padding=-1), "padding is at least 0"),
    (lambda: max_pool(SPACE, (2, 2, 2)), "kernel_size is an integer or one for each of 2 axes"),
    (lambda: avg_pool(SPACE, 2.0), "kernel_size is an integer"),  # pyright: ignore
    (lambda: max_pool(SPACE, 2, window="square"), "window is one of dilated"),
    (lambda: avg_pool(SPACE, 9), "level 0 has .* too few for a window"),
    (lambda: max_pool(SPACE, 5), "level 1 has .* too few for a window of .* 2 samples apart"),
    (lambda: blur_pool(SPACE, 2), "odd sizes"),
    (lambda: max_pool(SPACE, 2, padding=2), "padding is at most half the window, got 2"),
    (lambda: max_pool(random_space((8, 8), 2, 1.5), 3, 1, 1), "takes no padding"),
    (lambda: avg_pool(SPACE.flatten(1), 2), r"spatial axes|0 axes"),
    (lambda: global_pool(SPACE, "median"), "mode is one of mean"),
    (lambda: scale_pool(SPACE, "median"), "mode is one of image, mean"),
    (lambda: scale_pool(SPACE.permute(0, 2, 3, 1), "probabilities"), "those of the channels, axis 1, got .* space at"),
    (lambda: avg_pool(paper_lift(SPACE.levels[0], 2, QUINCUNX), 2), "matrix base"),
)


def test_a_matrix_base_takes_same_padding():
    x = paper_lift(torch.ones(1, 1, 12, 12), 2, QUINCUNX, padding_mode="replicate")
    for got in (avg_pool(x, 3, 2, 1), blur_pool(x)):
        assert got.shapes == ((1, 1, 6, 6),) * 2
        assert_close(got.levels[1][:, :, 1:-1, 1:-1], torch.ones(1, 1, 4, 4))


class TestGlobalPool:
    @pytest.mark.parametrize("shape", [(7,), (5, 6), (3, 4, 5), (2, 3)])
    @pytest.mark.parametrize("sampling", ["dense", "pyramid"])
    def test_against_torch(self, shape, sampling):
        """Also with as many images and channels, (B, C), as pixels: that is no grid."""
        x = random_space(shape, sampling=sampling)
        axes = tuple(range(2, 2 + len(shape)))
        for mode, reduce in (("mean", torch.mean), ("max", torch.amax)):
            got = global_pool(x, mode)
            assert (got.dims, got.base, got.first_level) == (0, x.base, x.first_level)
            assert_close(got.levels, tuple(reduce(f, axes) for f in x.levels))
            assert global_pool(got, mode) is got
        assert_close(scale_pool(global_pool(x)), torch.stack([f.mean(axes) for f in x.levels]).mean(0))


def combine_naively(levels: tuple[Tensor, ...], mode: str) -> Tensor:
    """Sample by sample, as the equations read."""
    out = torch.zeros_like(levels[0])
    for place in np.ndindex(*out.shape):
        values = [f[place].item() for f in levels]
        if mode == "probabilities":
            image, _, *z = place
            values = [f[place].exp() / sum(f[(image, c, *z)].exp() for c in range(f.shape[1])) for f in levels]
            out[place] = math.log(sum(values) / len(values))
        elif mode == "logsumexp":
            out[place] = math.log(sum(math.exp(v) for v in values) / len(values))
        else:
            out[place] = {"image": values[0], "mean": sum(values) / len(values), "max": max(values)}[mode]
    return out


class TestScalePool:
    @pytest.mark.parametrize("mode", POOLED)
    def test_against_loops(self, mode):
        """On the grid of level 0, if there is space."""
        dense = [random_space(shape) for shape in ((7,), (5, 6), (3, 4, 5))]
        others = [avg_pool(random_space((12, 10), 3, base, sampling="pyramid"), 2) for base in (2.0, 1.5)]
        for x in (*dense, *others, global_pool(dense[1])):
            assert_close(scale_pool(x, mode), combine_naively(resample(x).levels, mode))
        level = torch.full((1, 1, 2, 2), 3e4, dtype=torch.float16)  # whose sum is no number of that type
        assert_close(scale_pool(ScaleSpace((level,) * 4)), level)

    @given(st.integers(1, 5), st.integers(1, 4), st.floats(0.01, 100), st.integers(0, 100))
    def test_laws(self, num_levels, channels, size, seed):
        """Log-sum-exp lies between mean and maximum; probabilities sum to one; repeated levels change nothing."""
        torch.manual_seed(seed)
        levels = tuple(size * torch.randn(2, channels, 3, dtype=torch.float64) for _ in range(num_levels))
        x, twice = ScaleSpace(levels), ScaleSpace(levels * 2)
        pooled: Any = {mode: scale_pool(x, mode) for mode in POOLED}
        assert (pooled["mean"] <= pooled["logsumexp"] + 1e-12 * size).all()
        assert (pooled["logsumexp"] <= pooled["max"] + 1e-12 * size).all()
        assert_close(pooled["probabilities"].exp().sum(1), torch.ones(2, 3, dtype=torch.float64))
        for mode in POOLED:
            assert_close(scale_pool(twice, mode), pooled[mode])
            shifted: Any = scale_pool(x + 3, mode)
            assert_close(shifted, pooled[mode] + (0 if mode == "probabilities" else 3))
        if num_levels == 1:
            assert_close(pooled["probabilities"], levels[0].log_softmax(1))
            assert_close(pooled["logsumexp"], levels[0])

    def test_the_image_is_level_0_wherever_it_is(self):
        for first in (0, -1, -2):
            x = random_space((9, 9), 3, first_level=first, sampling="pyramid")
            assert scale_pool(x, "image") is x.levels[-first]
            assert scale_pool(x, "image", return_scale=True)[1].eq(0).all()
        with pytest.raises(ValueError, match="own level is number 0, and levels are numbered -2 to -1"):
            scale_pool(random_space((9, 9), 3, first_level=-2).keep(2), "image")

    @pytest.mark.parametrize("first_level", [0, -1])
    def test_scale_map(self, first_level):
        x = random_space((9, 9), 3, first_level=first_level)
        out, scale = scale_pool(x, "max", return_scale=True)
        assert isinstance(out, torch.Tensor)
        levels = torch.stack(resample(x).levels)
        assert set(scale.unique().tolist()) <= set(range(first_level, first_level + 3))
        assert_close(torch.gather(levels, 0, (scale - first_level)[None])[0], out)
        mean, same = scale_pool(x, "mean", return_scale=True)
        assert_close(mean, levels.mean(0))
        assert torch.equal(same, scale)
        _, surest = scale_pool(x, "probabilities", return_scale=True)
        assert torch.equal(surest, levels.softmax(2).argmax(0) + first_level)

    def test_gradient(self):
        f = torch.rand(1, 1, 5, dtype=torch.float64, requires_grad=True)
        x = paper_lift(torch.zeros(1, 1, 5), 2)
        for mode in POOLED:
            assert torch.autograd.gradcheck(lambda f, mode=mode: scale_pool(x.replace((f, f**2 + 1)), mode), f)


class TestBlocks:
    """Windows that do not overlap have a gradient of their own."""

    @pytest.mark.parametrize("size", [2, 3, 4, 41, 83])
    @pytest.mark.parametrize("spare", [0, 1])
    @pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
    def test_gradients_are_torchs(self, size, spare, format):
        f = torch.randn(2, 3, 2 * size + spare, size, dtype=torch.float64).contiguous(memory_format=format)
        f.requires_grad_()
        got, expected = avg_pool(ScaleSpace((f,)), size).levels[0], F.avg_pool2d(f, size)
        assert_close(got, expected)
        back = torch.randn_like(expected)
        assert_close(torch.autograd.grad(got, f, back), torch.autograd.grad(expected, f, back))

    def test_gradients_of_gradients_and_the_input_is_not_kept(self):
        f = torch.randn(1, 2, 5, 4, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradgradcheck(lambda f: avg_pool(ScaleSpace((f**2,)), 2).levels[0], f)
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
            avg_pool(ScaleSpace((f * 1,)), 2)
        assert not kept
