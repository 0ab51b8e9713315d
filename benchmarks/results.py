"""Put evaluations of several seeds together: mean and standard deviation over seeds. Give it the files that
``scalespaces evaluate --json`` wrote, one for each seed, in which networks have the same names."""

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from benchmarks._tables import Table
from scalespaces.plotting import plot_over_scales
from scalespaces.train._evaluate import METHODS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="JSON", help="written by scalespaces evaluate, one for each seed")
    parser.add_argument("--plot", metavar="FILE", help="draw the means over scale there")


def run(args: argparse.Namespace) -> Iterator[Table]:
    values: dict[tuple[str, float], list[float]] = defaultdict(list)  # by line and scale: one number per file
    costs: dict[str, list[float]] = defaultdict(list)
    for file in args.files:
        for row in json.loads(Path(file).read_text(encoding="utf-8"))["results"]:
            label = row["model"] + METHODS[row["method"]]
            if row["metrics"] is not None:
                values[label, row["scale"]].append(row["metrics"]["accuracy"])
                costs[label].append(row["cost"])
    wrong = sorted({label for (label, _), found in values.items() if len(found) != len(args.files)})
    if wrong:
        raise ValueError(f"{', '.join(wrong)}: not measured at the same scales in all of {len(args.files)} files")
    scales, rows = sorted({scale for _, scale in values}), []
    for label, cost in costs.items():
        cells = [summary(values.get((label, scale), [])) for scale in scales]
        rows.append([label, *cells, f"{statistics.median(cost):.1f}x"])
    caption = f"Mean ± standard deviation over {len(args.files)} seeds."
    yield Table("accuracy", caption, ["", *(f"{scale:g}" for scale in scales), "cost"], rows)
    if args.plot is not None:
        lines: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for label, scale in sorted(values, key=lambda point: point[1]):
            lines[label].append((scale, statistics.fmean(values[label, scale])))
        plot_over_scales(lines, args.plot, ylabel="accuracy")


def summary(found: list[float]) -> str:
    """Per cent."""
    spread = f" ± {100 * statistics.stdev(found):.1f}" if len(found) > 1 else ""
    return f"{100 * statistics.fmean(found):.1f}{spread}" if found else "-"
