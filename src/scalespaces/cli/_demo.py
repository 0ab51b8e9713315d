"""``scalespaces demo``: train on digits of one size, recognize them at others, and show it."""

from __future__ import annotations

import argparse
import json
import sys
import webbrowser
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scalespaces import models
from scalespaces._extras import require
from scalespaces._files import prepare, replacing
from scalespaces.cli._arguments import Help, Parser, positive, seed
from scalespaces.demo._plot import plot
from scalespaces.demo._report import render
from scalespaces.demo._result import SIZES, Result, per_cent, verdicts
from scalespaces.demo._run import run
from scalespaces.demo._study import FULL, QUICK, Advance, Settings
from scalespaces.plotting import check_writable

_DESCRIPTION = """\
Train a plain CNN and a scale-space network with the same parameters on handwritten digits of one size, and test them
on digits from half to four times that size. Compare them with the CNN under test-time augmentation, and with the CNN
trained at all these sizes. The digits come with scikit-learn: nothing is downloaded. It takes some four minutes on two
cores and writes report.html, which needs no connection, results.json, and the trained network, network.safetensors.
"""


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments."""
    parser = Parser(
        prog="scalespaces demo",
        description=_DESCRIPTION,
        formatter_class=Help,
    )
    parser.set_defaults(run=_run)
    parser.add_argument("--out", type=Path, default=Path("out/demo"), metavar="DIR", help="folder to write into")
    parser.add_argument("--full", action="store_true", help="three seeds and more test digits: mean and spread")
    parser.add_argument("--seed", type=seed, default=0, help="the first seed")
    parser.add_argument("--epochs", type=positive, metavar="N", help=f"to train for (default: {Settings().epochs})")
    parser.add_argument("--quick", action="store_true", help="few digits, one epoch: to see that it runs, no more")
    parser.add_argument("--plot", metavar="FILE", help="also draw accuracy against size there: .png, .svg ...")
    parser.add_argument("--open", action="store_true", help="open the report in a browser when it is done")
    return parser.parse_args(words)


def _run(args: argparse.Namespace) -> None:
    # Whatever can be wrong is found before the work begins.
    for module in ("rich", "sklearn", "matplotlib", "PIL.Image"):
        require(module, "demo")
    require("safetensors", "demo")
    page, numbers, weights = (
        prepare(args.out / name) for name in ("report.html", "results.json", "network.safetensors")
    )
    if args.plot is not None:
        check_writable(args.plot)
    settings = QUICK if args.quick else FULL if args.full else Settings()
    if args.epochs is not None:
        settings = replace(settings, epochs=args.epochs)
    seeds = [args.seed + n for n in range(3 if args.full else 1)]
    with _Progress() as progress:
        result, network = run(seeds, settings, progress.begin)
        html = render(result)
    models.save(network, weights)
    with replacing(page) as draft:
        draft.write_text(html, encoding="utf-8")
    with replacing(numbers) as draft:
        draft.write_text(json.dumps(result.to_json(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    if args.plot is not None:
        plot(result, args.plot)
    _print(result)
    print("", *(f"wrote {path}" for path in (numbers, weights, args.plot) if path is not None), sep="\n")
    print(f"\nNow look at {page}")
    if args.open:
        webbrowser.open(page.resolve().as_uri())


class _Progress:
    """A bar for each piece of work on a terminal, a line when it is done elsewhere."""

    def __init__(self) -> None:
        rich: Any = require("rich.progress", "demo")
        columns = (rich.TextColumn("{task.description:38}"), rich.BarColumn(), rich.TaskProgressColumn())
        self.bars = rich.Progress(*columns, rich.TimeElapsedColumn())
        self.terminal = self.bars.console.is_terminal
        self.bars.disable = not self.terminal

    def __enter__(self) -> _Progress:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def begin(self, what: str, parts: int) -> Advance:
        task = self.bars.add_task(what, total=parts)

        def advance() -> None:
            self.bars.advance(task)
            found = self.bars.tasks[task]
            if found.finished and not self.terminal:
                print(f"{what}: {found.finished_time or 0:.1f} s", file=sys.stderr, flush=True)

        return advance


def _print(result: Result) -> None:
    """The tables."""
    console = require("rich.console", "demo").Console()
    title = "Accuracy in per cent, by the size of the digits relative to training"
    box = require("rich.box", "demo").SIMPLE_HEAD
    table = require("rich.table", "demo").Table(title=title, box=box, padding=0, collapse_padding=True)
    table.add_column("", no_wrap=True)
    for size in SIZES:
        table.add_column(f"{size:g}", justify="right")
    table.add_column("time", justify="right")
    table.add_column("memory", justify="right")
    for method in result.methods:
        cells = [per_cent([method.mean(size), method.spread(size)]).replace(" ± ", "\n±") for size in SIZES]
        costs = f"{method.cost.predict:.1f}x", f"{method.cost.predict_memory:.1f}x"
        table.add_row(method.name, *cells, *costs, style="bold" if method.key == "ours" else None)
    console.print()
    console.print(table)
    console.print("\nWhat a network that understands scale should do")
    for verdict in verdicts(result):
        mark = "[green]yes[/]" if verdict.kept else "[red]no [/]"
        console.print(f"  {mark}  {verdict.promise}:\n       {verdict.measured}", highlight=False)
