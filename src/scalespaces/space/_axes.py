"""Where the spatial axes go when a tensor is permuted, reshaped, indexed or reduced.

A rule takes the spatial axes, the levels' shapes before and after, and the call; it returns where each axis is now.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from scalespaces.space._per_level import PerLevel
from scalespaces.space._strict import is_strict

Shapes = Sequence[Sequence[Any]]
Places = tuple[int | None, ...]
Rule = Callable[[tuple[int, ...], Shapes, Shapes, tuple, dict], Places]


def _dims(ndim: int, args: tuple, kwargs: dict, place: int, name: str, other_name: str = "") -> list[int] | None:
    """The axes that an argument gives, from 0 to ``ndim - 1``; None if it gives none."""
    value: Any = args[place] if len(args) > place else kwargs.get(name, kwargs.get(other_name))
    values = value if isinstance(value, list | tuple) else [value]
    return [v % ndim for v in values] if all(isinstance(v, int) for v in values) else None


def _permute(axes: tuple[int, ...], old: Shapes, new: Shapes, args: tuple, kwargs: dict) -> Places:
    ndim = len(old[0])
    dims = _dims(ndim, args, kwargs, 1, "dims") or []
    order = dims if len(dims) == ndim else [d % ndim for d in args[1:]]
    return tuple(order.index(a) for a in axes)


def _transpose(axes: tuple[int, ...], old: Shapes, new: Shapes, args: tuple, kwargs: dict) -> Places:
    (a,) = _dims(len(old[0]), args, kwargs, 1, "dim0", "axis0") or [0]  # x.t() names none
    (b,) = _dims(len(old[0]), args, kwargs, 2, "dim1", "axis1") or [1]
    swapped = {a: b, b: a}
    return tuple(swapped.get(axis, axis) for axis in axes)


def _movedim(axes: tuple[int, ...], old: Shapes, new: Shapes, args: tuple, kwargs: dict) -> Places:
    ndim = len(old[0])
    source = _dims(ndim, args, kwargs, 1, "source") or []
    target = _dims(ndim, args, kwargs, 2, "destination") or []
    order = [d for d in range(ndim) if d not in source]
    for place, d in sorted(zip(target, source, strict=True)):
        order.insert(place, d)
    return tuple(order.index(a) for a in axes)


def _reshape(axes: tuple[int, ...], old: Shapes, new: Shapes, args: tuple, kwargs: dict) -> Places:
    """An axis survives where the same number of elements precedes it, at every level."""
    places: list[int | None] = []
    start = 0
    for a in axes:
        found = next((b for b in range(start, len(new[0])) if _survives(a, b, old, new)), None)
        if found is None and any(shape[a] != 1 for shape in old):
            return _merged(axes, old, new)
        places.append(found)
        start = start if found is None else found + 1
    return tuple(places)


def _survives(a: int, b: int, old: Shapes, new: Shapes) -> bool:
    return all(
        n[b] == o[a] and (n[:b] == o[:a] or math.prod(n[:b]) == math.prod(o[:a])) for o, n in zip(old, new, strict=True)
    )


def _merged(axes: tuple[int, ...], old: Shapes, new: Shapes) -> Places:
    """Space may be flattened together with the channels, as in front of a linear layer, but not by itself."""
    if not is_strict() and all(
        n[0] == o[0] and all(size == 1 for size in n[2:]) for o, n in zip(old, new, strict=True)
    ):
        return (None,) * len(axes)
    came = f"spatial axes of shapes {list(map(tuple, old))} are merged or split into {list(map(tuple, new))}"
    rule = "whose samples lie on no grid (attention over a flattened map and linear layers need one size)"
    raise ValueError(f"{came}, {rule}; pool space first, as adaptive pooling does")


def _without(axes: tuple[int, ...], gone: Sequence[int]) -> Places:
    return tuple(None if a in gone else a - sum(d < a for d in gone) for a in axes)


def _reduce(axes: tuple[int, ...], old: Shapes, new: Shapes, args: tuple, kwargs: dict, place: int = 1) -> Places:
    dims = _dims(len(old[0]), args, kwargs, place, "dim", "axis")
    if dims is None or len(new[0]) == 0:
        return (None,) * len(axes)
    return _without(axes, dims)


def _select(axes: tuple[int, ...], old: Shapes, new: Shapes, args: tuple, kwargs: dict) -> Places:
    (dim,) = _dims(len(old[0]), args, kwargs, 1, "dim", "axis") or [0]
    if dim in axes and any(shape[dim] != 1 for shape in old):
        raise ValueError(f"this picks single samples along the spatial axis {dim}; work on x.levels")
    return _without(axes, [dim])


def _stack(axes: tuple[int, ...], old: Shapes, new: Shapes, args: tuple, kwargs: dict) -> Places:
    (dim,) = _dims(len(new[0]), args, kwargs, 1, "dim", "axis") or [0]
    return tuple(a + (a >= dim) for a in axes)


def _getitem(axes: tuple[int, ...], old: Shapes, new: Shapes, args: tuple, kwargs: dict) -> Places:
    items = list(args[1]) if isinstance(args[1], tuple) else [args[1]]
    named = sum(item is not None and item is not Ellipsis for item in items)
    fill = [slice(None)] * (len(old[0]) - named)
    if not any(item is Ellipsis for item in items):
        items.append(Ellipsis)
    at = next(i for i, item in enumerate(items) if item is Ellipsis)
    items[at : at + 1] = fill
    advanced = [item for item in items if isinstance(item, list | Tensor)]
    if len(advanced) > 1 or any(isinstance(item, Tensor) and item.ndim != 1 for item in advanced):
        raise ValueError("an index of several lists or tensors loses the spatial axes; work on x.levels")
    places: dict[int, int | None] = {}
    source = target = 0
    for item in items:
        if item is None:
            target += 1
            continue
        if source in axes and not _keeps(item, [shape[source] for shape in old]):
            what = f"the index {item!r} takes samples of space (axis {source}) one by one"
            way = "for strides and crops use convolutions, poolings and F.pad"
            raise ValueError(f"{what}, in a way the geometry cannot follow; {way}")
        if source == 0 and isinstance(item, int):
            raise ValueError("x[0] takes one image of the batch, in a way the geometry cannot follow; use x.levels[0]")
        dropped = isinstance(item, int)
        places[source] = None if dropped else target
        source, target = source + 1, target + (not dropped)
    return tuple(places[a] for a in axes)


def _keeps(item: Any, sizes: list) -> bool:
    """Whether the index leaves the first sample where it is: everything, or a crop at the end."""
    if isinstance(item, slice):
        start_stays = item.start is None or (isinstance(item.start, int) and item.start == 0)
        step_stays = item.step is None or item.step == 1
        stop_stays = item.stop is None or isinstance(item.stop, PerLevel) or item.stop > 0
        return start_stays and step_stays and stop_stays
    return isinstance(item, int) and all(size == 1 for size in sizes)


_REDUCTIONS = "mean sum nanmean nansum prod amax amin max min argmax argmin var std var_mean std_mean logsumexp any "
_REDUCTIONS += "all median nanmedian mode count_nonzero aminmax"

RULES: dict[str, Rule] = {
    "permute": _permute,
    **dict.fromkeys(("transpose", "swapaxes", "swapdims", "t"), _transpose),
    **dict.fromkeys(("movedim", "moveaxis"), _movedim),
    **dict.fromkeys(
        ("reshape", "view", "reshape_as", "view_as", "flatten", "unflatten", "ravel", "squeeze", "unsqueeze"), _reshape
    ),
    **dict.fromkeys(("select", "unbind"), _select),
    "stack": _stack,
    "__getitem__": _getitem,
}
"""Rules for functions that always move axes."""

REDUCTIONS: dict[str, Rule] = {
    **dict.fromkeys(_REDUCTIONS.split(), _reduce),
    **dict.fromkeys(("norm", "quantile"), functools.partial(_reduce, place=2)),
}
"""Rules for functions that drop axes, if the result has fewer."""


def is_mergeable(old: Shapes, axes: tuple[int, ...]) -> bool:
    """Whether no spatial axis has more than one sample, so that nothing is lost without them."""
    return all(shape[a] == 1 for shape in old for a in axes)
