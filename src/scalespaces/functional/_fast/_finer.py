r"""Linear interpolation on a grid :math:`q` times finer, phase by phase.

Between two coarse samples, in each cell, lie :math:`q` samples of the finer grid, at the same fractions in all cells:
each of the :math:`q` phases is a weighted sum of two slices, without an index. Its adjoint adds to the same slices.
"""

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from scalespaces._torch import is_batched, is_channels_last


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


def make_finer(x: Tensor, plan: Finer) -> Tensor:
    """Interpolate."""
    return _Interpolate.apply(x, plan) if torch.is_grad_enabled() else _interpolate(x, plan)


def _interpolate(x: Tensor, plan: Finer) -> Tensor:
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
