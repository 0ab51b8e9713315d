"""Compare ways to combine the scores of levels that are trained together: networks learn from images of one size and
are tested at others. The data are the digits of the demonstration, random textures, and MNIST if its folder is given.
One network learns from the mean of its levels' logits and answers in five ways; another is trained with trust.
Accuracies are kept in --answers, so an interrupted run continues. It takes about an hour on one core."""

import argparse
import copy
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from scipy.spatial import KDTree
from torch import Tensor

from benchmarks._tables import Table, progress
from benchmarks.results import summary
from scalespaces import calibrate
from scalespaces._choices import SCALES
from scalespaces.data import digits, to_unit, unseen_scales
from scalespaces.data._idx import read_idx_images
from scalespaces.data._scales import split_classes
from scalespaces.demo._result import SIZES
from scalespaces.demo._study import _CNN, _LEVELS, FULL, LARGE, Settings, moving, show, train
from scalespaces.functional import scale_pool
from scalespaces.models import ScaleNetwork, create_model
from scalespaces.nn import ScalePool

POOLS = ("mean", "max", "logsumexp", "probabilities")
FITTED, TRAINED = "trust, fitted afterwards", "trust, trained with the network"
FITTING = 300  # training images to fit trust with
SEEDS = 3
Tests = dict[float, tuple[Tensor, Tensor]]  # images and labels, by size

# Textures are drawn at any scale: nothing is ever resized.
NOISE = 0.1  # standard deviation, of each pixel at every scale
ANGLES = {"stripes": [0], "checks": [0, 90], "dots": [0, 60, 120], "holes": [0, 60, 120]}  # of their plane waves
NOISES = {"waves": 180.0, "grain": 20.0}  # many waves, whose angles are drawn up to this one
POINTS = ("cells", "spots")  # borders between the cells around random points, and the points
KINDS = (*ANGLES, *NOISES, *POINTS)
PERIOD = 8  # of textures of scale 1, in pixels
REACH = 20  # of the lattice of points, in periods from the middle


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--answers", required=True, metavar="FILE", help="keep the accuracies there, in lines of JSON")
    parser.add_argument(
        "--mnist", metavar="FOLDER", help="MNIST's original files; without them, that table is left out"
    )


def run(args: argparse.Namespace) -> Iterator[Table]:
    file, studies = Path(args.answers), STUDIES | ({"mnist": partial(mnist_study, args.mnist)} if args.mnist else {})
    for data, study in studies.items():
        for seed in range(SEEDS):
            measure(data, study, seed, file)
        yield table(data, [row for row in read(file) if row["data"] == data])


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@dataclass(frozen=True)
class Study:
    """A network, how and with what it is trained, training images to fit trust with, and tests at each size."""

    network: dict[str, Any]
    settings: Settings
    batches: Callable[[], Iterable[tuple[Tensor, Tensor]]]
    fitting: tuple[Tensor, Tensor]
    tests: Tests


def digits_study(seed: int) -> Study:
    """The demonstration's network. Trust is fitted on the large canvas, where smaller scales have room."""
    images, numbers = digits()
    learned, tested = split_classes(numbers, (FULL.train, FULL.test), seed)
    labels, some = torch.from_numpy(numbers), learned[:FITTING]
    fitting = show(images[some], [1.0] * len(some), LARGE, (seed, 3)), labels[some]
    shown = {size: show(images[tested], [size] * len(tested), LARGE, (seed, 2)) for size in SIZES}
    tests = {size: (images, labels[tested]) for size, images in shown.items()}
    batches = partial(moving, images[learned], labels[learned], False, seed, FULL)
    return Study(_CNN | _LEVELS, FULL, batches, fitting, tests)


def textures_study(seed: int) -> Study:
    settings = Settings(train=1280, test=400)
    images, labels = textures(settings.train, 1.0, 68, seed, NOISE)
    tests = {size: textures(settings.test, size, 96, seed + 100, NOISE) for size in SIZES if size < 4}
    network = _CNN | {"num_classes": len(KINDS), "lift": {"num_levels": 6, "first_level": -1, "base": 2**0.5}}
    batches = partial(shuffled, images, labels, seed, settings)
    return Study(network, settings, batches, (images[:FITTING], labels[:FITTING]), tests)


def mnist_study(folder: str, seed: int) -> Study:
    """The network of recipes/unseen_scale_s_cnn.yaml with levels from twice as fine as the image on; 5,000 digits."""
    settings = Settings(train=5000, test=400, epochs=8)
    sets = [read_idx_images(folder, split) for split in ("train", "test")]
    images, labels = (np.concatenate([getattr(part, name) for part in sets]) for name in ("images", "labels"))
    how: Any = {"train": 1.0, "counts": (settings.train, 0, settings.test), "seed": seed}
    small = unseen_scales(images[:, 0], labels, tests=[], canvas=48, place="random", **how)["train"]
    large = unseen_scales(images[:, 0], labels, tests=SIZES, canvas=112, **how)
    network = _CNN | {"channels": (16, 32, 32, 64), "lift": {"num_levels": 7, "first_level": -2, "base": 2**0.5}}
    fitting = to_unit(large["train"].images[:FITTING]), large["train"].labels[:FITTING]
    tested = {size: large[f"test_{size:g}"] for size in SIZES}
    tests = {size: (to_unit(test.images), test.labels) for size, test in tested.items()}
    batches = partial(shuffled, to_unit(small.images), small.labels, seed, settings)
    return Study(network, settings, batches, fitting, tests)


STUDIES = {"digits": digits_study, "textures": textures_study}


def textures(number: int, scale: float, side: int, seed: int, noise: float) -> tuple[Tensor, Tensor]:
    """Textures of all kinds, ``(number, 1, side, side)``, and the numbers of their kinds.

    The noise is added to each pixel. Its standard deviation does not depend on the scale.
    """
    shown, kinds = np.empty((number, 1, side, side), np.float32), np.arange(number) % len(KINDS)
    for n, kind in enumerate(kinds):
        generator = np.random.default_rng((seed, n))
        contrast = generator.uniform(0.1, 0.2)
        shown[n] = 0.5 + contrast * _texture(KINDS[kind], scale, side, generator)
        shown[n] += noise * generator.standard_normal((side, side))
    return torch.from_numpy(shown), torch.from_numpy(kinds)


def _texture(kind: str, scale: float, side: int, generator: np.random.Generator) -> np.ndarray:
    period = PERIOD * scale * generator.uniform(0.9, 1.1)
    line = (np.arange(side) - (side - 1) / 2) / period  # from the middle, where every scale shows the same
    places = np.stack(np.meshgrid(line, line, indexing="ij"), -1) + generator.uniform(-1, 1, 2)
    if kind in POINTS:
        lattice = np.stack(np.meshgrid(*[np.arange(-REACH, REACH + 1.0)] * 2), -1).reshape(-1, 2)
        moved = lattice + generator.uniform(-0.5, 0.5, lattice.shape)
        nearest, second = np.moveaxis(KDTree(moved).query(places, 2)[0], -1, 0)
        away = (second - nearest) / 0.2 if kind == "cells" else nearest / 0.25
        return 2 * np.exp(-(away**2)) - 1
    angles, phases = np.radians(ANGLES.get(kind, [])), 0.0
    if kind in NOISES:
        angles, phases = np.radians(NOISES[kind]) * generator.uniform(-1, 1, 24), generator.uniform(0, 2 * np.pi, 24)
    angles = angles + generator.uniform(0, 2 * np.pi)
    waves = np.cos(2 * np.pi * places @ np.stack([np.cos(angles), np.sin(angles)]) + phases)
    return waves.sum(-1) / math.sqrt(len(angles)) * (-1 if kind == "holes" else 1)


def shuffled(images: Tensor, labels: Tensor, seed: int, settings: Settings) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of the same images, in another order every epoch."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(settings.epochs):
        order = torch.randperm(len(images), generator=generator).split(settings.batch_size)
        for chosen in order[: settings.steps // settings.epochs]:
            yield images[chosen], labels[chosen]


def measure(data: str, make: Callable[[int], Study], seed: int, file: Path) -> None:
    """Train and test both networks, unless their accuracies are there already."""
    done = {row["way"] for row in read(file) if (row["data"], row["seed"]) == (data, seed)}
    if {FITTED, TRAINED} <= done:
        return
    progress(f"{data}, seed {seed}: images")
    study = make(seed)
    torch.manual_seed(seed)
    plain: Any = create_model("s_cnn", **study.network)
    trusting = copy.deepcopy(plain)
    trusting.scale_pool = ScalePool("trust")
    for network, ways in ((plain, (*POOLS, FITTED)), (trusting, (TRAINED,))):
        if ways[-1] in done:
            continue
        progress(f"{data}, seed {seed}: training {ways[-1]}")
        torch.manual_seed(seed)
        network.to(memory_format=torch.channels_last)
        train(network, study.batches(), study.settings, "mean" if network is plain else "answer")
        if network is plain:
            images, labels = study.fitting
            scales = [scale for scale in SCALES if round(images.shape[-1] * scale) >= network.smallest_side]
            progress(str(calibrate(network, images, labels, scales=scales, seed=seed)))
        found = accuracies(network, study.tests)
        with file.open("a") as stream:
            for way in ways:
                row = {"data": data, "seed": seed, "way": way, "accuracy": found.get(way, found["trust"])}
                stream.write(json.dumps(row) + "\n")


@torch.inference_mode()
def accuracies(network: ScaleNetwork, tests: Tests) -> dict[str, dict[str, float]]:
    """Percent at each size, for each way to combine the same scores; "trust" is the network's own way."""
    found: Any = defaultdict(lambda: defaultdict(float))
    for size, (images, labels) in tests.items():
        for shown, right in zip(images.split(50), labels.split(50), strict=True):
            scores, features = network.scores_and_features(shown)
            answers: dict[str, Any] = {way: scale_pool(scores, way) for way in POOLS}
            answers["trust"] = network.scale_pool(scores, features)
            for way, answer in answers.items():
                found[way][f"{size:g}"] += 100 * int((answer.argmax(1) == right).sum()) / len(labels)
    return found


def table(data: str, rows: list[dict[str, Any]]) -> Table:
    """Accuracy by size, and its mean over all sizes but that of training."""
    sizes, cells = list(rows[0]["accuracy"]), []
    for way in (*POOLS, FITTED, TRAINED):
        here = [{size: n / 100 for size, n in row["accuracy"].items()} for row in rows if row["way"] == way]
        unseen = [fmean(value for size, value in found.items() if size != "1") for found in here]
        cells.append([way, *(summary([found[size] for found in here]) for size in sizes), summary(unseen)])
    caption = f"Accuracy in percent by size, mean ± standard deviation over {len({r['seed'] for r in rows})} seeds."
    return Table(data, caption, ["", *sizes, "unseen sizes"], cells)
