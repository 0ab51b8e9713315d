"""What the tests of theory, semigroups and layers share."""

import math
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from scalespaces import ScaleSpace
from scalespaces.theory import ScaleTranslation

EXACT: dict[str, Any] = {"rtol": 0, "atol": 1e-12}
CLOSE: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}
SAME: dict[str, Any] = {"rtol": 0, "atol": 0}
NORMALIZATIONS = ("none", "symmetric", "random_walk")
icosphere = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "mesh.py"))["icosphere"]


def rand(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def rotation(angle: float) -> np.ndarray:
    return np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])


def printed_law(s: ScaleTranslation, t: ScaleTranslation) -> ScaleTranslation:
    """(AB, Ay + z), which the paper prints."""
    return ScaleTranslation(s.A @ t.A, s.A @ t.z + s.z)


@st.composite
def graphs(draw: Any) -> Any:
    """Edges (loops, repeated ones, isolated nodes and several components among them), weights, number of nodes."""
    n = draw(st.integers(1, 15))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    edges = np.sort(rng.integers(0, n, (draw(st.integers(0, 40)), 2)), 1)
    return edges, rng.uniform(0.01, 3, len(edges)), n


def times(space: ScaleSpace, k: int) -> np.ndarray:
    """Where the samples of a level of a causal space sit, in samples of the signal; now is 0."""
    return -space.steps[k] * space.unit[0] * np.arange(space.levels[k].shape[2])[::-1]


def assert_same(got: Any, expected: Any) -> None:
    """Tensors, or spaces with their grids, that are equal bit for bit."""
    if isinstance(expected, ScaleSpace):
        assert got.grid == expected.grid
        got, expected = got.levels, expected.levels
    assert_close(got, expected, **SAME)
