"""Bases, dilations and the blur they need."""

import math
from typing import Any

import numpy as np
import pytest
from algebra import rotation
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from reference import QUINCUNX

from scalespaces.theory import Alpha, blur_covariance, blur_variance, discrete_gaussian, level_variances
from scalespaces.theory._kernels import KERNELS, check_zero_scale
from scalespaces.theory._scale import check_base, expansion


def contractions() -> st.SearchStrategy[np.ndarray]:
    """Rotation, shrinking, rotation: every A with singular values in [0.3, 1]."""
    angle, size = st.floats(0, 6.3), st.floats(0.3, 1)
    return st.tuples(angle, size, size, angle).map(lambda v: rotation(v[0]) @ np.diag(v[1:3]) @ rotation(v[3]))


class TestBase:
    def test_bases(self):
        assert check_base(2) == 2.0
        assert isinstance(check_base(np.float32(1.5)), float)
        assert check_base(np.array([[1, 1], [1, -1]])) == QUINCUNX
        assert check_base(((2, 0), (0, 1))) == ((2.0, 0.0), (0.0, 1.0))  # the second axis keeps its grid

    @given(st.integers(2, 9), st.integers(1, 6), st.integers(0, 4))
    def test_roots_of_integers_snap(self, n, root, m):
        c = n ** (1 / root)
        assert expansion(c, root * m) == n**m
        assert expansion(c, -root * m) == 1 / n**m

    @given(st.floats(1.01, 8), st.integers(-6, 6), st.integers(-9, 9))
    def test_powers(self, c, j, k):
        assert_allclose(expansion(c, k), c**k, rtol=2e-9)
        assert_allclose(expansion(QUINCUNX, j) @ expansion(QUINCUNX, k), expansion(QUINCUNX, j + k), atol=1e-12)
        turning = check_base(math.sqrt(2) * rotation(math.pi / 4))
        assert np.array_equal(expansion(turning, 2), [[0, -2], [2, 0]])


class TestVariance:
    @given(st.floats(0.05, 1), st.floats(0, 4))
    def test_bandlimit_is_restored(self, a, s0):
        """The equation eq:resolution_balance: a^2 (t + s0) = s0."""
        assert_allclose(a * a * (blur_variance(1 / a, s0) + s0), s0, atol=1e-12)

    @given(st.floats(1, 8), st.floats(1, 8), st.floats(0, 2))
    def test_two_steps_make_one(self, c, d, s0):
        """Blur by t(d), thin by d, blur by t(c): as one blur, t(d) + d^2 t(c) = t(cd)."""
        two = blur_variance(d, s0) + d * d * blur_variance(c, s0)
        assert_allclose(two, blur_variance(c * d, s0), rtol=1e-9, atol=1e-9)

    def test_levels(self):
        t = level_variances(4, 2, 0.25)
        assert_allclose(t, [0, 0.75, 3.75, 15.75], rtol=0)
        assert [len(discrete_gaussian(float(v))) for v in t] == [1, 9, 17, 33]
        assert_allclose(level_variances(7, math.sqrt(2), 0.25)[::2], t, rtol=0)
        assert_allclose(level_variances(3, 2, 0.5, "binomial"), [0, 1.5, 7.5])
        assert_allclose(level_variances(3, 2, 0.25, Alpha(0.5)), [0, 0.25, 0.75])
        assert all(level_variances(1, 3, 1.0, name) == [0.0] for name in KERNELS)


class TestCovariance:
    @given(contractions(), st.floats(0, 2))
    def test_bandlimit_is_restored(self, A, s0):
        """Delta = Sigma0 - A Sigma0 A^T of the supplement is A T A^T."""
        T = blur_covariance(A, s0)
        assert_allclose(A @ (T + s0 * np.eye(2)) @ A.T, s0 * np.eye(2), atol=1e-9)
        assert np.array_equal(T, T.T)
        assert np.linalg.eigvalsh(T)[0] >= -1e-12

    @given(contractions(), contractions())
    def test_cocycle(self, A, B):
        """T(AB) = T(B) + B^-1 T(A) B^-T, which makes the action a semigroup action."""
        inverse = np.linalg.inv(B)
        two = blur_covariance(B, 0.25) + inverse @ blur_covariance(A, 0.25) @ inverse.T
        assert_allclose(two, blur_covariance(A @ B, 0.25), atol=1e-9)

    @given(st.floats(-7, 7), st.floats(0.1, 1), st.floats(0, 2), st.integers(1, 3))
    def test_rotations_need_no_blur(self, angle, a, s0, d):
        """And isotropic scalings the same along all axes."""
        assert not blur_covariance(rotation(angle), 0.25).any()
        assert_allclose(blur_covariance(a * np.eye(d), s0), blur_variance(1 / a, s0) * np.eye(d), atol=1e-9)
        assert np.array_equal(blur_covariance(np.diag([1, 0.5]), 0.25), np.diag([0, 0.75]))
        assert_allclose(blur_covariance(0.125, 0.25), [[15.75]])

    def test_full_zero_scale(self):
        """A shear that upscales an isotropic zero-scale fits a zero-scale of its own shape."""
        S = np.array([[1.0, 0.3], [0.3, 0.5]])
        root = np.linalg.cholesky(S)
        A = root @ (0.9 * rotation(1.0)) @ np.linalg.inv(root)
        assert_allclose(blur_covariance(A, S), S / 0.81 - S, atol=1e-12)
        with pytest.raises(ValueError, match="upscaling"):
            blur_covariance(A, 0.25)

    def test_upscaling_is_refused(self):
        for A in (2 * np.eye(2), np.diag([0.5, 1.1]), [[1.0, 0.1], [0.0, 1.0]]):
            with pytest.raises(ValueError, match=r"of singular values \[.*upscaling"):
                blur_covariance(A, 0.25)


BAD: Any = math.nan


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *[(lambda c=c: check_base(c), "base must be") for c in (1, 0.5, math.inf, True, "2", None, [[1, 2]])],
        *[
            (lambda c=c: check_base(c), r"must expand .* got singular values \[")
            for c in (rotation(0.3), np.diag([2, 0.9]), [[1.0, 5.0], [0.0, 1.0]])
        ],
        (lambda: expansion(2.0, BAD), "k must be an integer"),
        *[(lambda s=s: check_zero_scale(s), ">= 0, a variance, got") for s in (BAD, math.inf, -0.1, "a", None)],
        (lambda: blur_variance(2, BAD), "zero_scale"),
        (lambda: blur_variance(BAD, 0.25), "dilation must be a finite number >= 1"),
        (lambda: level_variances(BAD, 2, 0.25), "num_levels must be an integer >= 1"),
        (lambda: level_variances(4, BAD, 0.25), "base must be a finite number > 1"),
        (lambda: blur_covariance([[0.5, 0], [0, 0]], 0.25), "invertible"),
        *[(lambda A=A: blur_covariance(A, 0.25), "finite square") for A in ([[BAD]], [[0.5, 0.1]])],
        (lambda: blur_covariance(np.eye(2) / 2, math.inf), "zero_scale"),
        (lambda: blur_covariance(np.eye(2) / 2, np.eye(3)), "shape of A"),
        (lambda: blur_covariance(np.eye(2) / 2, [[1, 2], [2, 1]]), "eigenvalues"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()
