"""Affine contractions: how far they are from a semigroup, and against SciPy."""

from typing import Any

import numpy as np
import pytest
import torch

from scalespaces.semigroups import AffineContractions, Lifted, Semigroup, semigroup_correlation
from scalespaces.theory import ScaleTranslation, act

EXACT: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def blob(size: int) -> torch.Tensor:
    """A smooth image that is zero towards the borders."""
    x = torch.arange(size, dtype=torch.float64) - (size - 1) / 2
    r = (x[:, None] ** 2 + 0.5 * (x[None] - 3) ** 2 + 0.3 * x[:, None] * x[None]) / (size / 6) ** 2
    return (torch.exp(-r) * (1 + 0.5 * torch.sin(x[:, None] / 2)))[None, None]


MATRICES = {
    "isotropic": (np.eye(2) / 2, np.eye(2) / 2),
    "anisotropic": (np.diag([0.5, 1.0]), np.diag([0.8, 0.6])),
    "turned": (0.7 * np.array([[0.8, -0.6], [0.6, 0.8]]), np.diag([0.5, 0.9])),
    "sheared": (0.6 * np.array([[1.0, 0.4], [0.0, 1.0]]), 0.75 * np.array([[1.0, 0.0], [-0.3, 1.0]])),
}


@pytest.mark.parametrize("name", MATRICES)
def test_how_far_affine_contractions_are_from_a_semigroup(name):
    """Within 2 % on this image; the correlation inherits the bound. benchmarks/semigroups.py has more."""
    A, B = MATRICES[name]
    f = blob(65)
    center = np.array([32.0, 32.0])
    s, t = (ScaleTranslation(M, center - np.linalg.solve(M, center)) for M in (A, B))  # about the middle
    psi = rand(2, 1, 65, 65)
    for zero_scale in (0.25, 1.0):
        contractions = AffineContractions([A, B], [(0, 0)], zero_scale)
        once, twice = contractions.act(s @ t, f), contractions.act(s, contractions.act(t, f))
        assert (once - twice).norm() < 0.02 * once.norm()
        before = semigroup_correlation(contractions.act(t, f), psi, contractions, elements=[s])
        after = semigroup_correlation(f, psi, contractions, elements=[contractions.compose(s, t)])
        assert (before - after).norm() <= 0.02 * psi.norm() * once.norm()  # Cauchy and Schwarz


@pytest.mark.parametrize("padding_mode", ["zeros", "reflect", "replicate"])
def test_affine_contractions_agree_with_scipy(padding_mode):
    """Inside the image, as what is read outside is zero here."""
    f = rand(1, 1, 33, 33)
    A = 0.6 * np.array([[1.0, 0.4], [0.0, 1.0]])
    s, sigma = ScaleTranslation(A, [2.5, 11.0]), [[0.5, 0.1], [0.1, 0.4]]
    got = AffineContractions([A], [(0, 0)], sigma, padding_mode).act(s, f)
    expected = act(f[0, 0], s, sigma, shape=(33, 33), padding_mode=padding_mode)
    x = np.linalg.solve(A, np.indices((33, 33)).reshape(2, -1)) + s.z[:, None]
    inside = ((x >= 0) & (x <= 32)).all(0).reshape(33, 33)
    assert inside.sum() > 100
    np.testing.assert_allclose(got[0, 0].numpy()[inside], expected[inside], atol=1e-10)


def test_affine_orbits_are_what_the_action_says():
    contractions = AffineContractions([np.eye(2) / 2, np.diag([0.5, 0.9])], [(0, 0), (1, 2), (3.5, 0.25)])
    f = rand(2, 3, 9, 8)
    torch.testing.assert_close(contractions.orbit(f, (3, 2)), Semigroup.full_orbit(contractions, f, (3, 2)), **EXACT)
    lifted = Lifted(contractions, [ScaleTranslation(1.0, [0, 0])])
    g = rand(1, 2, 6)
    torch.testing.assert_close(lifted.act(ScaleTranslation(1.0, [0, 0]), g), g, **EXACT)


def test_whole_shifts_are_exact_affine_contractions():
    contractions = AffineContractions([np.eye(2)], [(0, 0), (1, 2)])
    f = rand(1, 2, 9, 9)
    s, t = contractions.elements()[1], ScaleTranslation(1.0, [2, 3])
    torch.testing.assert_close(contractions.act(s, contractions.act(t, f)), contractions.act(s @ t, f), **EXACT)


def test_affine_gradients():
    contractions = AffineContractions([np.eye(2), 0.6 * np.array([[1.0, 0.4], [0.0, 1.0]])], [(0, 0), (1.5, 0.5)])
    f, psi = rand(1, 2, 5, 4).requires_grad_(), rand(1, 2, 2, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda psi, f: semigroup_correlation(f, psi, contractions), (psi, f))
