"""The container: levels on grids."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from scalespaces._torch import collate_with, register_pytree
from scalespaces.space._grid import Grid
from scalespaces.space._levelwise import Levelwise, _join
from scalespaces.space._per_level import collapse, per_level_shape
from scalespaces.theory._scale import Base, check_base


class ScaleSpace(Levelwise):
    r"""A function on scale and space: one tensor per level, each on a grid of its own.

    Level :math:`k` stands for the dilation :math:`c^{-k}`. ``x.grid``, a :class:`~scalespaces.space.Grid`, says where
    its samples lie: in dense sampling every step is 1, in a pyramid the step of level :math:`k` is :math:`c^k`.

    In a ``causal`` space the one spatial axis is time, and the fixed point is now: sample :math:`i` of :math:`n` sits
    at ``-step * (n - 1 - i)``. Layers only look back: windows end at the sample they compute, strides keep the newest
    sample, and a coarse sample is held until the next one.

    Pointwise code (``nn.ReLU()(x)``, ``2 * x + y``, ``torch.cat([x, y], 1)``, ``x.flatten(1)``) runs level by level. So
    do torch's own convolutions, poolings, normalizations and interpolations, with taps spread as in
    :func:`~scalespaces.functional.scale_conv`. Functions along a spatial axis see each level by itself.

    Where levels differ in size, ``x.shape[2]`` has one number per level. ``axes`` follows the spatial axes when they
    are permuted or reshaped, and is empty once the grid is lost, as after ``nn.AdaptiveAvgPool2d(7)``.

    ``torch.utils.data.default_collate`` joins scale-spaces on the same grid along their batch axes, and ``torch.load``
    also reads them with ``weights_only=True``.

    Args:
        levels: tensors ``(B, C, *spatial_k)``, finest first.
        base, steps, origins, unit, first_level, causal, axes: the fields of :class:`~scalespaces.space.Grid`. By
            default samples are one pixel apart (dense sampling), and all axes after the second are spatial.

    Example:
        >>> x = ScaleSpace((torch.ones(1, 2, 8, 8), torch.ones(1, 2, 4, 4)), base=2, steps=(1, 2))
        >>> torch.relu(2 * x - 3).levels[1].max()
        tensor(0.)
        >>> x
        ScaleSpace(2 levels, base 2, torch.float32, cpu)
          level 0: (1, 2, 8, 8), step 1
          level 1: (1, 2, 4, 4), step 2
    """

    def __init__(
        self,
        levels: Sequence[Tensor],
        base: Base = 2.0,
        steps: Sequence[float] = (),
        origins: Sequence[Sequence[float]] = (),
        unit: Sequence[float] = (),
        first_level: int = 0,
        causal: bool = False,
        axes: Sequence[int] | None = None,
    ) -> None:
        self.levels = _check_levels(levels)
        count, ndim = len(self.levels), self.levels[0].ndim
        axes = tuple(range(2, ndim) if axes is None else axes)
        if not all(0 <= a < ndim for a in axes):
            raise ValueError(f"axes must be from 0 to {ndim - 1}, got {axes}")
        apart = tuple(map(float, steps)) or (1.0,) * count
        starts = tuple(tuple(map(float, origin)) for origin in origins) or ((0.0,) * len(axes),) * count
        if not count == len(apart) == len(starts):
            raise ValueError(f"each level needs a step and an origin, got {count} levels, {apart} and {starts}")
        pixels = tuple(map(float, unit)) or (1.0,) * len(axes)
        grid = Grid(check_base(base), apart, starts, pixels, axes, first_level, causal)
        self.grid = _check_fit(self.levels, grid, bool(steps))

    base = property(lambda self: self.grid.base, doc="The dilation between neighboring levels.")
    steps = property(lambda self: self.grid.steps, doc="Distance between samples of each level.")
    origins = property(lambda self: self.grid.origins, doc="Position of each level's sample 0.")
    unit = property(lambda self: self.grid.unit, doc="Pixels of the lifted image per sample of level 0.")
    axes = property(lambda self: self.grid.axes, doc="Which axes are spatial.")
    first_level = property(lambda self: self.grid.first_level, doc="The number of the first level.")
    causal = property(lambda self: self.grid.causal, doc="Whether the axis is time.")

    @property
    def num_levels(self) -> int:
        """How many levels there are."""
        return len(self.levels)

    @property
    def dims(self) -> int:
        """Number of spatial axes; 0 once the space is flattened or pooled away."""
        return len(self.grid.axes)

    @property
    def shape(self) -> Any:
        """The shape of the levels; a size in which they differ has one number per level."""
        return per_level_shape([level.shape for level in self.levels])

    @property
    def ndim(self) -> int:
        """Number of axes of the levels."""
        return self.levels[0].ndim

    def dim(self) -> int:
        """Number of axes of the levels."""
        return self.levels[0].ndim

    def size(self, dim: int | None = None) -> Any:
        """The shape of the levels, or one size of it; see :attr:`shape`."""
        return self.shape if dim is None else collapse([level.shape[dim] for level in self.levels])

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the levels."""
        return self.levels[0].dtype

    @property
    def device(self) -> torch.device:
        """Device of the levels."""
        return self.levels[0].device

    def level(self, number: int) -> Tensor:
        """The level of that number; numbers start at ``first_level``."""
        if not 0 <= number - self.first_level < self.num_levels:
            last = self.first_level + self.num_levels - 1
            raise IndexError(f"levels are numbered {self.first_level} to {last}, got {number}")
        return self.levels[number - self.first_level]

    def expansion(self, index: int) -> Any:
        r"""The dilation :math:`c^k` (a matrix for a matrix base) of ``levels[index]``."""
        return self.grid.expansion(index)

    def spacing(self, index: int) -> Any:
        r"""Samples of ``levels[index]`` between the taps of a filter, :math:`c^k / step_k`."""
        return self.grid.spacing(index)

    def __len__(self) -> int:
        raise TypeError(f"a ScaleSpace has no length; its levels are x.levels, and x.num_levels is {self.num_levels}")

    def __iter__(self) -> Iterator[Tensor]:
        raise TypeError("a ScaleSpace cannot be iterated over; its levels are x.levels (and x.num_levels their number)")

    def __repr__(self) -> str:
        base = f"{self.base:g}" if isinstance(self.base, float) else str(self.base)
        causal = "causal, " if self.causal else ""
        lines = [f"ScaleSpace({self.num_levels} levels, base {base}, {causal}{self.dtype}, {self.device})"]
        for index, level in enumerate(self.levels):
            line = f"  level {index + self.first_level}: {tuple(level.shape)}, step {self.steps[index]:g}"
            if any(self.origins[index]):
                line += ", origin " + " ".join(f"{o:g}" for o in self.origins[index])
            lines.append(line)
        return "\n".join(lines)

    def replace(self, levels: Sequence[Tensor], **changes: Any) -> ScaleSpace:
        """A ScaleSpace of these levels on this one's grid, with ``changes`` to the grid's fields."""
        levels = _check_levels(levels)
        if len(levels) != self.num_levels and not changes:
            raise ValueError(f"each level needs a step and an origin, got {len(levels)} levels for {self.num_levels}")
        return self.on(levels, _check_fit(levels, self.grid.replace(**changes) if changes else self.grid, True))

    def map(self, function: Callable[[Tensor], Tensor]) -> ScaleSpace:
        """Apply a pointwise function to every level."""
        return _join([function(level) for level in self.levels], [self], "map", (), {})

    def to(self, *args: Any, **kwargs: Any) -> ScaleSpace:
        """Move or cast every level, as :meth:`torch.Tensor.to`."""
        return self.on([level.to(*args, **kwargs) for level in self.levels])

    def keep(self, num_levels: int) -> ScaleSpace:
        """The first ``num_levels`` levels: a skip connection past filters that consumed the top ones."""
        return self.on(self.levels[:num_levels], self.grid.keep(num_levels))

    def stack(self) -> Tensor:
        """The dense tensor ``(B, C, S, *spatial)``; all levels must lie on one grid."""
        if len(set(self.shapes)) > 1 or (self.dims and len(set(zip(self.steps, self.origins, strict=True))) > 1):
            came = f"shapes {self.shapes} with steps {self.steps}"
            raise ValueError(f"only levels on one grid can be stacked, got {came}; use scalespaces.resample first")
        return torch.stack(self.levels, 2)

    @classmethod
    def unstack(cls, tensor: Tensor, base: Base = 2.0, first_level: int = 0, causal: bool = False) -> ScaleSpace:
        """A densely sampled ScaleSpace from a tensor ``(B, C, S, *spatial)``."""
        if tensor.ndim < 3:
            raise ValueError(f"expected a tensor (B, C, S, *spatial), got shape {tuple(tensor.shape)}")
        return cls(tensor.unbind(2), base=base, first_level=first_level, causal=causal)


def place(levels: Sequence[Tensor], grid: Grid) -> ScaleSpace:
    """Put levels on a grid, without checking that they fit."""
    x = object.__new__(ScaleSpace)
    x.levels, x.grid = tuple(levels), grid
    return x


def _check_levels(levels: Any) -> tuple[Tensor, ...]:
    if isinstance(levels, Tensor):
        came = f"one of shape {tuple(levels.shape)}"
        raise TypeError(f"levels must be a tuple of tensors, got {came}; split a stack with ScaleSpace.unstack")
    levels = tuple(levels)
    if not levels:
        raise ValueError("a ScaleSpace needs at least one level, got none")
    if not all(isinstance(level, Tensor) for level in levels):
        raise TypeError(f"levels must be tensors, got {[type(level).__name__ for level in levels]}")
    if any(level.ndim != levels[0].ndim for level in levels):
        raise ValueError(f"levels must have the same number of axes, got shapes {_shapes(levels)}")
    return levels


def _check_fit(levels: tuple[Tensor, ...], grid: Grid, steps_given: bool) -> Grid:
    """Return the grid if levels differ in size along its axes only, and along these only if their steps are known."""
    if not steps_given and len({tuple(level.shape[a] for a in grid.axes) for level in levels}) > 1:
        came = f"{_shapes(levels)}; x.map(function) keeps the grids of x"
        raise ValueError(f"levels of different sizes need their steps, got {came}")
    others = [a for a in range(levels[0].ndim) if a not in grid.axes]
    if grid.dims and any(level.shape[a] != levels[0].shape[a] for level in levels[1:] for a in others):
        raise ValueError(f"levels must have the same batch size and channels, got shapes {_shapes(levels)}")
    return grid


def _shapes(levels: Sequence[Tensor]) -> list[tuple[int, ...]]:
    return [tuple(level.shape) for level in levels]


def check_space(x: object) -> ScaleSpace:
    """Return ``x`` if it is a ScaleSpace; otherwise explain how to get one."""
    if isinstance(x, ScaleSpace):
        return x
    came = f"a tensor of shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"{type(x).__name__}"
    raise TypeError(f"expected a ScaleSpace, got {came}; lift images with scalespaces.lift first")


def check_grid(x: Any) -> ScaleSpace:
    """Return ``x`` if its spatial axes follow batch and channels, where windows slide."""
    axes = check_space(x).grid.axes
    if axes and axes != tuple(range(2, x.levels[0].ndim)):
        came = f"shapes {x.shapes} with the spatial axes at {axes}"
        raise ValueError(f"windows need levels (B, C, *spatial), got {came}; permute back first")
    return x


def _collate(samples: Sequence[ScaleSpace], *, collate_fn_map: object = None) -> ScaleSpace:
    """The samples of a DataLoader, joined along the batch axis; sizes that differ are not cropped here."""
    first = samples[0]
    for other in samples[1:]:
        if [shape[1:] for shape in other.shapes] != [shape[1:] for shape in first.shapes] or other.grid != first.grid:
            rule = f"samples can be joined along the batch axis if all else is the same, got\n{first}\nand\n{other}"
            way = "Lift images of one size, with one lift, or pass a collate_fn of your own to the DataLoader"
            raise ValueError(f"{rule}\n{way}")
    return first.on([torch.cat(levels) for levels in zip(*(sample.levels for sample in samples), strict=True)])


register_pytree(ScaleSpace, lambda x: (x.levels, x.grid.fields()), lambda levels, fields: place(levels, Grid(*fields)))
collate_with(ScaleSpace, _collate)
torch.serialization.add_safe_globals([ScaleSpace, Grid])
