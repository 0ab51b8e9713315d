r"""Linear interpolation on a grid :math:`q` times finer, phase by phase.

Between two coarse samples, in each cell, lie :math:`q` samples of the finer grid, at the same fractions in all cells:
each of the :math:`q` phases is a weighted sum of two slices, without an index. Its adjoint adds to the same slices.

That is fast on a CPU. Elsewhere a call costs its launch, so all phases are read at once by an index.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from scalespaces._torch import is_batched, is_channels_last
from scalespaces.functional._fast._choice import reads_phases_at_once


@dataclass(frozen=True)
class Finer:
    """Interpolation along one axis; past the ends, the samples there are read."""

    axis: int
    factor: int  # samples of the finer grid for each coarse one, q
    offset: float  # where the finer grid's first sample lies, in coarse samples
    samples: int  # coarse ones
    size: int  # finer ones

    def phases(self, x: Tensor, at: int, cells: int, length: int) -> tuple[Tensor, ...]:
        """The finer samples of some cells from ``at`` on, each phase by itself."""
        return x.narrow(self.axis, at, cells * length).unflatten(self.axis, (cells, length)).unbind(self.axis + 1)

    def like(self, x: Tensor, size: int) -> Tensor:
        """An empty tensor of that size along the axis."""
        shape = (*x.shape[: self.axis], size, *x.shape[self.axis + 1 :])
        layout = torch.channels_last if is_channels_last(x) else torch.contiguous_format
        return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=layout)


@functools.lru_cache(maxsize=1024)
def _pieces(plan: Finer) -> tuple[int, int, tuple[tuple[int, int, int, tuple[float, ...]], ...]]:
    """The first finer sample not past the start, the first past the end, and the runs of whole cells between them."""
    # Of each run: its first finer sample, its first cell, the number of cells, and the fractions of samples in each.

    def first_from(place: int) -> int:  # the first finer sample there or behind
        return math.ceil(plan.factor * (place - plan.offset - 1e-9))

    at = start = min(max(first_from(0), 0), plan.size)
    stop = max(min(first_from(plan.samples - 1), plan.size), start)
    runs = []
    while at < stop:
        cell = math.floor(plan.offset + at / plan.factor + 1e-9)
        length = min(first_from(cell + 1), stop) - at
        number = (stop - at) // length if length == plan.factor else 1
        fractions = [plan.offset + (at + r) / plan.factor - cell for r in range(length)]
        runs.append((at, cell, number, tuple(f if f > 1e-9 else 0.0 for f in fractions)))
        at += number * length
    return start, stop, tuple(runs)


def _neighbors(plan: Finer) -> tuple[Tensor, Tensor]:
    """The coarse samples before and behind each finer one, ``(2, size)``, and how far it is on its way between them."""
    place = plan.offset + torch.arange(plan.size, dtype=torch.float64) / plan.factor
    place = place.clip(0, plan.samples - 1)
    low = (place + 1e-9).floor()
    fraction = torch.where(place - low > 1e-9, place - low, 0.0)
    return torch.stack([low, low + (fraction > 0)]).long(), fraction


def _contributors(plan: Finer) -> tuple[Tensor, Tensor]:
    """The finer samples that read each coarse one, ``(most, samples)``, and their weights; zeros fill up."""
    (low, high), fraction = _neighbors(plan)
    matrix = torch.zeros(plan.size, plan.samples, dtype=torch.float64)
    finer = torch.arange(plan.size)
    matrix[finer, low] += 1 - fraction
    matrix[finer, high] += fraction
    most = int((matrix > 0).sum(0).max())
    weights, index = matrix.topk(most, 0)
    return torch.where(weights > 0, index, index[:1]), weights


@functools.lru_cache(maxsize=256)
def _sent(
    make: Callable[[Finer], tuple[Tensor, Tensor]], plan: Finer, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Indices and weights, made once for each device."""
    with torch.inference_mode(False):
        index, weights = make(plan)
        return index.to(device), weights.to(device, dtype)


def _at_once(x: Tensor, plan: Finer, make: Callable[[Finer], tuple[Tensor, Tensor]]) -> Tensor:
    """Interpolation by the neighbors of finer samples, or its adjoint by the contributors of coarse ones."""
    axis = plan.axis
    if axis > 1 and is_channels_last(x):  # the layout in memory stays
        return _at_once(x.movedim(1, -1), replace(plan, axis=axis - 1), make).movedim(-1, 1)
    index, weights = _sent(make, replace(plan, axis=0), x.device, x.dtype)
    found = x.index_select(axis, index.flatten()).unflatten(axis, index.shape)
    weights = weights.reshape(*weights.shape, *[1] * (x.ndim - axis - 1))
    if make is _contributors:
        return (found * weights).sum(axis)
    low, high = found.unbind(axis)
    return torch.lerp(low, high, weights)


def make_finer(x: Tensor, plan: Finer) -> Tensor:
    """Interpolate."""
    return _Interpolate.apply(x, plan) if torch.is_grad_enabled() else _interpolate(x, plan)


def _interpolate(x: Tensor, plan: Finer) -> Tensor:
    if reads_phases_at_once(x.device):
        return _at_once(x, plan, _neighbors)
    out, axis = plan.like(x, plan.size), plan.axis
    start, stop, runs = _pieces(plan)
    if start:
        out.narrow(axis, 0, start).copy_(x.narrow(axis, 0, 1))
    if stop < plan.size:
        out.narrow(axis, stop, plan.size - stop).copy_(x.narrow(axis, plan.samples - 1, 1))
    for at, cell, number, fractions in runs:
        low, high = x.narrow(axis, cell, number), x.narrow(axis, cell + 1, number)
        for fraction, phase in zip(fractions, plan.phases(out, at, number, len(fractions)), strict=True):
            torch.lerp(low, high, fraction, out=phase) if fraction else phase.copy_(low)
    return out


class _Interpolate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, plan: Finer) -> Tensor:
        ctx.plan = plan
        return _interpolate(x, plan)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (g,), plan = gradients, ctx.plan
        if is_batched(g):  # many gradients at once: a product with the whole matrix
            matrix = make_finer(torch.eye(plan.samples, dtype=g.dtype, device=g.device), replace(plan, axis=0))
            return torch.movedim(torch.movedim(g, plan.axis, -1) @ matrix, -1, plan.axis), None
        return _Adjoint.apply(g, plan), None


class _Adjoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, g: Tensor, plan: Finer) -> Tensor:
        ctx.plan, axis = plan, plan.axis
        if reads_phases_at_once(g.device):
            return _at_once(g, plan, _contributors)
        out = plan.like(g, plan.samples).zero_()
        start, stop, runs = _pieces(plan)
        for at, cell, number, fractions in runs:
            for fraction, phase in zip(fractions, plan.phases(g, at, number, len(fractions)), strict=True):
                out.narrow(axis, cell, number).add_(phase, alpha=1 - fraction)
                if fraction:
                    out.narrow(axis, cell + 1, number).add_(phase, alpha=fraction)
        for end, first, length in ((0, 0, start), (plan.samples - 1, stop, plan.size - stop)):
            if length:
                out.narrow(axis, end, 1).add_(g.narrow(axis, first, length).sum(axis, True))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _Interpolate.apply(gradients[0], ctx.plan), None
