"""The answers of a saved network while an image is zoomed."""

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from scalespaces import models
from scalespaces.app._explore import Report, number, whole
from scalespaces.models._registry import entry
from scalespaces.train._predict import _ITU, channels_of, check_finite, describe_answers, to_input
from scalespaces.train._scales import zoom

FARTHEST, CLOSEST = 0.25, 4.0
ZOOMS = tuple(2 ** (n / 2) for n in range(-4, 5))  # half octaves, at which the curve is drawn
LARGEST, LIVELY = 1024, 256  # sides of the square that a network sees


@dataclass(frozen=True, eq=False)
class Loaded:
    """A network from a file."""

    model: models.ScaleNetwork
    name: str
    classes: tuple[str, ...]
    pixels: bool
    channels: int

    @property
    def side(self) -> int:
        """The side of the images that networks of its name are meant for, or less if those would be slow."""
        meant = min(entry(self.model.config["name"]).input_shape[1:])
        return max(min(meant, LIVELY), self.model.smallest_side)

    @property
    def facts(self) -> dict[str, str]:
        """What is known about it, by name."""
        lift, names = self.model.lift, self.model.card.classes
        base = f"{lift.base:.4g}" if isinstance(lift.base, float) else "a matrix"
        dense = lift.sampling if isinstance(lift.sampling, str) else f"oversampled {lift.sampling:g} times"
        return {
            "file": self.name,
            "network": str(self.model.config["name"]),
            "parameters": f"{sum(p.numel() for p in self.model.parameters()):,}",
            "lift": f"{lift.num_levels} levels of base {base}, {lift.method}, {dense}",
            "images": f"{'gray' if self.channels == 1 else 'RGB'}, {self.model.smallest_side} pixels a side or more",
            "answers": f"{len(self.classes)} classes" + (" for every pixel" if self.pixels else ""),
            "classes": ", ".join([*names[:12], *["..."] * (len(names) > 12)]) or "no names: its card has none",
        }

    def see(self, image: Tensor) -> Tensor:
        """The image ``(1, 3, H, W)`` as the network takes it: gray or RGB, normalized as its card says."""
        return to_input(self.model, self.colors(image))

    def colors(self, image: Tensor) -> Tensor:
        """The image, gray for networks of one channel."""
        return (image * _ITU[:, None, None]).sum(1, keepdim=True) if self.channels == 1 else image


@dataclass(frozen=True)
class LevelAnswer:
    """A level's own best class, its probability and score for the predicted class, and how far it is trusted."""

    number: int
    dilation: float
    own: str
    probability: float
    score: float
    weight: float | None = None  # unless levels are combined by trust


@dataclass(frozen=True)
class Prediction:
    """The most probable classes, the answer of each level, the picture that the network saw, and, if every pixel has an
    answer, the number of the level that gives it, ``(H, W)``.
    """

    top: tuple[tuple[str, float], ...]
    levels: tuple[LevelAnswer, ...]
    seen: Tensor
    chosen: Tensor | None = None

    @property
    def answering(self) -> LevelAnswer:
        """The level of most pixels; of a whole image, the one trusted most, or with the highest score for its class."""
        if self.chosen is not None:
            return self.levels[int(self.chosen.flatten().mode().values) - self.levels[0].number]
        return max(self.levels, key=lambda level: level.score if level.weight is None else level.weight)


def load_network(file: str | os.PathLike[str]) -> Loaded:
    """Load a file that :func:`scalespaces.models.save` wrote. Nothing in it is run; any other file is refused."""
    path = Path(file)
    try:
        model = models.load(path)
        return Loaded(model, path.name, *describe_answers(model), channels_of(model))
    except ValueError as error:
        message = str(error).replace(repr(str(path)), repr(path.name))  # without its folder
        rule = "The explorer reads files written by scalespaces.models.save, except converted networks"
        never = "whose code is not in the file; pickled files, .pt or .pth, are never read"
        raise ValueError(f"{message}. {rule}, {never}") from error


@torch.no_grad()
def predict(loaded: Loaded, image: Tensor, factor: object, side: object) -> Prediction:
    """The network's answer for the middle of an image, ``side`` pixels square, zoomed about its center."""
    times = number("zoom", factor)
    if not FARTHEST <= times <= CLOSEST:
        raise ValueError(f"zoom must be from {FARTHEST:g} to {CLOSEST:g}, got {times:g}")
    seen = _view(loaded, image, side, times)
    shown = to_input(loaded.model, seen)
    combined, scores = loaded.model.answer_and_scores(shown)
    answer, weights = check_finite(_probabilities(combined)), [None] * scores.num_levels
    if loaded.model.scale_pool.trust is not None:  # the mean over pixels
        weights = loaded.model.weights(shown)[0].flatten(1).mean(1).tolist()
    best, levels = int(answer.argmax()), []
    for index, level in enumerate(scores.levels):
        own = _probabilities(level)
        dilation = scores.expansion(index) if isinstance(scores.base, float) else 1.0
        name, score = loaded.classes[int(own.argmax())], float(level[0, best].mean())
        shares = (float(own[best]), score, weights[index])
        levels.append(LevelAnswer(scores.first_level + index, dilation, name, *shares))
    top = tuple((loaded.classes[i], float(answer[i])) for i in answer.argsort(descending=True)[:5].tolist())
    return Prediction(top, tuple(levels), seen[0], loaded.model.scale_map(shown)[0] if loaded.pixels else None)


@torch.no_grad()
def over_zooms(
    loaded: Loaded, image: Tensor, side: object, report: Report = lambda done: None, patience: float = math.inf
) -> dict[str, list[tuple[float, float | None]]]:
    """The probabilities, at all ``ZOOMS``, of the four classes that are the most probable at some zoom."""
    # Nothing if that would take more seconds than the patience, judging from the second zoom; the first one is slower.
    answers, start = [], 0.0
    for n, times in enumerate(ZOOMS):
        report((n, len(ZOOMS)))
        if n == 2 and (time.perf_counter() - start) * len(ZOOMS) > patience:
            return {}
        start = time.perf_counter()
        answers.append(_probabilities(loaded.model(to_input(loaded.model, _view(loaded, image, side, times)))))
    report((len(ZOOMS), len(ZOOMS)))
    found = check_finite(torch.stack(answers))
    order = found.amax(0).argsort(descending=True)[:4].tolist()
    return {loaded.classes[i]: list(zip(ZOOMS, found[:, i].tolist(), strict=True)) for i in order}


def _view(loaded: Loaded, image: Tensor, side: object, times: float) -> Tensor:
    """The middle of the image, brought to ``side`` pixels square and zoomed on the same canvas."""
    size = whole("the side", side, loaded.model.smallest_side, LARGEST)
    height, width = image.shape[2:]
    square = min(height, width)
    top, left = (height - square) // 2, (width - square) // 2
    middle = loaded.colors(image)[..., top : top + square, left : left + square]
    if square != size:
        middle = F.interpolate(middle, (size, size), mode="bicubic", antialias=True).clamp(0, 1)
    return zoom(middle, torch.tensor([times], dtype=torch.float64))


def _probabilities(logits: Tensor) -> Tensor:
    """Those of the only image, ``(classes,)``; where every pixel has an answer, the mean over pixels."""
    found = logits[0].float().softmax(0)
    return found.flatten(1).mean(1) if found.ndim > 1 else found
