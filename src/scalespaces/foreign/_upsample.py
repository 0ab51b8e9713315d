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

MODES = ("linear", "bilinear", "trilinear", "nearest", "nearest-exact")
Run = Callable[[Tensor], Tensor]


def half_pixel(factor: Sequence[float]) -> tuple[float, ...]:
    """Where sample 0 of a finer grid lies if both grids divide the same pixels."""
    return tuple(1 / (2 * f) - 1 / 2 for f in factor)


def interpolate(size: Sequence[int], mode: str, aligned: bool, factor: Sequence[float | None], f: Tensor) -> Tensor:
    """As F.interpolate to a size; by the factors, if there are any, whatever the size."""
    kind = "_upsample_nearest_exact" if mode == "nearest-exact" else f"upsample_{mode}"
    corners = () if mode.startswith("nearest") else (aligned,)
    return getattr(torch.ops.aten, f"{kind}{f.ndim - 2}d")(f, size, *corners, *factor)


def _phases(r: Tensor, spacing: int, base: int, factor: float) -> tuple[Tensor, Tensor, Tensor]:
    """Where lattices that begin ``r / factor`` samples later are read: a neighbor, weight of the next, distance."""
    apart = torch.ones_like(r)
    power = base
    while power < spacing:
        apart = torch.where(r % power == 0, power, apart)
        power *= base
    steps = r.to(torch.float64 if r.device.type != "mps" else torch.float32) / apart / factor
    whole = (steps + 1e-9).floor()
    return whole.long() * apart, (steps - whole).clip(min=0), apart


def on_lattices(
    run: Run, f: Tensor, lattices: tuple[int, int], factor: Sequence[float], size: Sequence[int], nearest: bool = False
) -> Tensor:
    """Run what makes maps ``factor`` times finer on each of the lattices of a level, and interleave the results.

    There are ``size`` samples at most. Lattices between samples are interpolated, or take the ``nearest`` before them.
    """
    spacing, base = lattices
    for axis, finer in enumerate(factor, 2):
        n = f.shape[axis]
        start, near, apart = _phases(torch.arange(spacing, device=f.device), spacing, base, finer)
        index = start[:, None] + torch.arange((n - 1) // spacing + 1, device=f.device) * spacing
        low, high = (take(f, axis, within(i.flatten(), n, spacing)) for i in (index, index + apart[:, None]))
        weight = near.to(f.dtype).repeat_interleave(index.shape[1]).reshape([-1] + [1] * (f.ndim - axis - 1))
        phases = low if nearest else torch.lerp(low, high, weight)
        f = phases.unflatten(axis, (spacing, -1)).movedim(axis, 0).flatten(0, 1)
    out = run(f)
    for axis in reversed(range(2, f.ndim)):
        out = out.unflatten(0, (spacing, -1)).movedim(0, axis + 1).flatten(axis, axis + 1)
        if size[axis - 2] < out.shape[axis]:
            out = out.narrow(axis, 0, size[axis - 2])
    return out


def nominal_factor(old: Sequence[int], new: Sequence[int], unit: float, spacings: Sequence[float]) -> float | None:
    """By how much an axis of these sizes, one per level, was made finer; None if not by one factor for all."""
    # Sizes that a stride of f divided come back up to what it left over, so f n may be up to f taps away from the new
    # size. Of several factors, one that divides the strides so far is taken.
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
