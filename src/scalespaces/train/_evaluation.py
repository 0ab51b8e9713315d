"""The results of an evaluation, as tables, lines over scales, JSON and CSV."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any

from scalespaces._tables import text_table

METHODS = {"plain": "", "tta": " + TTA", "select": " + selection"}
"""What is done about scale, and its name behind the network's: nothing, the mean over scales, the most certain one."""


@dataclass
class Row:
    """One network at one scale."""

    model: str
    method: str  # one of METHODS
    split: str
    resize: float  # the factor by which images were resized
    scale: float  # of the set, times the factor
    images: int
    metrics: dict[str, Any] | None = None  # None if the images were too small
    seconds_per_image: float | None = None  # the median over batches
    cost: float | None = None  # the same, relative to the first network of one level, or to the first one
    note: str | None = None  # why there are no metrics

    @property
    def label(self) -> str:
        """The network and what was done about scale."""
        return self.model + METHODS[self.method]

    def value(self, metric: str) -> float | None:
        """A metric over all classes."""
        return None if self.metrics is None else self.metrics[metric]


@dataclass(frozen=True)
class Evaluation:
    """All that was measured: a row for each network, method, set and scale."""

    rows: Sequence[Row]
    metric: str  # the one that tables and plots show
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # facts about the networks
    settings: Mapping[str, Any] = field(default_factory=dict)

    def lines(self) -> dict[str, list[tuple[float, float | None]]]:
        """The metric over scales, by network and method; by set, too, if several sets were resized several times."""
        apart = len({row.split for row in self.rows}) > 1 and len({row.resize for row in self.rows}) > 1
        lines: dict[str, list[tuple[float, float | None]]] = {}
        for row in self.rows:
            label = f"{row.label}, {row.split}" if apart else row.label
            lines.setdefault(label, []).append((row.scale, row.value(self.metric)))
        return {label: sorted(points, key=lambda point: point[0]) for label, points in lines.items()}

    def __str__(self) -> str:
        """The metric, with a row for each network and method, a column for each scale, and the median cost."""
        points = sorted({(row.scale, row.split, row.resize) for row in self.rows})
        ambiguous = len({scale for scale, _, _ in points}) < len(points)
        heads = [f"{split} x{resize:g}" if ambiguous else f"{scale:g}" for scale, split, resize in points]
        cells: dict[str, dict[Any, Row]] = {}
        for row in self.rows:
            cells.setdefault(row.label, {})[row.scale, row.split, row.resize] = row
        lines = [[self.metric, *heads, "cost"]]
        for label, found in cells.items():
            values = [found[point].value(self.metric) for point in points]
            costs = [row.cost for row in found.values() if row.cost is not None]
            cost = f"{statistics.median(costs):.2f}x" if costs else "-"
            lines.append([label, *("-" if value is None else f"{value:.4f}" for value in values), cost])
        notes = [f"- {row.label}, {row.split}: {row.note}" for row in self.rows if row.note is not None]
        return "\n".join([text_table(lines), *notes])

    def to_json(self) -> dict[str, Any]:
        """All of it, classes and settings included, as plain values; None stands for an unknown one."""
        return {
            **{name: version(name) for name in ("scalespaces", "torch", "torchmetrics")},
            "settings": dict(self.settings),
            "metric": self.metric,
            "models": {name: dict(about) for name, about in self.models.items()},
            "results": [asdict(row) for row in self.rows],
        }

    def to_csv(self) -> str:
        """A line for each network, method, set, scale and metric; the classes' own are in :meth:`to_json` only."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["model", "method", "split", "resize", "scale", "metric", "value"])
        found = next(row.metrics for row in self.rows if row.metrics is not None)
        names = [name for name in found if name != "per_class"]
        for row in self.rows:
            values = {name: row.value(name) for name in names}
            values |= {"seconds_per_image": row.seconds_per_image, "cost": row.cost}
            for name, value in values.items():
                writer.writerow([row.model, row.method, row.split, row.resize, row.scale, name, value])
        return text.getvalue()
