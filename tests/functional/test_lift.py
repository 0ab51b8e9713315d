"""The lift against SciPy and against loops; its moments at every sample; the law that makes it exact."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from reference import paper_lift
from scipy import ndimage, special
from torch import nn

from scalespaces import ScaleSpace, downscale, lift, scale_shift, theory
from scalespaces.functional._lift import apply_lift, plan_lift
from scalespaces.nn import Lift
from scalespaces.theory._kernels import get_kernel
from scalespaces.theory._padding import NUMPY_PADDING

ROOT2 = 2**0.5
BASES = (2.0, 3.0, 1.5, ROOT2, 1.2)
SCIPY_MODES = {"zeros": "constant", "reflect": "mirror", "replicate": "nearest", "circular": "wrap"}
MODES = tuple(SCIPY_MODES)
QUINCUNX = ((1.0, 1.0), (1.0, -1.0))
ROTATED = ((1.0, -1.0), (1.0, 1.0))
STRETCH = ((2.0, 0.0), (0.0, 1.0))
SHEARED = ((2.0, 1.0), (0.0, 2.0))  # the only one that its transpose could not stand for
MATRICES: tuple[Any, ...] = (QUINCUNX, ROTATED, STRETCH, SHEARED)
SETTINGS: dict[str, dict[str, Any]] = {
    "discrete_gaussian": {},
    "zero_scale 1": {"zero_scale": 1.0},
    "binomial": {"kernel": "binomial", "zero_scale": 0.5},
    "sampled_gaussian": {"kernel": "sampled_gaussian", "zero_scale": 0.5},
    "alpha": {"kernel": "alpha"},
    "Alpha(0.75)": {"kernel": theory.Alpha(0.75)},
    "truncation 2": {"truncation": 2.0},
}

sizes = st.sampled_from([1, 2, 3, 5, 8, 13, 17])
shapes = st.lists(sizes, min_size=1, max_size=2)
modes = st.sampled_from(MODES)
rng = np.random.default_rng(0)


def image(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor(rng.standard_normal((1, 2, *shape)), dtype=dtype)


def gaussian_taps(t: float, truncation: float = 4.0) -> np.ndarray:
    """Taps of variance t from the Bessel functions themselves."""
    radius = math.ceil(truncation * math.sqrt(t) - 1e-9)
    taps = special.ive(np.abs(np.arange(-radius, radius + 1)), t)
    return taps / taps.sum()


def blur(f: np.ndarray, taps: np.ndarray, mode: str, apart: int = 1) -> np.ndarray:
    """Separable correlation over all axes after batch and channels, by SciPy."""
    spread = np.zeros((len(taps) - 1) * apart + 1)
    spread[::apart] = taps
    for axis in range(2, f.ndim):
        if f.shape[axis] == 1 and mode in ("reflect", "replicate", "circular"):
            continue  # the only sample is repeated: nothing changes
        f = ndimage.correlate1d(f, spread, axis=axis, mode=SCIPY_MODES[mode])
    return f


def every(f: np.ndarray, step: int) -> np.ndarray:
    return f[(slice(None), slice(None), *[slice(None, None, step)] * (f.ndim - 2))]


def rows(n: int, **settings: Any) -> tuple[list[np.ndarray], ScaleSpace]:
    """Each level of a 1-D lift as a matrix: row i holds what its sample i takes from every pixel."""
    x = paper_lift(torch.eye(n, dtype=torch.float64)[:, None], **settings)
    return [level[:, 0].numpy().T for level in x.levels], x


class TestDirect:
    @given(shapes, st.integers(1, 4), st.sampled_from(BASES), modes, st.sampled_from([0.25, 0.5, 1.0]))
    def test_dense_levels_are_blurred_by_their_variance(self, shape, num_levels, base, mode, zero_scale):
        f = image(*shape)
        x = paper_lift(f, num_levels, base, zero_scale=zero_scale, padding_mode=mode)
        assert x.steps == (1.0,) * num_levels
        assert x.levels[0] is f
        for k, level in enumerate(x.levels):
            expected = blur(f.numpy(), gaussian_taps(zero_scale * (base ** (2 * k) - 1)), mode)
            assert_allclose(level.numpy(), expected, atol=1e-12)

    @pytest.mark.parametrize("name", SETTINGS)
    @pytest.mark.parametrize("mode", MODES)
    def test_every_kernel(self, name, mode):
        f, settings = image(19, 6), SETTINGS[name]
        kernel = get_kernel(settings.get("kernel", "discrete_gaussian"))
        x = paper_lift(f, 3, padding_mode=mode, **settings)
        for k, level in enumerate(x.levels):
            t = kernel.scale(2.0**k, settings.get("zero_scale", 0.25))
            taps = kernel(t, truncation=settings.get("truncation", 4.0))
            assert_allclose(level.numpy(), blur(f.numpy(), taps, mode), atol=1e-12)

    @given(shapes, st.sampled_from([2, 3]), modes, st.sampled_from(["pyramid", 2, 3, 4.0]))
    def test_coarser_grids_hold_every_so_many_dense_samples(self, shape, base, mode, sampling):
        f = image(*shape)
        dense = paper_lift(f, 3, base, padding_mode=mode)
        x = paper_lift(f, 3, base, padding_mode=mode, sampling=sampling)
        for k, (level, all_samples) in enumerate(zip(x.levels, dense.levels, strict=True)):
            r = 1 if sampling == "pyramid" else float(sampling)
            assert x.steps[k] == pytest.approx(max(1, base**k / r))
            if x.steps[k] == int(x.steps[k]):
                assert_allclose(level.numpy(), every(all_samples.numpy(), int(x.steps[k])), atol=1e-12)

    @given(st.sampled_from([1, 2, 3, 7, 12]), st.sampled_from([1.5, ROOT2, 1.2]), modes)
    def test_fractional_steps_use_the_kernel_of_each_phase(self, n, base, mode):
        f = image(n)
        x = paper_lift(f, 3, base, sampling="pyramid", padding_mode=mode)
        far = 40
        width: Any = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}[mode]
        padded = np.pad(f.numpy()[0], [(0, 0), (far, far)], mode=width)
        for k in (1, 2):
            t = 0.25 * (base ** (2 * k) - 1)
            for i in range(x.levels[k].shape[2]):
                center = base**k * i
                low = math.floor(center + 1e-9)
                phase = center - low if center - low > 1e-9 else 0.0
                taps = theory.discrete_gaussian(t, phase=phase)
                start = far + low - (len(taps) - 1) // 2
                expected = padded[:, start : start + len(taps)] @ taps
                assert_allclose(x.levels[k][0, :, i].numpy(), expected, atol=1e-12)

    @pytest.mark.parametrize("base", [1.5, ROOT2, 1.2, 2.5])
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize(("n", "zero_scale"), [(301, 0.25), (150, 300.0)])
    def test_fractional_steps_along_a_long_axis(self, base, mode, n, zero_scale):
        """Three hundred samples are several blocks; a kernel wider than the axis is folded back more than once."""
        f, far = image(n), 500
        x = paper_lift(f, 3, base, zero_scale=zero_scale, sampling="pyramid", padding_mode=mode)
        padded = np.pad(f.numpy()[0], [(0, 0), (far, far)], mode=NUMPY_PADDING[mode])
        for k in (1, 2):
            t = zero_scale * (base ** (2 * k) - 1)
            centers = base**k * np.arange(x.levels[k].shape[2])
            lows = np.floor(centers + 1e-9).astype(int)
            for i, (low, phase) in enumerate(zip(lows, np.abs(centers - lows), strict=True)):
                taps = theory.discrete_gaussian(t, phase=phase if phase > 1e-9 else 0.0)
                start = far + low - (len(taps) - 1) // 2
                expected = padded[:, start : start + len(taps)] @ taps
                assert_allclose(x.levels[k][0, :, i].numpy(), expected, atol=1e-12)

    def test_the_papers_level_three(self):
        """Dilation 8 and zero-scale 1/4: variance 15.75, 33 taps."""
        x = paper_lift(torch.eye(81, dtype=torch.float64)[40].reshape(1, 1, 81))
        response = x.levels[3][0, 0].numpy()
        offsets = np.arange(81) - 40
        assert np.count_nonzero(response) == 33
        assert response.sum() == pytest.approx(1)
        assert response @ offsets**2 == pytest.approx(15.75, rel=2e-3)
        wide = (
            paper_lift(torch.eye(161, dtype=torch.float64)[80].reshape(1, 1, 161), truncation=12)
            .levels[3][0, 0]
            .numpy()
        )
        assert wide @ (np.arange(161) - 80) ** 2 == pytest.approx(15.75, rel=1e-9)


class TestCascade:
    @given(shapes, st.sampled_from([2, 3]), modes, st.sampled_from([0.25, 0.5, 1.0]))
    def test_pyramid_repeats_one_step(self, shape, base, mode, zero_scale):
        f = image(*shape)
        x = paper_lift(f, 3, base, zero_scale=zero_scale, method="cascade", sampling="pyramid", padding_mode=mode)
        taps, expected = gaussian_taps(zero_scale * (base**2 - 1)), f.numpy()
        for level in x.levels:
            assert_allclose(level.numpy(), expected, atol=1e-12)
            expected = every(blur(expected, taps, mode), base)

    @given(shapes, st.sampled_from([2, 3]), modes)
    def test_dense_spreads_the_taps(self, shape, base, mode):
        f = image(*shape)
        x = paper_lift(f, 3, base, method="cascade", padding_mode=mode)
        taps, expected = gaussian_taps(0.25 * (base**2 - 1)), f.numpy()
        for k, level in enumerate(x.levels):
            assert_allclose(level.numpy(), expected, atol=1e-12)
            expected = blur(expected, taps, mode, apart=base**k)

    @given(shapes, modes)
    def test_oversampled_by_two(self, shape, mode):
        """Steps 1, 1, 2, 4: the taps are 1, 2, 2 samples apart, and every sample but the first pair's is halved."""
        f = image(*shape)
        x = paper_lift(f, 4, method="cascade", sampling=2, padding_mode=mode)
        assert x.steps == (1, 1, 2, 4)
        taps = gaussian_taps(0.75)
        one = blur(f.numpy(), taps, mode)
        two = every(blur(one, taps, mode, apart=2), 2)
        three = every(blur(two, taps, mode, apart=2), 2)
        for level, expected in zip(x.levels, (f.numpy(), one, two, three), strict=True):
            assert_allclose(level.numpy(), expected, atol=1e-12)

    @given(sizes, st.sampled_from([1.5, ROOT2, 1.2]), modes)
    def test_dense_with_a_fractional_base_blurs_by_the_rest(self, n, base, mode):
        """Between samples there are no taps: a step blurs by s0 (c^2 - 1) c^(2k) on the samples themselves."""
        f = image(n)
        x = paper_lift(f, 4, base, method="cascade", padding_mode=mode)
        expected = f.numpy()
        for k in range(1, 4):
            whole = abs(base ** (k - 1) - round(base ** (k - 1))) < 1e-9
            t, apart = 0.25 * (base**2 - 1), 1
            if whole:
                apart = round(base ** (k - 1))
            else:
                t *= base ** (2 * (k - 1))
            expected = blur(expected, gaussian_taps(t), mode, apart)
            assert_allclose(x.levels[k].numpy(), expected, atol=1e-12)

    @pytest.mark.parametrize("name", SETTINGS)
    def test_every_kernel(self, name):
        f, settings = image(19, 6), SETTINGS[name]
        kernel = get_kernel(settings.get("kernel", "discrete_gaussian"))
        t = kernel.scale(2.0, settings.get("zero_scale", 0.25))
        taps, expected = kernel(t, truncation=settings.get("truncation", 4.0)), f.numpy()
        for level in paper_lift(f, 3, method="cascade", sampling="pyramid", **settings).levels:
            assert_allclose(level.numpy(), expected, atol=1e-12)
            expected = every(blur(expected, taps, "reflect"), 2)


def assert_commutes(f: torch.Tensor, num_levels: int, **settings: Any) -> None:
    """Level k of the lifted D f is level k + 1 of the lifted f, at every sample."""
    x = paper_lift(f, num_levels, method="cascade", **settings)
    action = {name: value for name, value in settings.items() if name != "sampling"}
    for n in range(1, num_levels):
        y = paper_lift(downscale(f, n, dims=f.ndim - 2, **action), num_levels - n, method="cascade", **settings)
        shifted = scale_shift(x, n)
        assert shifted.shapes == y.shapes
        assert (shifted.steps, shifted.origins) == (y.steps, y.origins)
        for got, expected in zip(y.levels, shifted.levels, strict=True):
            assert_allclose(got.numpy(), expected.numpy(), atol=1e-12)


class TestExactness:
    @given(shapes, st.integers(1, 4), st.sampled_from(BASES), modes, st.sampled_from([0.25, 1.0]))
    def test_pyramids_of_any_base_and_padding(self, shape, num_levels, base, mode, zero_scale):
        f = image(*shape)
        assert_commutes(f, num_levels, base=base, padding_mode=mode, zero_scale=zero_scale, sampling="pyramid")

    @pytest.mark.parametrize("base", [2.0, 3.0, 1.5, 1.2])
    def test_levels_of_a_pyramid_are_the_same_numbers(self, base):
        f = image(23)
        x = paper_lift(f, 4, base, method="cascade", sampling="pyramid")
        y = paper_lift(downscale(f, base=base, dims=1), 3, base, method="cascade", sampling="pyramid")
        for got, expected in zip(y.levels, x.levels[1:], strict=True):
            assert torch.equal(got, expected)

    @pytest.mark.parametrize("base", [2.0, 3.0, 1.5, ROOT2])
    @pytest.mark.parametrize("mode", MODES)
    def test_pyramids_of_long_axes(self, base, mode):
        assert_commutes(image(401, 6), 4, base=base, padding_mode=mode, sampling="pyramid")

    @pytest.mark.parametrize("name", ["binomial", "alpha", "truncation 2"])
    @pytest.mark.parametrize("sampling", ["pyramid", "dense"])
    def test_every_kernel(self, name, sampling):
        assert_commutes(image(14, 9), 3, padding_mode="zeros", sampling=sampling, **SETTINGS[name])

    @given(shapes, st.sampled_from([2.0, 3.0]))
    def test_dense_with_zeros_outside(self, shape, base):
        assert_commutes(image(*shape), 3, base=base, padding_mode="zeros")

    @given(st.integers(0, 4), st.sampled_from([2, 3]), st.sampled_from(["reflect", "replicate"]))
    def test_dense_reflected_when_the_last_sample_stays(self, m, base, mode):
        assert_commutes(image(1 + m * base**2), 3, base=float(base), padding_mode=mode)

    @given(st.integers(1, 4), st.sampled_from([2, 3]))
    def test_dense_circular_when_the_period_divides(self, m, base):
        assert_commutes(image(m * base**2), 3, base=float(base), padding_mode="circular")

    @pytest.mark.parametrize(("base", "r"), [(2.0, 2), (2.0, 4), (3.0, 3)])
    def test_oversampled_by_a_power_of_the_base(self, base, r):
        assert_commutes(image(23, 4), 4, base=base, sampling=r, padding_mode="zeros")
        assert_commutes(image(1 + 2 * round(base) ** 3), 4, base=base, sampling=r, padding_mode="reflect")

    def test_the_direct_lift_is_close_but_not_exact(self):
        """Otherwise the tests above could not tell the methods apart."""
        f = image(65)
        x, y = paper_lift(f, 3, sampling="pyramid"), paper_lift(downscale(f, dims=1), 2, sampling="pyramid")
        error = (x.levels[2] - y.levels[1]).norm() / x.levels[2].norm()
        assert 1e-4 < error < 0.5


MOMENT_SETTINGS = [
    (base, method, sampling)
    for base in (2.0, ROOT2, 1.5, 1.2)
    for method in ("direct", "cascade")
    for sampling in ("dense", "pyramid", 2, 3)
]


@pytest.mark.parametrize(("base", "method", "sampling"), MOMENT_SETTINGS)
class TestMoments:
    """What each sample takes from the image: mass 1, mean at its own position, variance of its level."""

    def moments(self, k: int, matrix: np.ndarray, x: ScaleSpace) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        n = matrix.shape[1]
        position = x.steps[k] * np.arange(len(matrix))
        inner = (position > 0.4 * n) & (position < 0.6 * n)
        away = np.arange(n)[None] - position[:, None]
        return tuple((matrix * away**p).sum(1)[inner] for p in range(3))  # pyright: ignore[reportReturnType]

    def test_default_truncation(self, base, method, sampling):
        matrices, x = rows(161, num_levels=4, base=base, method=method, sampling=sampling)
        for k, t in enumerate(theory.level_variances(4, base, 0.25)):
            mass, mean, second = self.moments(k, matrices[k], x)
            assert_allclose(mass, 1, atol=1e-12)
            assert_allclose(mean, 0, atol=2e-3)
            assert_allclose(second, t, rtol=0.05, atol=1e-12)

    def test_without_truncation_they_are_exact(self, base, method, sampling):
        matrices, x = rows(241, num_levels=4, base=base, method=method, sampling=sampling, truncation=16.0)
        for k, t in enumerate(theory.level_variances(4, base, 0.25)):
            mass, mean, second = self.moments(k, matrices[k], x)
            assert_allclose(mass, 1, atol=1e-12)
            assert_allclose(mean, 0, atol=1e-7)
            assert_allclose(second, t, rtol=1e-5, atol=1e-12)

    def test_constants_stay(self, base, method, sampling):
        for mode in ("reflect", "replicate", "circular"):
            x = paper_lift(torch.full((1, 1, 7, 4), 3.0), 4, base, method=method, sampling=sampling, padding_mode=mode)
            for level in x.levels:
                assert_allclose(level.numpy(), 3.0, rtol=1e-5)


class TestGrids:
    @given(st.integers(1, 200), st.sampled_from(BASES), st.sampled_from(["direct", "cascade"]))
    def test_sizes_follow_from_the_level_before(self, n, base, method):
        x = paper_lift(torch.zeros(1, 1, n), 5, base, method=method, sampling="pyramid")
        for k in range(1, 5):
            expected = math.floor((x.levels[k - 1].shape[2] - 1) / base + 1e-9) + 1
            assert x.levels[k].shape[2] == expected
            assert x.steps[k] == pytest.approx(base**k)

    @given(st.integers(1, 60), st.sampled_from(BASES), st.sampled_from(["dense", "pyramid", 1.5, 2, 3, 4]))
    def test_both_methods_have_the_same_grids(self, n, base, sampling):
        direct, cascade = (
            paper_lift(torch.zeros(1, 1, n), 4, base, method=m, sampling=sampling) for m in ("direct", "cascade")
        )
        assert direct.shapes == cascade.shapes
        assert (direct.steps, direct.origins, direct.unit) == (cascade.steps, cascade.origins, cascade.unit)
        assert all(
            (level.shape[2] - 1) * step <= n - 1 + 1e-9 for level, step in zip(direct.levels, direct.steps, strict=True)
        )

    def test_oversampling_lies_between(self):
        f = image(33)
        for a, b in ((1, "pyramid"), (1.0, "pyramid"), (64, "dense")):
            one, other = paper_lift(f, 4, sampling=a), paper_lift(f, 4, sampling=b)
            assert one.steps == other.steps
            for x, y in zip(one.levels, other.levels, strict=True):
                assert torch.equal(x, y)
        assert paper_lift(f, 5, sampling=3).steps == pytest.approx((1, 1, 4 / 3, 8 / 3, 16 / 3))

    @pytest.mark.parametrize("first_level", [-1, -2])
    @pytest.mark.parametrize("base", [2.0, 1.5])
    @pytest.mark.parametrize("sampling", ["dense", "pyramid", 2])
    @pytest.mark.parametrize("method", ["direct", "cascade"])
    def test_levels_finer_than_the_image(self, first_level, base, sampling, method):
        n = 41
        ramp = torch.arange(n, dtype=torch.float64).reshape(1, 1, n)
        x = paper_lift(ramp, 4, base, sampling=sampling, method=method, first_level=first_level)
        plain = paper_lift(ramp, 4 + first_level, base, sampling=sampling, method=method)
        assert x.first_level == first_level
        assert x.level(0) is ramp
        for number in range(4 + first_level):
            assert torch.equal(x.level(number), plain.level(number))
        for index in range(-first_level):
            step = base ** (first_level + index)
            level = x.levels[index][0, 0].numpy()
            assert x.steps[index] == pytest.approx(step)
            assert x.spacing(index) == pytest.approx(1)
            assert len(level) == math.floor((n - 1) / step + 1e-9) + 1
            assert_allclose(level, step * np.arange(len(level)), atol=1e-12)


def fold(i: int, n: int, mode: str) -> int | None:
    """Where sample i of an image of n is read, by walking; None for a zero."""
    if mode == "zeros":
        return i if 0 <= i < n else None
    if mode == "replicate":
        return min(max(i, 0), n - 1)
    if mode == "circular":
        return i % n
    while not 0 <= i < n:
        i = 0 if n == 1 else (-i if i < 0 else 2 * (n - 1) - i)
    return i


def correlate_by_loops(f: np.ndarray, taps: np.ndarray, matrix: np.ndarray, mode: str) -> np.ndarray:
    """The sum over y of h(y) f(z + M y)."""
    out, radii = np.zeros_like(f), np.array(taps.shape) // 2
    for z in np.ndindex(*f.shape):
        for tap in np.ndindex(*taps.shape):
            place = np.array(z) + np.rint(matrix @ (np.array(tap) - radii)).astype(int)
            index = [fold(int(i), n, mode) for i, n in zip(place, f.shape, strict=True)]
            if None not in index:
                out[z] += taps[tap] * f[tuple(index)]  # pyright: ignore[reportArgumentType, reportCallIssue]
    return out


@pytest.mark.parametrize("base", MATRICES, ids=["quincunx", "rotated", "stretch", "sheared"])
@pytest.mark.parametrize("mode", MODES)
class TestMatrixBase:
    def test_direct(self, base, mode):
        f, C = image(6, 7), np.array(base)
        x = paper_lift(f, 3, base, padding_mode=mode)
        assert x.base == base
        for k, level in enumerate(x.levels):
            power = np.linalg.matrix_power(C, k)
            taps = theory.anisotropic_gaussian(0.25 * (power @ power.T - np.eye(2)))
            for channel in range(2):
                expected = ndimage.correlate(f[0, channel].numpy(), taps, mode=SCIPY_MODES[mode])
                assert_allclose(level[0, channel].numpy(), expected, atol=1e-12)

    def test_cascade(self, base, mode):
        f, C = image(5, 6)[:, :1], np.array(base)
        x = paper_lift(f, 3, base, method="cascade", padding_mode=mode)
        taps = theory.anisotropic_gaussian(0.25 * (C @ C.T - np.eye(2)))
        expected = f[0, 0].numpy()
        for k, level in enumerate(x.levels):
            assert_allclose(level[0, 0].numpy(), expected, atol=1e-12)
            expected = correlate_by_loops(expected, taps, np.linalg.matrix_power(C, k), mode)


class TestMatrixLaws:
    @pytest.mark.parametrize("base", MATRICES)
    @pytest.mark.parametrize("method", ["direct", "cascade"])
    def test_covariance_of_the_impulse_response(self, base, method):
        n = 61
        impulse = torch.zeros(1, 1, n, n, dtype=torch.float64)
        impulse[0, 0, n // 2, n // 2] = 1
        x = paper_lift(impulse, 3, base, method=method)
        place = np.indices((n, n)).reshape(2, -1) - n // 2
        for k, level in enumerate(x.levels):
            power = np.linalg.matrix_power(np.array(base), k)
            weights = level.numpy().ravel()
            assert_allclose(place @ weights, 0, atol=1e-10)
            expected = 0.25 * (power @ power.T - np.eye(2))
            assert_allclose((place * weights) @ place.T, expected, rtol=0.05, atol=1e-10)

    @pytest.mark.parametrize("base", MATRICES)
    def test_downscaling_reads_the_level_on_its_lattice(self, base):
        f = image(9, 7)
        for n in (0, 1, 2):
            level = paper_lift(f, n + 1, base, method="cascade").levels[n][0].numpy()
            power = np.linalg.matrix_power(np.array(base), n)
            inverse = np.linalg.inv(power)
            places = [
                i for i in itertools.product(range(9), range(7)) if np.allclose(inverse @ i, np.rint(inverse @ i))
            ]
            got = downscale(f, n, base)[0].numpy()
            expected = np.array([level[:, *place] for place in places])
            nonzero = got.reshape(2, -1).T
            nonzero = nonzero[np.any(nonzero != 0, axis=1)]
            assert_allclose(sorted(nonzero.tolist()), sorted(expected.tolist()), atol=1e-12)

    def test_lattices_commute_with_zeros_outside(self):
        """Quincunx twice is every second pixel, so the law can be read off without turning anything."""
        f = image(9, 9)
        x = paper_lift(f, 4, QUINCUNX, method="cascade", padding_mode="zeros")
        small = every(x.levels[2].numpy(), 2)
        y = paper_lift(torch.tensor(small), 2, QUINCUNX, method="cascade", padding_mode="zeros")
        assert_allclose(y.levels[1].numpy(), every(x.levels[3].numpy(), 2), atol=1e-12)


class TestDownscale:
    @given(shapes, st.integers(0, 3), st.sampled_from(BASES), modes, st.sampled_from(["direct", "cascade"]))
    def test_is_a_level_of_the_pyramid(self, shape, n, base, mode, method):
        f = image(*shape)
        x = paper_lift(f, n + 1, base, method=method, sampling="pyramid", padding_mode=mode)
        assert torch.equal(downscale(f, n, base, method=method, padding_mode=mode, dims=len(shape)), x.levels[n])

    @given(sizes, st.sampled_from(BASES), modes)
    def test_cascade_is_a_semigroup(self, n, base, mode):
        f, settings = image(n), {"padding_mode": mode, "dims": 1}
        twice = downscale(downscale(f, 1, base, **settings), 2, base, **settings)
        assert_allclose(twice.numpy(), downscale(f, 3, base, **settings).numpy(), atol=1e-12)

    @pytest.mark.parametrize("n", [-1, 1.0, "1"])
    def test_counts_steps(self, n):
        with pytest.raises(ValueError, match="n must be an integer >= 0"):
            downscale(image(8), n)


class TestTensors:
    @pytest.mark.parametrize("shape", [(11,), (6, 7), (4, 5, 6)])
    @pytest.mark.parametrize("method", ["direct", "cascade"])
    @pytest.mark.parametrize("base", [2.0, 1.5])
    def test_any_number_of_axes_is_one_axis_after_another(self, shape, method, base):
        f = image(*shape)
        x = paper_lift(f, 3, base, method=method, sampling="pyramid")
        matrices = [rows(n, num_levels=3, base=base, method=method, sampling="pyramid")[0] for n in shape]
        for k, level in enumerate(x.levels):
            expected = f.numpy()
            for axis, matrix in enumerate(matrices, 2):
                expected = np.moveaxis(np.tensordot(matrix[k], expected, (1, axis)), 0, axis)
            assert_allclose(level.numpy(), expected, atol=1e-12)

    @pytest.mark.parametrize("base", [2.0, 1.5])
    def test_single_precision(self, base):
        f = image(12, 9)
        exact, x = paper_lift(f, 4, base, sampling="pyramid"), paper_lift(f.float(), 4, base, sampling="pyramid")
        assert x.dtype == torch.float32
        for got, expected in zip(x.levels, exact.levels, strict=True):
            assert_allclose(got.numpy(), expected.numpy(), atol=1e-6)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_stays_what_it_is(self, dtype):
        f = image(12, 9)
        x = paper_lift(f.to(dtype), 3, 1.5, sampling="pyramid")
        for got, expected in zip(x.levels, paper_lift(f, 3, 1.5, sampling="pyramid").levels, strict=True):
            assert got.dtype == dtype
            assert_allclose(got.double().numpy(), expected.numpy(), atol=0.05)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("base", [2.0, 1.5, QUINCUNX])
    def test_half_precision_is_rounded_once(self, base, dtype):
        """One rounding is half a unit in the last place; single precision adds next to nothing."""
        f = image(12, 150).to(dtype)
        unit = torch.finfo(dtype).eps / 2
        exact = paper_lift(f.double(), 4, base)
        for x in (paper_lift(f, 4, base), Lift.paper(4, base).to(dtype)(f)):
            for got, expected in zip(x.levels, exact.levels, strict=True):
                error = (got.double() - expected).abs()
                assert (error <= unit * expected.abs() + torch.finfo(dtype).tiny * unit + 1e-6).all()

    @pytest.mark.parametrize("base", [2.0, 1.5])
    def test_autocast_leaves_the_lift_alone(self, base):
        """Blurring in bfloat16 would break exactness, and level 0, the image itself, would be of another type."""
        f = image(16, 16, dtype=torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = paper_lift(f, 3, base, sampling="pyramid", method="cascade")
        for got, expected in zip(
            x.levels, paper_lift(f, 3, base, sampling="pyramid", method="cascade").levels, strict=True
        ):
            assert got.dtype == torch.float32
            assert torch.equal(got, expected)

    @pytest.mark.parametrize("base", [2.0, 1.5, QUINCUNX])
    def test_memory_format_does_not_matter(self, base):
        f = torch.rand(2, 3, 12, 140, dtype=torch.float64)
        strided = torch.rand(2, 3, 24, 9, dtype=torch.float64)[:, :, ::2]
        for image_, twin in ((f, f.contiguous(memory_format=torch.channels_last)), (strided.clone(), strided)):
            for a, b in zip(paper_lift(image_, 3, base).levels, paper_lift(twin, 3, base).levels, strict=True):
                assert_allclose(a.numpy(), b.numpy(), atol=1e-13)

    @pytest.mark.parametrize("base", [2.0, 1.5])
    @pytest.mark.parametrize("sampling", ["dense", "pyramid"])
    def test_memory_format_stays(self, base, sampling):
        f = torch.rand(2, 3, 12, 140)
        for layout in (torch.contiguous_format, torch.channels_last):
            for level in paper_lift(f.contiguous(memory_format=layout), 3, base, sampling=sampling).levels:
                assert level.is_contiguous(memory_format=layout)

    @pytest.mark.parametrize("base", [2.0, 1.5, QUINCUNX])
    @pytest.mark.parametrize("shape", [(8, 9), (3, 140)])
    def test_vmap(self, base, shape):
        f = torch.rand(3, 2, 2, *shape, dtype=torch.float64)
        for axis in (0, 2):
            got = torch.vmap(lambda f: paper_lift(f, 3, base).levels, axis)(f)
            for levels, one in zip(zip(*got, strict=True), f.unbind(axis), strict=True):
                for a, b in zip(levels, paper_lift(one, 3, base).levels, strict=True):
                    assert_allclose(a.numpy(), b.numpy(), atol=1e-12)

    @pytest.mark.parametrize("base", [2.0, 1.5, QUINCUNX])
    @pytest.mark.parametrize("method", ["direct", "cascade"])
    @pytest.mark.parametrize("mode", ["zeros", "reflect"])
    def test_gradient(self, base, method, mode):
        sampling = "dense" if base == QUINCUNX else "pyramid"
        f = torch.rand(1, 1, 4, 3, dtype=torch.float64, requires_grad=True)

        def levels(f):
            return paper_lift(f, 3, base, method=method, sampling=sampling, padding_mode=mode).levels

        assert torch.autograd.gradcheck(levels, f)

    def test_gradient_is_the_transpose(self):
        matrices, _ = rows(17, num_levels=3, base=1.5, sampling="pyramid")
        f = torch.rand(1, 1, 17, dtype=torch.float64, requires_grad=True)
        level = paper_lift(f, 3, 1.5, sampling="pyramid").levels[2]
        back = torch.rand_like(level)
        level.backward(back)
        assert f.grad is not None
        assert_allclose(f.grad[0, 0].numpy(), matrices[2].T @ back[0, 0].numpy(), atol=1e-12)

    def test_an_image_without_gradient_keeps_nothing(self):
        kept: list[torch.Tensor] = []

        def keep(x: torch.Tensor) -> torch.Tensor:
            kept.append(x)
            return x

        f = image(5, 150)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            paper_lift(f)
            assert kept == []
            paper_lift(f.requires_grad_())
        assert all(saved.numel() < 150 * 150 for saved in kept)

    def test_an_empty_batch_is_a_batch(self):
        x = paper_lift(torch.zeros(0, 3, 8, 8), 3, sampling="pyramid")
        assert x.shapes == ((0, 3, 8, 8), (0, 3, 4, 4), (0, 3, 2, 2))

    def test_the_image_is_left_alone(self):
        f = image(9, 9)
        before = f.clone()
        paper_lift(f, 3, method="cascade")
        assert torch.equal(f, before)

    def test_a_plan_is_a_lift(self):
        f = image(9, 9)
        plan = plan_lift(3, 2.0, 0, 0.25, "pyramid", "direct", "discrete_gaussian", "reflect", 4.0)
        x = apply_lift(f, plan, [None if s.taps is None else torch.as_tensor(s.taps) for s in plan.stages])
        for a, b in zip(x.levels, paper_lift(f, 3, sampling="pyramid").levels, strict=True):
            assert torch.equal(a, b)

    @pytest.mark.parametrize("base", [2, np.float64(2), np.int64(2), [[2.0, 0.0], [0.0, 2.0]], np.diag([2, 2])])
    def test_bases_in_any_guise(self, base):
        got = paper_lift(image(6, 6), 2, base)
        assert got.base in (2.0, ((2.0, 0.0), (0.0, 2.0)))


class Levels(nn.Module):
    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__()
        self.lift = Lift(*args, **settings)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.lift(image).levels


def assert_levels(got: Any, expected: Any) -> None:
    for a, b in zip(got, expected, strict=True):
        assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-5, atol=1e-6)


SAMPLED = [(2.0, "dense"), (2.0, "pyramid"), (ROOT2, "pyramid")]
STRICT = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13),
    reason="before 2.13, strict exports take neither free sizes nor constants of ours",
)


class TestGraphs:
    """Short and long axes take different ways, and free sizes a third."""

    @pytest.mark.parametrize(("base", "sampling"), SAMPLED)
    @pytest.mark.parametrize("strict", [False, pytest.param(True, marks=STRICT)])
    def test_export(self, base, sampling, strict):
        model, f = Levels(3, base, sampling=sampling), torch.rand(2, 3, 40, 150)
        shapes: Any = ({0: torch.export.Dim("batch", min=1, max=9)},)
        exported = torch.export.export(model, (f,), dynamic_shapes=shapes, strict=strict).module()
        for image_ in (f, torch.rand(5, 3, 40, 150)):
            assert_levels(exported(image_), model(image_))

    @pytest.mark.parametrize("sampling", ["dense", "pyramid"])
    @pytest.mark.parametrize("strict", [False, pytest.param(True, marks=STRICT)])
    def test_export_of_free_sizes(self, sampling, strict):
        model = Levels(3, sampling=sampling)
        shapes: Any = ({2: torch.export.Dim("h", min=32, max=512), 3: torch.export.Dim("w", min=32, max=512)},)
        exported = torch.export.export(model, (torch.rand(1, 3, 40, 150),), dynamic_shapes=shapes, strict=strict)
        for size in ((40, 150), (130, 33), (200, 201)):
            f = torch.rand(1, 3, *size)
            assert_levels(exported.module()(f), model(f))

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore")  # torch's exporter has several about itself
    @pytest.mark.parametrize(("base", "sampling"), SAMPLED)
    @pytest.mark.parametrize("mode", ["reflect", "zeros"])
    def test_onnx(self, base, sampling, mode, tmp_path):
        pytest.importorskip("onnxscript")
        runtime: Any = pytest.importorskip("onnxruntime")
        model, f = Levels(3, base, sampling=sampling, padding_mode=mode).eval(), torch.rand(1, 3, 40, 301)
        path = tmp_path / "lift.onnx"
        torch.onnx.export(model, (f,), path, dynamo=True, external_data=False, verbose=False)
        assert path.stat().st_size < 400_000
        session = runtime.InferenceSession(path)
        got = session.run(None, {session.get_inputs()[0].name: f.numpy()})
        for a, b in zip(got, model(f)[-len(got) :], strict=True):
            assert_allclose(a, b.numpy(), rtol=1e-5, atol=1e-6)

    @pytest.mark.slow
    @pytest.mark.parametrize(("base", "sampling"), SAMPLED)
    @pytest.mark.parametrize("dynamic", [None, True])
    def test_compile(self, base, sampling, dynamic):
        """At the second size torch makes sizes symbols, if it may; with ``dynamic=True`` at once."""
        torch.compiler.reset()
        model = Levels(3, base, sampling=sampling)
        compiled = torch.compile(model, fullgraph=True, dynamic=dynamic)
        for shape in ((2, 3, 40, 150), (2, 3, 140, 36), (2, 3, 17, 64)):
            f, twin = (torch.rand(shape).requires_grad_() for _ in range(2))
            twin.data.copy_(f.data)
            got, expected = compiled(f), model(twin)
            assert_levels(got, expected)
            for levels in (got, expected):
                torch.stack([(level**3).sum() for level in levels[1:]]).sum().backward()
            assert_levels([f.grad], [twin.grad])


class TestErrors:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"base": 1.0}, "base"),
            ({"base": 0.5}, "base"),
            ({"base": math.nan}, "base"),
            ({"base": math.inf}, "base"),
            ({"base": ((1.0, 0.0), (0.0, 0.5))}, "expand"),
            ({"base": ((1.0, 1.0),)}, "square"),
            ({"zero_scale": math.nan}, "zero_scale"),
            ({"zero_scale": -0.25}, "zero_scale"),
            ({"zero_scale": math.inf}, "zero_scale"),
            ({"num_levels": 0}, "num_levels must be an integer >= 1, got 0"),
            ({"num_levels": -1}, "num_levels"),
            ({"num_levels": 2.5}, "num_levels"),
            ({"sampling": 0.5}, "sampling"),
            ({"sampling": math.nan}, "sampling"),
            ({"sampling": math.inf}, "sampling"),
            ({"sampling": "sparse"}, "sampling"),
            ({"kernel": "gaussian"}, "did you mean"),
            ({"method": "both"}, "method is one of cascade, direct"),
            ({"padding_mode": "mirror"}, "padding_mode"),
            ({"first_level": 1}, "first_level"),
            ({"first_level": -4}, "first_level"),
            ({"truncation": 0.0}, "truncation"),
            ({"truncation": math.nan}, "truncation"),
            ({"base": QUINCUNX}, "matrix base"),
            ({"base": QUINCUNX, "sampling": "dense", "first_level": -1}, "matrix base"),
            ({"base": QUINCUNX, "sampling": "dense", "kernel": "binomial"}, "matrix base"),
            ({"kernel": "binomial"}, "binomial"),
        ],
    )
    def test_arguments(self, settings, message):
        with pytest.raises(ValueError, match=message):
            lift(torch.zeros(1, 1, 8, 8), **settings)

    @pytest.mark.parametrize(
        ("wrong", "right"), [({"num_levels": 4.0}, {"num_levels": 4}), ({"sampling": True}, {"sampling": 1})]
    )
    def test_a_refusal_does_not_depend_on_what_was_lifted_before(self, wrong, right):
        lift(torch.zeros(1, 1, 8, 8), **right)
        with pytest.raises(ValueError, match=next(iter(wrong))):
            lift(torch.zeros(1, 1, 8, 8), **wrong)

    @pytest.mark.parametrize(
        ("f", "message"),
        [
            (torch.zeros(1, 1, 8, 8, dtype=torch.int64), r"floating-point numbers, got torch\.int64; .*image\.float"),
            (torch.zeros(1, 1, 8, 8, dtype=torch.uint8), "floating-point"),
            (torch.zeros(1, 1, 8, 0), "at least one sample along every axis"),
            (torch.zeros(8, 8), r"expected images \(B, C, H, W\), got shape \(8, 8\)"),
            (torch.zeros(3, 8, 8), r"got shape \(3, 8, 8\); add a batch axis with image\[None\], or pass dims=1"),
            (torch.zeros(1, 3, 8, 8, 8), r"got shape \(1, 3, 8, 8, 8\); pass dims=3 for volumes"),
            (torch.zeros(1, 1, 2, 2, 2, 2), r"expected images .*, got shape"),
            (np.zeros((1, 1, 8)), "got ndarray"),
        ],
    )
    def test_images(self, f, message):
        with pytest.raises(ValueError, match=message):
            lift(f)

    def test_a_matrix_has_the_axes_of_the_image(self):
        with pytest.raises(ValueError, match="a base matrix has a row for each of 1 axes, got 2; pass dims=2"):
            lift(torch.zeros(1, 1, 8), base=QUINCUNX, sampling="dense", dims=1)
