"""Measure what a converted EfficientNet-Lite0 costs: all levels, compared with as many calls of the plain network on
the same levels, and its answer compared with the plain one. It needs efficientnet_lite_pytorch (in .venv-zoo).
"""

import argparse
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch

from benchmarks._case import Case, Contender, Settings, measure
from scalespaces import convert
from scalespaces.cli._arguments import positive
from scalespaces.nn import Lift


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=positive, default=9, help="rounds that count")
    parser.add_argument("--side", type=positive, default=224, help="of the image")


@torch.no_grad()
def run(args: argparse.Namespace) -> Iterator[Case]:
    lite: Any = import_module("efficientnet_lite_pytorch")
    model, image = (
        lite.EfficientNet.from_name("efficientnet-lite0", image_size=None).eval(),
        torch.rand(1, 3, args.side, args.side),
    )
    network = convert(model, Lift(4)).eval()
    levels = network.lift(image).levels
    title, settings = f"EfficientNet-Lite0, {args.side} x {args.side}, batch 1, 4 levels", Settings(args.runs)
    all_levels = [
        Contender("plain, on four levels", lambda: [model(level) for level in levels]),
        Contender("converted, all levels", lambda: network.scores(image)),
    ]
    yield measure(Case("conversion", f"{title}, all asked for", all_levels), settings)
    answers = [Contender("plain", lambda: model(image)), Contender("converted", lambda: network(image))]
    yield measure(Case("conversion", f"{title}, the answer", answers), settings)
