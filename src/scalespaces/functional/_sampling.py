"""Reading one tensor off its grid: padding, interpolation, lattices."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from scalespaces._torch import constant
from scalespaces.functional._fast._choice import interpolates_by_slices
from scalespaces.functional._fast._finer import Finer, make_finer
from scalespaces.space._grid import Window
from scalespaces.space._numbers import as_integer, floor
from scalespaces.theory._arguments import PaddingMode

Corners = tuple[tuple[Tensor, Tensor], ...]


def fold(index: Tensor, size: int, mode: PaddingMode) -> Tensor:
    """Where an index outside ``0 .. size - 1`` reads from, at any distance."""
    if mode == "replicate":
        return index.clip(0, size - 1)
    if mode == "circular":
        return index % size
    period = 2 * (size - 1) or 1
    index = index % period
    return torch.minimum(index, period - index)


def take(x: Tensor, axis: int, index: Tensor) -> Tensor:
    """The samples of that index along an axis."""
    # As a gather: compiled by torch 2.13 for the CPU, the gradient of index_select writes past its buffer.
    shape = list(x.shape)
    shape[axis] = index.shape[0]
    return x.gather(axis, index.reshape([-1] + [1] * (x.ndim - axis - 1)).expand(shape))


def pad(x: Tensor, amounts: Sequence[tuple[int, int]], mode: PaddingMode = "zeros", value: float = 0.0) -> Tensor:
    """Pad the spatial axes by (before, after); negative amounts crop, and no amount is too large."""
    if not any(before or after for before, after in amounts):
        return x
    if mode == "zeros":
        flat = [amount for pair in reversed(amounts) for amount in pair]
        if min(flat) < 0:  # F.pad crops first, and refuses to crop what is still to be padded
            x = F.pad(x, [max(amount, 0) for amount in flat], value=value)
            flat = [min(amount, 0) for amount in flat]
        return F.pad(x, flat, value=value)
    for axis, (before, after) in enumerate(amounts, 2):
        if before or after:
            index = torch.arange(-before, x.shape[axis] + after, device=x.device)
            x = take(x, axis, fold(index, x.shape[axis], mode))
    return x


def lead(
    window: Window, level: Tensor, spacing: float, mode: PaddingMode = "zeros", value: float = 0.0
) -> tuple[Tensor, Window]:
    """Put the padding of a causal window in front of the level; the remainder of a stride is also cut off in front."""
    if not window.causal:
        return level, window
    apart, (before, _) = int(spacing), window.padding[0]
    level = pad(level, [(before * apart, 0)], mode, value)
    if window.stride[0] > 1:
        n, span = level.shape[-1], window.dilation[0] * (window.size[0] - 1) * apart
        used = (n - 1 - span) // window.stride[0] * window.stride[0] + span + 1
        # Not a slice, nor the remainder to cut off: torch.export keeps this length symbolic.
        level = take(level, 2, torch.arange(n - used, n, device=level.device))
    return level, replace(window, padding=((0, 0),))


def sample(x: Tensor, axis: int, ratio: float, offset: float, size: int, spacing: float = 1.0) -> Tensor:
    r"""Linear interpolation along an axis, at ``offset + ratio * i`` for ``i < size``.

    The two neighbors are ``spacing`` samples apart when that is an integer: seen from level :math:`k` of a densely
    sampled space, samples closer than :math:`c^k` do not exist, or level :math:`k` would see what no other level
    can. Positions past the ends read the last sample that such neighbors reach.
    """
    n = x.shape[axis]
    whole, step = as_integer(ratio), max(as_integer(spacing) or 1, 1)
    if whole == 1 and offset == 0 and size == n:
        return x
    factor = as_integer(1 / ratio)
    if factor and factor > 1 and step == 1 and interpolates_by_slices(n, size):
        return make_finer(x, Finer(axis, factor, offset, n, size))
    start = offset if step == 1 else step * floor(offset / step)
    fraction = (offset - start) / step
    first = as_integer(start)
    if whole and first is not None:
        low, weight = torch.arange(size, device=x.device) * whole + first, None
    else:
        double = torch.float64 if x.device.type != "mps" else torch.float32
        position = torch.arange(size, device=x.device, dtype=double) * ratio + start
        low = position.floor()
        weight = (position - low).to(x.dtype).reshape([-1] + [1] * (x.ndim - axis - 1))
        low = low.long()

    shifts = [0] if weight is None else [0, 1]
    shifts += [shift + step for shift in shifts] if fraction else []
    # One gather for all neighbors: of several, torch 2.13 compiles the gradients into a sum taken too early.
    index = torch.cat([within(low + shift, n, step) for shift in shifts])
    near = list(take(x, axis, index).unflatten(axis, (len(shifts), size)).unbind(axis))
    if weight is not None:
        near = [torch.lerp(a, b, weight) for a, b in zip(near[::2], near[1::2], strict=True)]
    return torch.lerp(near[0], near[1], fraction) if fraction else near[0]


def hold(x: Tensor, axis: int, ratio: float, size: int) -> Tensor:
    """The latest samples at or before ``ratio * i``, ``-size < i <= 0``; the last is at 0, zeros precede the first."""
    n = x.shape[axis]
    whole, parts = _as_fraction(ratio)
    if whole == parts and size == n:
        return x
    index = torch.arange(1 - size, 1, device=x.device) * whole // parts + n  # 0 is the zero in front
    return take(pad(x, [(int(a == axis), 0) for a in range(2, x.ndim)]), axis, index.clip(min=0))


@constant
def _as_fraction(value: float) -> tuple[int, int]:
    return Fraction(value).limit_denominator(1 << 20).as_integer_ratio()


def within(index: Tensor, size: int, step: int) -> Tensor:
    """The nearest index inside the axis that is a multiple of ``step`` away."""
    if step > 1:
        last = size - 1 - (size - 1 - index) % step
        inside = torch.where(index < 0, index % step, torch.minimum(index, last))
        index = torch.where(index % step < size, inside, index)  # fewer samples than a step: the nearest end
    return index.clip(0, size - 1)


def sample_lattice(x: Tensor, matrix: NDArray, offset: NDArray, shape: Sequence[int]) -> Tensor:
    """The image at ``offset + matrix @ i`` for every ``i`` in ``shape``; zero outside, multilinear between samples."""
    return read_corners(x, _lattice(matrix, offset, tuple(shape), tuple(x.shape[2:])), shape)


def read_corners(x: Tensor, corners: Corners, shape: Sequence[int]) -> Tensor:
    """The image at the positions whose :func:`corners` these are."""
    out = x.new_zeros(*x.shape[:2], *shape)
    for places, weight in corners:
        out = out + take(x.flatten(2), 2, places.to(x.device)).unflatten(2, shape) * weight.to(x)
    return out


@constant
def _lattice(matrix: NDArray, offset: NDArray, shape: tuple[int, ...], size: tuple[int, ...]) -> Corners:
    position = np.tensordot(matrix, np.indices(shape), 1) + offset.reshape([-1] + [1] * len(shape))
    return corners(position, size)


def corners(position: NDArray, size: tuple[int, ...]) -> Corners:
    """For each corner of the cells that hold the positions ``(d, ...)``: which pixels they are, and their weights."""
    low = np.floor(position + 1e-9).astype(int)
    fraction = np.where(np.abs(position - low) < 1e-9, 0.0, position - low)
    found = []
    for sides in itertools.product((0, 1), repeat=len(size)):
        weight, places = np.ones(position.shape[1:]), np.zeros(position.shape[1:], int)
        for axis, (side, n) in enumerate(zip(sides, size, strict=True)):
            index = low[axis] + side
            weight = weight * (fraction[axis] if side else 1 - fraction[axis]) * ((index >= 0) & (index < n))
            places = places * n + index.clip(0, n - 1)
        if weight.any():
            found.append((torch.as_tensor(places.ravel()), torch.as_tensor(weight)))
    return tuple(found)
