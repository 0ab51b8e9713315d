"""Reading a tensor off its grid: padding, interpolation, and correlation with taps at any spacing.

Everything here works on one tensor; what belongs to levels is in :mod:`._resample`, :mod:`._conv` and :mod:`._pool`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter
from torch.nn import functional as F

from scalespaces.functional._finer import Finer, make_finer
from scalespaces.theory._checks import PaddingMode

Corners = tuple[tuple[Tensor, Tensor], ...]

_NUMPYS, _INTEGERS = (np.integer, np.ndarray), (int, torch.SymInt)  # as tuples: torch.compile knows no unions of these

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def constant(function: Callable) -> Callable:
    """A function of plain numbers whose result torch.compile takes as it is, instead of tracing NumPy.

    This is ``torch.compiler.assume_constant_result`` without its price: that imports the compiler. Tensors among the
    results, alone or in a tuple, are marked as ``mark_static`` does, or else their sizes could become symbols.
    """

    @functools.wraps(function)
    def made(*arguments: Any) -> Any:
        result = function(*arguments)
        for part in result if isinstance(result, tuple) else (result,):
            if isinstance(part, Tensor):
                vars(part)["_dynamo_static_indices"] = set(range(part.ndim))
        return result

    vars(made)["_dynamo_marked_constant"] = True
    return made


def as_integer(value: Any) -> int | None:
    """The integer this number is, up to rounding; None for a fraction or a matrix."""
    if isinstance(value, np.ndarray):
        return None
    nearest = round(value)
    return nearest if abs(value - nearest) <= 1e-9 * max(1.0, abs(value)) else None


def floor(value: float) -> int:
    """Floor of a number that may miss its integer by rounding."""
    nearest = as_integer(value)
    return math.floor(value) if nearest is None else nearest


def count(n: int, ratio: float) -> int:
    """How many samples ``ratio`` apart fit where ``n`` samples lie; exact, and symbolic sizes stay so if they can."""
    whole, inverse = as_integer(ratio), as_integer(1 / ratio)
    if whole:
        return (n - 1) // whole + 1
    return (n - 1) * inverse + 1 if inverse else floor((n - 1) / ratio) + 1


def as_plain(value: Any) -> Any:
    """NumPy's integers as Python's, also inside a sequence; anything else stays, so that sizes can be symbolic."""
    if isinstance(value, _NUMPYS):
        value = value.tolist()
    return tuple(map(as_plain, value)) if isinstance(value, list | tuple) else value


def per_axis(value: Any, dims: int, name: str) -> tuple[int, ...]:
    """One integer per spatial axis."""
    plain = as_plain(value)
    values = plain if isinstance(plain, tuple) else (plain,) * dims
    if len(values) != dims or not all(isinstance(v, _INTEGERS) for v in values):
        raise ValueError(f"{name} is an integer or one for each of {dims} axes, got {value}")
    return values


def fold(index: Tensor, size: int, mode: PaddingMode) -> Tensor:
    """Where an index outside ``0 .. size - 1`` reads from, however far outside."""
    if mode == "replicate":
        return index.clip(0, size - 1)
    if mode == "circular":
        return index % size
    period = 2 * (size - 1) or 1
    index = index % period
    return torch.minimum(index, period - index)


def take(x: Tensor, axis: int, index: Tensor) -> Tensor:
    """The samples of that index along an axis.

    As a gather: compiled by torch 2.13 for the CPU, the gradient of ``index_select`` writes past its buffer.
    """
    shape = list(x.shape)
    shape[axis] = index.shape[0]
    return x.gather(axis, index.reshape([-1] + [1] * (x.ndim - axis - 1)).expand(shape))


def full_precision(x: Tensor) -> AbstractContextManager:
    """Keep autocast from coarsening what must stay exact: the lift and the poolings."""
    if x.is_meta or not torch.is_autocast_enabled(x.device.type):
        return nullcontext()
    return torch.autocast(x.device.type, enabled=False)


def sent(make: Callable[..., tuple], arguments: tuple, like: Tensor) -> tuple:
    """What a function of plain numbers makes, first of all a tensor, which is sent to a device only once."""
    if is_transformed() or type(like) not in (Tensor, Parameter):  # which may be of a kind that does not last
        tensor, *others = make(*arguments)
        return tensor.to(like), *others
    return _sent(make, arguments, like.device, like.dtype)


@functools.lru_cache(maxsize=256)
def _sent(make: Callable[..., tuple], arguments: tuple, device: torch.device, dtype: torch.dtype) -> tuple:
    with torch.inference_mode(False):
        tensor, *others = make(*arguments)
        return tensor.to(device, dtype), *others


def at_least(taps: Tensor, like: Tensor, make: Callable[..., tuple], *arguments: Any) -> Tensor:
    """Taps in the precision of a tensor: made anew where a module keeps them in a lower one."""
    if taps.dtype.itemsize < like.dtype.itemsize and not taps.is_meta:
        return sent(make, arguments, like)[0]
    return taps.to(like)


def is_channels_last(x: Tensor) -> bool:
    """Whether an image stores its channels next to each other, and not its columns; torch.vmap does not tell."""
    if x.ndim != 4 or (not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()):
        return False
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


def is_transformed() -> bool:
    """Whether operations are traced or transformed: compilers fuse formulas, and transforms take them apart."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


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
    if factor and factor > 1 and step == 1 and isinstance(n, int) and isinstance(size, int) and not is_transformed():
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
    """The latest samples at or before ``ratio * i`` for ``-size < i <= 0``, the last sample sitting at 0.

    Before the first sample nothing is known yet, and zeros are read.
    """
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


def correlate(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    spacing: Any = 1.0,
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
    groups: int = 1,
    padding_mode: PaddingMode = "zeros",
) -> Tensor:
    r"""Correlate with taps ``spacing`` samples apart: :math:`\sum_y w(y)\, x(z + M (d y - p))`, :math:`M` the spacing.

    An integer spacing is a dilated convolution. Otherwise each tap is shared out linearly among the samples around
    it, which makes one plain convolution with a larger filter. ``padding`` counts taps, so it grows with the spacing.
    """
    conv = CONV[len(stride)]
    whole = as_integer(spacing)
    if whole is not None:
        amounts = [(before * whole, after * whole) for before, after in padding]
        apart = tuple(d * whole for d in dilation)
        if padding_mode == "zeros" and all(before == after for before, after in amounts):
            return conv(x, weight, bias, stride, tuple(before for before, _ in amounts), apart, groups)
        return conv(pad(x, amounts, padding_mode), weight, bias, stride, 0, apart, groups)
    offsets = tuple(
        tuple(d * y - before for y in range(n))
        for n, d, (before, _) in zip(weight.shape[2:], dilation, padding, strict=True)
    )
    matrix = tuple(map(tuple, spacing.tolist())) if isinstance(spacing, np.ndarray) else _static(spacing)
    share, low, box = sent(_shares, (offsets, matrix), weight)
    spread = weight.flatten(2) @ share
    spread = spread.reshape(*weight.shape[:2], *box)
    amounts = []
    for axis, (before, after) in enumerate(padding):
        surplus = before + after - dilation[axis] * (weight.shape[2 + axis] - 1)
        if surplus and isinstance(spacing, np.ndarray):
            raise ValueError(f'a matrix base needs padding="same", got {padding} for kernel {tuple(weight.shape[2:])}')
        n = x.shape[2 + axis]
        last = (n - 1 + (floor(surplus * float(spacing)) if surplus else 0)) // stride[axis]
        amounts.append((-low[axis], last * stride[axis] + low[axis] + box[axis] - n))
    return conv(pad(x, amounts, padding_mode), spread, bias, stride, 0, 1, groups)


def _static(value: float) -> float:
    """A number that torch.compile with ``dynamic=True`` must not make a symbol of."""
    if not torch.compiler.is_compiling():
        return value
    from torch.fx.experimental.symbolic_shapes import guard_scalar  # at hand while compiling, slow to import before

    return guard_scalar(value)


@constant
def _shares(offsets: tuple, matrix: tuple | float) -> tuple[Tensor, tuple[int, ...], tuple[int, ...]]:
    share, low, box = _share_out(offsets, matrix)
    return torch.as_tensor(share), low, box


@functools.lru_cache(maxsize=256)  # of arrays: a tensor made while torch exports would be a fake one
def _share_out(offsets: tuple, matrix: tuple | float) -> tuple[NDArray, tuple[int, ...], tuple[int, ...]]:
    """How each tap at ``matrix @ offset`` is shared out among the samples of the smallest box around all of them."""
    taps = np.stack(np.meshgrid(*offsets, indexing="ij"), -1).reshape(-1, len(offsets))
    position = taps * matrix if isinstance(matrix, float) else taps @ np.array(matrix).T
    position = np.where(np.abs(position - np.rint(position)) < 1e-9, np.rint(position), position)
    low, high = np.floor(position.min(0)).astype(int), np.ceil(position.max(0)).astype(int)
    cells = np.stack(np.meshgrid(*map(np.arange, low, high + 1), indexing="ij"), -1).reshape(-1, len(offsets))
    share = np.prod(np.clip(1 - np.abs(position[:, None] - cells[None]), 0, None), -1)
    return share, tuple(low.tolist()), tuple((high - low + 1).tolist())
