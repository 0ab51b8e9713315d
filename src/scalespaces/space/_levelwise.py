"""torch's functions, level by level, with results on the grids that the call leaves.

A call that keeps all shapes keeps the grid; :mod:`._axes` follows others; ``TORCH_FUNCTIONS`` need the geometry.
"""

import sys
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from scalespaces.space._axes import REDUCTIONS, RULES, is_mergeable
from scalespaces.space._grid import Grid
from scalespaces.space._per_level import PerLevel, collapse, find
from scalespaces.space._strict import is_strict, refuse_tests_for_tensors

TORCH_FUNCTIONS: dict[str, Callable] = {}
"""What runs instead of the torch function of that name; filled by :mod:`scalespaces.foreign`."""

# Tensor attributes that make no sense for several levels.
_ONE_ONLY = {"backward", "numpy", "tolist", "item", "data_ptr", "storage", "untyped_storage", "grad_fn", "T", "mT", "H"}

# torch functions that would silently go wrong, and what to do instead.
_REFUSED = {
    **dict.fromkeys(("flip", "roll", "rot90"), "apply it to the image, before the lift"),
    **dict.fromkeys(("grid_sample", "affine_grid"), "use scalespaces.nn.Resample"),
    **dict.fromkeys(("unfold", "fold"), "write the sum over windows as a convolution"),
    **{f"max_pool{d}d_with_indices": "return_indices=True has no place for grids" for d in (1, 2, 3)},
    **{f"adaptive_max_pool{d}d_with_indices": "return_indices=True has no place for grids" for d in (1, 2, 3)},
    **{f"max_unpool{d}d": "use F.interpolate or a transposed convolution" for d in (1, 2, 3)},
    **{f"lp_pool{d}d": "use average or maximum pooling" for d in (1, 2, 3)},
    **{f"fractional_max_pool{d}d": "use average or maximum pooling" for d in (2, 3)},
    **{f"fractional_max_pool{d}d_with_indices": "use average or maximum pooling" for d in (2, 3)},
}


def _operator(function: Callable) -> Callable[..., Any]:
    return lambda self, *others: apply(function, (self, *others), {})


class Levelwise:
    """What acts level by level: operators, tensor methods and torch functions."""

    levels: tuple[Tensor, ...]
    grid: Grid

    __array_ufunc__: ClassVar[None] = None  # NumPy scalars leave operators to us
    __hash__ = object.__hash__

    def _class(self) -> type:
        # isinstance(x, Tensor) asks for x.__class__ after the type of x itself did not match.
        if is_strict():
            refuse_tests_for_tensors(sys._getframe(1))
        return type(self)

    __class__: ClassVar[Any] = property(_class)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of every level."""
        return tuple(tuple(level.shape) for level in self.levels)

    def sizes(self, index: int) -> tuple[int, ...]:
        """The sizes of ``levels[index]`` along the spatial axes."""
        return tuple(self.levels[index].shape[a] for a in self.grid.axes)

    def on(self, levels: Sequence[Tensor], grid: Grid | None = None) -> Self:
        """Put levels on a grid, by default this one's, without checking that they fit."""
        x = object.__new__(type(self))
        x.levels, x.grid = tuple(levels), grid or self.grid
        return x

    @classmethod
    def __torch_function__(cls, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = getattr(func, "__name__", str(func))
        if name in TORCH_FUNCTIONS:
            return TORCH_FUNCTIONS[name](func, *args, **(kwargs or {}))
        if name in _REFUSED:
            raise TypeError(f"torch's {name} knows nothing of the grids of a ScaleSpace; {_REFUSED[name]}")
        return apply(func, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        found = getattr(Tensor, name, None)
        if name.startswith("_") or name in _ONE_ONLY or found is None:
            ways = "x.levels holds its tensors, ScalePool combines them into one"
            raise AttributeError(f"a ScaleSpace has no attribute {name!r}; {ways}")
        if not callable(found):
            return _join([getattr(level, name) for level in self.levels], [self], name, (self,), {})
        return lambda *args, **kwargs: type(self).__torch_function__(found, (), (self, *args), kwargs)

    def __setitem__(self, index: Any, value: Any) -> None:
        RULES["__getitem__"](self.grid.axes, self.shapes, (), (self, index), {})
        apply(Tensor.__setitem__, (self, index, value), {})

    def __matmul__(self, other: Any) -> Any:
        return type(self).__torch_function__(torch.matmul, (), (self, other))

    def __rmatmul__(self, other: Any) -> Any:
        return type(self).__torch_function__(torch.matmul, (), (other, self))

    def __pos__(self) -> Self:
        return self

    def __bool__(self) -> bool:
        raise TypeError("a ScaleSpace has no truth value; compare its levels")

    __getitem__ = _operator(Tensor.__getitem__)
    __neg__, __abs__, __invert__ = map(_operator, (torch.neg, torch.abs, torch.bitwise_not))
    __add__ = __radd__ = _operator(torch.add)
    __mul__ = __rmul__ = _operator(torch.mul)
    __sub__, __rsub__ = _operator(torch.sub), _operator(Tensor.__rsub__)
    __truediv__, __rtruediv__ = _operator(torch.div), _operator(Tensor.__rtruediv__)
    __floordiv__, __rfloordiv__ = _operator(torch.floor_divide), _operator(Tensor.__rfloordiv__)
    __mod__, __rmod__ = _operator(torch.remainder), _operator(Tensor.__rmod__)
    __pow__, __rpow__ = _operator(torch.pow), _operator(Tensor.__rpow__)
    __and__ = __rand__ = _operator(torch.bitwise_and)
    __or__ = __ror__ = _operator(torch.bitwise_or)
    __xor__ = __rxor__ = _operator(torch.bitwise_xor)
    __lt__, __le__, __gt__, __ge__ = map(_operator, (torch.lt, torch.le, torch.gt, torch.ge))

    def __eq__(self, other: Any) -> Any:
        return apply(torch.eq, (self, other), {}) if isinstance(other, _COMPARED) else NotImplemented

    def __ne__(self, other: Any) -> Any:
        return apply(torch.ne, (self, other), {}) if isinstance(other, _COMPARED) else NotImplemented


_COMPARED = (Levelwise, PerLevel, Tensor, int, float, complex, np.number, np.bool_, torch.SymInt, torch.SymFloat)
_NESTED = (Levelwise, PerLevel, list, tuple, dict, slice)  # arguments that may contain a value per level


def apply(func: Callable, args: tuple, kwargs: dict) -> Any:
    """Call a function level by level, and put what comes out on the grids of the operands."""
    name, spaces = getattr(func, "__name__", str(func)), find(Levelwise, (*args, *kwargs.values()))
    if not _are_alike(spaces):
        for other in spaces[1:]:
            _check_same_levels(spaces[0], other)
        sizes = _common_sizes(spaces)
        if sizes is not None:
            args, kwargs = _crop((args, kwargs), sizes)
            spaces = find(Levelwise, (*args, *kwargs.values()))
    return _join(level_by_level(func, args, kwargs, spaces[0]), spaces, name, args, kwargs)


def _are_alike(spaces: Sequence[Levelwise]) -> bool:
    """Whether all operands lie on one grid and have the same shapes: there is nothing to check, and nothing to crop."""
    first = spaces[0]
    return all(x.grid == first.grid and not any(map(_differ, x.levels, first.levels)) for x in spaces[1:])


def _differ(a: Tensor, b: Tensor) -> bool:
    return a.shape != b.shape


def select(value: Any, index: int) -> Any:
    """The argument as level ``index`` sees it."""
    if isinstance(value, Levelwise):
        return value.levels[index]
    if isinstance(value, PerLevel):
        return value.values[index]
    if isinstance(value, slice):
        return slice(select(value.start, index), select(value.stop, index), select(value.step, index))
    if isinstance(value, list):
        return [select(item, index) for item in value]
    if isinstance(value, tuple):
        return tuple(select(item, index) for item in value)
    if isinstance(value, dict):
        return {key: select(item, index) for key, item in value.items()}
    return value


def level_by_level(func: Callable, args: tuple, kwargs: dict, space: Levelwise) -> list:
    """The results of the levels; an error names the level."""
    if torch.compiler.is_compiling():
        return [func(*select(args, k), **select(kwargs, k)) for k in range(len(space.levels))]
    results = []
    shared = not any(isinstance(value, _NESTED) for value in kwargs.values())
    columns = [
        value.levels
        if isinstance(value, Levelwise)
        else [select(value, k) for k in range(len(space.levels))]
        if isinstance(value, _NESTED)
        else repeat(value, len(space.levels))
        for value in args
    ]
    try:
        for row in zip(*columns, strict=True):
            results.append(func(*row, **(kwargs if shared else select(kwargs, len(results)))))
    except Exception as error:
        error.add_note(f"at level {len(results) + space.grid.first_level}, levels of shapes {space.shapes}")
        raise
    return results


def _check_same_levels(first: Levelwise, other: Levelwise) -> None:
    a, b = first.grid, other.grid
    if b.num_levels != a.num_levels or b.first_level != a.first_level:
        these, those = (f"{grid.num_levels} from level {grid.first_level}" for grid in (a, b))
        way = "drop the extra top levels with x.keep(num_levels)"
        raise ValueError(f"operands need the same levels, got {these} and {those}; {way}")
    if b.base != a.base:
        raise ValueError(f"operands need the same base, got {a.base} and {b.base}")
    if b.causal != a.causal:
        raise ValueError("one operand is causal, the other is not; lift both with the same kind of lift")
    if not (a.dims and b.dims and first.levels[0].ndim == other.levels[0].ndim):
        return
    if b.axes != a.axes and not (is_mergeable(first.shapes, a.axes) or is_mergeable(other.shapes, b.axes)):
        raise ValueError(f"operands have their spatial axes at different places, {a.axes} and {b.axes}; permute one")
    if not all(
        m == n or 1 in (m, n) or abs(m - n) <= a.leeway(k)
        for k in range(a.num_levels)
        for m, n in zip(first.sizes(k), other.sizes(k), strict=True)
    ):
        ways = "give both branches the same strides, or bring them together with scalespaces.resample"
        raise ValueError(f"operands need levels of the same sizes, got {first.shapes} and {other.shapes}; {ways}")


def _common_sizes(spaces: list[Levelwise]) -> list[tuple[int, ...]] | None:
    """The sizes to which all operands can be cropped at the end; None if there is nothing to crop."""
    first, *others = [space for space in spaces if space.grid.dims] or spaces[:1]
    ndim = first.levels[0].ndim
    others = [other for other in others if other.grid.axes == first.grid.axes and other.levels[0].ndim == ndim]
    crop, sizes = False, []
    for k in range(len(first.levels)):
        sizes.append(first.sizes(k))
        if not first.grid.leeway(k):
            continue
        for other in others:
            pairs = list(zip(sizes[k], other.sizes(k), strict=True))
            if any(m != n and 1 not in (m, n) for m, n in pairs):
                crop = True
            sizes[k] = tuple(max(m, n) if 1 in (m, n) else min(m, n) for m, n in pairs)
    return sizes if crop else None


def _crop(value: Any, sizes: list[tuple[int, ...]]) -> Any:
    if isinstance(value, Levelwise):
        levels = list(value.levels)
        for k, size in enumerate(sizes if value.grid.dims == len(sizes[0]) else ()):
            for axis, n in zip(value.grid.axes, size, strict=True):
                if levels[k].shape[axis] > n:
                    levels[k] = levels[k].narrow(axis, 0, n)
        return value.on(levels)
    if isinstance(value, list):
        return [_crop(item, sizes) for item in value]
    if isinstance(value, tuple):
        return tuple(_crop(item, sizes) for item in value)
    return {key: _crop(item, sizes) for key, item in value.items()} if isinstance(value, dict) else value


def _check_same_grids(x: Levelwise, y: Levelwise) -> None:
    if is_mergeable(x.shapes, x.grid.axes) or x.grid.axes != y.grid.axes or x.grid.matches(y.grid, is_strict()):
        return
    a, b = x.grid, y.grid
    came = f"steps {a.steps} and {b.steps}, origins {a.origins} and {b.origins}, units {a.unit} and {b.unit}"
    ways = "give both branches windows of the same kind, or bring them together with scalespaces.resample"
    raise ValueError(f"operands lie on different grids: {came}; {ways}")


def _join(results: list, spaces: Sequence[Levelwise], name: str, args: tuple, kwargs: dict) -> Any:
    """One result from the results of the levels."""
    first = results[0]
    if all(isinstance(result, Tensor) for result in results):
        return spaces[0].on(results, _grid_of(results, spaces, name, args, kwargs))
    if isinstance(first, (list, tuple)) and not isinstance(first, torch.Size):
        parts = [_join(list(parts), spaces, name, args, kwargs) for parts in zip(*results, strict=True)]
        named = hasattr(first, "n_fields") and not torch.compiler.is_compiling()  # such as torch.return_types.max
        return type(first)(parts) if named else tuple(parts)
    return collapse(results)


def _grid_of(levels: list[Tensor], spaces: Sequence[Levelwise], name: str, args: tuple, kwargs: dict) -> Grid:
    """The grid of a call's results."""
    first = spaces[0]
    if name not in RULES and not any(map(_differ, levels, first.levels)) and _are_alike(spaces):
        return first.grid
    shapes = [tuple(level.shape) for level in levels]
    on_grids = [space for space in spaces if space.grid.dims]
    if not on_grids:
        return first.grid
    x, *others = on_grids
    rule = RULES.get(name) or (REDUCTIONS.get(name) if len(shapes[0]) < x.levels[0].ndim else None)
    if rule is None:
        return _broadcast_grid(shapes, on_grids) or _reduced_grid(shapes, on_grids, first, name)
    places = rule(x.grid.axes, x.shapes, shapes, args, kwargs)
    for other in others:
        _check_same_grids(x, other)
    return x.grid.permute(places)


def _broadcast_grid(shapes: list[tuple[int, ...]], on_grids: list[Levelwise]) -> Grid | None:
    """The grid of the operands whose sizes the results have; they must agree."""
    ndim, same = len(shapes[0]), []
    for space in on_grids:
        old = space.grid.axes
        axes = tuple(a + ndim - space.levels[0].ndim for a in old)  # operands are aligned at their last axes
        # Space does not take the place of the batch, even if (B, C) of a pooled level happens to be a grid's (H, W).
        sizes = [tuple(shape[a] for a in axes) for shape in shapes] if min(axes) >= min(1, *old) else None
        if sizes == [space.sizes(k) for k in range(len(shapes))]:
            same.append(space if axes == old else space.on(space.levels, space.grid.replace(axes=axes)))
    for other in same[1:]:
        _check_same_grids(same[0], other)
    return same[0].grid if same else None


def _reduced_grid(shapes: list[tuple[int, ...]], on_grids: list[Levelwise], first: Levelwise, name: str) -> Grid:
    """What is left of a grid when space was averaged or flattened."""
    grid, old = first.grid, first.shapes
    if is_mergeable([shape for space in on_grids for shape in space.shapes], on_grids[0].grid.axes):
        return grid.flatten()  # one sample, broadcast over any grid
    if len(shapes[0]) == len(old[0]) and grid.dims:
        gone = [all(shape[a] == 1 for shape in shapes) for a in grid.axes]
        if all(
            g or all(new[a] == before[a] for new, before in zip(shapes, old, strict=True))
            for g, a in zip(gone, grid.axes, strict=True)
        ):
            return grid.average(gone)
    if all(shape[:1] == old[0][:1] and all(size == 1 for size in shape[2:]) for shape in shapes):
        return grid.flatten()  # flattened or averaged
    before, after = [first.sizes(k) for k in range(len(shapes))], [shape[2:] for shape in shapes]
    ways = "in a way the geometry cannot follow; use the layers of scalespaces.nn, or work on x.levels"
    raise ValueError(f"{name} changes the grids from {before} to {after} {ways}")
