"""The law of the action, in closed form on Gaussian bumps and then on arrays."""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from algebra import printed_law, rotation
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from reference import refusals

from scalespaces.theory import ScaleTranslation, act, act_lifted, blur_covariance, gaussian_blur
from scalespaces.theory._arguments import NUMPY_PADDING


def elements() -> st.SearchStrategy[ScaleTranslation]:
    angle, size, shift = st.floats(0, 6.3), st.floats(0.3, 1), st.floats(-5, 5)
    return st.tuples(angle, size, size, angle, shift, shift).map(
        lambda v: ScaleTranslation(rotation(v[0]) @ np.diag(v[1:3]) @ rotation(v[3]), v[4:])
    )


def assert_same(s: ScaleTranslation, t: ScaleTranslation) -> None:
    assert_allclose(s.A, t.A, atol=1e-10)
    assert_allclose(s.z, t.z, atol=1e-8)


@dataclass
class Bump:
    """mass * N(mean, cov): the actions map such functions of the plane to each other, in closed form."""

    mass: float
    mean: np.ndarray
    cov: np.ndarray

    def act(self, s: ScaleTranslation, s0: float) -> "Bump":
        """[G_A * f](A^-1 x + z): the blur adds covariances, and A^-1 x + z = mean at x = A (mean - z)."""
        cov = s.A @ (self.cov + blur_covariance(s.A, s0)) @ s.A.T
        return Bump(self.mass * abs(np.linalg.det(s.A)), s.A @ (self.mean - s.z), cov)

    def act_supplement(self, s: ScaleTranslation, s0: float) -> "Bump":
        """[G_A * f](A^-1 (x - z))."""
        moved = self.act(ScaleTranslation(s.A, np.zeros(2)), s0)
        return Bump(moved.mass, moved.mean + s.z, moved.cov)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        y = x - self.mean
        exponent = -0.5 * np.einsum("...i,ij,...j", y, np.linalg.inv(self.cov), y)
        return self.mass * np.exp(exponent) / (2 * np.pi * math.sqrt(np.linalg.det(self.cov)))

    def distance(self, other: "Bump") -> float:
        return max(
            abs(self.mass - other.mass),
            float(np.abs(self.mean - other.mean).max()),
            float(np.abs(self.cov - other.cov).max()),
        )


BUMP = Bump(1.0, np.array([3.0, -2.0]), np.array([[2.0, 0.5], [0.5, 1.0]]))


class TestLaw:
    @given(elements(), elements(), elements())
    def test_associative(self, s, t, u):
        assert_same((s @ t) @ u, s @ (t @ u))

    def test_not_commutative(self):
        s, t = ScaleTranslation(0.5, 1), ScaleTranslation(1.0, 1)
        assert s @ t == ScaleTranslation(0.5, 2)
        assert t @ s == ScaleTranslation(0.5, 3)

    @given(elements(), elements(), st.floats(0, 2))
    def test_action_in_closed_form(self, s, t, s0):
        assert BUMP.act(t, s0).act(s, s0).distance(BUMP.act(s @ t, s0)) < 1e-9

    @given(elements(), elements(), st.floats(0, 2))
    def test_printed_law_belongs_to_the_supplement(self, s, t, s0):
        twice = BUMP.act_supplement(t, s0).act_supplement(s, s0)
        assert twice.distance(BUMP.act_supplement(printed_law(s, t), s0)) < 1e-9

    def test_printed_law_fails_for_the_action_of_the_method(self):
        s, t = ScaleTranslation(0.5, [1.0, 0.0]), ScaleTranslation(0.5, [0.0, 4.0])
        twice = BUMP.act(t, 0.25).act(s, 0.25)
        assert twice.distance(BUMP.act(s @ t, 0.25)) < 1e-12
        assert twice.distance(BUMP.act(printed_law(s, t), 0.25)) > 0.2

    @given(elements(), elements())
    def test_the_two_laws_are_isomorphic(self, s, t):
        def convert(u: ScaleTranslation) -> ScaleTranslation:
            return ScaleTranslation(u.A, -np.linalg.inv(u.A) @ u.z)

        assert_same(convert(printed_law(s, t)), convert(s) @ convert(t))

    def test_the_closed_form_is_the_action(self):
        """Riemann sum of the blur integral, at a few points, against the closed form used above."""
        s, s0 = ScaleTranslation(rotation(0.4) @ np.diag([0.5, 0.8]), [1.0, 2.0]), 0.5
        T = Bump(1.0, np.zeros(2), blur_covariance(s.A, s0))
        grid = np.arange(-15, 15, 0.1)
        u = np.stack(np.meshgrid(grid, grid, indexing="ij"), axis=-1)
        for x in ([0.0, 0.0], [1.0, -1.5], [2.0, -3.0]):
            p = np.linalg.inv(s.A) @ x + s.z
            assert_allclose(BUMP.act(s, s0)(np.array(x)), (T(u) * BUMP(p - u)).sum() * 0.01, rtol=1e-6)


class TestElements:
    def test_equal_means_equal(self):
        s, t = ScaleTranslation(0.5, [-0.0, 1]), ScaleTranslation(np.eye(2) / 2, [0, 1])
        assert s == t
        assert hash(s) == hash(t)
        assert s != ScaleTranslation(0.5, [0, 2])
        assert ScaleTranslation(0.5, 1) == ScaleTranslation([[0.5]], [1])
        with pytest.raises(ValueError, match="read-only"):
            s.z[0] = 2


def sample(*bumps: Bump, size: int = 97) -> np.ndarray:
    x = np.stack(np.meshgrid(np.arange(size), np.arange(size), indexing="ij"), axis=-1)
    return sum((b(x) for b in bumps), np.zeros((size, size)))


SMOOTH = (
    Bump(300.0, np.array([40.0, 52.0]), np.array([[40.0, 10.0], [10.0, 25.0]])),
    Bump(-200.0, np.array([60.0, 40.0]), np.array([[20.0, -5.0], [-5.0, 30.0]])),
)
ROUGH = np.random.default_rng(0).normal(size=(12, 15))


class TestArrays:
    @pytest.mark.parametrize(("s0", "measured"), [(0.25, 0.0021), (1.0, 0.0032)])
    def test_law_on_a_smooth_image(self, s0, measured):
        """Features a few pixels wide: a quarter of a per cent, from the discrete kernels and from aliasing."""
        f = sample(*SMOOTH)
        s, t = ScaleTranslation(0.5, [1, 2]), ScaleTranslation(0.5, [3, 0])
        twice, once = act(act(f, t, s0), s, s0), act(f, s @ t, s0)
        shape = tuple(slice(0, min(m, n)) for m, n in zip(twice.shape, once.shape, strict=True))
        assert np.abs(twice[shape] - once[shape]).max() < 1.1 * measured * np.abs(f).max()

    @pytest.mark.parametrize(
        ("A", "z"), [(0.5, [1, 2]), (np.diag([1, 0.5]), [0.5, 3]), (rotation(0.3) @ np.diag([0.9, 0.6]), [20, -5])]
    )
    def test_array_action_samples_the_continuous_one(self, A, z):
        element = ScaleTranslation(A, z)
        expected = sample(*(b.act(element, 0.25) for b in SMOOTH), size=40)
        out = act(sample(*SMOOTH), element, 0.25, shape=(40, 40), padding_mode="zeros")
        assert_allclose(out, expected, atol=0.01 * np.abs(expected).max())

    def test_translations_and_quarter_turns_are_exact(self):
        """x -> A^-1 x + z with A a rotation by 90 degrees, about the corner that z puts back."""
        padding_mode: Any
        for padding_mode, z in itertools.product(NUMPY_PADDING, ([2, -3], [-5, 5], [0, 0])):
            padded = np.pad(ROUGH, 5, mode=NUMPY_PADDING[padding_mode])
            moved = act(ROUGH, ScaleTranslation(1.0, z), 0.25, shape=ROUGH.shape, padding_mode=padding_mode)
            assert np.array_equal(moved, padded[5 + z[0] :, 5 + z[1] :][:12, :15])
        element, square = ScaleTranslation(rotation(math.pi / 2), [0, 11]), ROUGH[:, :12]
        assert np.array_equal(act(square, element, 0.25, shape=(12, 12)), np.rot90(square))

    @given(st.integers(1, 4), st.integers(0, 3), st.sampled_from(list(NUMPY_PADDING)))
    def test_whole_steps_gather_the_blurred_image(self, c, z, padding_mode):
        element = ScaleTranslation(1 / c, [z, 1])
        blurred = gaussian_blur(ROUGH, 0.25 * (c * c - 1) * np.eye(2), padding_mode=padding_mode)
        assert_allclose(act(ROUGH, element, 0.25, padding_mode=padding_mode), blurred[z::c, 1::c], atol=1e-14)

    def test_between_pixels_is_linear_interpolation(self):
        out = act(np.array([0.0, 4.0, 8.0, 2.0]), ScaleTranslation(1.0, 0.25), 0.0)
        assert_allclose(out, [1, 5, 6.5])
        assert act(np.ones((5, 6, 7)), ScaleTranslation(0.5, [0, 0, 0]), 0.25).shape == (3, 3, 4)


class TestLifted:
    @given(elements(), elements(), elements())
    def test_left_action(self, s, t, u):
        """L_s L_t = L_st on functions on the semigroup."""

        def f(v: ScaleTranslation) -> float:
            return float(np.sin(v.A).sum() + np.cos(v.z).sum())

        assert_allclose(act_lifted(act_lifted(f, t), s)(u), act_lifted(f, s @ t)(u), atol=1e-6)

    def test_lifting_turns_the_action_into_a_shift(self):
        """(S_t f)^(s) = f^(st), the equation eq:lifted_equivariance; exact for translations t."""

        def lift(f: np.ndarray):
            return lambda s: act(f, s, 0.25, shape=(1, 1), padding_mode="circular").item()

        t = ScaleTranslation(1.0, [2, -1])
        moved = act(ROUGH, t, 0.25, shape=ROUGH.shape, padding_mode="circular")
        for s in (ScaleTranslation(0.5, [1, 4]), ScaleTranslation(1.0, [0, 0]), ScaleTranslation(0.7, [2.5, 3])):
            assert_allclose(lift(moved)(s), act_lifted(lift(ROUGH), t)(s), atol=1e-13)


HALF = ScaleTranslation(0.5, [0, 0])
WRONG: Any = "wrap"


test_refusals = refusals(
    *[(lambda A=A: ScaleTranslation(A, [0, 0]), r"A must be a finite number in \(0, 1\]") for A in (1.5, 0.0)],
    *[(lambda z=z: ScaleTranslation(0.5, z), "z must be a finite vector") for z in ([math.inf], [[0.0]])],
    (lambda: ScaleTranslation(np.eye(2), [0, 0, 0]), "agree on the dimension"),
    (lambda: ScaleTranslation(2 * np.eye(2), [0, 0]), "must not upscale"),
    (lambda: ScaleTranslation(np.zeros((2, 2)), [0, 0]), "invertible"),
    (lambda: ScaleTranslation(0.5, [0]) @ HALF, "same dimension, got 1 and 2"),
    (lambda: act(ROUGH, ScaleTranslation(0.5, [0]), 0.25), "must have 1 axes"),
    (lambda: act(ROUGH, ScaleTranslation(rotation(0.1), [0, 0]), 0.25), "diagonal A"),
    (lambda: act(ROUGH, ScaleTranslation(0.5, [99, 0]), 0.25), "leave some of the image"),
    (lambda: act(ROUGH, HALF, 0.25, shape=(3,)), "must have 2 entries"),
    (lambda: act(ROUGH, HALF, 0.25, shape=(3, 0)), "shape must be an integer >= 1"),
    (lambda: act(ROUGH, HALF, 0.25, padding_mode=WRONG), "padding_mode"),
    (lambda: act(ROUGH, ScaleTranslation(np.diag([0.2, 2.0]), [0, 0]), 0.25), "upscaling"),
    (lambda: act(np.full((3, 3), math.nan), HALF, 0.25), "finite"),
)
