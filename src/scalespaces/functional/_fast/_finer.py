r"""Linear interpolation on a grid :math:`q` times finer, phase by phase.

Sample :math:`q j + r` of the finer grid lies between the coarse samples :math:`j + m_r` and :math:`j + m_r + 1`, at the
same fraction for all :math:`j`: each of the :math:`q` phases is a weighted sum of two slices, and no index is needed.
Its adjoint adds to the same two slices.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from scalespaces._torch import is_batched


@dataclass(frozen=True)
class Finer:
    """Interpolation along one axis; past the ends, the samples there are read."""

    axis: int
    factor: int  # samples of the finer grid for each coarse one, q
    offset: float  # where the finer grid's first sample lies, in coarse samples
    samples: int  # coarse ones
    size: int  # finer ones

    def phases(self) -> Iterator[tuple[slice, int, int, float]]:
        """For each phase: its samples between two coarse ones, the first of these, their number, the fraction."""
        for r, low, fraction, start, stop, _ in self._phases():
            if start < stop:
                yield self._run(r, start, stop), start + low, stop - start, fraction

    def ends(self) -> Iterator[tuple[slice, int]]:
        """For each phase: its samples past an end, and the coarse sample there."""
        for r, _, _, start, stop, total in self._phases():
            if start:
                yield self._run(r, 0, start), 0
            if stop < total:
                yield self._run(r, stop, total), self.samples - 1

    def _phases(self) -> Iterator[tuple[int, int, float, int, int, int]]:
        """The phase, the coarse sample before its first one, the fraction, which ones lie inside, and their number."""
        for r in range(min(self.factor, self.size)):
            place = self.offset + r / self.factor
            low = math.floor(place + 1e-9)
            fraction = place - low if place - low > 1e-9 else 0.0
            total = (self.size - r - 1) // self.factor + 1
            start = min(max(0, -low), total)
            yield r, low, fraction, start, max(min(total, self.samples - low - (fraction > 0)), start), total

    def _run(self, r: int, start: int, stop: int) -> slice:
        return slice(self.factor * start + r, self.factor * (stop - 1) + r + 1, self.factor)

    def of(self, x: Tensor, index: slice) -> Tensor:
        """Some samples along the axis."""
        return x[(slice(None),) * self.axis + (index,)]


def make_finer(x: Tensor, plan: Finer) -> Tensor:
    """Interpolate."""
    return _Interpolate.apply(x, plan)


def _like(x: Tensor, plan: Finer, size: int) -> Tensor:
    shape = list(x.shape)
    shape[plan.axis] = size
    last = x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    layout = torch.channels_last if last else torch.contiguous_format
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=layout)


class _Interpolate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, plan: Finer) -> Tensor:
        ctx.plan = plan
        out = _like(x, plan, plan.size)
        for run, first, length, fraction in plan.phases():
            low = x.narrow(plan.axis, first, length)
            if fraction:
                torch.lerp(low, x.narrow(plan.axis, first + 1, length), fraction, out=plan.of(out, run))
            else:
                plan.of(out, run).copy_(low)
        for run, end in plan.ends():
            plan.of(out, run).copy_(x.narrow(plan.axis, end, 1))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, None]:
        (g,), plan = gradients, ctx.plan
        if is_batched(g):  # many gradients at once: a product with the whole matrix
            matrix = make_finer(torch.eye(plan.samples, dtype=g.dtype, device=g.device), replace(plan, axis=0))
            return torch.movedim(torch.movedim(g, plan.axis, -1) @ matrix, -1, plan.axis), None
        return _Adjoint.apply(g, plan), None


class _Adjoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, g: Tensor, plan: Finer) -> Tensor:
        ctx.plan = plan
        out = _like(g, plan, plan.samples).zero_()
        for run, first, length, fraction in plan.phases():
            part = plan.of(g, run)
            out.narrow(plan.axis, first, length).add_(part, alpha=1 - fraction)
            if fraction:
                out.narrow(plan.axis, first + 1, length).add_(part, alpha=fraction)
        for run, end in plan.ends():
            out.narrow(plan.axis, end, 1).add_(plan.of(g, run).sum(plan.axis, True))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, None]:
        return _Interpolate.apply(gradients[0], ctx.plan), None
