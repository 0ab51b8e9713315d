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
from reference import paper_lift
from torch.nn import functional as F
from torch.testing import assert_close

from scalespaces import ScaleSpace, resample, scale_shift
from scalespaces.functional import avg_pool, blur_pool, global_pool, max_pool, scale_pool
from scalespaces.functional._pool import SCALE_MODES

AVG = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
QUINCUNX: Any = ((1.0, 1.0), (1.0, -1.0))
rng = np.random.default_rng(0)


def random_space(shape: tuple[int, ...], num_levels: int = 3, base: float = 2.0, **settings: Any) -> ScaleSpace:
    """The grids of a lift, with levels that are independent noise."""
    x = paper_lift(torch.zeros(2, 3, *shape, dtype=torch.float64), num_levels, base, **settings)
    return x.map(torch.randn_like)


def read(f: np.ndarray, position: tuple[float, ...], outside: float) -> float:
    """Multilinear interpolation; beyond the samples there is a constant, or None for the nearest sample."""
    total = 0.0
    low = [math.floor(p + 1e-9) for p in position]
    for corner in itertools.product((0, 1), repeat=len(position)):
        weight = math.prod(1 - abs(p - lo - side) for p, lo, side in zip(position, low, corner, strict=True))
        index = tuple(lo + side for lo, side in zip(low, corner, strict=True))
        if weight > 1e-8:
            inside = all(0 <= i < n for i, n in zip(index, f.shape, strict=True))
            if inside:
                total += weight * f[index]
            elif outside is None:
                total += weight * f[tuple(min(max(i, 0), n - 1) for i, n in zip(index, f.shape, strict=True))]
            else:
                total += weight * outside
    return total


def pool_naively(f: np.ndarray, size: int, stride: int, padding: int, apart: float, reduce: Any, outside: Any) -> Any:
    """Windows of taps ``apart`` samples apart, the first one ``padding`` taps before sample 0, while they fit."""
    counts = []
    for n in f.shape:
        count = 0
        while count * stride + apart * (size - 1 - padding) <= n - 1 + apart * padding + 1e-9:
            count += 1
        counts.append(count)
    out = np.zeros(counts)
    for place in np.ndindex(*counts):
        taps = itertools.product(range(size), repeat=f.ndim)
        values = [
            read(f, tuple(i * stride + apart * (t - padding) for i, t in zip(place, tap, strict=True)), outside)
            for tap in taps
        ]
        out[place] = reduce(values)
    return out


class TestAgainstTorch:
    @given(
        st.integers(1, 3),
        st.sampled_from([4, 5, 7, 9]),
        st.integers(1, 3),
        st.sampled_from([None, 1, 2, 3]),
        st.integers(0, 1),
        st.sampled_from([2.0, 1.5]),
    )
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

    @given(st.sampled_from([6, 9]), st.integers(1, 3), st.sampled_from([None, 1, 2]))
    def test_plain_windows_on_dense_levels(self, n, size, stride):
        x = random_space((n, n + 1))
        for ours, theirs in ((avg_pool, F.avg_pool2d), (max_pool, F.max_pool2d)):
            for level, f in zip(ours(x, size, stride, window="plain").levels, x.levels, strict=True):
                assert_close(level, theirs(f, size, stride))

    @pytest.mark.parametrize("sampling", ["dense", "pyramid"])
    def test_one_number_per_axis(self, sampling):
        x = random_space((12, 12), 2, sampling=sampling)
        got = avg_pool(x, (3, 1), (2, 1), (1, 0), window="plain")
        for level, f in zip(got.levels, x.levels, strict=True):
            assert_close(level, F.avg_pool2d(f, (3, 1), (2, 1), (1, 0)))
        assert got.unit == (2.0, 1.0)


class TestAgainstLoops:
    @pytest.mark.parametrize("base", [2.0, 3.0, 1.5, 2**0.5])
    @pytest.mark.parametrize(("size", "stride", "padding"), [(2, 2, 0), (2, 1, 0), (3, 2, 1), (3, 1, 1), (1, 2, 0)])
    @pytest.mark.parametrize("sampling", ["dense", 2])
    def test_windows_are_dilated(self, base, size, stride, padding, sampling):
        x = random_space((11, 10), 2, base, sampling=sampling)
        average = avg_pool(x, size, stride, padding)
        for index, level in enumerate(average.levels):
            apart = base**index / x.steps[index]
            f = x.levels[index][0, 0].numpy()
            expected = pool_naively(f, size, stride, padding, apart, np.mean, 0.0)
            assert_allclose(level[0, 0].numpy(), expected, atol=1e-7)
        if padding and base not in (2.0, 3.0):
            return
        for index, level in enumerate(max_pool(x, size, stride, padding).levels):
            apart = base**index / x.steps[index]
            f = x.levels[index][0, 0].numpy()
            expected = pool_naively(f, size, stride, padding, apart, np.max, -math.inf)
            assert_allclose(level[0, 0].numpy(), expected, atol=1e-7)

    @pytest.mark.parametrize("base", [2.0, 1.5])
    @pytest.mark.parametrize(("size", "stride"), [(3, 2), (3, 1), (5, 2)])
    @pytest.mark.parametrize("sampling", ["dense", "pyramid", 2])
    def test_blur(self, base, size, stride, sampling):
        x = random_space((9, 8), 2, base, sampling=sampling)
        line = np.array([math.comb(size - 1, i) for i in range(size)]) / 2 ** (size - 1)
        weights = np.outer(line, line).ravel()
        for index, level in enumerate(blur_pool(x, size, stride).levels):
            apart = base**index / x.steps[index]
            f = x.levels[index][1, 2].numpy()
            expected = pool_naively(f, size, stride, size // 2, apart, lambda v: np.dot(weights, v), None)
            assert_allclose(level[1, 2].numpy(), expected, atol=1e-7)

    def test_padding_never_wins(self):
        """Not even against minus infinity, as in torch."""
        levels = (torch.full((1, 1, 4, 4), -math.inf), torch.full((1, 1, 4, 4), -1e30))
        for level, f in zip(max_pool(ScaleSpace(levels), 3, 1, 1).levels, levels, strict=True):
            assert_close(level, f)

    def test_average_counts_the_zeros(self):
        x = ScaleSpace((torch.ones(1, 1, 4), torch.ones(1, 1, 4)))
        assert avg_pool(x, 3, 1, 1).levels[0].flatten().tolist() == pytest.approx([2 / 3, 1, 1, 2 / 3])
        assert avg_pool(x, 3, 1, 1).levels[1].flatten().tolist() == pytest.approx([2 / 3] * 4)

    @pytest.mark.parametrize("base", [2.0, 1.5])
    @pytest.mark.parametrize("pool", [lambda x: avg_pool(x, 2), lambda x: max_pool(x, 2), blur_pool])
    def test_gradient(self, base, pool):
        x = paper_lift(torch.zeros(1, 1, 5, 4), 2, base)
        f = torch.rand(1, 1, 5, 4, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda f: pool(x.replace((f, f**2))).levels, f)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
    def test_keeps_the_type(self, dtype):
        x = paper_lift(torch.rand(1, 2, 8, 8).to(dtype), 2, 1.5)
        for pool in (lambda x: avg_pool(x, 2), lambda x: max_pool(x, 2), blur_pool):
            assert pool(x).dtype == dtype


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
    @pytest.mark.parametrize("base", [2.0, 3.0, 1.5])
    def test_origins_after_two_by_two(self, sampling, base):
        """The center of a window of two taps c^k apart, in the doubled unit."""
        x = avg_pool(random_space((32, 32), 3, base, sampling=sampling), 2)
        for k in range(3):
            assert x.origins[k] == pytest.approx((base**k / 4,) * 2)
        assert x.unit == (2.0, 2.0)
        plain = avg_pool(random_space((32, 32), 3, base, sampling=sampling), 2, window="plain")
        for k in range(3):
            assert plain.origins[k] == pytest.approx((plain.steps[k] / 4,) * 2)

    def test_steps_stay(self):
        x = random_space((32, 32), sampling="pyramid")
        assert avg_pool(x, 2).steps == x.steps
        assert blur_pool(x).origins == x.origins

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

    def test_plain_windows_on_dense_levels_do_not(self):
        x = paper_lift(torch.rand(1, 2, 33, 33, dtype=torch.float64), 3)
        got, expected = avg_pool(scale_shift(x, 1), 2, window="plain"), scale_shift(avg_pool(x, 2, window="plain"), 1)
        assert (got.levels[0][:, :, :7, :7] - expected.levels[0][:, :, :7, :7]).abs().max() > 1e-3


class TestAutocast:
    @pytest.mark.parametrize("pool", [lambda x: avg_pool(x, 2), lambda x: max_pool(x, 2), blur_pool])
    @pytest.mark.parametrize("base", [2.0, 1.5])
    def test_levels_keep_one_type(self, pool, base):
        """A space has one dtype, whatever arithmetic each level was pooled with."""
        x = paper_lift(torch.rand(1, 2, 12, 12), 3, base)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = pool(x)
        assert len({level.dtype for level in got.levels}) == 1


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"kernel_size": 0}, "kernel_size is at least 1"),
            ({"kernel_size": 2, "stride": 0}, "stride is at least 1"),
            ({"kernel_size": 2, "padding": -1}, "padding is at least 0"),
            ({"kernel_size": (2, 2, 2)}, "kernel_size is an integer or one for each of 2 axes"),
            ({"kernel_size": 2.0}, "kernel_size is an integer"),
            ({"kernel_size": 2, "window": "square"}, "window is one of dilated"),
            ({"kernel_size": 9}, "level 0 has .* too few for a window"),
            ({"kernel_size": 5}, "level 1 has .* too few for a window of .* 2 samples apart"),
        ],
    )
    @pytest.mark.parametrize("pool", [avg_pool, max_pool])
    def test_arguments(self, pool, arguments, message):
        with pytest.raises((ValueError, TypeError), match=message):
            pool(random_space((8, 8), 2), **arguments)

    def test_blur_is_odd(self):
        with pytest.raises(ValueError, match="odd sizes"):
            blur_pool(random_space((8, 8)), 2)

    def test_fractional_maxima_take_no_padding(self):
        with pytest.raises(ValueError, match="takes no padding"):
            max_pool(random_space((8, 8), 2, 1.5), 3, 1, 1)

    def test_space_is_needed(self):
        flat = random_space((8, 8)).flatten(1)
        with pytest.raises(ValueError, match=r"spatial axes|0 axes"):
            avg_pool(flat, 2)
        with pytest.raises(TypeError, match="expected a ScaleSpace"):
            avg_pool(torch.ones(1, 1, 4, 4), 2)  # pyright: ignore[reportArgumentType]

    @pytest.mark.parametrize("function", [global_pool, scale_pool])
    def test_modes(self, function):
        with pytest.raises(ValueError, match="mode is one of mean"):
            function(random_space((8, 8)), "median")

    @pytest.mark.parametrize("pool", [lambda x: avg_pool(x, 3, 2, 1), blur_pool])
    def test_a_matrix_base_needs_same_padding(self, pool):
        x = paper_lift(torch.ones(1, 1, 12, 12), 2, QUINCUNX, padding_mode="replicate")
        got = pool(x)
        assert got.shapes == ((1, 1, 6, 6),) * 2
        assert_close(got.levels[1][:, :, 1:-1, 1:-1], torch.ones(1, 1, 4, 4))
        with pytest.raises(ValueError, match="matrix base"):
            avg_pool(x, 2)


class TestGlobalPool:
    @pytest.mark.parametrize("shape", [(7,), (5, 6), (3, 4, 5)])
    @pytest.mark.parametrize("sampling", ["dense", "pyramid"])
    def test_against_torch(self, shape, sampling):
        x = random_space(shape, sampling=sampling)
        axes = tuple(range(2, 2 + len(shape)))
        for mode, reduce in (("mean", torch.mean), ("max", torch.amax)):
            got = global_pool(x, mode)
            assert (got.dims, got.base, got.first_level) == (0, x.base, x.first_level)
            for level, f in zip(got.levels, x.levels, strict=True):
                assert_close(level, reduce(f, axes))
            assert global_pool(got, mode) is got

    def test_finds_its_way_to_a_head(self):
        x = random_space((8, 8), sampling="pyramid")
        got = scale_pool(global_pool(x))
        assert_close(got, torch.stack([f.mean((2, 3)) for f in x.levels]).mean(0))


def combine_naively(levels: list[np.ndarray], mode: str) -> np.ndarray:
    """Sample by sample, as the equations read."""
    out = np.zeros_like(levels[0])
    for place in np.ndindex(*out.shape):
        values = [f[place] for f in levels]
        if mode == "probabilities":
            image, _, *z = place
            values = [np.exp(f[place]) / sum(np.exp(f[(image, c, *z)]) for c in range(f.shape[1])) for f in levels]
            out[place] = math.log(sum(values) / len(values))
        elif mode == "logsumexp":
            out[place] = math.log(sum(math.exp(v) for v in values) / len(values))
        else:
            out[place] = sum(values) / len(values) if mode == "mean" else max(values)
    return out


class TestScalePool:
    @pytest.mark.parametrize("mode", SCALE_MODES)
    @pytest.mark.parametrize("shape", [(), (7,), (5, 6), (3, 4, 5)])
    def test_against_loops(self, mode, shape):
        x = random_space(shape) if shape else global_pool(random_space((5, 6)))
        assert_close(scale_pool(x, mode), torch.tensor(combine_naively([f.numpy() for f in x.levels], mode)))

    @pytest.mark.parametrize("mode", SCALE_MODES)
    @pytest.mark.parametrize("base", [2.0, 1.5])
    def test_other_levels_are_brought_to_the_grid_of_level_0(self, mode, base):
        x = avg_pool(random_space((12, 10), 3, base, sampling="pyramid"), 2)
        expected = combine_naively([f.numpy() for f in resample(x).levels], mode)
        assert_close(scale_pool(x, mode), torch.tensor(expected))

    @given(st.integers(1, 5), st.integers(1, 4), st.floats(0.01, 100), st.integers(0, 100))
    def test_laws(self, num_levels, channels, size, seed):
        """Log-sum-exp lies between mean and maximum; probabilities sum to one; repeated levels change nothing."""
        torch.manual_seed(seed)
        levels = tuple(size * torch.randn(2, channels, 3, dtype=torch.float64) for _ in range(num_levels))
        x, twice = ScaleSpace(levels), ScaleSpace(levels * 2)
        pooled: Any = {mode: scale_pool(x, mode) for mode in SCALE_MODES}
        assert (pooled["mean"] <= pooled["logsumexp"] + 1e-12 * size).all()
        assert (pooled["logsumexp"] <= pooled["max"] + 1e-12 * size).all()
        assert_close(pooled["probabilities"].exp().sum(1), torch.ones(2, 3, dtype=torch.float64))
        for mode in SCALE_MODES:
            assert_close(scale_pool(twice, mode), pooled[mode])
            shifted: Any = scale_pool(x + 3, mode)
            assert_close(shifted, pooled[mode] + (0 if mode == "probabilities" else 3))
        if num_levels == 1:
            assert_close(pooled["probabilities"], levels[0].log_softmax(1))
            assert_close(pooled["logsumexp"], levels[0])

    def test_probabilities_are_those_of_channels(self):
        x: Any = random_space((4, 5))
        with pytest.raises(ValueError, match=r"probabilities are those of the channels, axis 1, got .* space at"):
            scale_pool(x.permute(0, 2, 3, 1), "probabilities")

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
        for mode in SCALE_MODES:
            assert torch.autograd.gradcheck(lambda f, mode=mode: scale_pool(x.replace((f, f**2 + 1)), mode), f)


def test_maximum_padding_is_at_most_half_the_window():
    with pytest.raises(ValueError, match="padding is at most half the window, got 2"):
        max_pool(paper_lift(torch.rand(1, 1, 16, 16), 2), 2, padding=2)


@pytest.mark.parametrize("mode", ["mean", "max"])
def test_global_pooling_of_as_many_images_and_channels_as_pixels(mode):
    """(B, C) is no grid, though it may be as large as one."""
    levels = paper_lift(torch.rand(8, 8, 8, 8), num_levels=2)
    pooled = global_pool(levels, mode)
    assert pooled.dims == 0
    apart = torch.cat(
        [global_pool(paper_lift(image[None], num_levels=2), mode).levels[0] for image in levels.levels[0]]
    )
    torch.testing.assert_close(pooled.levels[0], apart)


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

    def test_gradients_of_gradients(self):
        f = torch.randn(1, 2, 5, 4, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradgradcheck(lambda f: avg_pool(ScaleSpace((f**2,)), 2).levels[0], f)

    def test_the_input_is_not_kept(self):
        f, kept = torch.randn(1, 2, 8, 8, requires_grad=True), []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
            avg_pool(ScaleSpace((f * 1,)), 2)
        assert not kept


def test_the_mean_of_levels_does_not_overflow_in_half_precision():
    x = ScaleSpace(tuple(torch.full((1, 1, 2, 2), 3e4, dtype=torch.float16) for _ in range(4)))
    pooled = scale_pool(x)
    assert isinstance(pooled, torch.Tensor)
    assert_close(pooled, torch.full((1, 1, 2, 2), 3e4, dtype=torch.float16))
