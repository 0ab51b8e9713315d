"""Compare ways to combine the scores of levels that are trained together: networks learn from images of one size and
are tested at others. The data are the digits of the demonstration, random textures, and MNIST if its folder is given.
One network learns from the mean of its levels' logits and answers in five ways; another is trained with trust.
Accuracies are kept in --answers, so an interrupted run continues. It takes about an hour on one core."""

import argparse
import copy
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks._tables import Table, progress
from benchmarks._textures import KINDS, textures
from benchmarks.results import summary
from scalespaces import calibrate
from scalespaces.cli._arguments import positive
from scalespaces.data import digits, to_unit, unseen_scales
from scalespaces.data._idx import read_idx_images
from scalespaces.data._scales import split_classes
from scalespaces.demo._result import SIZES
from scalespaces.demo._study import _CNN, _LEVELS, FULL, LARGE, Settings, _batches, _train, show
from scalespaces.functional import scale_pool
from scalespaces.models import create_model
from scalespaces.models._calibrate import SCALES
from scalespaces.nn import ScalePool

POOLS = ("mean", "max", "logsumexp", "probabilities")
FITTED, TRAINED = "trust, fitted afterwards", "trust, trained with the network"
FITTING = 300  # training images to fit trust with
NOISE = 0.1  # standard deviation of the noise on textures


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--answers", required=True, metavar="FILE", help="keep the accuracies there, in lines of JSON")
    add("--mnist", metavar="FOLDER", help="MNIST's original files; without them, that table is left out")
    add("--data", nargs="+", choices=STUDIES, default=list(STUDIES), help="what to measure")
    add("--seeds", type=positive, default=3, metavar="N", help="trainings of each network")


def run(args: argparse.Namespace) -> Iterator[Table]:
    for data in args.data:
        if data == "mnist" and args.mnist is None:
            continue
        for seed in range(args.seeds):
            measure(data, seed, args)
        yield table(data, [row for row in read(args.answers) if row["data"] == data and row["seed"] < args.seeds])


def read(path: str) -> list[dict[str, Any]]:
    file = Path(path)
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@dataclass(frozen=True)
class Study:
    """A network, how and with what it is trained, training images to fit trust with, and tests at each size."""

    network: dict[str, Any]
    settings: Settings
    batches: Callable[[], Iterable[tuple[Tensor, Tensor]]]
    fitting: tuple[Tensor, Tensor]
    tests: dict[float, tuple[Tensor, Tensor]]


def digits_study(seed: int, _: argparse.Namespace) -> Study:
    """The demonstration's network. Trust is fitted on the large canvas, where smaller scales have room."""
    images, numbers = digits()
    learned, tested = split_classes(numbers, (FULL.train, FULL.test), seed)
    labels, some = torch.from_numpy(numbers), learned[:FITTING]
    fitting = show(images[some], [1.0] * len(some), LARGE, (seed, 3)), labels[some]
    shown = {size: show(images[tested], [size] * len(tested), LARGE, (seed, 2)) for size in SIZES}
    tests = {size: (images, labels[tested]) for size, images in shown.items()}
    batches = partial(_batches, images[learned], labels[learned], False, seed, FULL)
    return Study(_CNN | _LEVELS, FULL, batches, fitting, tests)


def textures_study(seed: int, _: argparse.Namespace) -> Study:
    settings = Settings(train=1280, test=400)
    images, labels = textures(settings.train, 1.0, 68, seed, NOISE)
    tests = {size: textures(settings.test, size, 96, seed + 100, NOISE) for size in SIZES if size < 4}
    network = _CNN | {"num_classes": len(KINDS), "lift": {"num_levels": 6, "first_level": -1, "base": 2**0.5}}
    batches = partial(shuffled, images, labels, seed, settings)
    return Study(network, settings, batches, (images[:FITTING], labels[:FITTING]), tests)


def mnist_study(seed: int, args: argparse.Namespace) -> Study:
    """The network and the images of recipes/unseen_scale_s_cnn.yaml, with the schedule of the demonstration."""
    settings = Settings(train=5000, test=400, epochs=8)
    sets = [read_idx_images(args.mnist, split) for split in ("train", "test")]
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


STUDIES = {"digits": digits_study, "textures": textures_study, "mnist": mnist_study}


def shuffled(images: Tensor, labels: Tensor, seed: int, settings: Settings) -> Iterator[tuple[Tensor, Tensor]]:
    """The same images in another order every epoch."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(settings.epochs):
        order = torch.randperm(len(images), generator=generator).split(settings.batch_size)
        for chosen in order[: settings.steps // settings.epochs]:
            yield images[chosen], labels[chosen]


def measure(data: str, seed: int, args: argparse.Namespace) -> None:
    """Train and test both networks, unless their accuracies are there already."""
    done = {row["way"] for row in read(args.answers) if (row["data"], row["seed"]) == (data, seed)}
    if {FITTED, TRAINED} <= done:
        return
    progress(f"{data}, seed {seed}: images")
    study = STUDIES[data](seed, args)
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
        _train(network, study.batches(), study.settings.steps, "mean" if network is plain else "answer")
        if network is plain:
            images, labels = study.fitting
            scales = [scale for scale in SCALES if round(images.shape[-1] * scale) >= network.smallest_side]
            progress(str(calibrate(network, images, labels, scales=scales, seed=seed)))
        found = accuracies(network, study)
        with Path(args.answers).open("a") as stream:
            for way in ways:
                row = {"data": data, "seed": seed, "way": way, "accuracy": found.get(way, found["trust"])}
                stream.write(json.dumps(row) + "\n")


@torch.inference_mode()
def accuracies(network: Any, study: Study) -> dict[str, dict[str, float]]:
    """Percent at each size, for each way to combine the same scores."""
    found: Any = defaultdict(lambda: defaultdict(float))
    for size, (images, labels) in study.tests.items():
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
