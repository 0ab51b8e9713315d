r"""Interpolation and transposed convolution with taps that are several samples apart.

A level whose taps are :math:`q` samples apart is made of :math:`q` lattices, and a filter sees only one of them. When
it is made :math:`f` times finer, sample :math:`q u + r` of the result is sample :math:`u` of a plain operation on the
lattice that begins :math:`r / f` samples later. Between samples it is interpolated, from neighbors :math:`c^v` apart,
the largest power that divides :math:`r`: in a downscaled image the same sample has no closer ones.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from scalespaces.foreign._register import name_of
from scalespaces.functional._sampling import take, within
from scalespaces.space._numbers import as_integer
from scalespaces.space._space import ScaleSpace

LINEAR = ("linear", "bilinear", "trilinear")
NEAREST = ("nearest", "nearest-exact")


def half_pixel(factor: Sequence[float]) -> tuple[float, ...]:
    """Where sample 0 of a finer grid lies if both grids divide the same pixels."""
    return tuple(1 / (2 * f) - 1 / 2 for f in factor)


def interpolate_spread(
    f: Tensor, axis: int, spacing: int, base: int, factor: float, size: int, mode: str, aligned: bool, ratio: float
) -> Tensor:
    """Make one axis of a level finer by ``factor``, to ``size`` samples, each of its ``spacing`` lattices by itself.

    ``ratio`` samples of a lattice go into one of the result; ``mode`` and ``aligned`` corners are as in F.interpolate.
    """
    j = torch.arange(size, device=f.device)
    u, half = j // spacing, 0.0 if aligned or mode == "nearest" else 0.5
    place = (_as_real(u) + half) * ratio
    if mode not in NEAREST:
        place = (place - half).clip(min=0)
    start, near, apart = _phases(j - u * spacing, spacing, base, factor)
    low = place.floor().long() * spacing + start

    def read(index: Tensor) -> Tensor:
        return take(f, axis, within(index, f.shape[axis], spacing))

    def along(values: Tensor) -> Tensor:
        return values.reshape([-1] + [1] * (f.ndim - axis - 1))

    def between(index: Tensor) -> Tensor:
        return torch.lerp(read(index), read(index + apart), along(near.to(f.dtype)))

    if mode in NEAREST:
        return read(low)
    return torch.lerp(between(low), between(low + spacing), along((place - place.floor()).to(f.dtype)))


def _as_real(index: Tensor) -> Tensor:
    return index.to(torch.float64 if index.device.type != "mps" else torch.float32)


def _phases(r: Tensor, spacing: int, base: int, factor: float) -> tuple[Tensor, Tensor, Tensor]:
    """Where lattices that begin ``r / factor`` samples later are read: a neighbor, weight of the next, distance."""
    apart = torch.ones_like(r)
    power = base
    while power < spacing:
        apart = torch.where(r % power == 0, power, apart)
        power *= base
    steps = _as_real(r) / apart / factor
    whole = (steps + 1e-9).floor()
    return whole.long() * apart, (steps - whole).clip(min=0), apart


def transpose_spread(
    f: Tensor, spacing: int, base: int, factor: Sequence[int], plain: Callable[[Tensor], Tensor], size: Sequence[int]
) -> Tensor:
    """Run a transposed convolution ``plain`` of strides ``factor`` on each of the ``spacing`` lattices per axis.

    The results are interleaved, to at most ``size`` samples.
    """
    for axis in range(2, f.ndim):
        f = _lattices(f, axis, spacing, base, factor[axis - 2])
    out = plain(f)
    for axis in reversed(range(2, f.ndim)):
        out = out.unflatten(0, (spacing, -1)).movedim(0, axis + 1).flatten(axis, axis + 1)
        if size[axis - 2] < out.shape[axis]:
            out = out.narrow(axis, 0, size[axis - 2])
    return out


def _lattices(f: Tensor, axis: int, spacing: int, base: int, factor: int) -> Tensor:
    """The lattices of one axis, one after another along the batch."""
    n = f.shape[axis]
    start, near, apart = _phases(torch.arange(spacing, device=f.device), spacing, base, factor)
    m = torch.arange((n - 1) // spacing + 1, device=f.device) * spacing
    index = start[:, None] + m

    def read(index: Tensor) -> Tensor:
        return take(f, axis, within(index.flatten(), n, spacing)).unflatten(axis, (spacing, -1))

    weight = near.to(f.dtype).reshape([-1] + [1] * (f.ndim - axis))
    phases = torch.lerp(read(index), read(index + apart[:, None]), weight)
    return phases.movedim(axis, 0).flatten(0, 1)


def nominal_factor(old: Sequence[int], new: Sequence[int], unit: float, spacings: Sequence[float]) -> float | None:
    """By how much an axis of these sizes, one per level, was made finer; None if not by one factor for all.

    Sizes that a stride of :math:`f` divided come back up to what it left over, so :math:`f n` may be up to :math:`f`
    taps away from the new size. Of several factors, one that divides the strides so far is taken.
    """
    up, ratio = new[0] >= old[0], new[0] / old[0]
    small, large = (old, new) if up else (new, old)
    sizes = list(zip(small, large, spacings, strict=True))
    most = max(math.ceil(m / max(n - 1, 1)) for n, m, _ in sizes)
    fitting = [r for r in range(1, most + 1) if all(abs(n * r - m) < r * q for n, m, q in sizes)]
    if not fitting:
        return ratio if all(m * old[0] == n * new[0] for m, n in zip(new, old, strict=True)) else None
    nearest = large[0] / small[0]
    best = min(fitting, key=lambda r: (not (up and (unit / r).is_integer()), abs(r - nearest)))
    return float(best) if up else 1 / best


def lattices_of(x: ScaleSpace, index: int, func: Callable) -> tuple[int, int]:
    """How many lattices the level has, and the base."""
    spacing = as_integer(x.spacing(index))
    if not spacing:
        raise ValueError(f'{name_of(func)} needs taps on samples, got {x.spacing(index)} apart; use sampling="pyramid"')
    return spacing, (as_integer(x.base) or spacing)
