"""Measure how far discretized actions are from the law S_s S_t = S_st: on a smooth image, a photograph and noise."""

import argparse
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from benchmarks._tables import Table
from benchmarks.sampling import difference
from scalespaces.data import photograph
from scalespaces.semigroups import AffineContractions, ScaleTranslations
from scalespaces.theory import ScaleTranslation

SIZE = 256  # pixels along each side: a multiple of 4, at least 32
TURN = np.array([[0.8, -0.6], [0.6, 0.8]])
PAIRS = {  # the matrices A and B of the two elements
    "isotropic 1/2, 1/2": (np.eye(2) / 2, np.eye(2) / 2),
    "diag(1/2, 1), diag(0.8, 0.6)": (np.diag([0.5, 1.0]), np.diag([0.8, 0.6])),
    "0.7 turn, diag(1/2, 0.9)": (0.7 * TURN, np.diag([0.5, 0.9])),
    "two shears": (0.6 * np.array([[1.0, 0.4], [0.0, 1.0]]), 0.75 * np.array([[1.0, 0.0], [-0.3, 1.0]])),
}


def run(args: argparse.Namespace) -> Iterator[Table]:
    x = torch.arange(SIZE, dtype=torch.float64) - (SIZE - 1) / 2
    r = (x[:, None] ** 2 + 0.5 * x[None] ** 2 + 0.3 * x[:, None] * x[None]) / (SIZE / 6) ** 2
    images = {
        "smooth": (torch.exp(-r) * (1 + 0.5 * torch.sin(x[:, None] / 2)))[None, None],
        "photograph": photograph(SIZE).double().mean(-3).reshape(1, 1, SIZE, SIZE),
        "noise": torch.as_tensor(np.random.default_rng(0).normal(size=(1, 1, SIZE, SIZE))),
    }
    rows = []
    for s0 in (0.25, 0.5, 1.0):
        for method in ("cascade", "direct"):
            errors = [scaling_error(image, s0, method) for image in images.values()]
            rows.append([f"scale 1/2, 1/2, {method}", str(s0), *errors])
        for name, (A, B) in PAIRS.items():
            rows.append([f"affine, {name}", str(s0), *(affine_error(image, A, B, s0) for image in images.values())])
    caption = f"Relative L2 distance of S_s S_t and S_st, {SIZE} x {SIZE}, float64"
    yield Table("Laws of semigroups", caption, ["elements", "s0", *images], rows)


def affine_error(image: Tensor, A: np.ndarray, B: np.ndarray, zero_scale: float) -> float:
    """Relative distance of S_A S_B and S_AB about the middle, in the middle eighth of the result."""
    size = image.shape[-1]
    middle = np.full(2, (size - 1) / 2)
    s, t = (ScaleTranslation(M, middle - np.linalg.solve(M, middle)) for M in (A, B))
    action = AffineContractions([A], [(0, 0)], zero_scale, padding_mode="reflect")
    inner = (..., *[slice(7 * size // 16, 9 * size // 16)] * 2)
    return difference(action.act(s @ t, image)[inner], action.act(s, action.act(t, image))[inner])


def scaling_error(image: Tensor, zero_scale: float, method: str) -> float:
    """Relative distance of S_1/2 S_1/2 and S_1/4 on a circular grid."""
    action = ScaleTranslations(image.shape[2:], 3, zero_scale=zero_scale, method=method)
    half = (1, (0, 0))
    return difference(action.act((2, (0, 0)), image), action.act(half, action.act(half, image)))
