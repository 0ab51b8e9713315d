"""Translations of a grid, and what semigroups that contain them have in common."""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from scalespaces.functional._sampling import fold, take
from scalespaces.semigroups._semigroup import Semigroup
from scalespaces.space._numbers import Ints, per_axis
from scalespaces.theory._arguments import PaddingMode, check_integer, check_padding_mode

Shift = tuple[int, ...]


class ShiftGrid:
    """The shifts by ``first + i`` for ``i`` in a box, and how they read signals on a grid."""

    def __init__(self, shape: Sequence[int], first: Ints = 0, padding_mode: PaddingMode = "zeros") -> None:
        self.shape = tuple(check_integer("shape", n, 1) for n in shape)
        self.dims = len(self.shape)
        self.first = per_axis(first, self.dims, "first")
        self.padding_mode: PaddingMode = check_padding_mode(padding_mode)

    def starts(self) -> list[range]:
        """The shifts along each axis."""
        return [range(a, a + n) for a, n in zip(self.first, self.shape, strict=True)]

    def shifts(self) -> list[Shift]:
        """All shifts, the last axis fastest."""
        return list(itertools.product(*self.starts()))

    def check(self, shift: Sequence[int]) -> None:
        """Refuse a shift with another number of axes."""
        if not isinstance(shift, Sequence) or len(shift) != self.dims:
            raise ValueError(f"a shift has an integer for each of {self.dims} axes, got {shift!r}")

    def wrap(self, shift: Sequence[int]) -> Shift:
        """The shift itself; on a circular grid, its representative among :meth:`shifts`."""
        if self.padding_mode != "circular":
            return tuple(shift)
        return tuple((z - a) % n + a for z, a, n in zip(shift, self.first, self.shape, strict=True))

    def take(self, f: Tensor, axis: int, places: range, others: range = range(1)) -> Tensor:
        """The signal along an axis at all sums of places and others; either may lie outside the signal."""
        first, second = (torch.arange(r.start, r.stop, r.step, device=f.device) for r in (places, others))
        index, size = (first[:, None] + second).flatten(), f.shape[axis]
        if self.padding_mode != "zeros":
            return take(f, axis, fold(index, size, self.padding_mode))
        inside = ((index >= 0) & (index < size)).reshape([-1] + [1] * (f.ndim - axis - 1))
        return torch.where(inside, take(f, axis, index.clip(0, size - 1)), 0.0)

    def read(self, f: Tensor, starts: Sequence[range], taps: Sequence[range]) -> Tensor:
        """The signal at every start plus every tap, axis by axis: ``(B, C, *starts, *taps)``."""
        if f.ndim != self.dims + 2:
            raise ValueError(f"signals are (B, C, *X) with {self.dims} spatial axes, got shape {tuple(f.shape)}")
        if self.padding_mode == "circular" and any(m % n for m, n in zip(self.shape, f.shape[2:], strict=True)):
            got = f"{tuple(f.shape[2:])} for {self.shape} shifts"
            raise ValueError(f"on a circular grid the size of a signal must divide the number of shifts, got {got}")
        for axis in reversed(range(self.dims)):
            lengths = len(starts[axis]), len(taps[axis])
            f = self.take(f, axis + 2, starts[axis], taps[axis]).unflatten(axis + 2, lengths)
        axes = range(2, 2 + 2 * self.dims)
        return f.permute(0, 1, *axes[::2], *axes[1::2])

    def read_all(self, f: Tensor, taps: Sequence[range]) -> Tensor:
        """The signal around every shift: ``(B, C, number of shifts, *taps)``."""
        return self.read(f, self.starts(), taps).flatten(2, 1 + self.dims)


class Translations(ShiftGrid, Semigroup[Shift]):
    r"""Translations of :math:`\mathbb{Z}^d`, :math:`L_z[f](x) = f(x + z)`; their correlation is that of CNNs.

    With ``padding_mode="circular"`` they are the group :math:`\mathbb{Z}_n^d` and everything is exact. With zeros the
    law is exact for shifts of one sign: no sample that has left the grid comes back.

    Args:
        shape: how many shifts along each axis. ``(H - h + 1, W - w + 1)`` is an unpadded convolution.
        first: the first of them, minus the padding of a convolution.
        padding_mode: what lies outside the signal.
    """

    def compose(self, s: Shift, t: Shift) -> Shift:
        """The sum."""
        return self.wrap([a + b for a, b in zip(s, t, strict=True)])

    def act(self, s: Shift, f: Tensor) -> Tensor:
        """The shifted signal, on the same grid."""
        self.check(s)
        return self.read(f, [range(z, z + 1) for z in s], [range(n) for n in f.shape[2:]]).reshape(f.shape)

    def elements(self) -> Sequence[Shift]:
        return self.shifts()

    def full_orbit(self, f: Tensor, shape: Sequence[int]) -> Tensor:
        return self.read_all(f, [range(n) for n in shape])
