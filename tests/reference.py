"""What tests compare with: the scale-space correlation as the equation reads, in loops, and the paper's lift."""

import itertools
import math
from typing import Any

import numpy as np
from torch import Tensor

from scalespaces import ScaleSpace, lift


def paper_lift(image: Tensor, num_levels: int = 4, base: Any = 2.0, **settings: Any) -> ScaleSpace:
    """The paper's lift, dense and direct unless ``settings`` say otherwise, of signals, images and volumes alike."""
    paper = {"sampling": "dense", "method": "direct", "dims": image.ndim - 2}
    return lift(image, num_levels, base, **paper | settings)


def at(f: np.ndarray, position, outside: str) -> float:
    """A d-dimensional array at a fractional position: linear between samples, outside "zeros" or the "edge"."""
    value = 0.0
    low = [math.floor(p + 1e-9) for p in position]
    for corner in itertools.product((0, 1), repeat=f.ndim):
        weight, index = 1.0, []
        for p, a, side, n in zip(position, low, corner, f.shape, strict=True):
            fraction = p - a if abs(p - a) > 1e-9 else 0.0
            weight *= fraction if side else 1 - fraction
            index.append(min(max(a + side, 0), n - 1) if outside == "edge" else a + side)
        if weight and all(0 <= i < n for i, n in zip(index, f.shape, strict=True)):
            value += weight * float(f[tuple(index)])
    return value


def scale_conv(levels, steps, base, weight, bias, *, stride=1, dilation=1, padding=None, scale_padding="zeros"):
    """[psi * f]_k^o(z) = sum_i sum_l sum_y psi_l^{i,o}(y) f_{k+l}^i(c^k y + z), on the grids of the levels.

    ``levels`` are arrays (B, C, *spatial) whose first samples all sit at the origin; the filter is centered when
    ``padding`` (in taps) is left out.
    """
    depth, size = weight.shape[2], weight.shape[3:]
    before = [dilation * (n - 1) // 2 if padding is None else padding for n in size]
    after = [dilation * (n - 1) - b if padding is None else b for n, b in zip(size, before, strict=True)]
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
            for b, o, i in itertools.product(range(out.shape[0]), range(out.shape[1]), range(weight.shape[1])):
                f = np.empty(grid)  # f_{k+l} on the grid of level k
                for z in np.ndindex(*grid):
                    f[z] = at(levels[source][b, i], [ratio * zi for zi in z], "edge")
                for z in np.ndindex(*count):
                    for y in np.ndindex(*size):
                        tap = [
                            stride * zi + apart * (dilation * yi - p) for zi, yi, p in zip(z, y, before, strict=True)
                        ]
                        out[(b, o, *z)] += weight[(o, i, el, *y)] * at(f, tap, "zeros")
        if bias is not None:
            out += bias.reshape(1, -1, *[1] * len(size))
        outputs.append(out)
    return outputs
