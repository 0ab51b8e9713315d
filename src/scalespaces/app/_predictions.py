"""What a saved network makes of an image while it is zoomed."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from scalespaces import models
from scalespaces.app._explore import number, whole
from scalespaces.models import ScaleNetwork
from scalespaces.models._registry import entry
from scalespaces.theory._arguments import check_choice
from scalespaces.train._jitter import Fill, zoom
from scalespaces.train._predict import channels_of, check_finite, describe_answers, to_input

CLOSEST, FARTHEST = 4.0, 0.25
ZOOMS = tuple(2 ** (n / 2) for n in range(-4, 5))
"""Half octaves, at which the curve is drawn."""
FILLS: tuple[Fill, ...] = get_args(Fill)
LARGEST = 1024
_LIVELY = 256
_GREY = torch.tensor([0.299, 0.587, 0.114])  # ITU-R 601, the weights of Pillow's "L"


@dataclass(frozen=True, eq=False)
class Loaded:
    """A network from a file, with what it says about itself."""

    model: ScaleNetwork
    name: str
    classes: tuple[str, ...]
    pixels: bool
    channels: int

    @property
    def side(self) -> int:
        """The side of the images that networks of its name are meant for, if it is not too slow to play with."""
        meant = min(entry(self.model.config["name"]).input_shape[1:])
        return max(min(meant, _LIVELY), self.model.smallest_side)

    @property
    def facts(self) -> dict[str, str]:
        """What there is to know, by name."""
        config, card, lift = self.model.config, self.model.card, self.model.lift
        names = ", ".join(card.classes[:12]) + (", ..." if len(card.classes) > 12 else "")
        return {
            "file": self.name,
            "network": str(config["name"]),
            "parameters": f"{sum(p.numel() for p in self.model.parameters()):,}",
            "lift": f"{lift.num_levels} levels of base {_short(lift.base)}, {lift.method}, {_sampling(lift.sampling)}",
            "images": f"{'gray' if self.channels == 1 else 'RGB'}, {self.model.smallest_side} pixels a side or more"
            + (", normalized as its card says" if card.mean else ""),
            "answers": f"{len(self.classes)} classes" + (" for every pixel" if self.pixels else ""),
            "classes": names or "without names: its card has none",
        }

    def see(self, image: Tensor) -> Tensor:
        """The image ``(1, 3, H, W)`` as the network takes it: gray or RGB, normalized as its card says."""
        return to_input(self.model, self.colors(image))

    def colors(self, image: Tensor) -> Tensor:
        """Gray for networks of one channel."""
        return (image * _GREY[:, None, None]).sum(1, keepdim=True) if self.channels == 1 else image


@dataclass(frozen=True)
class LevelAnswer:
    """What one level says by itself: its best class, and what it gives the network's."""

    number: int
    dilation: float
    own: str
    probability: float
    score: float


@dataclass(frozen=True)
class Prediction:
    """The classes with the highest probabilities, the levels' own answers, and the picture the network saw."""

    top: tuple[tuple[str, float], ...]
    levels: tuple[LevelAnswer, ...]
    seen: Tensor

    @property
    def answering(self) -> LevelAnswer:
        """The level with the highest score for the predicted class."""
        return max(self.levels, key=lambda level: level.score)


def load_network(file: str | os.PathLike[str]) -> Loaded:
    """Load a file that :func:`scalespaces.models.save` wrote; nothing in it is run, and whatever else is refused."""
    path = Path(file)
    name = repr(path.name)
    try:
        model = models.load(path)
        classes, pixels = describe_answers(model)
        return Loaded(model, path.name, classes, pixels, channels_of(model))
    except ValueError as error:
        message = str(error).replace(repr(str(path)), name)
        if "it holds a conversion of" in message:
            message = (
                f"{name} holds a converted network, whose architecture is code that is not in the file; load it in "
                "Python, with scalespaces.models.load(path, model=...)"
            )
        elif "is no safetensors file" in message:
            message = (
                f"{name} is no safetensors file, or a damaged one; drop what scalespaces.models.save wrote (pickled "
                "files, .pt or .pth, are never read)"
            )
        raise ValueError(message) from error


def check_view(loaded: Loaded, side: object, fill: str) -> int:
    """The side, if the network takes it."""
    check_choice("fill", fill, FILLS)
    return whole("the side", side, loaded.model.smallest_side, LARGEST)


@torch.no_grad()
def predict(loaded: Loaded, image: Tensor, factor: object, side: object, fill: Fill = "zeros") -> Prediction:
    """Ask the network about a square from the middle of an image, zoomed about its center on the same canvas.

    Args:
        loaded: the network.
        image: ``(1, 3, H, W)``.
        factor: of the zoom, from 0.25 to 4.
        side: of the square, to which the image is brought, in pixels.
        fill: what lies outside of the image, ``"zeros"`` or ``"reflect"``.
    """
    times = number("zoom", factor)
    if not FARTHEST <= times <= CLOSEST:
        raise ValueError(f"zoom must be from {FARTHEST:g} to {CLOSEST:g}, got {times:g}")
    seen = _view(loaded, image, check_view(loaded, side, fill), [times], fill)
    combined, scores = loaded.model.answer_and_scores(to_input(loaded.model, seen))
    answer = check_finite(_mean(combined.float().softmax(1))[0])
    best = int(answer.argmax())
    levels = []
    for index, level in enumerate(scores.levels):
        own = _mean(level.float().softmax(1))[0]
        dilation = scores.expansion(index) if isinstance(scores.base, float) else 1.0
        name, score = loaded.classes[int(own.argmax())], float(level[0, best].mean())
        levels.append(LevelAnswer(scores.first_level + index, dilation, name, float(own[best]), score))
    order = answer.argsort(descending=True)[:5].tolist()
    return Prediction(tuple((loaded.classes[i], float(answer[i])) for i in order), tuple(levels), seen[0])


@torch.no_grad()
def over_zooms(
    loaded: Loaded,
    image: Tensor,
    side: object,
    fill: Fill = "zeros",
    zooms: Sequence[float] = ZOOMS,
    report: Callable[[int, int], None] = lambda done, all: None,
    patience: float = math.inf,
) -> dict[str, list[tuple[float, float | None]]]:
    """The probabilities of up to four classes at all zooms: those that are the most probable at some zoom first.

    There are none if that would take more seconds than ``patience``, by the time of the second zoom: the first one
    is slower.
    """
    size, answers, start = check_view(loaded, side, fill), [], 0.0
    for n, times in enumerate(zooms):
        report(n, len(zooms))
        if n == 2 and (time.perf_counter() - start) * len(zooms) > patience:
            return {}
        start = time.perf_counter()
        seen = to_input(loaded.model, _view(loaded, image, size, [times], fill))
        answers.append(_mean(loaded.model(seen).float().softmax(1))[0])
    report(len(zooms), len(zooms))
    found = check_finite(torch.stack(answers))
    order = found.amax(0).argsort(descending=True)[:4].tolist()
    return {loaded.classes[i]: list(zip(zooms, found[:, i].tolist(), strict=True)) for i in order}


def _view(loaded: Loaded, image: Tensor, side: int, zooms: Sequence[float], fill: Fill) -> Tensor:
    """The middle of the image, ``side`` pixels square, zoomed."""
    height, width = image.shape[2:]
    square = min(height, width)
    top, left = (height - square) // 2, (width - square) // 2
    middle = loaded.colors(image)[..., top : top + square, left : left + square]
    if square != side:
        middle = F.interpolate(middle, (side, side), mode="bicubic", antialias=True).clamp(0, 1)
    return zoom(middle.expand(len(zooms), -1, -1, -1), torch.tensor(zooms, dtype=torch.float64), fill)


def _mean(probabilities: Tensor) -> Tensor:
    """Those of the image: of pixels, on average."""
    return probabilities.flatten(2).mean(2) if probabilities.ndim > 2 else probabilities


def _short(base: object) -> str:
    return f"{base:.4g}" if isinstance(base, float) else "a matrix"


def _sampling(sampling: str | float) -> str:
    return sampling if isinstance(sampling, str) else f"oversampled {sampling:g} times"
