"""Correlation of one tensor with taps at any spacing."""

import functools
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from scalespaces._torch import constant, static
from scalespaces.functional._constants import sent
from scalespaces.functional._sampling import pad
from scalespaces.space._grid import Window
from scalespaces.space._numbers import as_integer, floor, remembered
from scalespaces.theory._arguments import PaddingMode

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
Spread = tuple[tuple[tuple[int, int], ...], tuple[int, ...] | None, tuple[int, ...]]
"""The padding in samples, the same as one number per axis if both sides are equal, and the dilation."""


def correlate(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    window: Window,
    spacing: Any = 1.0,
    spread: Spread | None = None,
    groups: int = 1,
    padding_mode: PaddingMode = "zeros",
) -> Tensor:
    r"""Correlate with taps ``spacing`` samples apart: :math:`\sum_y w(y)\, x(z + M (d y - p))`, M the spacing."""
    # An integer spacing is a dilated convolution. Otherwise each tap is distributed linearly among the samples around
    # it, which gives one plain convolution with a larger filter. Padding counts taps, so it grows with the spacing.
    conv, stride = CONV[len(window.size)], window.stride
    spread = spread or spread_window(window, spacing)
    if spread is not None:
        amounts, both_sides, apart = spread
        if both_sides is not None and padding_mode == "zeros":
            return conv(x, weight, bias, stride, both_sides, apart, groups)
        return conv(pad(x, amounts, padding_mode), weight, bias, stride, 0, apart, groups)
    offsets = tuple(
        tuple(d * y - before for y in range(n))
        for n, d, (before, _) in zip(window.size, window.dilation, window.padding, strict=True)
    )
    matrix = tuple(map(tuple, spacing.tolist())) if isinstance(spacing, np.ndarray) else static(spacing)
    share, low, box = sent(_shares, (offsets, matrix), weight)
    larger = (weight.flatten(2) @ share).reshape(*weight.shape[:2], *box)
    amounts = []
    for axis, (before, after) in enumerate(window.padding):
        surplus = before + after - window.dilation[axis] * (window.size[axis] - 1)
        if surplus and isinstance(spacing, np.ndarray):
            raise ValueError(f'a matrix base needs padding="same", got {window.padding} for kernel {window.size}')
        n = x.shape[2 + axis]
        last = (n - 1 + (floor(surplus * float(spacing)) if surplus else 0)) // stride[axis]
        amounts.append((-low[axis], last * stride[axis] + low[axis] + box[axis] - n))
    return conv(pad(x, amounts, padding_mode), larger, bias, stride, 0, 1, groups)


def spread_window(window: Window, spacing: Any) -> Spread | None:
    """A window whose taps are so many samples apart, for :func:`correlate`; None unless that is a whole number."""
    whole = as_integer(spacing)
    return None if whole is None else _spread(window, whole)


@remembered
def _spread(window: Window, spacing: int) -> Spread:
    amounts = tuple((before * spacing, after * spacing) for before, after in window.padding)
    equal = all(before == after for before, after in amounts)
    both_sides = tuple(before for before, _ in amounts) if equal else None
    return amounts, both_sides, tuple(d * spacing for d in window.dilation)


@constant
def _shares(offsets: tuple, matrix: tuple | float) -> tuple[Tensor, tuple[int, ...], tuple[int, ...]]:
    share, low, box = _share_out(offsets, matrix)
    return torch.as_tensor(share), low, box


@functools.lru_cache(maxsize=256)  # as arrays: a tensor made during torch.export would be a fake one
def _share_out(offsets: tuple, matrix: tuple | float) -> tuple[NDArray, tuple[int, ...], tuple[int, ...]]:
    """How each tap at ``matrix @ offset`` is distributed among the samples of the smallest box around all of them."""
    taps = np.stack(np.meshgrid(*offsets, indexing="ij"), -1).reshape(-1, len(offsets))
    position = taps * matrix if isinstance(matrix, float) else taps @ np.array(matrix).T
    position = np.where(np.abs(position - np.rint(position)) < 1e-9, np.rint(position), position)
    low, high = np.floor(position.min(0)).astype(int), np.ceil(position.max(0)).astype(int)
    cells = np.stack(np.meshgrid(*map(np.arange, low, high + 1), indexing="ij"), -1).reshape(-1, len(offsets))
    share = np.prod(np.clip(1 - np.abs(position[:, None] - cells[None]), 0, None), -1)
    return share, tuple(low.tolist()), tuple((high - low + 1).tolist())
