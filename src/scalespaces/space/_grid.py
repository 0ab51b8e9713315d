"""Where the samples of the levels lie, one value that layers read and update; and the windows that slide over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scalespaces.space._numbers import Ints, as_integer, floor, per_axis, remembered
from scalespaces.theory._kernels import check_causal_base
from scalespaces.theory._scale import Base, check_base, power

Counts = tuple[int, ...]


@dataclass(frozen=True)
class Window:
    """A window's size, and how it slides, one number per axis; padding and dilation count taps.

    The output of a causal window belongs to its last tap; padding is before the record, strides count back from now.
    """

    size: Counts
    stride: Counts
    padding: tuple[tuple[int, int], ...]
    dilation: Counts
    causal: bool = False

    @property
    def keeps_size(self) -> bool:
        """Whether there is at least as much padding as the window reaches."""
        axes = zip(self.size, self.dilation, self.padding, strict=True)
        return all(before + after >= dilation * (size - 1) for size, dilation, (before, after) in axes)

    def check(self, sizes: Sequence[Any], spacing: Any, number: int) -> None:
        """Refuse a level of these sizes if it is too small for the window."""
        if isinstance(spacing, np.ndarray) or self.keeps_size:
            return
        whole = as_integer(spacing)
        for n, size, dilation, (before, after) in zip(sizes, self.size, self.dilation, self.padding, strict=True):
            surplus = before + after - dilation * (size - 1)
            # A symbolic size (torch.export) is left to the convolution itself.
            if surplus >= 0 or not isinstance(n, int):
                continue
            if (n - 1 + surplus * whole if whole else floor(n - 1 + surplus * spacing)) < 0:
                window = f"a window of {self.size} taps {spacing:g} samples apart"
                ways = "use fewer levels, more padding, or a larger image"
                raise ValueError(f"level {number} has {tuple(sizes)} samples, too few for {window}; {ways}")


def window_of(
    size: Sequence[int], stride: Ints = 1, padding: Ints | str = 0, dilation: Ints = 1, causal: bool = False
) -> Window:
    """Read the arguments that PyTorch's layers take."""
    dims = len(size)
    pads = padding if isinstance(padding, str) else per_axis(padding, dims, "padding")
    return _window_of(tuple(size), per_axis(stride, dims, "stride"), pads, per_axis(dilation, dims, "dilation"), causal)


@remembered
def _window_of(size: Counts, stride: Counts, padding: Counts | str, dilation: Counts, causal: bool) -> Window:
    for name, values in (("kernel_size", size), ("stride", stride), ("dilation", dilation)):
        if min(values) < 1:
            raise ValueError(f"{name} is at least 1, got {values}")
    totals = tuple(d * (n - 1) for n, d in zip(size, dilation, strict=True))
    if padding == "same":
        pairs = tuple((total, 0) if causal else (total // 2, total - total // 2) for total in totals)
    elif isinstance(padding, str):
        if padding != "valid":
            raise ValueError(f'padding is a number, "same" or "valid", got {padding!r}')
        pairs = ((0, 0),) * len(size)
    else:
        pairs = tuple((p, 0 if causal else p) for p in padding)
        if min(padding) < 0:
            raise ValueError(f"padding is at least 0, got {padding}")
        if causal and any(p > total for p, total in zip(padding, totals, strict=True)):
            rule = f"a causal window of {size} taps takes at most {totals} of padding, all before the record"
            raise ValueError(f'{rule}, got {padding}; "same" keeps the length')
    return Window(size, stride, pairs, dilation, causal)


@dataclass(frozen=True, eq=False)
class Grid:
    r"""Where the samples of each level lie.

    Sample :math:`i` of level :math:`k` sits at ``origins[k] + steps[k] * i``. Positions are measured in samples of
    level 0, from the point that scaling leaves fixed: the first pixel of the lifted image. In a ``causal`` grid that
    point is the newest sample, which sits at 0 at every level. Sizes are not part of a grid: they may be symbols.

    Args:
        base: the dilation :math:`c` between neighboring levels, or an expansion matrix.
        steps: distance between samples of each level.
        origins: position of each level's sample 0, one number per axis.
        unit: pixels of the lifted image per sample of level 0, one number per axis; strides multiply it.
        axes: which axes of the levels are spatial; empty once space is flattened or pooled away.
        first_level: the number of the first level; negative for levels finer than the image.
        causal: whether the one axis is time and layers only look back.

    Example:
        >>> x = scalespaces.lift(torch.rand(1, 3, 16, 16), num_levels=2)
        >>> x.grid.steps, scalespaces.functional.avg_pool(x, 2).grid.origins
        ((1.0, 2.0), ((0.25, 0.25), (0.5, 0.5)))
    """

    base: Base
    steps: tuple[float, ...]
    origins: tuple[tuple[float, ...], ...]
    unit: tuple[float, ...]
    axes: tuple[int, ...]
    first_level: int = 0
    causal: bool = False

    def __post_init__(self) -> None:
        if len(self.steps) != len(self.origins):
            raise ValueError(f"each level needs a step and an origin, got {self.steps} and {self.origins}")
        if not all(step > 0 for step in self.steps):
            raise ValueError(f"steps must be positive, got {self.steps}")
        if len(set(self.axes)) != len(self.axes):
            raise ValueError(f"spatial axes must differ from each other, got {self.axes}")
        if any(len(numbers) != self.dims for numbers in (*self.origins, self.unit)):
            given = f"{self.origins}, {self.unit}"
            raise ValueError(f"origins and unit need one number for each of {self.dims} axes, got {given}")
        if not self.causal:
            return
        check_causal_base(self.base)
        if self.dims > 1:
            raise ValueError(f"the levels of a causal space must be signals (B, C, time), got spatial axes {self.axes}")
        if any(map(any, self.origins)):
            raise ValueError(f"the newest sample of each causal level must be at 0, got origins {self.origins}")
        spacings = [self.spacing(index) for index in range(self.num_levels)]
        if not all(spacing.is_integer() for spacing in spacings):
            remedy = "use steps that divide the dilations of their levels"
            raise ValueError(f"taps of a causal space must lie on samples, got {spacings} between them; {remedy}")

    def fields(self) -> tuple:
        """All fields, as plain numbers."""
        return self.base, self.steps, self.origins, self.unit, self.axes, self.first_level, self.causal

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Grid) and self.fields() == other.fields())

    def __hash__(self) -> int:
        known = self.__dict__.get("_hash")
        if known is None:
            known = self.__dict__["_hash"] = hash(self.fields())  # once: every layer looks up results by grid
        return known

    @property
    def num_levels(self) -> int:
        """How many levels there are."""
        return len(self.steps)

    @property
    def dims(self) -> int:
        """Number of spatial axes."""
        return len(self.axes)

    def expansion(self, index: int) -> Any:
        r"""The dilation :math:`c^k` of a level; a matrix for a matrix base."""
        return power(self.base, index + self.first_level)

    def spacing(self, index: int) -> Any:
        r"""Samples of a level between the taps of a filter, :math:`c^k / step_k`."""
        return self.expansion(index) / self.steps[index]

    @remembered
    def spacings(self) -> tuple[Any, ...]:
        """The spacing of every level."""
        return tuple(self.spacing(index) for index in range(self.num_levels))

    def is_plain(self, index: int) -> bool:
        """Whether taps meet neighboring samples, as in a plain convolution."""
        return as_integer(self.spacings()[index]) == 1

    def leeway(self, index: int) -> float:
        """By how many samples the sizes of two branches may differ: dilated windows have wide borders."""
        spacing = self.spacings()[index]
        return 2 * spacing if isinstance(spacing, float) and spacing > 1 + 1e-9 else 0.0

    def matches(self, other: Grid, strict: bool) -> bool:
        """Whether samples of two grids that have the same index belong together.

        A shift of all levels that grows with the scale, :math:`c^k d` at level k, commutes with scale and is accepted:
        a 3x3 filter and a 2x2 pooling of the same stride, in parallel, differ by :math:`d = 1/4`. In ``strict`` mode,
        branches of a plain network may pad differently and be up to a tap apart.
        """
        shifts = [[p - q for p, q in zip(a, b, strict=True)] for a, b in zip(self.origins, other.origins, strict=True)]
        matrix = isinstance(self.base, tuple)
        for k, shift in enumerate(shifts):
            first = [0.0 if matrix else d * self.expansion(k) / self.expansion(0) for d in shifts[0]]
            if strict and not matrix:
                first = [d if abs(d - e) <= self.expansion(k) else e for d, e in zip(shift, first, strict=True)]
            pairs = [*zip(shift, first, strict=True), (self.steps[k], other.steps[k])]
            pairs += zip(self.unit, other.unit, strict=True)
            if any(abs(p - q) > 1e-6 * max(1.0, abs(p)) for p, q in pairs):
                return False
        return True

    def replace(self, **changes: Any) -> Grid:
        """The same grid with some fields changed."""
        return replace(self, **changes)

    @remembered
    def keep(self, num_levels: int) -> Grid:
        """The grid of the first levels."""
        if not 0 < num_levels <= self.num_levels:
            raise ValueError(f"can keep 1 to {self.num_levels} levels, got {num_levels}")
        if num_levels == self.num_levels:
            return self
        return self.replace(steps=self.steps[:num_levels], origins=self.origins[:num_levels])

    @remembered
    def slide(self, window: Window, dilated: bool = True) -> Grid:
        r"""The grid that a sliding window leaves.

        The window's center is ``shift`` taps after its first tap. The taps of level :math:`k` are :math:`c^k` apart
        (one sample, for a window that is not ``dilated``): that is how far sample 0 moves. A stride then makes the unit
        larger. Causal windows leave the newest sample where it is.
        """
        shift = [
            0.0 if window.causal else d * (n - 1) / 2 - before
            for n, d, (before, _) in zip(window.size, window.dilation, window.padding, strict=True)
        ]
        if not isinstance(self.base, float) and len(set(window.stride)) > 1:
            raise ValueError(f"a matrix base needs one stride for all axes, got {window.stride}")
        origins = []
        for index, origin in enumerate(self.origins):
            apart = self.expansion(index) if dilated else self.steps[index]
            moved = apart @ np.array(shift) if isinstance(apart, np.ndarray) else [apart * s for s in shift]
            origins.append(tuple(float(o + m) / s for o, m, s in zip(origin, moved, window.stride, strict=True)))
        unit = tuple(u * s for u, s in zip(self.unit, window.stride, strict=True))
        moved = self.replace(origins=tuple(origins), unit=unit)
        return self if moved == self else moved  # one object: what is known of it is found at once

    @remembered
    def refine(self, factor: tuple[float, ...], shift: tuple[float, ...]) -> Grid:
        """A grid ``factor`` times finer, whose sample 0 lies ``shift`` taps of this one further along."""
        origins = tuple(
            tuple((o + self.expansion(k) * s) * f for o, s, f in zip(origin, shift, factor, strict=True))
            for k, origin in enumerate(self.origins)
        )
        return self.replace(origins=origins, unit=tuple(u / f for u, f in zip(self.unit, factor, strict=True)))

    def shift(self, offsets: Sequence[Sequence[float]]) -> Grid:
        """The grid with each level's sample 0 moved by that many samples of the level, one number per axis."""
        origins = tuple(
            tuple(o + n * step for o, n in zip(origin, offset, strict=True))
            for origin, offset, step in zip(self.origins, offsets, self.steps, strict=True)
        )
        return self.replace(origins=origins)

    @remembered
    def permute(self, places: tuple[int | None, ...]) -> Grid:
        """The grid with its spatial axes at other places; None for an axis that was removed."""
        kept = [i for i, place in enumerate(places) if place is not None]
        if isinstance(self.base, tuple) and 0 < len(kept) < self.dims:
            raise ValueError("a matrix base mixes the spatial axes, so none can go alone; work on x.levels")
        return self.replace(
            axes=tuple(place for place in places if place is not None),
            origins=tuple(tuple(origin[i] for i in kept) for origin in self.origins),
            unit=tuple(self.unit[i] for i in kept),
        )

    def flatten(self) -> Grid:
        """The grid without spatial axes: samples belong to the image as a whole."""
        return self.permute((None,) * self.dims)

    def average(self, gone: Sequence[bool]) -> Grid:
        """The grid with one sample left along the axes that are gone."""
        origins = tuple(tuple(0.0 if g else o for g, o in zip(gone, origin, strict=True)) for origin in self.origins)
        return self.replace(origins=origins, unit=tuple(1.0 if g else u for g, u in zip(gone, self.unit, strict=True)))

    def align(self, unit: Sequence[float], origin: Sequence[float]) -> Grid:
        """One grid for all levels."""
        n = self.num_levels
        return self.replace(steps=(1.0,) * n, origins=(tuple(origin),) * n, unit=tuple(unit))


@remembered
def make_grid(
    num_levels: int, ndim: int, base: Base = 2.0, steps: tuple[float, ...] = (), first_level: int = 0
) -> Grid:
    """The grid of a lift to that many levels ``(B, C, *spatial)`` of ``ndim`` axes; dense unless steps are given."""
    axes = tuple(range(2, ndim))
    origins, unit = ((0.0,) * len(axes),) * num_levels, (1.0,) * len(axes)
    return Grid(check_base(base), steps or (1.0,) * num_levels, origins, unit, axes, first_level)
