"""The demo's results as plain values, and the promises that they are checked against."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from scalespaces.space import ScaleSpace
from scalespaces.testing import EquivarianceTable

SIZES = (0.5, 0.71, 1.0, 1.41, 2.0, 2.83, 4.0)  # of the test digits, relative to the training digits
TRAINED = 1.0
SHOWN = 5  # the digit of the pictures


@dataclass(frozen=True)
class Cost:
    """Time and peak memory relative to the plain CNN: of predictions, and of a training step, per image."""

    parameters: int
    predict: float
    predict_memory: float
    train: float
    train_memory: float


@dataclass(frozen=True)
class Method:
    """A way to recognize digits. ``accuracy`` has a row for each seed and a column for each size."""

    key: str
    name: str
    about: str
    accuracy: tuple[tuple[float, ...], ...]
    cost: Cost

    def mean(self, size: float) -> float:
        """The accuracy at a size, averaged over seeds."""
        return statistics.fmean(row[SIZES.index(size)] for row in self.accuracy)

    def spread(self, size: float) -> float | None:
        """The standard deviation over seeds; None for a single seed."""
        return statistics.stdev(row[SIZES.index(size)] for row in self.accuracy) if len(self.accuracy) > 1 else None

    def per_cent(self, size: float) -> str:
        """The mean and the spread in percent, such as ``98.1 ± 1.2``."""
        return per_cent(self.mean(size), self.spread(size))


@dataclass(frozen=True)
class Frame:
    """A digit at one size: a PNG, both networks' class probabilities, and each level's share in the answer of ours."""

    size: float
    picture: bytes
    cnn: tuple[float, ...]
    ours: tuple[float, ...]
    shares: tuple[float, ...]


@dataclass(frozen=True)
class Result:
    """Everything that the demo found.

    ``series`` has every digit at many sizes, ``activations`` the strength of each level's features of the digit
    ``SHOWN`` as PNGs, by size, ``scale_space`` a photograph, by sampling, and ``equivariance`` the errors of random
    networks, by lift and number of layers. ``downscalings`` says how many times smaller each level sees the image, from
    ``first_level`` on. ``facts`` are the machine, the versions, and how the networks were trained and tested.
    """

    seeds: tuple[int, ...]
    methods: tuple[Method, ...]
    series: dict[int, tuple[Frame, ...]]
    activations: dict[float, tuple[bytes, ...]]
    scale_space: dict[str, ScaleSpace]
    equivariance: dict[str, dict[int, EquivarianceTable]]
    downscalings: tuple[float, ...]
    facts: dict[str, Any]
    first_level: int = 0

    def method(self, key: str) -> Method:
        """The method of that key."""
        return next(method for method in self.methods if method.key == key)

    def shown(self, size: float, digit: int = SHOWN) -> Frame:
        """A digit at the size nearest to this one."""
        return min(self.series[digit], key=lambda frame: abs(frame.size - size))

    def to_json(self) -> dict[str, Any]:
        """The numbers, without pictures."""
        errors = []
        for lift, tables in self.equivariance.items():
            for layers, table in tables.items():
                plain = {name: value for name, value in table.to_json().items() if name in ("rows", "errors")}
                errors.append({"lift": lift, "layers": layers, "boundary": table.boundary, **plain})
        found = {name: getattr(self, name) for name in ("seeds", "downscalings", "facts", "first_level")}
        found |= {"sizes": SIZES, "methods": [asdict(method) for method in self.methods], "equivariance": errors}
        return {name: value for name, value in found.items() if value}


class Verdict(NamedTuple):
    """A promise, what was measured, and whether it was kept."""

    promise: str
    measured: str
    kept: bool


def verdicts(result: Result) -> list[Verdict]:
    """What a network that understands scale should do, and whether this one did."""
    cnn, tta, select, ours = map(result.method, ("cnn", "tta", "select", "ours"))
    at_home, worst = ours.mean(TRAINED), min(SIZES, key=ours.mean)
    learned = at_home >= 0.9  # a network that guesses is equal at every size, too
    drop, gain = at_home - ours.mean(worst), at_home - cnn.mean(TRAINED)
    share = ours.cost.predict / tta.cost.predict

    def least_gain(other: Method, sizes: Sequence[float]) -> tuple[float, str]:
        gain, at = min((ours.mean(size) - other.mean(size), size) for size in sizes)
        return gain, f"{_points(gain)}, at size {at:g}"

    over_cnn, cnn_at = least_gain(cnn, [size for size in SIZES if not 0.7 < size < 1.5])
    over_tta, tta_at = least_gain(tta, SIZES)
    over_select, select_at = least_gain(select, SIZES)
    lowest = f"at most {_points(-drop)}, at size {worst:g}" if drop else "equal at all sizes"
    at_trained = f"{_points(gain)} ({per_cent(at_home)} and {per_cent(cnn.mean(TRAINED))} percent)"
    time = f"in {share:.2f} of its time ({ours.cost.predict:.1f} and {tta.cost.predict:.1f} times the CNN's)"
    as_accurate = "At every size at least as accurate as the CNN with"
    rows = [
        ("At every size within 5 points of its accuracy at the trained size", lowest, learned and drop <= 0.05),
        ("Away from the trained size, 20 points or more above the plain CNN", f"at least {cnn_at}", over_cnn >= 0.2),
        ("At the trained size, no more than 1 point below the plain CNN", at_trained, learned and gain >= -0.01),
        (f"{as_accurate} TTA", f"at worst {tta_at}", learned and over_tta >= 0),
        ("In less time than TTA", time, share < 1),
        (f"{as_accurate} selection", f"at worst {select_at}", learned and over_select >= 0),
    ]
    return [Verdict(*row) for row in rows]


def _points(difference: float) -> str:
    """A difference of accuracies in words: 5.2 points above, 1.0 points below, equal."""
    points = round(100 * difference, 1)
    return f"{abs(points)} points {'above' if points > 0 else 'below'}" if points else "equal"


def per_cent(*values: float | None) -> str:
    """A mean and its spread in percent: 98.1 ± 1.2."""
    return " ± ".join(f"{100 * value:.1f}" for value in values if value is not None)
