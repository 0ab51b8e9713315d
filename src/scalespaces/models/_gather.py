"""What a model gives at each level, gathered into scale-spaces: nests of outputs, and where their samples lie."""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from torch import Tensor

from scalespaces._torch import hint
from scalespaces.space import ScaleSpace
from scalespaces.space._grid import Grid
from scalespaces.space._per_level import collapse
from scalespaces.space._space import place


def zip_nests(nests: Sequence[Any], function: Callable[[Sequence[Any]], Any]) -> Any:
    """One nest (dictionaries, lists, tuples, dataclasses) of several: the function joins the leaves at each place."""
    first = nests[0]
    if isinstance(first, Tensor | ScaleSpace | str | None):
        return function(nests)
    if any(type(nest) is not type(first) for nest in nests):
        raise ValueError(f"levels give outputs of one type, got {sorted({type(nest).__name__ for nest in nests})}")
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        names = [field.name for field in dataclasses.fields(first) if field.init]
        parts = {name: zip_nests([getattr(nest, name) for nest in nests], function) for name in names}
        return dataclasses.replace(first, **parts)
    if isinstance(first, dict):
        if any(nest.keys() != first.keys() for nest in nests):
            raise ValueError(f"levels give dictionaries of the same keys, got {[list(nest) for nest in nests]}")
        new = {key: zip_nests([nest[key] for nest in nests], function) for key in first}
        if type(first) is dict:  # which torch.compile cannot copy
            return new
        other = copy.copy(first)
        other.update(new)
        return other
    if isinstance(first, list | tuple):
        if any(len(nest) != len(first) for nest in nests):
            raise ValueError(f"levels give as many outputs each, got {[len(nest) for nest in nests]}")
        items = [zip_nests(parts, function) for parts in zip(*nests, strict=True)]
        return items if isinstance(first, list) else type(first)(*items) if hasattr(first, "_fields") else tuple(items)
    return function(nests)


def map_spaces(nest: object, function: Callable[[ScaleSpace], object]) -> Any:
    """The nest with the function applied to every ScaleSpace in it."""
    return zip_nests([nest], lambda leaf: function(leaf[0]) if isinstance(leaf[0], ScaleSpace) else leaf[0])


def grids_of(nest: object) -> list[Grid | None]:
    """The grid of every leaf, in the order of :func:`zip_nests`; None for one that is no ScaleSpace."""
    found: list[Grid | None] = []
    zip_nests([nest], lambda leaf: found.append(leaf[0].grid if isinstance(leaf[0], ScaleSpace) else None))
    return found


def gather(nests: Sequence[object], x: ScaleSpace, known: Callable[[], Sequence[Grid | None]]) -> Any:
    """The outputs for levels of ``x`` as one nest of ScaleSpaces; ``known`` gives grids where sizes do not tell."""
    numbers = count()

    def join(leaves: Sequence[Any]) -> Any:
        number = next(numbers)
        if all(isinstance(leaf, Tensor) for leaf in leaves):
            return place(leaves, _grid(leaves, x, lambda: dict(enumerate(known())).get(number)))
        return collapse(leaves) if all(isinstance(leaf, int | float) for leaf in leaves) else leaves[0]

    return zip_nests(nests, join)


def _grid(levels: Sequence[Tensor], x: ScaleSpace, known: Callable[[], Grid | None]) -> Grid:
    """Where samples of outputs lie: on the grid of ``x``, on a coarser one, or nowhere, as pooled scores and tokens."""
    if any(level.ndim != levels[0].ndim for level in levels):
        raise ValueError(f"levels have one number of axes, got shapes {[tuple(level.shape) for level in levels]}")
    grid = x.grid.keep(len(levels))
    if levels[0].ndim != x.ndim or len({level.shape[1] for level in levels}) > 1:
        return grid.flatten()
    old = [[hint(n) for n in x.sizes(k)] for k in range(len(levels))]
    new = [[hint(n) for n in level.shape[2:]] for level in levels]
    if new == old:
        return grid
    if all(n == 1 for sizes in new for n in sizes):
        return grid.average([True] * grid.dims)
    if len(new) > 1 and new[0] == new[-1] and old[0] != old[-1]:  # adaptive pooling: parts of the image
        return grid.flatten()
    found = known()
    if found is not None:
        return found
    ratios = [n / m for n, m in zip(old[-x.first_level], new[-x.first_level], strict=True)]
    pairs = [(m, n / r) for a, b in zip(new, old, strict=True) for m, n, r in zip(a, b, ratios, strict=True)]
    if any(abs(m - n) > max(2.0, 0.1 * n) for m, n in pairs):  # sizes that do not follow the level's: no space
        return grid.flatten()
    origins = tuple(tuple(step * (1 - 1 / r) / 2 for r in ratios) for step in grid.steps)
    return grid.replace(unit=tuple(ratios), origins=origins)  # sample j covers an equal part of the level
