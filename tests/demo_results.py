"""Made-up results of the demo, quick to make and easy to tell apart."""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch

from scalespaces._html import encode
from scalespaces.demo._result import Cost, Frame, Method, Result
from scalespaces.demo._study import METHODS
from scalespaces.functional import lift
from scalespaces.testing import EquivarianceTable

FINE = tuple(round(2 ** (n / 8), 3) for n in range(-8, 17))
SHRINKS = (1.0, 1.41, 2.0, 2.83, 4.0, 5.66, 8.0)
NAMES = {key: name for key, (name, _) in METHODS.items()}
ACCURACY = {
    "cnn": (0.481, 0.902, 0.981, 0.893, 0.324, 0.115, 0.106),
    "tta": (0.128, 0.568, 0.861, 0.906, 0.898, 0.714, 0.268),
    "select": (0.378, 0.742, 0.919, 0.939, 0.951, 0.922, 0.728),
    "jitter": (0.931, 0.978, 0.972, 0.977, 0.983, 0.973, 0.929),
    "ours": (0.933, 0.979, 0.985, 0.982, 0.976, 0.974, 0.943),
}
COST = {
    "cnn": Cost(34_321, 1.0, 1.0, 1.0, 1.0),
    "tta": Cost(34_321, 9.81, 3.02, 1.0, 1.0),
    "select": Cost(34_321, 4.12, 2.01, 1.0, 1.0),
    "jitter": Cost(34_321, 1.02, 1.01, 2.43, 2.37),
    "ours": Cost(34_321, 2.27, 1.33, 2.51, 1.97),
}
FACTS: dict[str, Any] = {"train_digits": 1297, "test_digits": 500, "epochs": 12, "side": 24, "seconds": 171.3}
FACTS |= {"small_canvas": 72, "large_canvas": 112, "tta": [0.5, 0.75, 1, 1.25, 1.5, 1.75, 2]}
FACTS |= {"selection": [1.41, 1, 0.71, 0.5], "scalespaces": "0.1.0", "torch": "2.13.0", "python": "3.11.7"}
FACTS |= {"cpu": "Some <CPU> & more", "cores": 2, "threads": 2, "load_average": 0.4}


def png(pixels: np.ndarray) -> bytes:
    """Pixels ``(H, W)`` from 0 to 1."""
    return encode(torch.from_numpy(pixels), "PNG", "demo")


@cache
def square(size: float, side: int = 112) -> bytes:
    """A square that grows with the size, so that no two sizes look the same."""
    inside = np.clip(12 * size + 0.5 - abs(np.arange(side) - (side - 1) / 2), 0, 1)
    return png(np.outer(inside, inside))


def certain(answer: int, probability: float, classes: int = 10) -> tuple[float, ...]:
    rest = (1 - probability) / (classes - 1)
    return tuple(round(probability if c == answer else rest, 4) for c in range(classes))


def frame(label: int, size: float) -> Frame:
    """The CNN is right near size 1 only; ours is always right, and the level that answers goes up with the size."""
    right = 0.7 < size < 1.5
    level = round(2 * math.log2(size)) + 2
    cnn = certain(label if right else (label + 1) % 10, 0.9 if right else 0.6)
    return Frame(size, square(size), cnn, certain(label, 0.95), certain(min(level, 6), 0.82, len(SHRINKS)))


def errors(layers: int, value: float, levels: int = 8) -> EquivarianceTable:
    """`value` before the boundary, 0.9 past it, none where nothing is left."""
    boundary, rows = levels - layers, range(1, levels)
    ends = np.add.outer(rows, range(levels))
    entries = np.where(ends < boundary, value, np.where(ends < levels, 0.9, math.nan))
    left_out = dict.fromkeys(range(boundary, levels), "it sees past the last level")
    return EquivarianceTable(entries, entries, tuple(rows), tuple(range(levels)), "l", left_out)


def made(seeds: int = 1, **changes: Any) -> Result:
    """A result of so many seeds, which differ by a point each; what is named is changed."""
    return replace(usual(seeds), **changes)


@cache
def usual(seeds: int) -> Result:
    accuracy = {
        key: tuple(tuple(max(0.0, a - seed / 100) for a in ACCURACY[key]) for seed in range(seeds)) for key in NAMES
    }
    return Result(
        seeds=tuple(range(seeds)),
        methods=tuple(Method(key, name, f"about the {name}", accuracy[key], COST[key]) for key, name in NAMES.items()),
        series={label: tuple(frame(label, size) for size in FINE) for label in range(10)},
        activations={size: tuple(png(np.full((14, 14), k / 8)) for k in range(7)) for size in (0.5, 1, 2, 4)},
        scale_space={name: lift(torch.rand(1, 3, 64, 64), 5, sampling=name) for name in ("dense", "pyramid")},
        equivariance={
            "direct, dense": {layers: errors(layers, 0.004) for layers in (1, 2, 3)},
            "cascade, pyramid": {layers: errors(layers, 0.0) for layers in (1, 2, 3)},
        },
        downscalings=SHRINKS,
        facts=FACTS,
    )
