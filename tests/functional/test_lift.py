"""The lift against SciPy; its moments at every sample; the law that makes it exact."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from reference import MODES, SCIPY_MODES, assert_levels, image, paper_lift
from scipy import ndimage, special

from scalespaces import downscale, scale_shift, theory
from scalespaces.theory._arguments import NUMPY_PADDING
from scalespaces.theory._kernels import get_kernel

ROOT2 = 2**0.5
BASES = (2.0, 3.0, 1.5, ROOT2, 1.2)
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


def gaussian_taps(t: float, truncation: float = 4.0) -> np.ndarray:
    """Taps of variance t from the Bessel functions themselves."""
    radius = math.ceil(truncation * math.sqrt(t) - 1e-9)
    taps = special.ive(np.abs(np.arange(-radius, radius + 1)), t)
    return taps / taps.sum()


def blur(f: Any, taps: np.ndarray, mode: Any, apart: int = 1) -> np.ndarray:
    """Separable correlation over all axes after batch and channels, by SciPy."""
    f, spread = np.asarray(f), np.zeros((len(taps) - 1) * apart + 1)
    spread[::apart] = taps
    for axis in range(2, f.ndim):
        if f.shape[axis] == 1 and mode != "zeros":
            continue  # the only sample is repeated: nothing changes
        f = ndimage.correlate1d(f, spread, axis=axis, mode=SCIPY_MODES[mode])
    return f


def every(f: Any, step: int) -> np.ndarray:
    return np.asarray(f)[(slice(None), slice(None), *[slice(None, None, step)] * (f.ndim - 2))]


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("mode", MODES)
def test_every_kernel(name, mode):
    f, settings = image(19, 6), SETTINGS[name]
    kernel = get_kernel(settings.get("kernel", "discrete_gaussian"))

    def taps(dilation: float) -> np.ndarray:
        t = kernel.scale(dilation, settings.get("zero_scale", 0.25))
        return kernel(t, truncation=settings.get("truncation", 4.0))

    direct = paper_lift(f, 3, padding_mode=mode, **settings)
    assert_levels(direct, [blur(f, taps(2.0**k), mode) for k in range(3)])
    cascade = paper_lift(f, 3, method="cascade", sampling="pyramid", padding_mode=mode, **settings)
    one = every(blur(f, taps(2.0), mode), 2)
    assert_levels(cascade, [f, one, every(blur(one, taps(2.0), mode), 2)])


class TestDirect:
    @given(shapes, st.integers(1, 4), st.sampled_from(BASES), modes, st.sampled_from([0.25, 0.5, 1.0]))
    def test_dense_levels_are_blurred_by_their_variance(self, shape, num_levels, base, mode, zero_scale):
        f = image(*shape)
        x = paper_lift(f, num_levels, base, zero_scale=zero_scale, padding_mode=mode)
        assert x.steps == (1.0,) * num_levels
        assert x.levels[0] is f
        variances = [zero_scale * (base ** (2 * k) - 1) for k in range(num_levels)]
        assert_levels(x, [blur(f, gaussian_taps(t), mode) for t in variances])

    @given(shapes, st.sampled_from([2, 3]), modes, st.sampled_from(["pyramid", 2, 3, 4.0]))
    def test_coarser_grids_hold_every_so_many_dense_samples(self, shape, base, mode, sampling):
        f = image(*shape)
        dense = paper_lift(f, 3, base, padding_mode=mode)
        x = paper_lift(f, 3, base, padding_mode=mode, sampling=sampling)
        for k, step in enumerate(x.steps):
            assert step == pytest.approx(max(1, base**k / (1 if sampling == "pyramid" else float(sampling))))
            if step == int(step):
                assert_levels([x.levels[k]], [every(dense.levels[k], int(step))])

    @pytest.mark.parametrize("base", [1.5, ROOT2, 1.2, 2.5])
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize(
        ("n", "zero_scale"), [(1, 0.25), (2, 0.25), (3, 0.25), (7, 0.25), (12, 0.25), (301, 0.25), (150, 300.0)]
    )
    def test_fractional_steps_use_the_kernel_of_each_phase(self, base, mode, n, zero_scale):
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
        for n, truncation, tolerance in ((81, 4.0, 2e-3), (161, 12.0, 1e-9)):
            x = paper_lift(torch.eye(n, dtype=torch.float64)[n // 2].reshape(1, 1, n), truncation=truncation)
            response = x.levels[3][0, 0].numpy()
            assert truncation > 4 or np.count_nonzero(response) == 33
            assert response.sum() == pytest.approx(1)
            assert response @ (np.arange(n) - n // 2) ** 2 == pytest.approx(15.75, rel=tolerance)


class TestCascade:
    @pytest.mark.parametrize(
        ("sampling", "base"),
        [("pyramid", 2.0), ("pyramid", 3.0), (2, 2.0), (3, 3.0), *[("dense", base) for base in BASES]],
    )
    @given(shape=shapes, mode=modes, zero_scale=st.sampled_from([0.25, 0.5, 1.0]))
    @settings(max_examples=15)
    def test_steps(self, sampling, base, shape, mode, zero_scale):
        """Blur by s0 (c^2 - 1) with the taps spread, then thin; between samples there are no taps, so blur by more."""
        f = image(*shape)
        x = paper_lift(f, 4, base, zero_scale=zero_scale, method="cascade", sampling=sampling, padding_mode=mode)
        expected: list[Any] = [f]
        for k in range(3):
            apart, thin = base**k / x.steps[k], x.steps[k + 1] / x.steps[k]
            whole = abs(apart - round(apart)) < 1e-9
            taps = gaussian_taps(zero_scale * (base**2 - 1) * (1 if whole else apart**2))
            expected.append(every(blur(expected[-1], taps, mode, round(apart) if whole else 1), round(thin)))
        assert_levels(x, expected)


def assert_commutes(f: torch.Tensor, num_levels: int, **settings: Any) -> None:
    """Level k of the lifted D f is level k + 1 of the lifted f, at every sample."""
    x = paper_lift(f, num_levels, method="cascade", **settings)
    action = {name: value for name, value in settings.items() if name != "sampling"}
    for n in range(1, num_levels):
        y = paper_lift(downscale(f, n, dims=f.ndim - 2, **action), num_levels - n, method="cascade", **settings)
        shifted = scale_shift(x, n)
        assert (shifted.steps, shifted.origins) == (y.steps, y.origins)
        assert_levels(y, shifted)


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
        assert_levels(y.levels, x.levels[1:], rtol=0, atol=0)

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

    @given(st.integers(1, 4), st.sampled_from([2, 3]), st.sampled_from(["reflect", "replicate", "circular"]))
    def test_dense_when_the_last_sample_stays_or_the_period_divides(self, m, base, mode):
        n = m * base**2 if mode == "circular" else 1 + (m - 1) * base**2
        assert_commutes(image(n), 3, base=float(base), padding_mode=mode)

    @pytest.mark.parametrize(("base", "r"), [(2.0, 2), (2.0, 4), (3.0, 3)])
    def test_oversampled_by_a_power_of_the_base(self, base, r):
        assert_commutes(image(23, 4), 4, base=base, sampling=r, padding_mode="zeros")
        assert_commutes(image(1 + 2 * round(base) ** 3), 4, base=base, sampling=r, padding_mode="reflect")


@pytest.mark.parametrize("base", [2.0, ROOT2, 1.5, 1.2])
@pytest.mark.parametrize("method", ["direct", "cascade"])
@pytest.mark.parametrize("sampling", ["dense", "pyramid", 2, 3])
class TestMoments:
    """What each sample takes from the image: mass 1, mean at its own position, variance of its level."""

    @pytest.mark.parametrize(
        ("n", "truncation", "mean_error", "variance_error"), [(161, 4.0, 2e-3, 0.05), (241, 16.0, 1e-7, 1e-5)]
    )
    def test_without_truncation_they_are_exact(self, base, method, sampling, n, truncation, mean_error, variance_error):
        impulses = torch.eye(n, dtype=torch.float64)[:, None]
        x = paper_lift(impulses, 4, base, method=method, sampling=sampling, truncation=truncation)
        for k, t in enumerate(theory.level_variances(4, base, 0.25)):
            weights = x.levels[k][:, 0].numpy().T  # row i: what sample i takes from every pixel
            position = x.steps[k] * np.arange(len(weights))
            inner = (position > 0.4 * n) & (position < 0.6 * n)
            away = np.arange(n)[None] - position[:, None]
            mass, mean, second = ((weights * away**p).sum(1)[inner] for p in range(3))
            assert_allclose(mass, 1, atol=1e-12)
            assert_allclose(mean, 0, atol=mean_error)
            assert_allclose(second, t, rtol=variance_error, atol=1e-12)

    def test_constants_stay(self, base, method, sampling):
        for mode in ("reflect", "replicate", "circular"):
            x = paper_lift(torch.full((1, 1, 7, 4), 3.0), 4, base, method=method, sampling=sampling, padding_mode=mode)
            for level in x.levels:
                assert_allclose(level.numpy(), 3.0, rtol=1e-5)


class TestGrids:
    @given(st.integers(1, 200), st.sampled_from(BASES), st.sampled_from(["dense", "pyramid", 1.5, 2, 3, 4]))
    @settings(max_examples=40)
    def test_both_methods_have_the_same_grids(self, n, base, sampling):
        """And on a pyramid sizes follow from the level before."""
        x, y = (paper_lift(torch.zeros(1, 1, n), 5, base, method=m, sampling=sampling) for m in ("direct", "cascade"))
        assert (x.shapes, x.grid) == (y.shapes, y.grid)
        for k, (level, step) in enumerate(zip(x.levels, x.steps, strict=True)):
            assert (level.shape[2] - 1) * step <= n - 1 + 1e-9
            if sampling == "pyramid" and k:
                assert level.shape[2] == math.floor((x.levels[k - 1].shape[2] - 1) / base + 1e-9) + 1
                assert step == pytest.approx(base**k)

    def test_oversampling_lies_between(self):
        f = image(33)
        for a, b in ((1, "pyramid"), (1.0, "pyramid"), (64, "dense")):
            one, other = paper_lift(f, 4, sampling=a), paper_lift(f, 4, sampling=b)
            assert one.steps == other.steps
            assert_levels(one, other, rtol=0, atol=0)
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
