"""What the explorer shows of an image's scale-space: its levels and what they cost. No page in sight."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from scalespaces.functional._lift import LiftPlan, Stage, most_levels
from scalespaces.nn import Lift
from scalespaces.space import ScaleSpace
from scalespaces.theory._kernels import get_kernel
from scalespaces.theory._scale import check_base, check_zero_scale

MOST_LEVELS = 12
MOST_SAMPLES = 2**24
_REACH = 4096  # pixels; kernels of more take seconds, and look the same
_RUNS, _SECONDS = 5, 1.5  # of a measurement

Arguments = dict[str, Any]
"""Those of :class:`~scalespaces.nn.Lift`."""


# --- what people type ------------------------------------------------------------------------------------------------


def number(name: str, value: Any) -> float:
    """A number as people write it: 2, 0.25, 1/4 or √2.

    Example:
        >>> number("base", "√2") == 2**0.5, number("zero-scale", "1/4")
        (True, 0.25)
    """
    text = str("" if value is None else value).strip()
    try:
        root = text.removeprefix("√")
        found = float(Fraction(root.replace(" ", ""))) if "/" in root else float(root)
        found = math.sqrt(found) if root != text else found
    except (ValueError, OverflowError, ZeroDivisionError):
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(f"{name} must be a number such as 2, 0.25, 1/4 or √2, got {text[:40]!r}")
    return found


def whole(name: str, value: Any, low: int, high: int) -> int:
    """A whole number in a range."""
    found = number(name, value)
    if found != round(found) or not low <= found <= high:
        raise ValueError(f"{name} must be a whole number from {low} to {high}, got {found:g}")
    return round(found)


def lift_arguments(
    kernel: str,
    base: Any,
    zero_scale: Any,
    num_levels: Any,
    first_level: Any,
    sampling: str,
    oversampling: Any,
    method: str,
) -> Arguments:
    """The arguments of a lift from the fields of the page; ``sampling`` is dense, oversampled or pyramid."""
    levels = whole("levels", num_levels, 1, MOST_LEVELS)
    factor = number("oversampling", oversampling) if sampling == "oversampled" else 1.0
    if factor < 1:
        raise ValueError(f"oversampling must be 1 (a pyramid) or more, got {factor:g}")
    return {
        "num_levels": levels,
        "base": check_base(number("base", base)),
        "zero_scale": check_zero_scale(number("zero-scale", zero_scale)),
        "kernel": kernel,
        "method": method,
        "sampling": factor if sampling == "oversampled" else sampling,
        "first_level": whole("first level", first_level, 1 - levels, 0),
    }


def check_size(arguments: Arguments, size: Sequence[int]) -> None:
    """Refuse lifts to levels that the library warns of, and lifts that would take the machine's memory."""
    base, first, levels = (arguments[name] for name in ("base", "first_level", "num_levels"))
    top, most = first + levels - 1, most_levels(tuple(size), base, first)
    if levels > most:
        raise ValueError(
            f"{levels} levels of base {base:.4g} are too many for an image of {size[1]} × {size[0]} pixels: the last "
            f"ones would have a single sample; choose {most} at most, or a larger image"
        )
    finest = -first * math.log(base)
    dense = (top + 1) * math.prod(size)
    if finest > math.log(64) or dense + math.prod(size) * math.exp(2 * finest) * 4 / 3 > MOST_SAMPLES:
        raise ValueError(
            f"levels from {first} on make too many samples of an image of {size[1]} × {size[0]} pixels; choose fewer "
            "levels, a first level nearer to 0, a smaller base, or a smaller image"
        )
    family = get_kernel(arguments["kernel"])
    t = family.scale(base ** max(top, 0), arguments["zero_scale"])
    width = t ** (0.5 / family.alpha)
    if width > _REACH / 4:
        raise ValueError(
            f"the last level would be blurred over {width:.3g} pixels, and the explorer stops at {_REACH // 4}; choose "
            "fewer levels, or a smaller base or zero-scale"
        )


# --- the scale-space -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Level:
    """One level: its number, its grid, its blur in pixels and the taps of its kernel, where it has them."""

    number: int
    pixels: Tensor
    step: float
    blur: float | None
    taps: int | None

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        return self.pixels.shape[2], self.pixels.shape[1]


@dataclass(frozen=True)
class Cost:
    """What a lift costs: samples of a channel, multiply-adds of all, and milliseconds, also of a convolution."""

    samples: int
    ratio: float
    multiply_adds: int
    milliseconds: float
    convolution: float


def scale_space(image: Tensor, arguments: Arguments) -> tuple[list[Level], Cost]:
    """Lift an image ``(1, C, H, W)``, and measure what that takes."""
    check_size(arguments, image.shape[2:])
    lift = Lift(**arguments)
    with torch.no_grad():
        space = lift(image)
        weight = torch.randn(16, image.shape[1], 3, 3)
        milliseconds, convolution = measure([lambda: lift(image), lambda: F.conv2d(image, weight, padding=1)])
    samples = sum(math.prod(level.shape[2:]) for level in space.levels)
    cost = Cost(
        samples,
        samples / math.prod(image.shape[2:]),
        multiply_adds(lift.plan, space),
        milliseconds,
        convolution,
    )
    return _describe(lift, space), cost


def _describe(lift: Lift, space: ScaleSpace) -> list[Level]:
    family, zero = get_kernel(lift.kernel), -space.first_level
    levels = []
    for index, pixels in enumerate(space.levels):
        stage = lift.plan.stages[index - zero - 1] if index > zero else None
        t = family.scale(space.expansion(index), lift.zero_scale) if index >= zero else None
        blur = None if t is None else t ** (0.5 / family.alpha)
        taps = None if stage is None else kernel_length(lift.plan, stage)
        levels.append(Level(index - zero, pixels[0], space.steps[index], blur, taps))
    return levels


def kernel_length(plan: LiftPlan, stage: Stage) -> int:
    """The taps of a stage along one axis; a fractional ratio has a kernel for every phase, each one longer."""
    if stage.taps is not None:
        return len(stage.taps)
    return 2 * max(plan.kernel.radius(stage.t, plan.truncation), 1) + 2


def multiply_adds(plan: LiftPlan, space: ScaleSpace) -> int:
    """Those of the kernels' taps along the rows and then the columns, for all channels."""
    total = 0
    for index, stage in enumerate(plan.stages, 1 - plan.first_level):
        width, (rows, columns) = space.levels[stage.source].shape[3], space.levels[index].shape[2:]
        total += kernel_length(plan, stage) * rows * (width + columns)
    return total * space.levels[0].shape[1]


def measure(steps: Sequence[Callable[[], object]], clock: Callable[[], float] = time.perf_counter) -> tuple[float, ...]:
    """The median of some calls of each, in milliseconds; they take turns, after one that does not count."""
    times: list[list[float]] = [[] for _ in steps]
    begin = clock()
    for turn in range(_RUNS + 1):
        for step, seconds in zip(steps, times, strict=True):
            start = clock()
            step()
            seconds.append(clock() - start)
        if turn and clock() - begin > _SECONDS:
            break
    return tuple(1000 * statistics.median(seconds[1:]) for seconds in times)
