"""Put evaluations of several seeds together: mean and standard deviation over seeds. Give it the files that
``scalespaces evaluate --json`` wrote, one for each seed, in which networks have the same names."""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks._tables import Table
from scalespaces.plotting import plot_over_scales
from scalespaces.train._evaluate import Evaluation, Row, mean_and_spread

_KNOWN = {entry.name for entry in fields(Row)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("files", nargs="+", metavar="JSON", help="written by scalespaces evaluate, one for each seed")
    add("--metrics", nargs="+", metavar="NAME", help="a table for each of these (default: the evaluation's own)")
    add("--decimals", type=int, choices=range(5), default=1, metavar="N", help="decimals of a number (default: 1)")
    add("--plot", metavar="FILE", help="draw the means of the first metric over scale there")


def run(args: argparse.Namespace) -> Iterator[Table]:
    yield from tables(args.files, args.metrics, args.plot, args.decimals)


def tables(
    files: Sequence[str], metrics: Sequence[str] | None = None, plot: str | None = None, decimals: int = 1
) -> Iterator[Table]:
    """A table for each metric: networks and methods by scale."""
    documents = [json.loads(Path(file).read_text(encoding="utf-8")) for file in files]
    for metric in metrics or [documents[0]["metric"]]:
        yield table(documents, metric, plot if metric == (metrics or [metric])[0] else None, decimals)


def table(documents: Sequence[dict[str, Any]], metric: str, plot: str | None, decimals: int) -> Table:
    old = {"split": "", "resize": 1.0, "images": 0}  # which not every file has
    results = [old | row for document in documents for row in document["results"]]
    found = Evaluation([Row(**{key: row[key] for key in _KNOWN & row.keys()}) for row in results], metric)
    for row in found.rows:
        if row.metrics is not None and metric not in row.metrics:
            raise ValueError(f"metrics are {', '.join(m for m in row.metrics if m != 'per_class')}, got {metric}")
    cells = found.cells()
    numbers = {
        label: {sum(row.metrics is not None for row in rows) for rows in cells[label].values()} for label in cells
    }
    most = max(number for some in numbers.values() for number in some)
    if wrong := sorted(label for label, some in numbers.items() if not some <= {0, most}):
        raise ValueError(f"{', '.join(wrong)}: not measured at the same scales in all of {len(documents)} files")
    if plot is not None:
        plot_over_scales(found.lines(), plot, ylabel=metric.replace("_", " "))
    share = metric != "nll"  # all others are from 0 to 1
    write = partial(percent, decimals=decimals) if share else f"{{:.{decimals}f}}".format
    (_, *heads), *rows = found.summary(metric, write, ".1f")
    over = f"mean ± standard deviation over {most} seeds" if most > 1 else "one seed"
    caption = f"In percent, {over}." if share else f"{over.capitalize()}."
    return Table(metric.replace("_", " "), caption, ["", *heads], rows)


def percent(value: float, decimals: int = 1) -> str:
    return f"{100 * value:.{decimals}f}"


def summary(found: list[float]) -> str:
    """Per cent."""
    return mean_and_spread(found, percent)
