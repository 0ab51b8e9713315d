"""Checks of arguments; an error states the rule and the value it was given."""

import math
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Choice = TypeVar("Choice", bound=str)
PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]
"""What lies outside an image, with the names PyTorch gives it."""

NUMPY_PADDING: dict[str, Any] = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
"""The names ``numpy.pad`` gives them."""


def check_real(name: str, value: object, rule: str, valid: Callable[[float], bool]) -> float:
    """Return ``value`` as a float if it is a finite real number that satisfies the rule."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value) or not valid(float(value)):
        raise ValueError(f"{name} must be a finite number {rule}, got {value!r}")
    return float(value)


def check_integer(name: str, value: object, low: int | None = None) -> int:
    """Return ``value`` as an int if its type is an integer type and it is at least ``low``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or (low is not None and int(value) < low):
        raise ValueError(f"{name} must be an integer{'' if low is None else f' >= {low}'}, got {value!r}")
    return int(value)


def check_matrix(name: str, value: ArrayLike, kind: str = "a finite square matrix") -> Array:
    """Return ``value`` as a float64 array if it is a finite square matrix."""
    try:
        matrix: Array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        matrix = np.empty(0)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.size == 0 or not np.isfinite(matrix).all():
        raise ValueError(f"{name} must be {kind}, got {value!r}; pass a (d, d) array")
    return matrix


def check_choice(name: str, value: Choice, choices: Iterable[str]) -> Choice:
    """Return ``value`` if it is one of the choices."""
    choices = tuple(choices)
    if value not in choices:
        raise ValueError(f"{name} is one of {', '.join(choices)}, got {value!r}")
    return value


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """End an error about an unknown name with the closest known one, if any is close."""
    close = get_close_matches(str(name), list(known), 1, 0.4)
    return f"; did you mean {close[0]!r}?" if close else ""


def check_padding_mode(padding_mode: PaddingMode) -> PaddingMode:
    """Return the padding mode if it is valid; the error lists the valid ones."""
    return check_choice("padding_mode", padding_mode, NUMPY_PADDING)
