"""The experiment: train networks on digits of one size, and test them at others."""

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
from scalespaces._measure import peak_memory, ratios, take_turns
from scalespaces._progress import Progress
from scalespaces.data._scales import digits, rescale, split_classes
from scalespaces.demo._result import SIZES, TRAINED, Cost
from scalespaces.train._levels import Supervision, supervise
from scalespaces.train._scales import MultiScale, draw_scales

SIDE = 32  # pixels of a digit of size 1
SMALL, LARGE = 68, 144  # sides of the canvases: for digits of size 1, and for all sizes
TTA = (0.5, 0.75, 1, 1.25, 1.5, 1.75, 2)  # scales of test-time augmentation, as is usual for Cityscapes
SELECTION = tuple(2 ** (-k / 2) for k in range(-1, 7))  # scales of selection: those of the levels
METHODS = {
    "cnn": ("CNN", "a plain CNN, trained at size 1"),
    "tta": ("CNN + TTA", f"the same CNN with test-time augmentation: the mean of its answers at {len(TTA)} scales"),
    "select": ("CNN + selection", "the same CNN at the scales of the levels: the most confident of its answers"),
    "jitter": ("CNN, all sizes", "the same CNN, trained with scale jitter: it has seen every size"),
    "ours": ("scale-space", "the same parameters on eight levels half an octave apart, trained at size 1"),
}
"""Name and description of what is compared, by key."""

_CNN: dict[str, Any] = {"channels": (8, 16, 32, 64), "kernel_size": 3, "grid": 1, "hidden": 64, "dropout": 0.3}
# The first level is half an octave finer than the image, so that there are levels on both sides of the trained size.
_LEVELS: dict[str, Any] = {"lift": {"num_levels": 8, "first_level": -1, "base": 2**0.5}, "scale_pool": "logsumexp"}
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
    """How much is done: training and test digits, epochs, rounds of timing and images in each of them."""

    train: int = 1297
    test: int = 300
    epochs: int = 12
    batch_size: int = 64
    rounds: int = 7
    timed: int = 16

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
        batches = _batches(images[learned], labels[learned], key == "jitter", seed, own)
        tracked = track(batches, f"training the {name} (seed {seed})", own.steps)
        _train(network, tracked, own.steps, "mean" if key == "ours" else "answer")
    networks["ours"].card = models.Card(classes=[str(digit) for digit in range(10)])
    return Trial(**networks, images=images[tested], labels=labels[tested], seed=seed)


def _batches(
    images: np.ndarray, labels: Tensor, jitter: bool, seed: int, settings: Settings
) -> Iterator[tuple[Tensor, Tensor]]:
    """Every epoch shows the digits in other places, in another order and, with jitter, at other sizes."""
    for epoch in range(settings.epochs):
        sizes = [TRAINED] * len(images)
        if jitter:
            sizes = draw_scales(range(len(images)), epoch, seed, SIZES[0], SIZES[-1]).tolist()
        shown = show(images, sizes, LARGE if jitter else SMALL, (seed, epoch))
        order = torch.from_numpy(np.random.default_rng((seed, epoch, 1)).permutation(len(images)))
        for batch in order.split(settings.batch_size)[: settings.steps // settings.epochs]:
            yield shown[batch], labels[batch]


def _train(network: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], steps: int, how: Supervision) -> None:
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps, pct_start=0.1)
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
