"""Slips of the paper, each decided: what is printed fails, what docs/errata.md puts in its place holds."""

import itertools
import math

import numpy as np
import pytest
import torch
from algebra import printed_law
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy import integrate, special

from scalespaces import downscale, lift, theory
from scalespaces.data import photograph
from scalespaces.nn.init import paper_
from scalespaces.semigroups import Lifted, ScaleTranslations, semigroup_correlation
from scalespaces.theory import Alpha, ScaleTranslation, act, act_lifted, binomial, discrete_gaussian

# --- formulas ---------------------------------------------------------------------------------------------------------


def test_composition():
    """f(B^-1 (A^-1 x + z) + y): without a blur both sides are gathers, and exact."""
    f, s, t = np.arange(64.0) ** 2, ScaleTranslation(0.5, 1), ScaleTranslation(0.5, 4)
    twice = act(act(f, t, 0.0), s, 0.0)
    assert np.array_equal(twice, act(f, s @ t, 0.0, shape=twice.shape))
    assert not np.array_equal(twice, act(f, printed_law(s, t), 0.0, shape=twice.shape))


def test_composition_stays_on_the_grid():
    """The paper's S has z in Z^d. The law of its action keeps it there, the printed one does not."""
    s, t = ScaleTranslation(0.5, 0), ScaleTranslation(0.5, 1)
    assert ((s @ t).z, printed_law(s, t).z) == (1, 0.5)


@given(st.integers(0, 3), st.integers(0, 3), st.integers(-9, 9))
def test_composition_is_the_one_of_the_error_measure(k, el, z):
    """Phi(k + l, 2^l z) is Phi(s t) with s = (2^-k, z) and t = (2^-l, 0)."""
    shifted = act_lifted(lambda s: (s.A.item(), s.z.item()), ScaleTranslation(0.5**el, 0))
    assert shifted(ScaleTranslation(0.5**k, z)) == (0.5 ** (k + el), 2**el * z)
    printed = printed_law(ScaleTranslation(0.5**k, z), ScaleTranslation(0.5**el, 0))
    assert printed.z == z


def test_the_action_on_the_grid_is_only_nearly_one():
    """S_1/2 S_1/2 blurs by G(w, 3/4) G(2w, 3/4), S_1/4 by G(w, 15/4): one for small w, others at the Nyquist limit."""

    def transfer(w, t):
        n = np.arange(-60, 61)
        return discrete_gaussian.values(n, t) @ np.cos(np.outer(n, w))

    w = np.array([0.05, math.pi])
    twice, once = transfer(w, 0.75) * transfer(2 * w, 0.75), transfer(w, 3.75)
    assert_allclose(twice[0], once[0], rtol=1e-4)
    assert_allclose([twice[1], once[1]], [math.exp(-1.5), math.exp(-7.5)])
    continuous = [np.exp(-w * w * t / 2) for t in (0.75, 4 * 0.75, 3.75)]
    assert_allclose(continuous[0] * continuous[1], continuous[2])


def test_middle_term_of_the_scale_space_correlation():
    """S_{A,z}[f](B,y) = f((B,y)(A,z)); the printed S_{B,y}[f](A,y) does not even depend on z."""
    n, levels = 8, 3
    scalings = ScaleTranslations((n,), levels)
    rng = np.random.default_rng(0)
    f = dict(zip(scalings.elements(), rng.normal(size=levels * n), strict=True))
    psi = {(b, (y,)): rng.normal() for b in range(2) for y in (-1, 0, 1)}

    def correlate(place):
        return [sum(w * f.get(place(*x, *s), 0.0) for x, w in psi.items()) for s in scalings.elements()]

    explicit = correlate(lambda b, y, a, z: (b + a, ((2**a * y[0] + z[0]) % n,)))
    corrected = correlate(lambda b, y, a, z: scalings.compose((b, y), (a, z)))
    printed = correlate(lambda b, y, a, z: scalings.compose((a, y), (b, y)))
    assert corrected == explicit
    assert_allclose(np.reshape(printed, (levels, n)), np.reshape(printed, (levels, n))[:, :1].repeat(n, 1))
    assert np.std(np.reshape(explicit, (levels, n)), 1).min() > 0.1
    signal, filters = (torch.tensor(list(values.values()), dtype=torch.float64)[None, None] for values in (f, psi))
    ours = semigroup_correlation(signal, filters, Lifted(scalings, psi))
    assert_allclose(ours.flatten(), explicit)


@pytest.mark.parametrize("t", [0.25, 1.0, 4.0])
def test_sign_and_variance_of_the_gaussian(t):
    def kernel(x, sign):
        return (4 * math.pi * t) ** -0.5 * math.exp(sign * x * x / (4 * t))

    def moment(p):
        return integrate.quad(lambda x: x**p * kernel(x, -1), -math.inf, math.inf)[0]

    assert_allclose([moment(0), moment(2)], [1, 2 * t])
    assert kernel(10, 1) > kernel(0, 1) > kernel(10, -1)


GROUP = list(itertools.permutations(range(3)))


def test_the_group_correlation_needs_the_right_product():
    """On a group that does not commute f(xs) is a left action and its correlation is equivariant; f(sx) is not."""
    rng = np.random.default_rng(0)
    f, psi = ({x: rng.normal() for x in GROUP} for _ in range(2))

    def multiply(s, t):
        return tuple(s[i] for i in t)

    def inverse(s):
        return tuple(s.index(i) for i in range(3))

    def equivariant(move):
        """Whether [psi * L_t f](s) = [psi * f](st) for all s and t, where L_s[f](x) = f(move(s, x))."""
        return all(
            math.isclose(
                sum(psi[x] * f[move(t, move(s, x))] for x in GROUP),
                sum(psi[x] * f[move(multiply(s, t), x)] for x in GROUP),
            )
            for s, t in itertools.product(GROUP, repeat=2)
        )

    assert equivariant(lambda s, x: multiply(x, s))
    assert not equivariant(multiply)
    for s in GROUP:  # Cohen and Welling's, sum_x psi(s^-1 x) f(x), of x -> x^-1, at s^-1
        ours = sum(psi[x] * f[multiply(x, s)] for x in GROUP)
        theirs = sum(psi[inverse(multiply(s, x))] * f[inverse(x)] for x in GROUP)
        assert math.isclose(ours, theirs)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_factor_of_the_change_of_variables(d):
    """G(x / a - y, s0) = a^d G(x - a y, a^2 s0): the printed a is that of one dimension."""
    rng = np.random.default_rng(d)
    x, y, a, s0 = rng.normal(size=d), rng.normal(size=d), 0.4, 0.7

    def gaussian(x, t):
        return (4 * math.pi * t) ** (-d / 2) * math.exp(-(x @ x) / (4 * t))

    ratio = gaussian(x / a - y, s0) / gaussian(x - a * y, a**2 * s0)
    assert math.isclose(ratio, a**d)
    assert math.isclose(ratio, a) == (d == 1)


def test_dilations_are_positive_and_at_most_one():
    """a <= 0 does not imply s0 - a^2 s0 > 0 and leaves out every downscaling; 0 < a <= 1 gives >= 0, with 0 at 1."""
    assert 0.25 - (-2) ** 2 * 0.25 < 0
    for a in (1.0, 0.7, 0.5, 0.125):
        assert_allclose(a**2 * (theory.blur_variance(1 / a, 0.25) + 0.25), 0.25)
        assert (0.25 - a**2 * 0.25 == 0) == (theory.blur_variance(1 / a, 0.25) == 0) == (a == 1)
    for a in (0.0, -0.5, 1.5):
        with pytest.raises(ValueError, match="A must be"):
            ScaleTranslation(a, 0)


@given(st.integers(1, 4), st.integers(0, 99))
def test_the_contraction_is_of_v(d, seed):
    A, v, z = (np.random.default_rng(seed).normal(size=size) for size in ((d, d), d, d))
    A = A / (1.1 * np.linalg.norm(A, 2))
    left = v @ (np.eye(d) - A @ A.T) @ v
    assert_allclose(left, v @ v - (A.T @ v) @ (A.T @ v), atol=1e-12)
    assert left > 0
    assert abs(left - (v @ v - (A.T @ (v + z)) @ (A.T @ (v + z)))) > 1e-9


@pytest.mark.parametrize(
    "A", [np.eye(2), [[0.6, -0.8], [0.8, 0.6]], np.diag([1.0, 0.5])], ids=["identity", "rotation", "one axis"]
)
def test_covariances_may_be_singular(A):
    """Rotations "do not break this constraint", says the paper: they do, if it is strict."""
    A = np.asarray(A)
    smallest = np.linalg.eigvalsh(np.eye(2) - A @ A.T)[0]
    assert_allclose(smallest, 0, atol=1e-15)
    assert np.linalg.eigvalsh(theory.blur_covariance(A, 0.25))[0] >= 0
    with pytest.raises(ValueError, match="upscaling"):
        theory.blur_covariance(1.01 * A, 0.25)


@pytest.mark.parametrize("alpha", [0.25, 0.5, 0.75])
def test_the_modulus_in_the_alpha_kernel(alpha):
    """Without it the kernel of alpha = 1/2 amplifies negative frequencies, and others are not real."""
    w, t = np.linspace(-3, 3, 13), 2.0
    printed = np.exp(-(w.astype(complex) ** (2 * alpha)) * t)
    assert np.abs(printed).max() > 1 or np.abs(printed.imag).max() > 0.1
    corrected = np.exp(-(np.abs(w) ** (2 * alpha)) * t)
    assert_allclose(corrected, corrected[::-1])
    assert corrected.max() <= 1
    assert_allclose(Alpha(alpha).transfer(w, 2 * t), corrected)  # our t is twice the paper's


def binomial_taps(order):
    return np.array([math.comb(order, x) for x in range(order + 1)]) / 2**order


@pytest.mark.parametrize("N", [2, 4, 8, 12])
def test_binomial_coefficient(N):
    x = np.arange(N + 1)
    printed = np.array([math.factorial(N) / math.factorial(N - i) / math.factorial(N) for i in x])
    printed /= printed.sum()
    corrected = binomial_taps(N)
    for taps, holds in ((corrected, True), (printed, False)):
        mean = taps @ x
        assert np.allclose(taps, taps[::-1]) == holds
        assert math.isclose(taps @ (x - mean) ** 2, N / 4) == holds
    assert_allclose(binomial(N / 4, radius=N // 2), corrected)


@given(st.integers(1, 9), st.integers(1, 9))
def test_binomial_law(N, M):
    """Orders add. N + M - 1 is right for numbers of taps, but "0 <= x <= N" and "variance N / 4" are of orders."""
    product = np.convolve(binomial_taps(N), binomial_taps(M))
    assert_allclose(product, binomial_taps(N + M))
    assert len(product) != len(binomial_taps(N + M - 1))
    by_taps = np.convolve(binomial_taps(N - 1), binomial_taps(M - 1))
    assert_allclose(by_taps, binomial_taps(N + M - 1 - 1))


@given(st.integers(0, 6), st.floats(0.1, 20))
def test_bessel_series(x, t):
    def series(z, order):
        return sum((z / 2) ** (2 * m + order) / (math.factorial(m) * special.gamma(m + order + 1)) for m in range(60))

    assert_allclose(series(t, x), special.iv(x, t), rtol=1e-10)
    assert_allclose(math.exp(-t) * series(t, x), discrete_gaussian.values(x, t), rtol=1e-10)
    printed = series(x, x)  # alpha is x, and no t is left
    assert_allclose(printed, special.iv(x, x))
    assert math.isclose(t, x, abs_tol=0.01) or not math.isclose(printed, special.iv(x, t), rel_tol=1e-6)


# --- statements that contradict each other ----------------------------------------------------------------------------


def test_the_papers_numbers_take_t_for_the_variance():
    """Zero-scale 1/4, dilation 8, four standard deviations: 33 taps if t is the variance, 47 if that is 2t."""
    t = theory.blur_variance(8, 0.25)
    widths = [2 * math.ceil(4 * math.sqrt(variance)) + 1 for variance in (t, 2 * t)]
    assert (t, widths) == (15.75, [33, 47])
    assert len(discrete_gaussian(t)) == 33
    n = np.arange(-60, 61)
    assert_allclose(discrete_gaussian.values(n, t) @ n**2, t)


def test_truncation_is_not_what_breaks_equivariance():
    """Wider kernels leave the error of the paper's lift as it is, and the cascade has none with the narrowest."""
    image = photograph(256).double()

    def error(method, truncation):
        def levels(f, number):
            x = lift(f, number, method=method, sampling="pyramid", padding_mode="circular", truncation=truncation)
            return x.levels

        small = downscale(image, method=method, padding_mode="circular", truncation=truncation)
        expected = levels(image, 3)[2]
        return float((levels(small, 2)[1] - expected).norm() / expected.norm())

    assert error("direct", 12) == pytest.approx(error("direct", 4), rel=1e-3)
    assert error("direct", 12) > 1e-3
    assert error("cascade", 1) == 0


@pytest.mark.parametrize(("A", "stays"), [(1 / 2, True), (1 / 3, True), (2 / 3, False), (2**-0.5, False)])
def test_functions_on_the_grid_need_whole_inverses(A, stays):
    """Of a ramp the action reads off where it reads."""
    positions = act(np.arange(32.0), ScaleTranslation(A, 0), 0.0)
    assert_allclose(positions, np.arange(len(positions)) / A)
    assert np.allclose(positions, np.round(positions), atol=1e-9) == stays


@pytest.mark.parametrize(("alpha", "positive"), [(0.5, True), (0.75, True), (1.0, True), (1.5, False), (2.0, False)])
def test_alpha_above_one_blurs_too_but_rings(alpha, positive):
    """Its transfer function falls with t as well; what is lost is that kernels are positive."""
    w, x = np.linspace(0, 20, 4001), np.linspace(0, 15, 301)
    first, second = (np.exp(-(w ** (2 * alpha)) * t) for t in (1.0, 2.0))
    assert (second[1:] <= first[1:]).all()
    assert (second[1:200] < first[1:200]).all()
    kernel = integrate.trapezoid(np.cos(np.outer(x, w)) * first, w, axis=1) / math.pi
    assert (kernel.min() > -1e-4) == positive


@given(st.integers(1, 12))
def test_the_printed_binomial_kernel_moves_the_image(N):
    """Over 0 <= x <= N its mean is N / 2; ours is centered."""
    assert_allclose(binomial_taps(N) @ np.arange(N + 1), N / 2)
    taps = binomial(N / 2)
    assert_allclose(taps @ (np.arange(len(taps)) - len(taps) // 2), 0, atol=1e-14)


def test_widths_of_the_densenet_need_the_long_skips():
    """The table's 39, 19, 94, 47, 213: a block's input, pooled, joins the input of the next block."""
    printed = [39, 19, 94, 47, 213]

    def widths(long_skips):
        out, before, now = [], 0, 3
        for growth in (12, 24, 48):
            entered, now = now + long_skips * before, now + long_skips * before + 3 * growth
            out += [now, now // 2]
            before, now = entered, now // 2
        return out[:-1]

    assert widths(long_skips=True) == printed
    assert widths(long_skips=False) == [39, 19, 91, 45, 189]


# --- the published code -----------------------------------------------------------------------------------------------


def test_zero_scale_is_a_variance():
    """As a standard deviation 1/2 is the paper's 1/4, and 1/4 blurs four times too little."""

    def published(zero_scale, dilation):
        return zero_scale**2 * (dilation**2 - 1)

    for dilation in (2, 4, 8):
        assert theory.blur_variance(dilation, 0.25) == published(0.5, dilation) == 4 * published(0.25, dilation)


def test_fractional_bases_are_not_rounded():
    """Base 1.5 cut to integers spreads the taps of levels 0 and 1 alike."""
    x = lift(torch.rand(1, 1, 32), 4, 1.5, sampling="dense", method="direct", dims=1)
    spacing = [x.spacing(k) for k in range(4)]
    assert spacing == [1, 1.5, 2.25, 3.375]
    assert [int(s) for s in spacing] == [1, 1, 2, 3]


def test_the_papers_initialization_is_normal_noise_of_one_hundredth():
    """Uniform noise on (-1/100, 1/100) has a deviation of 0.0058; and the one stands at the first level alone."""
    weight = paper_(torch.empty(16, 16, 2, 5, 5), dims=2)
    assert weight[:, :, 1].std().item() == pytest.approx(0.01, rel=0.05)
    assert weight[:, :, 1].abs().max() > 0.02
    assert_allclose(weight[:, :, 0, 2, 2].diagonal(), 1)
    assert abs(weight[:, :, 1, 2, 2].diagonal()).max() < 0.1
