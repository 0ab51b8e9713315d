"""Put evaluations of several seeds together: mean and standard deviation over seeds. Give it the files that
``scalespaces evaluate --json`` wrote, one for each seed, in which networks have the same names."""

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks._tables import Table
from scalespaces.plotting import plot_over_scales
from scalespaces.train._evaluate import METHODS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("files", nargs="+", metavar="JSON", help="written by scalespaces evaluate, one for each seed")
    add("--metrics", nargs="+", metavar="NAME", help="a table for each of these (default: the evaluation's own)")
    add("--plot", metavar="FILE", help="draw the means of the first metric over scale there")


def run(args: argparse.Namespace) -> Iterator[Table]:
    yield from tables(args.files, args.metrics, args.plot)


def tables(files: Sequence[str], metrics: Sequence[str] | None = None, plot: str | None = None) -> Iterator[Table]:
    """A table for each metric: networks and methods by scale."""
    documents = [json.loads(Path(file).read_text(encoding="utf-8")) for file in files]
    for metric in metrics or [documents[0]["metric"]]:
        yield table(documents, metric, plot if metric == (metrics or [metric])[0] else None)


def table(documents: Sequence[dict[str, Any]], metric: str, plot: str | None) -> Table:
    values: dict[tuple[str, float], list[float]] = defaultdict(list)  # by line and scale: one number per document
    costs: dict[str, list[float]] = defaultdict(list)
    for row in [row for document in documents for row in document["results"]]:
        label = row["model"] + METHODS[row["method"]]
        if row["metrics"] is not None:
            if metric not in row["metrics"]:
                raise ValueError(
                    f"metrics are {', '.join(m for m in row['metrics'] if m != 'per_class')}, got {metric}"
                )
            values[label, row["scale"]].append(row["metrics"][metric])
            costs[label].append(row["cost"])
    wrong = sorted({label for (label, _), found in values.items() if len(found) != len(documents)})
    if wrong:
        raise ValueError(f"{', '.join(wrong)}: not measured at the same scales in all of {len(documents)} files")
    scales = sorted({scale for _, scale in values})
    rows = [
        [label, *(summary(values.get((label, scale), [])) for scale in scales), f"{statistics.median(cost):.1f}x"]
        for label, cost in costs.items()
    ]
    if plot is not None:
        lines = {
            label: [(s, statistics.fmean(values[label, s])) for s in scales if (label, s) in values] for label in costs
        }
        plot_over_scales(lines, plot, ylabel=metric.replace("_", " "))
    caption = f"In percent, mean ± standard deviation over {len(documents)} seeds."
    return Table(metric.replace("_", " "), caption, ["", *(f"{scale:g}" for scale in scales), "cost"], rows)


def summary(found: list[float]) -> str:
    """Per cent."""
    spread = f" ± {100 * statistics.stdev(found):.1f}" if len(found) > 1 else ""
    return f"{100 * statistics.fmean(found):.1f}{spread}" if found else "-"
