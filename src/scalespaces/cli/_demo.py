"""Train a plain CNN and a scale-space network with the same number of parameters on handwritten digits of one size, and
test both on digits from half to four times that size. For comparison, also test the CNN with two kinds of test-time
augmentation, and a CNN trained at all these sizes. The digits come with scikit-learn: nothing is downloaded. It takes
about four minutes on two cores. It writes report.html, a page that works offline; results.json, the numbers;
network.safetensors, the trained scale-space network; and examples, a folder with one digit of each class.

example: scalespaces demo --open
"""

from __future__ import annotations

import argparse
import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from scalespaces._choices import EPOCHS
from scalespaces._extras import require
from scalespaces._files import prepare, replacing, write_json
from scalespaces._tables import text_table
from scalespaces.cli import Parser, positive, seed

if TYPE_CHECKING:
    from scalespaces.demo._result import Result


def add_arguments(parser: Parser) -> None:
    add = parser.add_argument
    add("--out", type=Path, default=Path("out/demo"), metavar="FOLDER", help="output folder")
    add("--full", action="store_true", help="use three seeds and more test digits, and report mean and spread")
    add("--seed", type=seed, default=0, metavar="N", help="random seed, with --full the first of three")
    add("--epochs", type=positive, metavar="N", help=f"training epochs (default: {EPOCHS})")
    add("--quick", action="store_true", help="few digits and one epoch, only to check that it runs")
    add("--plot", metavar="FILE", help="also draw accuracy against size into this file: .png, .svg ...")
    add("--open", action="store_true", help="open the report in a browser at the end")


def run(args: argparse.Namespace) -> None:
    from scalespaces import models
    from scalespaces.demo import _study as demo
    from scalespaces.demo._charts import plot
    from scalespaces.demo._report import guide, render
    from scalespaces.demo._result import TRAINED
    from scalespaces.demo._study import FULL, QUICK, Settings
    from scalespaces.plotting import check_writable

    # Find whatever can be wrong before the work begins.
    for module in ("sklearn", "matplotlib", "PIL.Image", "safetensors"):
        require(module, "demo")
    names = "report.html", "results.json", "network.safetensors"
    page, numbers, weights = (prepare(args.out / name) for name in names)
    if args.plot is not None:
        check_writable(args.plot)
    settings = QUICK if args.quick else FULL if args.full else Settings()
    if args.epochs is not None:
        settings = replace(settings, epochs=args.epochs)
    seeds = [args.seed + n for n in range(3 if args.full else 1)]
    result, network = demo.run(seeds, settings)
    html = render(result, guide(args.out))
    models.save(network, weights)
    for digit in result.series:
        prepare(args.out / "examples" / f"digit_{digit}.png").write_bytes(result.shown(TRAINED, digit).picture)
    with replacing(page) as draft:
        draft.write_text(html, encoding="utf-8")
    write_json(numbers, result.to_json())
    if args.plot is not None:
        plot(result, args.plot)
    _print(result)
    print("", *(f"wrote {path}" for path in (numbers, weights, args.plot) if path is not None), sep="\n")
    print(f"\nNow look at {page}")
    if args.open:
        webbrowser.open(page.resolve().as_uri())


def _print(result: Result) -> None:
    """The accuracies and costs, and the promises."""
    from scalespaces.demo._result import SIZES, verdicts

    rows = [["", *(f"{size:g}" for size in SIZES), "time", "memory"]]
    for method in result.methods:
        costs = f"{method.cost.predict:.1f}x", f"{method.cost.predict_memory:.1f}x"
        rows.append([method.name, *map(method.per_cent, SIZES), *costs])
    print(f"\nAccuracy in percent, by the size of the digits relative to training\n\n{text_table(rows)}")
    print("\nWhat a network that understands scale should do")
    for verdict in verdicts(result):
        print(f"  {'yes' if verdict.kept else 'no '}  {verdict.promise}:\n       {verdict.measured}")
