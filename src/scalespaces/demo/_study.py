"""The experiment: train networks on digits of one size, test them at others, and look inside."""

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scalespaces import models
from scalespaces._choices import EPOCHS, Supervision
from scalespaces._extras import require
from scalespaces._html import encode
from scalespaces._measure import environment, peak_memory, ratios, take_turns
from scalespaces._progress import Progress
from scalespaces.data import photograph
from scalespaces.data._scales import digits, rescale, split_classes
from scalespaces.demo._result import SHOWN, SIZES, TRAINED, Cost, Frame, Method, Result
from scalespaces.functional import lift
from scalespaces.models._convnet import random_network
from scalespaces.testing import EquivarianceTable, equivariance_error
from scalespaces.train._levels import supervise
from scalespaces.train._scales import MultiScale, draw_scales

SIDE = 32  # pixels of a digit of size 1
SMALL, LARGE = 68, 144  # sides of the canvases: for digits of size 1, and for all sizes
TTA = tuple(1 / size for size in SIZES)  # scales of test-time augmentation: each undoes one of the tested sizes
SELECTION = tuple(2 ** (-k / 2) for k in range(-1, 7))  # scales of selection: those of the levels
METHODS = {
    "cnn": ("CNN", "a plain CNN, trained at size 1"),
    "tta": ("CNN + TTA", "the same CNN with test-time augmentation: its mean answer at scales that undo the sizes"),
    "select": ("CNN + selection", "the same CNN at the scales of the levels: the most confident of its answers"),
    "jitter": ("CNN, all sizes", "the same CNN, trained with scale jitter: it has seen every size"),
    "ours": ("scale-space", "the same parameters on eight levels half an octave apart, trained at size 1"),
}
"""Name and description of what is compared, by key."""

_CNN: dict[str, Any] = {"channels": (8, 16, 32, 64), "kernel_size": 3, "grid": 1, "hidden": 64, "dropout": 0.3}
# The first level is half an octave finer than the image, so that there are levels on both sides of the trained size.
_LEVELS: dict[str, Any] = {"lift": {"num_levels": 8, "first_level": -1, "base": 2**0.5}, "scale_pool": "logsumexp"}
FINE_SIZES = tuple(round(2 ** (n / 8), 3) for n in range(-8, 17))  # eight to an octave, from 1/2 to 4
COARSE_SIZES = (0.5, 1.0, 2.0, 4.0)
LIFTS = {"direct": "dense", "cascade": "pyramid"}  # the paper's, and ours
T = TypeVar("T")


def track(items: Iterable[T], what: str, total: int) -> Iterator[T]:
    """Pass on the items of some work with a line of progress, and print how long it took."""
    start = time.perf_counter()
    with Progress(what, total) as line:
        for item in items:
            yield item
            line.add()
    print(f"{what}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Settings:
    """Training and test digits, epochs, rounds of timing and images in each of them; and how networks are trained."""

    train: int = 1297
    test: int = 300
    epochs: int = EPOCHS
    batch_size: int = 64
    rounds: int = 7
    timed: int = 16
    rate: float = 3e-3
    warmup: float = 0.1
    decay: float = 0.01

    @property
    def steps(self) -> int:
        """Training steps of each network."""
        return self.epochs * max(1, self.train // self.batch_size)


FULL = Settings(test=500)
QUICK = Settings(train=128, test=20, epochs=1, rounds=1, timed=4)


@dataclass(frozen=True)
class Trial:
    """The networks of a seed, and test digits that none of them has seen."""

    cnn: nn.Module
    jitter: nn.Module
    ours: models.ScaleNetwork
    images: np.ndarray
    labels: Tensor
    seed: int

    def methods(self) -> dict[str, nn.Module]:
        """What is compared, by key."""
        tta, select = MultiScale(self.cnn, TTA), MultiScale(self.cnn, SELECTION, "select")
        return {"cnn": self.cnn, "tta": tta, "select": select, "jitter": self.jitter, "ours": self.ours}


def run(seeds: Sequence[int], settings: Settings) -> tuple[Result, models.ScaleNetwork]:
    """Do all of it for every seed. Costs, pictures and the network returned are those of the first seed."""
    start, machine = time.perf_counter(), environment()
    trials = [train_all(seed, settings) for seed in seeds]
    accuracy, trial = [accuracies(trial) for trial in trials], trials[0]
    cost, about = costs(trial, settings), METHODS
    result = Result(
        seeds=tuple(seeds),
        methods=tuple(Method(key, *about[key], tuple(row[key] for row in accuracy), cost[key]) for key in about),
        series={label: series(trial, label) for label in track(range(10), "looking inside", 10)},
        activations=activations(trial),
        scale_space={how: lift(photograph(), num_levels=5, sampling=how) for how in ("dense", "pyramid")},
        equivariance=equivariance(),
        downscalings=tuple(round(1 / scale, 2) for scale in SELECTION),
        first_level=trial.ours.lift.first_level,
        facts={
            "train_digits": settings.train,
            "test_digits": settings.test,
            "epochs": settings.epochs,
            "side": SIDE,
            "small_canvas": SMALL,
            "large_canvas": LARGE,
            "tta": [round(scale, 2) for scale in TTA],
            "selection": [round(scale, 2) for scale in SELECTION],
            "seconds": round(time.perf_counter() - start, 1),
        }
        | {name: fact for name, fact in machine.items() if name != "numpy"},
    )
    return result, trial.ours


def show(images: np.ndarray, sizes: Sequence[float], canvas: int, key: Sequence[int] | None = None) -> Tensor:
    """Digits at these sizes on a black canvas: in random places that follow from the key, or in the middle."""
    generator = np.random.default_rng(key)
    shown = np.empty((len(images), canvas, canvas), dtype=np.uint8)
    for n, (image, size) in enumerate(zip(images, sizes, strict=True)):
        room = max(0.0, canvas - SIDE * size) / 2 * (key is not None)
        top, left = generator.uniform(-room, room, 2)
        shown[n] = rescale(image, SIDE * size / image.shape[-1], canvas, (top, left))
    return torch.from_numpy(shown).unsqueeze(1).float().div(255)


def train_all(seed: int, settings: Settings) -> Trial:
    """Train the CNN, the CNN with scale jitter, and the scale-space network. All have the same number of parameters."""
    images, numbers = digits()
    learned, tested = split_classes(numbers, (settings.train, settings.test), seed)
    labels = torch.from_numpy(numbers)
    # All sizes are more to learn than one, so jitter gets twice the steps.
    longer = replace(settings, epochs=2 * settings.epochs)
    plan = {"cnn": ("CNN", settings), "jitter": ("CNN at all sizes", longer), "ours": ("scale-space network", settings)}
    networks: dict[str, Any] = {}
    for key, (name, own) in plan.items():
        arguments = _CNN | (_LEVELS if key == "ours" else {})
        torch.manual_seed(seed)
        network: Any = models.create_model("s_cnn" if key == "ours" else "cnn", **arguments)
        networks[key] = network.to(memory_format=torch.channels_last)
        batches = moving(images[learned], labels[learned], key == "jitter", seed, own)
        tracked = track(batches, f"training the {name} (seed {seed})", own.steps)
        train(network, tracked, own, "mean" if key == "ours" else "answer")
    networks["ours"].card = models.Card(classes=[str(digit) for digit in range(10)])
    return Trial(**networks, images=images[tested], labels=labels[tested], seed=seed)


def moving(
    images: np.ndarray, labels: Tensor, jitter: bool, seed: int, settings: Settings
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of digits: every epoch in other places, in another order and, with jitter, at other sizes."""
    for epoch in range(settings.epochs):
        sizes = [TRAINED] * len(images)
        if jitter:
            sizes = draw_scales(range(len(images)), epoch, seed, SIZES[0], SIZES[-1]).tolist()
        shown = show(images, sizes, LARGE if jitter else SMALL, (seed, epoch))
        order = torch.from_numpy(np.random.default_rng((seed, epoch, 1)).permutation(len(images)))
        for batch in order.split(settings.batch_size)[: settings.steps // settings.epochs]:
            yield shown[batch], labels[batch]


def train(network: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], settings: Settings, how: Supervision) -> None:
    """One cycle of AdamW over all batches; the network is left in evaluation mode."""
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=settings.decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings.rate, settings.steps, pct_start=settings.warmup)
    network.train()
    for images, labels in batches:
        optimizer.zero_grad()
        (supervise(network, images, labels, how) / len(labels)).backward()
        optimizer.step()
        schedule.step()
    network.eval()


@torch.inference_mode()
def accuracies(trial: Trial) -> dict[str, tuple[float, ...]]:
    """The share of right answers of each method, at every size."""
    found: dict[str, tuple[float, ...]] = dict.fromkeys(METHODS, ())
    for size in track(SIZES, f"testing at {len(SIZES)} sizes (seed {trial.seed})", len(SIZES)):
        batches = show(trial.images, [size] * len(trial.images), LARGE, (trial.seed, 2)).split(50)
        for key, method in trial.methods().items():
            answers = torch.cat([method(batch).argmax(1) for batch in batches])
            found[key] += ((answers == trial.labels).double().mean().item(),)
    return found


def costs(trial: Trial, settings: Settings) -> dict[str, Cost]:
    """What the methods cost. They are timed in turns; costs are ratios to the plain CNN, medians over rounds."""
    images, sizes = np.resize(trial.images, (settings.timed, 8, 8)), [TRAINED] * settings.timed
    small, large = (show(images, sizes, canvas, (trial.seed, 3)) for canvas in (SMALL, LARGE))
    target, networks = torch.zeros(settings.timed, dtype=torch.long), trial.methods()

    @torch.inference_mode()
    def predict(key: str) -> Tensor:
        return networks[key](large)

    def learn(key: str) -> None:
        F.cross_entropy(networks[key](large if key == "jitter" else small), target).backward()
        networks[key].zero_grad()

    predicting = {key: partial(predict, key) for key in networks}
    learning = {key: partial(learn, key) for key in ("cnn", "jitter", "ours")}
    found = []
    for steps in track((predicting, learning), "measuring time and memory", 2):
        seconds, memory = take_turns(steps, settings.rounds), {key: peak_memory(step) for key, step in steps.items()}
        plain = seconds["cnn"]
        found.append({key: (ratios(seconds[key], plain).median, memory[key] / memory["cnn"]) for key in steps})
    cost = {}
    for key in networks:
        trained = key if key in learning else "cnn"  # TTA and selection train nothing of their own
        parameters = sum(p.numel() for p in networks[trained].parameters())
        cost[key] = Cost(parameters, *found[0][key], *found[1][trained])
    return cost


@torch.inference_mode()
def series(trial: Trial, label: int) -> tuple[Frame, ...]:
    """The first test digit of a class at many sizes, and the answers of both networks trained at one size."""
    shown = _digit(trial, label, FINE_SIZES)
    answer, scores = trial.ours.answer_and_scores(shown)
    predicted = answer.argmax(1, keepdim=True)
    # The answer is the log-sum-exp of the levels' scores, so shares are their softmax over levels.
    shares = torch.cat([level.gather(1, predicted) for level in scores.levels], 1).softmax(1)
    columns = zip(FINE_SIZES, shown, trial.cnn(shown).softmax(1), answer.softmax(1), shares, strict=True)
    return tuple(Frame(size, _png(image), *map(_rounded, rows)) for size, image, *rows in columns)


def _rounded(row: Tensor) -> tuple[float, ...]:
    return tuple(round(value, 4) for value in row.tolist())


@torch.inference_mode()
def activations(trial: Trial) -> dict[float, tuple[bytes, ...]]:
    """The strength of the last features at every level, for the digit ``SHOWN`` at four sizes."""
    colors, found = require("matplotlib", "demo").colormaps["magma"], {}
    for size in COARSE_SIZES:
        features = trial.ours.features(_digit(trial, SHOWN, [size]))
        strengths = [level[0].square().mean(0).sqrt() for level in features.levels]
        most = max(strength.max() for strength in strengths)
        heat = [torch.from_numpy(colors((strength / most).clamp(0, 1).numpy())) for strength in strengths]
        found[size] = tuple(_png(level[..., :3].permute(2, 0, 1)) for level in heat)
    return found


def _digit(trial: Trial, label: int, sizes: Sequence[float]) -> Tensor:
    first = int((trial.labels == label).nonzero()[0])
    return show(np.repeat(trial.images[first : first + 1], len(sizes), 0), sizes, LARGE)


def equivariance() -> dict[str, dict[int, EquivarianceTable]]:
    """The paper's figure: downscale the image or its features, and compare, for random networks of 1 to 3 layers."""
    # Reflected borders look the same at all scales if the side is 1 more than a multiple of 2^7: 513, not 512.
    image, found = nn.functional.pad(photograph(), (0, 1, 0, 1), mode="reflect"), {}
    cases = [(method, layers) for method in LIFTS for layers in (1, 2, 3)]
    for method, layers in track(cases, "measuring equivariance", len(cases)):
        dtype = torch.float64 if method == "cascade" else torch.float32  # rounding is all that can be left of an error
        network = random_network(layers, channels=16, num_levels=8, method=method, sampling=LIFTS[method])
        table = equivariance_error(network.to(dtype), image.to(dtype), downscaling=method)
        found.setdefault(f"{method}, {LIFTS[method]}", {})[layers] = table
    return found


def _png(image: Tensor) -> bytes:
    return encode(image, "PNG", "demo", optimize=True)
