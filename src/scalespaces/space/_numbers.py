"""Numbers of a grid: integers up to rounding, how many samples fit, one number per axis; computed once."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch

_NUMPYS, _INTEGERS = (np.integer, np.ndarray), (int, torch.SymInt)  # as tuples: torch.compile knows no unions of these

Ints = int | Sequence[int]
"""One for all spatial axes, or one for each."""


def as_integer(value: Any) -> int | None:
    """The integer that this number equals up to rounding; None for a fraction or a matrix."""
    if isinstance(value, np.ndarray):
        return None
    nearest = round(value)
    return nearest if abs(value - nearest) <= 1e-9 * max(1.0, abs(value)) else None


def floor(value: float) -> int:
    """Floor of a number that may miss its integer by rounding."""
    nearest = as_integer(value)
    return math.floor(value) if nearest is None else nearest


def count(n: int, ratio: float) -> int:
    """How many samples ``ratio`` apart fit where ``n`` samples lie; exact, and symbolic where possible."""
    whole, inverse = as_integer(ratio), as_integer(1 / ratio)
    if whole:
        return (n - 1) // whole + 1
    return (n - 1) * inverse + 1 if inverse else floor((n - 1) / ratio) + 1


def as_plain(value: Any) -> Any:
    """NumPy's integers as Python's, also inside a sequence; all else is unchanged, so that sizes can be symbolic."""
    if isinstance(value, _NUMPYS):
        value = value.tolist()
    return tuple(map(as_plain, value)) if isinstance(value, list | tuple) else value


def per_axis(value: Any, dims: int, name: str) -> tuple[int, ...]:
    """One integer per spatial axis."""
    if type(value) is int:
        return (value,) * dims
    plain = as_plain(value)
    values = plain if isinstance(plain, tuple) else (plain,) * dims
    if len(values) != dims or not all(isinstance(v, _INTEGERS) for v in values):
        raise ValueError(f"{name} is an integer or one for each of {dims} axes, got {value}")
    return values


P = ParamSpec("P")
T = TypeVar("T")


def remembered(function: Callable[P, T]) -> Callable[P, T]:
    """Compute a function of grids and plain numbers once; torch.compile traces it, since it cannot trace a cache."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs) if torch.compiler.is_compiling() else _recall(function, *args, **kwargs)

    return call


@functools.lru_cache(maxsize=4096)
def _recall(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)
