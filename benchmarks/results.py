"""Put evaluations of several seeds together: mean and spread over seeds, as a table and a picture.

Give it the files that ``scalespaces evaluate --json`` wrote, one for each seed, in which networks have the same names:

    python benchmarks/results.py out/unseen_0.json out/unseen_1.json out/unseen_2.json --plot docs/images/unseen.png
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalespaces.plotting import plot_over_scales
from scalespaces.train._evaluation import METHODS

Point = tuple[str, float]


def gather(files: Sequence[str], metric: str) -> tuple[dict[Point, list[float]], dict[Point, list[float]]]:
    """The metric, and the cost, of every (line, scale): one number per file."""
    values: dict[Point, list[float]] = {}
    costs: dict[Point, list[float]] = {}
    for file in files:
        for row in json.loads(Path(file).read_text(encoding="utf-8"))["results"]:
            point = row["model"] + METHODS[row["method"]], row["scale"]
            if row["metrics"] is not None:
                values.setdefault(point, []).append(row["metrics"][metric])
                costs.setdefault(point, []).append(row["cost"])
    wrong = sorted({label for (label, _), found in values.items() if len(found) != len(files)})
    if wrong:
        raise SystemExit(f"error: {', '.join(wrong)}: not measured at the same scales in all of {len(files)} files")
    return values, costs


def cell(found: Sequence[float], factor: float) -> str:
    spread = f" ± {factor * statistics.stdev(found):.1f}" if len(found) > 1 else ""
    return f"{factor * statistics.fmean(found):.1f}{spread}"


def table(values: dict[Point, list[float]], costs: dict[Point, list[float]], factor: float) -> str:
    scales = sorted({scale for _, scale in values})
    labels = list(dict.fromkeys(label for label, _ in values))
    lines = ["| | " + " | ".join(f"{scale:g}" for scale in scales) + " | cost |", "|---" * (len(scales) + 2) + "|"]
    for label in labels:
        cells = [cell(values[label, scale], factor) if (label, scale) in values else "-" for scale in scales]
        cost = statistics.median([c for scale in scales for c in costs.get((label, scale), [])])
        lines.append(f"| {label} | {' | '.join(cells)} | {cost:.1f}x |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="JSON", help="of scalespaces evaluate, one for each seed")
    parser.add_argument("--metric", default="accuracy", help="which one (default: accuracy, in per cent)")
    parser.add_argument("--plot", metavar="FILE", help="draw the means over scale there")
    args = parser.parse_args()
    values, costs = gather(args.files, args.metric)
    print(f"{args.metric}, mean ± standard deviation over {len(args.files)} seeds\n")
    print(table(values, costs, 1 if args.metric == "nll" else 100))
    if args.plot is not None:
        lines: dict[str, list[Any]] = {}
        for (label, scale), found in sorted(values.items(), key=lambda item: item[0][1]):
            lines.setdefault(label, []).append((scale, statistics.fmean(found)))
        plot_over_scales(lines, args.plot, ylabel=args.metric)
        print(f"\nwrote {args.plot}")


if __name__ == "__main__":
    main()
