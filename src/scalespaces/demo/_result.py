"""What the demonstration found, as plain values: what the terminal and the report show."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

SIZES = (0.5, 0.71, 1.0, 1.41, 2.0, 2.83, 4.0)
"""Sizes of the test digits, relative to those that the networks were trained on."""

TRAINED = 1.0
KEYS = ("cnn", "tta", "select", "jitter", "ours")
"""The methods: a CNN, test-time augmentation, selection, a CNN trained at all sizes, the scale-space network."""


@dataclass(frozen=True)
class Cost:
    """Time and peak memory relative to the plain CNN's: to answer, and of a training step per image."""

    parameters: int
    predict: float
    predict_memory: float
    train: float
    train_memory: float


@dataclass(frozen=True)
class Method:
    """A way to recognize digits: its accuracies, a row for each seed with a number for each size, and its cost."""

    key: str
    name: str
    about: str
    accuracy: tuple[tuple[float, ...], ...]
    cost: Cost

    def mean(self, size: float) -> float:
        """The accuracy at a size, averaged over seeds."""
        return statistics.fmean(row[SIZES.index(size)] for row in self.accuracy)

    def spread(self, size: float) -> float | None:
        """The standard deviation over seeds; None of a single one."""
        return statistics.stdev(row[SIZES.index(size)] for row in self.accuracy) if len(self.accuracy) > 1 else None


@dataclass(frozen=True)
class Frame:
    """One digit at one size: the picture as PNG, the classes' probabilities, and each level's share in the answer."""

    size: float
    picture: bytes
    cnn: tuple[float, ...]
    ours: tuple[float, ...]
    shares: tuple[float, ...]


@dataclass(frozen=True)
class Series:
    """One digit at many sizes."""

    label: int
    frames: tuple[Frame, ...]


@dataclass(frozen=True)
class Activations:
    """What the levels of the network see of one digit at one size: the picture, and a PNG for each level."""

    size: float
    picture: bytes
    levels: tuple[bytes, ...]
    shares: tuple[float, ...]


@dataclass(frozen=True)
class Level:
    """A level of a photograph's scale-space: its sides and step in pixels, its blur, and a JPEG."""

    width: int
    height: int
    step: float
    sigma: float
    picture: bytes


@dataclass(frozen=True)
class Errors:
    """Equivariance errors of a random network: a row for each downscaling, a column for each level, None if absent."""

    lift: str
    layers: int
    boundary: int
    rows: tuple[int, ...]
    errors: tuple[tuple[float | None, ...], ...]

    def before(self) -> list[float]:
        """The errors before the boundary, past which filters look beyond the last level."""
        return [
            error
            for row, line in zip(self.rows, self.errors, strict=True)
            for level, error in enumerate(line)
            if error is not None and row + level < self.boundary
        ]


@dataclass(frozen=True)
class Verdict:
    """A promise, what was measured, and whether it is kept."""

    promise: str
    measured: str
    kept: bool


@dataclass(frozen=True)
class Result:
    """All of it.

    ``downscalings`` are how many times smaller each level sees the image, the first of which is ``first_level``;
    ``facts`` what times depend on, and how the networks were trained and tested.
    """

    seeds: tuple[int, ...]
    methods: tuple[Method, ...]
    series: tuple[Series, ...]
    activations: tuple[Activations, ...]
    scale_space: dict[str, tuple[Level, ...]]
    equivariance: tuple[Errors, ...]
    downscalings: tuple[float, ...]
    facts: dict[str, Any]
    first_level: int = 0

    def method(self, key: str) -> Method:
        """The method of that key, one of :data:`KEYS`."""
        return next(method for method in self.methods if method.key == key)

    def to_json(self) -> dict[str, Any]:
        """The numbers, without pictures."""
        bare = replace(self, series=(), activations=(), scale_space={})
        found = asdict(bare)
        return {"sizes": list(SIZES)} | {field.name: found[field.name] for field in fields(self) if found[field.name]}


def verdicts(result: Result) -> list[Verdict]:
    """What a network that understands scale should do, and whether this one did."""
    cnn, tta, select, _, ours = map(result.method, KEYS)
    at_home, worst = ours.mean(TRAINED), min(SIZES, key=ours.mean)
    learned = at_home >= 0.9  # networks that guess are equal at every size, too
    drop = at_home - ours.mean(worst)
    away = [size for size in SIZES if not 0.7 < size < 1.5]
    margin, margin_at = min((ours.mean(size) - cnn.mean(size), size) for size in away)
    gain = at_home - cnn.mean(TRAINED)
    share = ours.cost.predict / tta.cost.predict
    return [
        Verdict(
            "At every size within 5 points of its accuracy at the trained size",
            f"at most {_points(-drop)}, at size {worst:g}" if drop else "equal at all sizes",
            learned and drop <= 0.05,
        ),
        Verdict(
            "Away from the trained size, 20 points or more above the plain CNN",
            f"at least {_points(margin)}, at size {margin_at:g}",
            margin >= 0.2,
        ),
        Verdict(
            "At the trained size, no more than 1 point below the plain CNN",
            f"{_points(gain)} ({per_cent([at_home])} and {per_cent([cnn.mean(TRAINED)])} per cent)",
            learned and gain >= -0.01,
        ),
        _never_below(ours, tta, learned, "At every size at least as accurate as the CNN with TTA"),
        Verdict(
            "In no more than a third of the time of TTA",
            f"in {share:.2f} of its time ({ours.cost.predict:.1f} and {tta.cost.predict:.1f} times the CNN's)",
            share <= 1 / 3,
        ),
        _never_below(ours, select, learned, "At every size at least as accurate as the CNN with selection"),
    ]


def _never_below(ours: Method, other: Method, learned: bool, promise: str) -> Verdict:
    gain, at = min((ours.mean(size) - other.mean(size), size) for size in SIZES)
    return Verdict(promise, f"at worst {_points(gain)}, at size {at:g}", learned and gain >= 0)


def _points(difference: float) -> str:
    """A difference of accuracies in words.

    Example:
        >>> _points(0.052), _points(-0.01), _points(1e-9)
        ('5.2 points above', '1.0 points below', 'equal')
    """
    points = round(100 * difference, 1)
    return f"{abs(points)} points {'above' if points > 0 else 'below'}" if points else "equal"


def per_cent(values: Sequence[float | None]) -> str:
    """A mean and its spread in per cent.

    Example:
        >>> per_cent([0.9812, None]), per_cent([0.9812, 0.0123])
        ('98.1', '98.1 ± 1.2')
    """
    return " ± ".join(f"{100 * value:.1f}" for value in values if value is not None)
