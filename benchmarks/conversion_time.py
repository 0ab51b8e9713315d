"""Measure what a converted EfficientNet-Lite0 costs, with random weights: all levels, compared with as many calls of
the plain network on the same levels; and answers of the plain network, the converted one, before and after calibration,
and test-time augmentation. It needs efficientnet_lite_pytorch (in .venv-zoo)."""

import argparse
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any

import torch

from benchmarks._case import Case, Contender, Settings, measure
from benchmarks.conversion import LEVELS, SIDES, TTA
from scalespaces import convert
from scalespaces.cli import positive
from scalespaces.train._scales import MultiScale


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=positive, default=9, help="rounds that count")


@torch.no_grad()
def run(args: argparse.Namespace) -> Iterator[Case]:
    lite: Any = import_module("efficientnet_lite_pytorch")
    model = lite.EfficientNet.from_name("efficientnet-lite0", image_size=None).eval()
    side, settings = SIDES["lite0"], Settings(args.runs)
    image = torch.rand(1, 3, side, side)
    network = convert(model, LEVELS["levels 0 to 3"], scale_pool="image").eval()
    trusting = {f"trust, {name}": convert(model, lift, scale_pool="trust").eval() for name, lift in LEVELS.items()}
    levels, augmented = network.lift(image).levels, MultiScale(model, TTA)
    title = f"EfficientNet-Lite0, {side} x {side}, batch 1"
    all_levels = [
        Contender("plain, on four levels", lambda: [model(level) for level in levels]),
        Contender("converted, all levels", lambda: network.scores(image)),
    ]
    yield measure(Case("conversion", f"{title}, scores of 4 levels", all_levels), settings)
    answers = [
        Contender("plain", lambda: model(image)),
        Contender("converted", lambda: network(image)),
        *(Contender(name, partial(trust, image)) for name, trust in trusting.items()),
        Contender(f"TTA, {len(TTA)} scales", lambda: augmented(image)),
    ]
    yield measure(Case("conversion", f"{title}, the answer", answers), settings)
