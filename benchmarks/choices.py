"""What base, levels, sampling and zero-scale do to a network: python benchmarks/choices.py [--seeds 3] [--json FILE].

Prints Markdown tables: errors and arithmetic of random networks on the bundled photograph, and accuracies of a small
CNN with levels, trained on scikit-learn's digits at one size and tested at others. A few minutes on two cores.
"""

import argparse
import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from scalespaces import equivariance_error
from scalespaces.data import ArrayImages, digits, photograph, to_unit, unseen_scales
from scalespaces.functional import scale_pool
from scalespaces.models import ScaleNetwork, create_model
from scalespaces.nn import Lift, ScaleAvgPool, ScaleConv2d
from scalespaces.testing import EquivarianceTable, translation_error
from scalespaces.train._levels import supervise

ROOT2 = math.sqrt(2)
SIDE, WIDTH = 145, 16  # of images and layers with random weights
TRAINED, CANVAS = 20, 40  # sides of the images to train and to test with; digits of the training have 16 pixels
SIZES = (0.5, 0.71, 1, 1.41, 2)  # of digits, relative to those of the training
FIVE: dict[str, Any] = {"num_levels": 5, "base": ROOT2, "first_level": -2}
CNN: dict[str, Any] = {"lift": {"num_levels": 1}}
NETWORKS: dict[str, dict[str, Any]] = {
    "CNN": CNN,
    "base 2, levels 0 to 1": {"lift": {"num_levels": 2, "base": 2.0}},
    "base 2, levels -1 to 1": {"lift": {"num_levels": 3, "base": 2.0, "first_level": -1}},
    "base 1.41, levels 0 to 2": {"lift": {"num_levels": 3, "base": ROOT2}},
    "base 1.41, levels -2 to 2": {"lift": FIVE},
    "- zero-scale 1": {"lift": FIVE | {"zero_scale": 1.0}},
    "- filters of 2 levels": {"lift": FIVE, "filter_levels": (1, 2, 1), "scale_padding": "valid"},
    "- dense": {"lift": FIVE | {"sampling": "dense"}},
}
POOLS = ("max", "mean")


def table(title: str, columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join([f"### {title}", "", *("| " + " | ".join(line) + " |" for line in lines)]) + "\n"


def number(value: float) -> str:
    return "exact" if value <= 1e-12 else f"{value:.2g}"


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def multiply_adds(model: nn.Module, image: Tensor) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(image)
    return counter.get_total_flops() // 2


# --- random networks -------------------------------------------------------------------------------------------------


def layers(base: float, sampling: Any, zero_scale: float, octaves: int = 2) -> nn.Sequential:
    """Two layers of filters that look at the next level; levels up to two octaves above the image come out."""
    torch.manual_seed(0)
    levels = round(octaves / math.log2(base)) + 1
    lift = Lift(levels + 2, base, zero_scale=zero_scale, sampling=sampling, padding_mode="zeros")
    convs = [ScaleConv2d(n, WIDTH, (2, 3, 3), scale_padding="valid") for n in (3, WIDTH)]
    return nn.Sequential(lift, convs[0], nn.ReLU(), ScaleAvgPool(2), convs[1]).double().eval()


@torch.no_grad()
def errors() -> list[list[str]]:
    image, large, rows = photograph(SIDE).double(), photograph().double(), []
    convs = [nn.Conv2d(n, WIDTH, 3, padding=1) for n in (3, WIDTH)]
    unit = multiply_adds(nn.Sequential(convs[0], nn.ReLU(), nn.AvgPool2d(2), convs[1]).double(), image)
    for name, base in (("2", 2.0), ("1.41", ROOT2)):
        for label, sampling in (("dense", "dense"), ("oversampled 2", 2), ("pyramid", "pyramid")):
            for text, zero_scale in (("1/4", 0.25), ("1/2", 0.5), ("1", 1.0)):
                progress(f"errors: base {name}, {label}, s0 = {text}")
                model = layers(base, sampling, zero_scale)
                found = [worst(equivariance_error(model, image, downscaling=how)) for how in ("cascade", "pillow")]
                found.append(worst(translation_error(model[0], large, translations=(1,))))
                cost = multiply_adds(model, image) / unit
                rows.append([name, label, text, *map(number, found), f"{cost:.1f}x"])
    return rows


def worst(table: EquivarianceTable) -> float:
    return float(np.nanmax(table.errors))


# --- trained networks ------------------------------------------------------------------------------------------------


def network(**arguments: Any) -> ScaleNetwork:
    return create_model("s_cnn", channels=(8, 16, 32), kernel_size=3, grid=1, hidden=32, dropout=0.0, **arguments)


def batch(samples: ArrayImages) -> tuple[Tensor, Tensor]:
    return to_unit(samples.images), samples.labels


def train(model: nn.Module, images: Tensor, labels: Tensor, epochs: int, size: int = 32) -> None:
    """Every level learns from the mean of the levels' logits."""
    generator = torch.Generator().manual_seed(0)
    steps = len(images) // size
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=epochs * steps)
    model.train()
    for _ in range(epochs):
        for chosen in torch.randperm(len(images), generator=generator).split(size)[:steps]:
            optimizer.zero_grad()
            (supervise(model, images[chosen], labels[chosen], "mean") / size).backward()
            optimizer.step()
            schedule.step()
    model.eval()


def accuracies(arguments: dict[str, Any], seed: int, epochs: int) -> dict[str, list[float]]:
    """Per cent at each size, by how the levels' scores are combined."""
    scales = [2.0 * size for size in SIZES]
    trained = unseen_scales(*digits(), train=2.0, tests=[], canvas=TRAINED, place="random", seed=seed)
    tests = unseen_scales(*digits(), train=2.0, tests=scales, canvas=CANVAS, place="random", seed=seed)
    torch.manual_seed(seed)
    model = network(**arguments)
    train(model, *batch(trained["train"]), epochs)
    found: dict[str, list[float]] = {pool: [] for pool in POOLS}
    with torch.no_grad():
        for scale in scales:
            images, labels = batch(tests[f"test_{scale:g}"])
            scores = model.scores(images)
            for pool in POOLS:
                answer: Any = scale_pool(scores, pool)
                found[pool].append(100 * float((answer.argmax(1) == labels).float().mean()))
    return found


def accuracy(seeds: int, epochs: int) -> list[list[str]]:
    rows = []
    image = torch.zeros(1, 1, CANVAS, CANVAS)
    unit = multiply_adds(network(**CNN).eval(), image)
    for name, arguments in NETWORKS.items():
        start = time.perf_counter()
        found = [accuracies(arguments, seed, epochs) for seed in range(seeds)]
        progress(f"accuracy: {name}, {time.perf_counter() - start:.0f} s")
        cost = multiply_adds(network(**arguments).eval(), image) / unit
        for pool in POOLS[:1] if arguments is CNN else POOLS:
            cells = [statistics.mean(values) for values in zip(*(run[pool] for run in found), strict=True)]
            rows.append([name, "" if arguments is CNN else pool, *(f"{cell:.1f}" for cell in cells), f"{cost:.1f}x"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each network (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=8, help="of each training (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the tables as JSON")
    arguments = parser.parse_args()
    columns = ["base", "sampling", "zero-scale", "own downscaling", "Pillow's", "translation by a pixel", "cost"]
    tables = {"Random networks": [columns, *errors()]}
    columns = ["network", "answer", *(f"{size:g}" for size in SIZES), "cost"]
    tables["Trained networks"] = [columns, *accuracy(arguments.seeds, arguments.epochs)]
    for title, (columns, *rows) in tables.items():
        print(table(title, columns, rows))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(tables, indent=1) + "\n")


if __name__ == "__main__":
    main()
