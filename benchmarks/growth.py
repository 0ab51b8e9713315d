"""Measure how the cost of the paper's ResNets grows with the side of images, the number of levels and the number of
channels: a training step on pyramids, as a ratio to the plain network's. One of the three changes at a time."""

import argparse
from collections.abc import Iterator
from typing import Any

from benchmarks._case import CLOCKS, Contender, Settings, training_step
from benchmarks._counts import limits
from benchmarks._rivals import rival
from benchmarks._tables import Table, progress
from scalespaces._measure import ratios, take_turns
from scalespaces.cli import positive
from scalespaces.models import create_model
from scalespaces.plotting._figure import OKABE_ITO, check_writable, finish, new_figure

AXES = {"side": (64, 128, 256), "levels": (2, 3, 4, 5), "width": (8, 16, 32)}
USUAL = {"side": 128, "levels": 4, "width": 16}  # 5 levels are the most for images of this side
NETWORKS = {"k = 1": "s_resnet_no_interaction", "k = 2": "s_resnet"}
BATCH = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--runs", type=positive, default=5, metavar="N", help="rounds that count (default: %(default)s)")
    add("--clock", choices=CLOCKS, default="wall", help="cpu: processor time, on a busy machine, with --threads 1")
    add("--plot", metavar="FILE", help="draw the ratios and their limits there")


def run(args: argparse.Namespace) -> Iterator[Table]:
    if args.plot is not None:
        check_writable(args.plot)
    found = {}
    for axis, values in AXES.items():
        found[axis] = {value: measure(args, **USUAL | {axis: value}) for value in values}
        rest = ", ".join(f"{name} {value}" for name, value in USUAL.items() if name != axis)
        head = [axis, *(f"{k}{what}" for k in NETWORKS for what in ("", ", limit"))]
        rows = [[str(value), *(f"{x:.2f}" for pair in pairs for x in pair)] for value, pairs in found[axis].items()]
        yield Table(f"Growth with {axis}", f"A training step, divided by the plain network's; {rest}.", head, rows)
    if args.plot is not None:
        draw(found, args.plot)


def measure(args: argparse.Namespace, side: int, levels: int, width: int) -> list[tuple[float, float]]:
    """For each network, the ratio and its limit by arithmetic, with folded filters."""
    progress(f"side {side}, {levels} levels, width {width}")
    settings = Settings()
    x = settings.tensor(BATCH, 3, side, side)
    networks: dict[str, Any] = {"plain": rival(create_model("resnet", width=width))}
    for k, name in NETWORKS.items():
        networks[k] = create_model(name, width=width, lift={"num_levels": levels})
    steps = {k: training_step(Contender(k, settings.module(network), (x,))) for k, network in networks.items()}
    times = take_turns(steps, args.runs, clock=CLOCKS[args.clock])
    return [(ratios(times[k], times["plain"]).median, limits(networks[k], x)[1]) for k in NETWORKS]


def draw(found: dict[str, dict[int, list[tuple[float, float]]]], path: str) -> None:
    figure = new_figure(9, 3)
    for axis, ax in zip(found, figure.subplots(1, len(found), sharey=True), strict=True):
        places = range(len(found[axis]))
        for index, (k, color) in enumerate(zip(NETWORKS, OKABE_ITO, strict=False)):
            measured, limit = zip(*(pairs[index] for pairs in found[axis].values()), strict=True)
            ax.plot(places, measured, "o-", color=color, label=k)
            ax.plot(places, limit, ":", color=color, label=f"{k}, multiplications only")
        ax.set_xticks(places, map(str, found[axis]))
        ax.set_xlabel({"side": "side of the images", "levels": "levels", "width": "channels N"}[axis])
    figure.axes[0].set_ylabel("training step / plain network's")
    figure.axes[0].set_ylim(bottom=0)
    figure.axes[1].legend(fontsize=8)
    finish(figure, path, None)
