"""Laws first: mass, mean, variance and semigroup; then references that share no code with the kernels."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from reference import SCIPY_MODES, refusals
from scipy import integrate, ndimage, special

from scalespaces.theory import Alpha, Kernel, anisotropic_gaussian, binomial, discrete_gaussian, sampled_gaussian
from scalespaces.theory._anisotropic import gaussian_blur
from scalespaces.theory._kernels import KERNELS, get_kernel

scales = st.floats(0, 20)
phases = st.floats(0, 1, exclude_max=True)
WIDE = 80  # beyond it a Gaussian of variance 40 is below rounding


def offsets(taps: np.ndarray, phase: float) -> np.ndarray:
    r = (len(taps) - 1) // 2
    return np.arange(-r, len(taps) - r) - phase


def moments(taps: np.ndarray, phase: float) -> tuple[float, float, float]:
    x = offsets(taps, phase)
    return float(taps.sum()), float(taps @ x), float(taps @ x**2)


def covariances(d: int) -> st.SearchStrategy[np.ndarray]:
    factor = st.lists(st.floats(-1.5, 1.5), min_size=d * d, max_size=d * d)
    return factor.map(lambda v: np.reshape(v, (d, d))).map(lambda F: F @ F.T)


def convolve_full(f: np.ndarray, g: np.ndarray) -> np.ndarray:
    out = np.zeros([m + n - 1 for m, n in zip(f.shape, g.shape, strict=True)])
    for index, value in np.ndenumerate(f):
        out[tuple(slice(i, i + n) for i, n in zip(index, g.shape, strict=True))] += value * g
    return out


class TestDiscreteGaussian:
    @given(scales, scales)
    def test_semigroup(self, s, t):
        f, g = (discrete_gaussian(u, radius=WIDE) for u in (s, t))
        assert_allclose(np.convolve(f, g), discrete_gaussian(s + t, radius=2 * WIDE), atol=1e-12)

    @given(scales, phases)
    def test_mass_mean_and_variance_are_exact_at_every_phase(self, t, phase):
        x = np.arange(-WIDE, WIDE + 2) - phase
        for scale in (t, 0.0):  # at 0, quadratics are reproduced
            taps = discrete_gaussian.values(x, scale)
            assert_allclose([taps.sum(), taps @ x, taps @ x**2], [1, 0, scale], atol=1e-10)

    @given(st.floats(0.01, 30), phases)
    def test_equation(self, t, phase):
        """Interpolate the Bessel functions themselves, tap by tap."""
        phi = 1 - phase
        tau = t - phi * (1 - phi)
        if tau < 0:
            return
        expected = [
            (1 - phi) * math.exp(-tau) * special.iv(abs(m - 1), tau) + phi * math.exp(-tau) * special.iv(abs(m), tau)
            for m in range(-5, 7)
        ]
        assert_allclose(discrete_gaussian.values(np.arange(-5, 7) - phase, t), expected, atol=1e-13)

    def test_heat_equation(self):
        n, t, h = np.arange(-20, 21), 2.0, 1e-5
        ahead, here, behind = (discrete_gaussian.values(n, t + e) for e in (h, 0, -h))
        laplacian = np.convolve(here, [0.5, -1, 0.5], mode="same")
        assert_allclose((ahead - behind) / (2 * h), laplacian, atol=1e-9)

    def test_paper_settings(self):
        assert discrete_gaussian.scale(8, 0.25) == 15.75
        assert discrete_gaussian(15.75).shape == (33,)


class TestSampledGaussian:
    @given(st.floats(0.05, 20), st.floats(-5, 5))
    def test_density(self, t, x):
        assert_allclose(
            sampled_gaussian.values(np.array([x]), t), math.exp(-x * x / 2 / t) / math.sqrt(2 * math.pi * t)
        )

    def test_deviation_from_a_semigroup_is_as_documented(self):
        for t, deviation in ((0.25, 7.7e-2), (0.5, 5.7e-3), (1, 2.9e-5), (2, 1.1e-9)):
            g = sampled_gaussian(t, radius=WIDE)
            measured = np.abs(np.convolve(g, g) - sampled_gaussian(2 * t, radius=2 * WIDE)).max()
            assert_allclose(measured, deviation, rtol=0.05)

    def test_semigroup_from_t_4_on(self):
        f, g = sampled_gaussian(4, radius=WIDE), sampled_gaussian(6, radius=WIDE)
        assert_allclose(np.convolve(f, g), sampled_gaussian(10, radius=2 * WIDE), atol=1e-15)


class TestBinomial:
    @given(st.integers(0, 40), st.integers(0, 40))
    def test_semigroup_by_order(self, i, j):
        """B(N) * B(M) = B(N + M): orders add; the paper's N + M - 1 is the number of taps."""
        f, g = binomial(i / 2, radius=i), binomial(j / 2, radius=j)
        assert_allclose(np.convolve(f, g), binomial((i + j) / 2, radius=i + j), atol=1e-13)

    @given(st.integers(1, 60))
    def test_powers_of_one_two_one(self, half):
        taps = np.ones(1)
        for _ in range(half):
            taps = np.convolve(taps, [0.25, 0.5, 0.25])
        assert_allclose(binomial(half / 2, radius=half), taps, atol=1e-14)
        assert_allclose(moments(taps, 0), [1, 0, half / 2], atol=1e-10)

    def test_coefficients(self):
        for half in (1, 5, 40, 700):
            expected = [math.comb(2 * half, half + n) / 4**half for n in range(-half, half + 1)]
            assert_allclose(binomial.values(np.arange(-half, half + 1), half / 2), expected, rtol=1e-12)
            assert not binomial.values([-half - 1, half + 1, half + 9], half / 2).any()


class TestAlpha:
    @pytest.mark.parametrize("alpha", [0.1, 0.3, 0.5, 0.75, 1.0])
    @pytest.mark.parametrize("t", [0.0, 0.3, 3.0, 40.0])
    def test_against_quad(self, alpha, t):
        kernel = Alpha(alpha)
        p, top = 1 / alpha, math.pi**alpha
        for x in (0.0, 1.0, 2.5, 30.25):
            # u**p with 2 alpha p = 2 takes the singularity away, by another route than the graded panels.

            def integrand(u, x=x):
                return math.exp(-0.5 * t * u * u) * math.cos(x * u**p) * p * u ** (p - 1) / math.pi

            expected = integrate.quad(integrand, 0, top, epsabs=1e-14, epsrel=1e-13, limit=2000)[0]
            assert_allclose(kernel.values(np.array([x]), t), expected, atol=2e-13)

    @pytest.mark.parametrize("t", [0.2, 1.0, 15.0])
    def test_poisson_closed_form(self, t):
        n = np.arange(-900, 901)
        a = t / 2
        expected = a * (1 - (-1.0) ** n * math.exp(-a * math.pi)) / (a * a + n * n) / math.pi
        assert_allclose(Alpha(0.5).values(n, t), expected, atol=1e-13)

    @given(st.floats(0.05, 1), scales, scales)
    def test_semigroup_on_a_periodic_grid(self, alpha, s, t):
        kernel = Alpha(alpha)
        w = 2 * np.pi * np.fft.fftfreq(48)
        f, g, both = (np.fft.ifft(kernel.transfer(w, u)).real for u in (s, t, s + t))
        circular = np.array([sum(f[m] * g[(n - m) % 48] for m in range(48)) for n in range(48)])
        assert_allclose(circular, both, atol=1e-12)

    def test_semigroup_of_the_taps(self):
        """Alpha = 1 from t = 6 on: taps beyond the radius are below rounding."""
        kernel = Alpha(1.0)
        f, g = kernel(6.0, radius=WIDE), kernel(7.0, radius=WIDE)
        assert_allclose(np.convolve(f, g), kernel(13.0, radius=2 * WIDE), atol=1e-12)
        assert_allclose(kernel(6.0), sampled_gaussian(6.0), atol=1e-12)

    def test_taps_have_the_transfer_function(self):
        kernel, n, w = Alpha(0.75), np.arange(-3000, 3001), np.linspace(-np.pi, np.pi, 7)
        assert_allclose(np.cos(np.outer(w, n)) @ kernel.values(n, 2.0), kernel.transfer(w, 2.0), atol=1e-4)
        assert_allclose(kernel.transfer(w + 2 * np.pi, 2.0), kernel.transfer(w, 2.0), rtol=1e-12)

    def test_levels(self):
        assert Alpha(0.5).scale(8, 0.25) == 1.75
        assert Alpha(0.5).radius(2.0) == 8


KERNEL_SCALES = [("discrete_gaussian", 0.7), ("sampled_gaussian", 0.7), ("binomial", 3.5), ("alpha", 0.7)]


class TestEveryFamily:
    @pytest.mark.parametrize(("name", "t"), KERNEL_SCALES)
    @pytest.mark.parametrize("phase", [0.0, 0.3])
    def test_taps_are_the_normalized_values(self, name, t, phase):
        kernel = get_kernel(name)
        if name == "binomial" and phase:
            return
        for radius in (None, 0, 1, 7):
            taps = kernel(t, radius=radius, phase=phase)
            r = max(kernel.radius(t), phase > 0) if radius is None else radius
            assert len(taps) == 2 * r + 1 + (phase > 0)
            values = np.array([kernel.values(np.array([x]), t)[0] for x in offsets(taps, phase)])
            assert_allclose(taps, values / values.sum(), atol=1e-13)


class TestAnisotropicGaussian:
    @given(covariances(2), covariances(2))
    @settings(max_examples=15, deadline=None)
    def test_semigroup_for_all_covariances(self, S, T):
        f, g = anisotropic_gaussian(S, radius=24), anisotropic_gaussian(T, radius=24)
        assert_allclose(convolve_full(f, g), anisotropic_gaussian(S + T, radius=48), atol=1e-12)

    @given(st.integers(1, 3).flatmap(covariances))
    @settings(max_examples=30, deadline=None)
    def test_mass_mean_and_covariance(self, T):
        d = len(T)
        taps = anisotropic_gaussian(T, radius=26)
        x = np.stack(np.meshgrid(*[np.arange(-26, 27)] * d, indexing="ij")).reshape(d, -1)
        p = taps.ravel()
        assert_allclose(p.sum(), 1, atol=1e-12)
        assert_allclose(x @ p, 0, atol=1e-10)
        assert_allclose((x * p) @ x.T, T, atol=1e-9)

    @given(covariances(2))
    @settings(deadline=None)
    def test_schur_product_theorem(self, T):
        """No frequency is amplified: the DFT of the (untruncated) taps stays within [0, 1]."""
        taps = anisotropic_gaussian(T, radius=26)
        transfer = np.fft.fftn(np.fft.ifftshift(taps))
        assert np.abs(transfer.imag).max() < 1e-12
        assert -1e-12 < transfer.real.min() <= transfer.real.max() < 1 + 1e-12

    @pytest.mark.parametrize("variances", [(0.7,), (0.7, 3.0), (0.3, 0.0, 2.0)])
    def test_diagonal_is_separable(self, variances):
        expected = np.ones(())
        for t in variances:
            expected = np.multiply.outer(expected, discrete_gaussian(t))
        assert_allclose(anisotropic_gaussian(np.diag(variances)), expected, atol=1e-14)

    def test_transfer_by_quadrature(self):
        """One tap of a full covariance, by integrating the definition."""
        T = [[1.5, 0.8], [0.8, 1.0]]

        def integrand(v, w):
            Q = 3 * (1 - math.cos(v)) + 2 * (1 - math.cos(w)) + 1.6 * math.sin(v) * math.sin(w)
            return math.exp(-Q / 2) * math.cos(2 * v - w) / (2 * math.pi) ** 2

        expected = integrate.dblquad(integrand, -math.pi, math.pi, -math.pi, math.pi, epsabs=1e-10)[0]
        assert_allclose(anisotropic_gaussian(T, radius=20)[20 + 2, 20 - 1], expected, atol=1e-9)

    def test_heat_equation_with_cross_terms(self):
        T, h = np.array([[2.0, 1.1], [1.1, 1.0]]), 1e-5
        ahead, here, behind = (anisotropic_gaussian(T * (1 + e), radius=20) for e in (h, 0, -h))
        second, central = np.array([1, -2, 1]), np.array([0.5, 0, -0.5])
        stencil = np.zeros((3, 3))
        stencil[:, 1] += T[0, 0] / 2 * second
        stencil[1, :] += T[1, 1] / 2 * second
        stencil += T[0, 1] * np.outer(central, central)
        assert_allclose((ahead - behind) / (2 * h), ndimage.convolve(here, stencil, mode="constant"), atol=1e-9)

    def test_singular(self):
        assert_allclose(anisotropic_gaussian(np.zeros((3, 3))), np.ones((1, 1, 1)), rtol=0)
        assert anisotropic_gaussian([[1.0, 0], [0, 0]]).shape == (9, 1)
        line = anisotropic_gaussian([[2.0, 2.0], [2.0, 2.0]], radius=20)
        x = np.arange(-20, 21)
        difference = np.subtract.outer(x, x)
        assert_allclose((line * difference**2).sum(), 0, atol=1e-10)  # no variance across the line


class TestGaussianBlur:
    IMAGE = np.random.default_rng(0).normal(size=(23, 31))

    @pytest.mark.parametrize(("padding_mode", "mode"), list(SCIPY_MODES.items()))
    def test_against_scipy_gaussian_filter(self, padding_mode, mode):
        """And against the direct convolution."""
        T = [[1.5, -0.7], [-0.7, 0.8]]
        expected = ndimage.convolve(self.IMAGE, anisotropic_gaussian(T), mode=mode)
        assert_allclose(gaussian_blur(self.IMAGE, T, padding_mode=padding_mode), expected, atol=1e-13)
        expected = ndimage.gaussian_filter(self.IMAGE, (4, 5), mode=mode, truncate=6)
        blurred = gaussian_blur(self.IMAGE, np.diag([16.0, 25.0]), padding_mode=padding_mode, truncation=6)
        assert_allclose(blurred, expected, atol=0.03 * np.abs(expected).max())

    @given(covariances(2), covariances(2))
    @settings(max_examples=10, deadline=None)
    def test_semigroup_on_the_torus(self, S, T):
        def blur(f, covariance):
            return gaussian_blur(f, covariance, padding_mode="circular", truncation=12)

        S, T = S + np.eye(2) / 2, T + np.eye(2) / 2  # wide enough that 12 sigma cut off nothing
        assert_allclose(blur(blur(self.IMAGE, S), T), blur(self.IMAGE, S + T), atol=1e-9)


def test_special_cases():
    assert_allclose(discrete_gaussian(0.0), [1.0], rtol=0)
    assert_allclose(discrete_gaussian(0, phase=0.5), np.array([-1, 9, 9, -1]) / 16, rtol=0)
    assert discrete_gaussian.radius(np.nextafter(4.0, 5)) == 8, "rounding does not widen"
    assert_allclose(sampled_gaussian(0, phase=0.25), [0, 0.75, 0.25, 0])
    assert [binomial.radius(t) for t in (0, 0.5, 1.5, 7.5, 31.5)] == [0, 1, 3, 11, 23]
    assert_allclose(binomial(1000.0), discrete_gaussian(1000.0), atol=1e-5)
    assert_allclose(binomial(1e5, radius=20), discrete_gaussian(1e5, radius=20), atol=1e-9)
    assert Alpha(0.1)(15.0, radius=3).shape == (7,)
    assert anisotropic_gaussian(np.diag([0.25, 4.0])).shape == (5, 17)
    assert anisotropic_gaussian(np.eye(2), radius=(3, 1)).shape == (7, 3)
    assert np.array_equal(gaussian_blur(TestGaussianBlur.IMAGE, np.zeros((2, 2))), TestGaussianBlur.IMAGE)
    assert get_kernel("discrete_gaussian") is discrete_gaussian
    assert get_kernel(Alpha(0.7)) == Alpha(0.7) != Alpha(0.5) == get_kernel("alpha")


WRONG: Any = "mirror"


test_refusals = refusals(
    (lambda: sampled_gaussian(1e-6, phase=0.5), "positive mass"),
    (lambda: binomial(0.75), r"got t = 0.75; the nearest valid t are 0.5 and 1.0 .zero_scale=1/2"),
    (lambda: binomial(1.5, phase=0.5), "phase 0"),
    *[(lambda a=a: Alpha(a), r"alpha must be a finite number in \(0, 1\]") for a in (0.0, 1.5)],
    *[(lambda a=a: Alpha(a)(15.0), r"up to radius 4096, got more from t = 15\.0") for a in (0.1, 0.001)],
    (lambda: Alpha(0.5)(1.0, radius=5000), "up to offset 4096"),
    (lambda: get_kernel("gausian"), r"one of \['discrete_gaussian'.*got 'gausian'; did you mean .*gaussian'"),
    (lambda: anisotropic_gaussian(np.eye(2), radius=(3,)), "each of 2 axes"),
    (lambda: anisotropic_gaussian([[1.0, 2.0], [2.0, 1.0]]), r"semi-definite, got eigenvalues \[-1.0"),
    (lambda: anisotropic_gaussian([[1.0, 0.5], [0.0, 1.0]]), "symmetric"),
    *[(lambda T=T: anisotropic_gaussian(T), "finite square") for T in ([[math.nan]], [[1.0, 0.0]], 1.0)],
    (lambda: gaussian_blur([[math.nan]], np.eye(2)), "finite and not empty"),
    (lambda: gaussian_blur(np.ones(5), np.eye(2)), r"must be \(1, 1\) for this image"),
    (lambda: gaussian_blur(np.ones((5, 5)), np.eye(2), padding_mode=WRONG), "padding_mode is one of"),
)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("bad", [math.nan, -1.0, "1", True])
def test_bad_numbers(kernel: Kernel, bad: Any):
    for call, message in (
        (lambda: kernel(bad), "t must be a finite number >= 0, got"),
        (lambda: kernel.values(np.arange(3), bad), "t must be"),
        (lambda: kernel.scale(2, bad), "zero_scale must be"),
        (lambda: kernel.scale(bad, 0.25), "dilation must be"),
        (lambda: kernel(1.0, phase=bad), "phase must be"),
        (lambda: kernel(1.0, truncation=bad), "truncation must be"),
        (lambda: kernel(1.0, radius=bad), "radius must be an integer >= 0"),
        (lambda: kernel.values([0.0, 0.5], 1.0), "share one fractional part"),
        (lambda: kernel.values([0.0, math.nan], 1.0), "finite"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
