"""Measure what base, levels, sampling and zero-scale do to a network: errors and arithmetic of random networks on the
bundled photograph, and accuracies of a small CNN with levels, trained on scikit-learn's digits at one size and tested
at others. It takes a few minutes on two cores."""

import argparse
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks._tables import Cell, Table, grid, progress
from benchmarks.pooling import accuracies, shuffled
from benchmarks.sampling import MAIN_SAMPLINGS, SAMPLINGS, ZERO_SCALES
from scalespaces import equivariance_error
from scalespaces.data import digits, photograph, to_unit, unseen_scales
from scalespaces.demo._study import Settings, train
from scalespaces.models import create_model
from scalespaces.nn import Lift, ScaleAvgPool, ScaleConv2d
from scalespaces.testing import translation_error

ROOT2 = math.sqrt(2)
BASES = {"2": 2.0, "1.41": ROOT2}
SIDE, WIDTH = 145, 16  # of images and layers with random weights
TRAINED, CANVAS = 20, 40  # sides of the images for training and tests; digits have 16 pixels in training
SIZES = (0.5, 0.71, 1, 1.41, 2)  # of digits, relative to those in training
FIVE: dict[str, Any] = {"num_levels": 5, "base": ROOT2, "first_level": -2}
NETWORKS: dict[str, dict[str, Any]] = {
    "CNN": {"lift": {"num_levels": 1}},
    "base 2, levels 0 to 1": {"lift": {"num_levels": 2, "base": 2.0}},
    "base 2, levels -1 to 1": {"lift": {"num_levels": 3, "base": 2.0, "first_level": -1}},
    "base 1.41, levels 0 to 2": {"lift": {"num_levels": 3, "base": ROOT2}},
    "base 1.41, levels -2 to 2": {"lift": FIVE},
    "- zero-scale 1": {"lift": FIVE | {"zero_scale": 1.0}},
    "- filters of 2 levels": {"lift": FIVE, "filter_levels": (1, 2, 1), "scale_padding": "valid"},
    "- dense": {"lift": FIVE | {"sampling": "dense"}},
}
POOLS = ("max", "mean")
SEEDS = 3


def run(args: argparse.Namespace) -> Iterator[Table]:
    yield errors()
    yield accuracy()


@torch.no_grad()
def errors() -> Table:
    """Two layers of filters that look at the next level; levels up to two octaves above the image come out."""
    image, large = photograph(SIDE).double(), photograph().double()
    plain = [nn.Conv2d(n, WIDTH, 3, padding=1) for n in (3, WIDTH)]
    unit = multiply_adds(nn.Sequential(plain[0], nn.AvgPool2d(2), plain[1]).double(), image)

    def cells(base: str, sampling: str, s0: str) -> list[Cell]:
        torch.manual_seed(0)
        levels = round(2 / math.log2(BASES[base])) + 3
        how: Any = {"zero_scale": ZERO_SCALES[s0], "sampling": SAMPLINGS[sampling], "padding_mode": "zeros"}
        lift = Lift(levels, BASES[base], **how)
        convs = [ScaleConv2d(n, WIDTH, (2, 3, 3), scale_padding="valid") for n in (3, WIDTH)]
        model = nn.Sequential(lift, convs[0], nn.ReLU(), ScaleAvgPool(2), convs[1]).double().eval()
        tables = [equivariance_error(model, image, downscaling=how) for how in ("cascade", "pillow")]
        tables.append(translation_error(lift, large, translations=(1,)))
        return [*(float(np.nanmax(t.errors)) for t in tables), f"{multiply_adds(model, image) / unit:.1f}x"]

    keys = {"base": BASES, "sampling": MAIN_SAMPLINGS, "zero-scale": ZERO_SCALES}
    head = ["own downscaling", "Pillow's", "translation by a pixel", "cost"]
    return grid("Random networks", "Largest errors of any level.", keys, head, cells)


def multiply_adds(model: nn.Module, image: Tensor) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(image)
    return counter.get_total_flops() // 2


def accuracy() -> Table:
    image = torch.zeros(1, 1, CANVAS, CANVAS)
    rows, unit = [], multiply_adds(network("CNN").eval(), image)
    for name in NETWORKS:
        progress(f"accuracy: {name}")
        found = np.mean([trained(name, seed) for seed in range(SEEDS)], axis=0)
        cost = f"{multiply_adds(network(name).eval(), image) / unit:.1f}x"
        for pool, row in zip([""] if name == "CNN" else POOLS, found, strict=False):  # its one level answers
            rows.append([name, pool, *(f"{cell:.1f}" for cell in row), cost])
    head = ["network", "answer", *(f"{size:g}" for size in SIZES), "cost"]
    return Table("Trained networks", "Accuracy by size, per cent.", head, rows)


def network(name: str) -> Any:
    size: dict[str, Any] = {"channels": (8, 16, 32), "kernel_size": 3, "grid": 1, "hidden": 32, "dropout": 0.0}
    return create_model("s_cnn", **size, **NETWORKS[name])


def trained(name: str, seed: int) -> list[list[float]]:
    """Accuracies in percent, for each way to combine the levels' scores, at each size."""
    how: Any = {"train": 2.0, "place": "random", "seed": seed}
    learned = unseen_scales(*digits(), tests=[], canvas=TRAINED, **how)["train"]
    tests = unseen_scales(*digits(), tests=[2.0 * size for size in SIZES], canvas=CANVAS, **how)
    tested = {size: tests[f"test_{2 * size:g}"] for size in SIZES}
    torch.manual_seed(seed)
    model, settings = network(name), Settings(len(learned), epochs=8, batch_size=32, rate=0.01, warmup=0.3, decay=0.0)
    train(model, shuffled(to_unit(learned.images), learned.labels, 0, settings), settings, "mean")
    found = accuracies(model, {size: (to_unit(test.images), test.labels) for size, test in tested.items()})
    return [list(found[pool].values()) for pool in POOLS]
