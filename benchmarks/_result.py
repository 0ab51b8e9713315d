"""What was measured: rows, tables, and the same as plain data."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from scalespaces._measure import Spread, exponent, ratios

PHASES = ("forward", "training")
_MEBI = 2**20


@dataclass(frozen=True)
class Row:
    """One contender: seconds of a call in every round and peak bytes, by phase; and its operations.

    ``baseline`` is the row it is compared with, ``rival`` the one of the paper's algorithm that computes the same.
    """

    name: str
    baseline: str
    rival: str | None = None
    limit: float | None = None
    folded: float | None = None
    seconds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, int] | None = None


@dataclass(frozen=True)
class Result:
    """A case, measured."""

    suite: str
    title: str
    rows: Sequence[Row]

    def row(self, name: str) -> Row:
        """The row of that name."""
        return next(row for row in self.rows if row.name == name)

    def ratio(self, row: Row, phase: str, to: str | None = None) -> Spread | None:
        """Time of a row in that of its baseline, or of another row, round by round; None where none was measured."""
        other = self.row(row.baseline if to is None else to)
        if phase not in row.seconds or phase not in other.seconds:
            return None
        return ratios(row.seconds[phase], other.seconds[phase])

    def memory_ratio(self, row: Row, phase: str, to: str | None = None) -> float | None:
        """Peak memory of a row in that of its baseline, or of another row; None where none was measured."""
        other = self.row(row.baseline if to is None else to)
        ours, theirs = row.memory.get(phase), other.memory.get(phase)
        return None if ours is None or not theirs else ours / theirs

    def __str__(self) -> str:
        phases = [phase for phase in PHASES if any(phase in row.seconds for row in self.rows)]
        memory = any(row.memory for row in self.rows)
        counted = any(row.counts for row in self.rows)
        head = ["", "limit"]
        for phase in phases:
            head += [f"{phase}, ms" if len(phases) > 1 else "ms", "ratio", "quartiles"]
        head += ["MiB", "ratio"] if memory else []
        head += ["kernels", "copies", "waits"] if counted else []
        cells = [head]
        for row in self.rows:
            line = [row.name, _limit(row)]
            for phase in phases:
                line += self._time_cells(row, phase)
            if memory:
                line += self._memory_cells(row, phases[-1])
            if counted:
                names = ("kernels", "copies", "synchronizations")
                line += [str(row.counts[name]) if row.counts else "" for name in names]
            cells.append(line)
        return "\n".join([f"{self.suite}: {self.title}", *_align(cells), *self._rivalries(phases)])

    def _time_cells(self, row: Row, phase: str) -> list[str]:
        ratio = self.ratio(row, phase)
        if ratio is None:
            return ["", "", ""]
        spread = "" if row.name == row.baseline else f"[{number(ratio.low)}, {number(ratio.high)}]"
        return [f"{1e3 * statistics.median(row.seconds[phase]):.4g}", number(ratio.median), spread]

    def _memory_cells(self, row: Row, phase: str) -> list[str]:
        ratio = self.memory_ratio(row, phase)
        held = f"{row.memory[phase] / _MEBI:.1f}" if phase in row.memory else ""
        return [held, "" if ratio is None else f"{ratio:.2f}"]

    def _rivalries(self, phases: Sequence[str]) -> Iterator[str]:
        """A line for each row that computes what the paper's algorithm computes."""
        for row in self.rows:
            for phase in phases if row.rival else ():
                ratio, memory = self.ratio(row, phase, row.rival), self.memory_ratio(row, phase, row.rival)
                if ratio is not None:
                    words = f"{row.name} against {row.rival}, {phase}: {1 / ratio.median:.2f} times as fast"
                    yield words + ("" if memory is None else f", {memory:.2f} of the memory")


@dataclass(frozen=True)
class Curve:
    """Median seconds and peak bytes of a training step, at each value of what grows."""

    name: str
    seconds: Sequence[float]
    memory: Sequence[int]


@dataclass(frozen=True)
class Growth:
    """How costs grow along one axis."""

    suite: str
    title: str
    axis: str
    values: Sequence[int]
    curves: Sequence[Curve]

    def exponents(self, curve: Curve) -> tuple[float, float]:
        """Of time and of memory: the slopes of the best lines between logarithms."""
        return exponent(self.values, curve.seconds), exponent(self.values, curve.memory)

    def __str__(self) -> str:
        cells = [[self.axis, *map(str, self.values), "exponent"]]
        for curve in self.curves:
            time, memory = self.exponents(curve)
            cells.append([f"{curve.name}, ms", *(f"{1e3 * s:.4g}" for s in curve.seconds), f"{time:.2f}"])
            cells.append([f"{curve.name}, MiB", *(f"{m / _MEBI:.4g}" for m in curve.memory), f"{memory:.2f}"])
        return "\n".join([f"{self.suite}, growth with {self.axis}: {self.title}", *_align(cells)])


@dataclass(frozen=True)
class Report:
    """All that one run of the command measured."""

    environment: Mapping[str, Any]
    settings: Mapping[str, Any]
    results: Sequence[Result]
    growth: Sequence[Growth] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data; each row has its ratios and each curve its exponents beside what they follow from."""
        document = asdict(self)
        for result, plain in zip(self.results, document["results"], strict=True):
            for row, entry in zip(result.rows, plain["rows"], strict=True):
                found = {phase: result.ratio(row, phase) for phase in row.seconds}
                entry["ratios"] = {phase: asdict(ratio) for phase, ratio in found.items() if ratio is not None}
                entry["memory_ratios"] = {phase: result.memory_ratio(row, phase) for phase in row.memory}
        for growth, plain in zip(self.growth, document["growth"], strict=True):
            for curve, entry in zip(growth.curves, plain["curves"], strict=True):
                entry["exponents"] = dict(zip(("seconds", "memory"), growth.exponents(curve), strict=True))
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Report:
        """The report that plain data came from; what follows from the rest is left out."""
        derived = ("ratios", "memory_ratios", "exponents")

        def without(entry: Mapping[str, Any]) -> dict[str, Any]:
            return {name: value for name, value in entry.items() if name not in derived}

        results = [r | {"rows": [Row(**without(row)) for row in r["rows"]]} for r in document["results"]]
        growth = [g | {"curves": [Curve(**without(curve)) for curve in g["curves"]]} for g in document["growth"]]
        made = {"results": [Result(**r) for r in results], "growth": [Growth(**g) for g in growth]}
        return cls(**{**document, **made})


def number(ratio: float) -> str:
    """A ratio as tables and figures have it."""
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def _limit(row: Row) -> str:
    if row.limit is None:
        return ""
    folded = row.folded is not None and abs(row.folded - row.limit) > 0.005
    return f"{row.limit:.2f}" + (f" ({row.folded:.2f})" if folded else "")


def _align(cells: Sequence[Sequence[str]]) -> list[str]:
    """Lines of columns as wide as their widest cell, names to the left and numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        padded = [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(padded).rstrip())
    return [lines[0], "-" * (sum(widths) + 2 * len(widths) - 2), *lines[1:]]
