"""Checks of arguments: the rule, what came, what to do."""

import math
from collections.abc import Callable, Iterable
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def check_real(name: str, value: Any, rule: str, valid: Callable[[float], bool]) -> float:
    """Return ``value`` as a float if it is a finite real number that satisfies the rule; else say the rule."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value) or not valid(float(value)):
        raise ValueError(f"{name} must be a finite number {rule}, got {value!r}")
    return float(value)


def check_integer(name: str, value: Any, low: int | None = None) -> int:
    """Return ``value`` as an int if it is a whole number, of an integer type, that is at least ``low``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or (low is not None and int(value) < low):
        raise ValueError(f"{name} must be an integer{'' if low is None else f' >= {low}'}, got {value!r}")
    return int(value)


def check_choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """Return ``value`` if it is one of the choices."""
    choices = tuple(choices)
    if value not in choices:
        raise ValueError(f"{name} is one of {', '.join(choices)}, got {value!r}")
    return value
