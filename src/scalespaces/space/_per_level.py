"""Numbers that may differ between levels, such as the sizes of a pyramid."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from scalespaces._torch import known_equal

T = TypeVar("T")


def _binary(op: Callable, *, reflected: bool = False) -> Callable[[PerLevel, Any], Any]:
    return lambda self, other: self._with(op, other, reflected=reflected)


def _unary(op: Callable) -> Callable[..., Any]:
    return lambda self, *args: collapse([op(value, *args) for value in self.values])


def _comparison(op: Callable, sign: str) -> Callable[[PerLevel, Any], Any]:
    def compare(self: PerLevel, other: Any) -> Any:
        answer = self._with(op, other)
        return self._agree(list(answer.values), f"(... {sign} {other})") if isinstance(answer, PerLevel) else answer

    return compare


class PerLevel:
    """One number for each level: what ``x.shape[2]`` is when the levels of ``x`` differ in size.

    Arithmetic acts level by level; a result that all levels share is a plain number again. A comparison whose answer
    differs between levels raises an error. As an argument of a torch function, each level gets its own value.

    Example:
        >>> height = PerLevel((17, 9, 5))
        >>> (height + 1) // 2, height > 4, height - height
        (PerLevel(9, 5, 3), True, 0)
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = tuple(values)

    def __repr__(self) -> str:
        return f"PerLevel({', '.join(map(str, self.values))})"

    def __hash__(self) -> int:
        return hash(self.values)

    @classmethod
    def __torch_function__(cls, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name, came = getattr(func, "__name__", func), f"{find(PerLevel, (args, kwargs))[0]}, a number for each level"
        way = "make it from the scale-space: x.new_zeros(...) instead of torch.zeros(...)"
        raise TypeError(f"{name} would make or change one tensor, but was given {came}; {way}")

    def __index__(self) -> int:  # int() and float() also come here
        way = "pass it to functions of the scale-space, which give each level its own value"
        raise TypeError(f"{self} differs between levels and cannot be used as one integer or float; {way}")

    def __bool__(self) -> bool:
        return self._agree([bool(value) for value in self.values], "its truth")

    def _agree(self, answers: list[bool], what: str) -> bool:
        if all(answers) or not any(answers):
            return answers[0]
        why = "the program would branch differently at different levels"
        agree = "use sizes where the levels agree (multiples of a higher power of the base)"
        raise ValueError(f"{what} is {answers} for {self}: {why}; {agree}, fewer levels, or rewrite the branch")

    def _with(self, op: Callable, other: Any, *, reflected: bool = False) -> Any:
        if isinstance(other, PerLevel):
            if len(other.values) != len(self.values):
                raise ValueError(f"numbers must belong to the same levels, got {self} and {other}")
            others = other.values
        elif isinstance(other, int | float) or hasattr(other, "node"):  # symbolic numbers have nodes
            others = (other,) * len(self.values)
        else:
            return NotImplemented
        pairs = zip(others, self.values, strict=True) if reflected else zip(self.values, others, strict=True)
        return collapse([op(a, b) for a, b in pairs])

    __add__ = __radd__ = _binary(operator.add)
    __mul__ = __rmul__ = _binary(operator.mul)
    __sub__, __rsub__ = _binary(operator.sub), _binary(operator.sub, reflected=True)
    __truediv__, __rtruediv__ = _binary(operator.truediv), _binary(operator.truediv, reflected=True)
    __floordiv__, __rfloordiv__ = _binary(operator.floordiv), _binary(operator.floordiv, reflected=True)
    __mod__, __rmod__ = _binary(operator.mod), _binary(operator.mod, reflected=True)
    __pow__, __rpow__ = _binary(operator.pow), _binary(operator.pow, reflected=True)
    __neg__, __pos__, __abs__ = map(_unary, (operator.neg, operator.pos, abs))
    __round__, __floor__, __ceil__, __trunc__ = map(_unary, (round, math.floor, math.ceil, math.trunc))
    __eq__, __ne__ = _comparison(operator.eq, "=="), _comparison(operator.ne, "!=")
    __lt__, __le__ = _comparison(operator.lt, "<"), _comparison(operator.le, "<=")
    __gt__, __ge__ = _comparison(operator.gt, ">"), _comparison(operator.ge, ">=")

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other


class Shape(tuple):
    """A shape whose sizes may differ between levels."""

    def __getitem__(self, index: Any) -> Any:
        part = super().__getitem__(index)
        return Shape(part) if isinstance(index, slice) else part

    def numel(self) -> Any:
        """The number of elements; one number per level if they differ."""
        return math.prod(self)


def collapse(values: Sequence[Any]) -> Any:
    """The number that all levels share, or else one number per level."""
    first = values[0]
    return first if all(known_equal(value, first) for value in values[1:]) else PerLevel(values)


def per_level_shape(shapes: Sequence[Sequence[Any]]) -> Any:
    """One shape for all levels; sizes that differ become one number per level."""
    sizes = [collapse(parts) for parts in zip(*shapes, strict=True)]
    return shapes[0] if not any(isinstance(size, PerLevel) for size in sizes) else Shape(sizes)


def find(kind: type[T], values: Iterable[object]) -> list[T]:
    """All values of a type, also inside lists, tuples and dicts."""
    found = []
    for value in values:
        if isinstance(value, kind):
            found.append(value)
        elif isinstance(value, list | tuple | dict):
            found += find(kind, value.values() if isinstance(value, dict) else value)
    return found
