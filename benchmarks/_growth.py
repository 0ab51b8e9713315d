"""How costs grow with image size, levels and channels."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from benchmarks._case import MEBI, PHASES, Case, Settings, measure, ruled
from benchmarks._tables import progress


class Curve(NamedTuple):
    """Median milliseconds, or peak MiB, of a training step at each value of what grows."""

    name: str
    unit: str
    values: list[float]
    exponent: float


@dataclass
class Growth:
    """The cost of a training step along one axis: measured cases by the value of what grows."""

    title: str
    axis: str
    cases: dict[int, Case]

    def curves(self) -> Iterator[Curve]:
        for first in next(iter(self.cases.values())).contenders:
            found = [case[first.name] for case in self.cases.values()]
            times = [1e3 * statistics.median(c.seconds["training"]) for c in found]
            for unit, values in (("ms", times), ("MiB", [c.memory["training"] / MEBI for c in found])):
                yield Curve(first.name, unit, values, exponent(list(self.cases), values))

    def __str__(self) -> str:
        rows = [[self.axis, *map(str, self.cases), "exponent"]]
        for name, unit, values, power in self.curves():
            rows.append([f"{name}, {unit}", *(f"{value:.4g}" for value in values), f"{power:.2f}"])
        return f"growth with {self.axis}: {self.title}\n{ruled(rows)}"

    def to_json(self) -> dict[str, Any]:
        curves = [curve._asdict() for curve in self.curves()]
        return {"title": self.title, "axis": self.axis, "values": list(self.cases), "curves": curves}


def grow(title: str, axis: str, values: Sequence[int], make: Callable[[int], Case], settings: Settings) -> Growth:
    """Measure a training step of the case at each value."""
    progress(f"growth with {axis}: {title} ...")
    return Growth(title, axis, {value: measure(make(value), settings, PHASES[1:]) for value in values})


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    r"""The exponent :math:`p` of the power law :math:`v \propto n^p` that fits best: least squares of logarithms."""
    return statistics.linear_regression([math.log(n) for n in sizes], [math.log(v) for v in values]).slope
