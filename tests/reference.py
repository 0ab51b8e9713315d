"""What tests share: equations as loops, the paper's lift, a space with nothing at its default, and refused calls."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from scalespaces import ScaleSpace, lift
from scalespaces.theory._arguments import PaddingMode

QUINCUNX = ((1.0, 1.0), (1.0, -1.0))
MATRICES: dict[str, Any] = {
    "quincunx": QUINCUNX,
    "rotated": ((1.0, -1.0), (1.0, 1.0)),
    "stretch": ((2.0, 0.0), (0.0, 1.0)),
    "sheared": ((2.0, 1.0), (0.0, 2.0)),  # the only one that its transpose could not stand for
}
SCIPY_MODES: dict[PaddingMode, str] = {
    "zeros": "constant",
    "reflect": "mirror",
    "replicate": "nearest",
    "circular": "wrap",
}
MODES = tuple(SCIPY_MODES)


def image(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Noise: one image of two channels."""
    return torch.randn(1, 2, *shape, dtype=dtype)


def paper_lift(image: Tensor, num_levels: int = 4, base: Any = 2.0, **settings: Any) -> ScaleSpace:
    """The paper's lift, dense and direct unless ``settings`` say otherwise, of signals, images and volumes alike."""
    paper = {"sampling": "dense", "method": "direct", "dims": image.ndim - 2}
    return lift(image, num_levels, base, **paper | settings)


def at(f: np.ndarray, position: Any, outside: float | str) -> float:
    """A d-dimensional array at a fractional position: linear between samples, outside a number or the "edge"."""
    value = 0.0
    low = [math.floor(p + 1e-9) for p in position]
    for corner in itertools.product((0, 1), repeat=f.ndim):
        weight, index = 1.0, []
        for p, a, side, n in zip(position, low, corner, f.shape, strict=True):
            fraction = p - a if abs(p - a) > 1e-9 else 0.0
            weight *= fraction if side else 1 - fraction
            index.append(min(max(a + side, 0), n - 1) if outside == "edge" else a + side)
        if weight:
            inside = all(0 <= i < n for i, n in zip(index, f.shape, strict=True))
            value += weight * float(f[tuple(index)] if inside else outside)
    return value


def scale_conv(levels, steps, base, weight, bias, *, stride=1, dilation=1, padding=None, scale_padding="zeros"):
    """[psi * f]_k^o(z) = sum_i sum_l sum_y psi_l^{i,o}(y) f_{k+l}^i(c^k y + z), on the grids of the levels.

    ``levels`` are arrays (B, C, *spatial) whose first samples all sit at the origin; ``padding`` is in taps, before
    and after, and centers the filter when it is left out.
    """
    depth, size = weight.shape[2], weight.shape[3:]
    spans = [dilation * (n - 1) for n in size]
    before, after = zip(*(padding or (span // 2, span - span // 2) for span in spans), strict=True)
    outputs = []
    for k in range(len(levels) - (depth - 1 if scale_padding == "valid" else 0)):
        grid = levels[k].shape[2:]
        apart = base**k / steps[k]
        count = [
            math.floor((n - 1 + apart * (b + a - dilation * (m - 1))) / stride + 1e-9) + 1
            for n, m, b, a in zip(grid, size, before, after, strict=True)
        ]
        out = np.zeros((levels[k].shape[0], weight.shape[0], *count))
        for el in range(depth):
            source = min(k + el, len(levels) - 1) if scale_padding == "replicate" else k + el
            if source >= len(levels):
                continue
            ratio = steps[k] / steps[source]
            for b, i in itertools.product(range(out.shape[0]), range(weight.shape[1])):
                f = np.empty(grid)  # f_{k+l} on the grid of level k
                for z in np.ndindex(*grid):
                    f[z] = at(levels[source][b, i], [ratio * zi for zi in z], "edge")
                for z in np.ndindex(*count):
                    for y in np.ndindex(*size):
                        tap = [
                            stride * zi + apart * (dilation * yi - p) for zi, yi, p in zip(z, y, before, strict=True)
                        ]
                        out[(b, slice(None), *z)] += weight[(slice(None), i, el, *y)] * at(f, tap, 0.0)
        if bias is not None:
            out += bias.reshape(1, -1, *[1] * len(size))
        outputs.append(out)
    return outputs


GEOMETRY: dict[str, Any] = {
    "base": 2.0,
    "steps": (0.5, 1.0, 2.0),
    "origins": ((0.25, 0.5), (0.5, 1.0), (1.0, 2.0)),
    "unit": (2.0, 3.0),
    "first_level": -1,
}


def space(*, dtype: torch.dtype = torch.float32, **changes: Any) -> ScaleSpace:
    """Levels from -1 on, on grids where nothing is left at its default, with positive values."""
    sizes = ((9, 7), (5, 4), (3, 2))
    return ScaleSpace(tuple(torch.rand(2, 4, *size, dtype=dtype) + 0.5 for size in sizes), **GEOMETRY | changes)


def geometry(x: ScaleSpace) -> tuple:
    """Base, steps, origins, unit and the number of the first level."""
    return x.base, x.steps, x.origins, x.unit, x.first_level


def assert_levelwise(got: Any, function: Callable[..., Tensor], x: ScaleSpace, *others: ScaleSpace) -> None:
    """Check that the levels of the spaces went through the function, and the geometry through unchanged."""
    assert isinstance(got, ScaleSpace)
    assert geometry(got) == geometry(x)
    spaces = zip(x.levels, *(other.levels for other in others), strict=True)
    assert_close(got.levels, tuple(function(*levels) for levels in spaces), rtol=0, atol=0)


def assert_levels(got: Any, expected: Any, rtol: float = 1e-7, atol: float = 1e-12) -> None:
    """Check that two spaces, or sequences of tensors or arrays, are close level by level."""
    for pair in zip(getattr(got, "levels", got), getattr(expected, "levels", expected), strict=True):
        a, b = (level.detach().numpy() if isinstance(level, Tensor) else level for level in pair)
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def refusals(*cases: tuple[Callable[[], Any], str], error: Any = ValueError) -> Callable[..., None]:
    """Return a test, for a name such as ``test_refusals``, that each call raises an error with its message."""

    @pytest.mark.parametrize(("call", "message"), cases)
    def test(call: Callable[[], Any], message: str) -> None:
        with pytest.raises(error, match=message):
            call()

    return test
