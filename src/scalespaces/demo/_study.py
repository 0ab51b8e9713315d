"""Train networks on digits of one size, and test them at others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scalespaces import models
from scalespaces._measure import peak_memory, ratios, take_turns
from scalespaces.data._scales import digits, rescale, split_classes
from scalespaces.demo._result import SIZES, TRAINED, Cost, Method
from scalespaces.train._jitter import draw_scales
from scalespaces.train._levels import Supervision, supervise
from scalespaces.train._scales import MultiScale

SIDE = 32  # pixels of a digit of size 1
SMALL, LARGE = 68, 144  # sides of the canvases: for digits of size 1, and for all sizes
TTA = (0.5, 0.75, 1, 1.25, 1.5, 1.75, 2)  # scales of test-time augmentation, as is usual for Cityscapes

_CNN = {"channels": (8, 16, 32, 64), "kernel_size": 3, "grid": 1, "hidden": 64, "dropout": 0.3}
# From half an octave finer than the image on, so that there are levels on both sides of the trained size.
_LIFT = {"num_levels": 8, "first_level": -1, "base": 2**0.5}
SELECTION = tuple(2 ** (-k / 2) for k in range(-1, 7))  # scales of selection: those of the levels

Advance = Callable[[], object]
Begin = Callable[[str, int], Advance]
"""Say that some work of so many parts begins, and get what to call after each of them."""


@dataclass(frozen=True)
class Settings:
    """How much is done: digits to learn from and to test with, epochs, rounds of timing and images in each."""

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
    """The networks of a seed, and the digits that none of them has seen."""

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
    """Digits at these sizes on a black canvas: anywhere they fit, as the key decides, or in the middle without one.

    Shape:
        - images: :math:`(N, 8, 8)`, uint8
        - Output: :math:`(N, 1, H, W)`, from 0 to 1
    """
    generator = np.random.default_rng(key)
    shown = np.empty((len(images), canvas, canvas), dtype=np.uint8)
    for n, (image, size) in enumerate(zip(images, sizes, strict=True)):
        room = max(0.0, canvas - SIDE * size) / 2 * (key is not None)
        top, left = generator.uniform(-room, room, 2)
        shown[n] = rescale(image, SIDE * size / image.shape[-1], canvas, (top, left))
    return torch.from_numpy(shown).unsqueeze(1).float().div(255)


def train_all(seed: int, settings: Settings, begin: Begin) -> Trial:
    """Train the plain CNN, the same with scale jitter, and the scale-space network, all with as many parameters."""
    images, labels = digits()
    learned, tested = split_classes(labels, (settings.train, settings.test), seed)
    answers = torch.from_numpy(labels)
    networks: dict[str, models.ScaleNetwork] = {}
    for key, name in {"cnn": "CNN", "jitter": "CNN at all sizes", "ours": "scale-space network"}.items():
        # All sizes are more to learn than one: with as many steps that network would be far from done.
        own = replace(settings, epochs=2 * settings.epochs) if key == "jitter" else settings
        advance = begin(f"training the {name}", own.steps)
        torch.manual_seed(seed)
        levels = {"lift": _LIFT, "scale_pool": "logsumexp"} if key == "ours" else {}
        network: Any = models.create_model("s_cnn" if levels else "cnn", **_CNN, **levels)
        networks[key] = network.to(memory_format=torch.channels_last)
        batches = _batches(images[learned], answers[learned], key == "jitter", seed, own)
        _train(networks[key], batches, own.steps, "mean" if key == "ours" else "answer", advance)
    networks["ours"].card = models.Card(classes=[str(digit) for digit in range(10)])
    return Trial(**networks, images=images[tested], labels=answers[tested], seed=seed)


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


def _train(
    network: nn.Module, batches: Iterator[tuple[Tensor, Tensor]], steps: int, how: Supervision, advance: Advance
) -> None:
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps, pct_start=0.1)
    network.train()
    for images, labels in batches:
        optimizer.zero_grad()
        (supervise(network, images, labels, how) / len(labels)).backward()
        optimizer.step()
        schedule.step()
        advance()
    network.eval()


@torch.inference_mode()
def accuracies(trial: Trial, advance: Advance) -> dict[str, tuple[float, ...]]:
    """The share of right answers of each method, at every size."""
    found: dict[str, list[float]] = {key: [] for key in trial.methods()}
    for size in SIZES:
        batches = show(trial.images, [size] * len(trial.images), LARGE, (trial.seed, 2)).split(50)
        for key, method in trial.methods().items():
            answers = torch.cat([method(batch).argmax(1) for batch in batches])
            found[key].append((answers == trial.labels).double().mean().item())
            advance()
    return {key: tuple(rows) for key, rows in found.items()}


def costs(trial: Trial, settings: Settings, advance: Advance) -> dict[str, Cost]:
    """What the methods cost, all taking turns: ratios to the plain CNN, medians over rounds."""
    timed = settings.timed
    large = show(np.resize(trial.images, (timed, 8, 8)), [TRAINED] * timed, LARGE, (trial.seed, 3))
    small = show(np.resize(trial.images, (timed, 8, 8)), [TRAINED] * timed, SMALL, (trial.seed, 3))
    target = torch.zeros(timed, dtype=torch.long)

    def ask(method: nn.Module) -> Callable[[], Tensor]:
        def step() -> Tensor:
            with torch.inference_mode():
                return method(large)

        return step

    def learn(network: nn.Module, images: Tensor) -> Callable[[], None]:
        def step() -> None:
            F.cross_entropy(network(images), target).backward()
            network.zero_grad()

        return step

    asked = {key: ask(method) for key, method in trial.methods().items()}
    learned = {
        "cnn": learn(trial.cnn, small),
        "jitter": learn(trial.jitter, large),
        "ours": learn(trial.ours, small),
    }
    seconds = []
    for steps in (asked, learned):
        seconds.append(take_turns(steps, settings.rounds))
        advance()
    memory = [{key: peak_memory(step) for key, step in steps.items()} for steps in (asked, learned)]
    advance()
    networks, found = trial.methods(), {}
    for key in networks:
        trained = key if key in learned else "cnn"  # what asks the CNN at several scales has it trained once
        found[key] = Cost(
            parameters=sum(p.numel() for p in networks[trained].parameters()),
            predict=ratios(seconds[0][key], seconds[0]["cnn"]).median,
            predict_memory=memory[0][key] / memory[0]["cnn"],
            train=ratios(seconds[1][trained], seconds[1]["cnn"]).median,
            train_memory=memory[1][trained] / memory[1]["cnn"],
        )
    return found


_NAMES = {
    "cnn": ("CNN", "a plain CNN, trained at size 1"),
    "tta": (
        "CNN + TTA",
        f"the same CNN with test-time augmentation: the mean of its answers at {len(TTA)} scales",
    ),
    "select": ("CNN + selection", "the same CNN at the scales of the levels: the most certain of its answers"),
    "jitter": ("CNN, all sizes", "the same CNN, trained with scale jitter: it has seen every size"),
    "ours": ("scale-space", "the same parameters on eight levels half an octave apart, trained at size 1"),
}


def methods(accuracy: Sequence[dict[str, tuple[float, ...]]], cost: dict[str, Cost]) -> tuple[Method, ...]:
    """What is compared, with the accuracies of every seed."""
    return tuple(Method(key, *_NAMES[key], tuple(row[key] for row in accuracy), cost[key]) for key in _NAMES)
