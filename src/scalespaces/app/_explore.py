"""The levels of an image's scale-space and what they cost, for the explorer."""

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

from scalespaces._measure import take_turns
from scalespaces.functional._lift import most_levels
from scalespaces.nn import Lift
from scalespaces.theory._kernels import Kernel, check_zero_scale, get_kernel
from scalespaces.theory._scale import check_base

MOST_LEVELS = 12
MOST_SAMPLES = 2**24
_MOST_BLUR = 1024  # pixels; larger kernels take seconds, and look the same
_RUNS, _SECONDS = 5, 1.5  # of a measurement, at most

Arguments = dict[str, Any]  # of a lift
Report = Callable[[tuple[int, int]], object]  # takes how much is done, and of how much


def number(name: str, value: object) -> float:
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


def whole(name: str, value: object, low: int, high: int) -> int:
    """A whole number in a range."""
    found = number(name, value)
    if found != round(found) or not low <= found <= high:
        raise ValueError(f"{name} must be a whole number from {low} to {high}, got {found:g}")
    return round(found)


def lift_arguments(
    kernel: str,
    base: object,
    zero_scale: object,
    num_levels: object,
    first_level: object,
    sampling: str,
    oversampling: object,
    method: str,
) -> Arguments:
    """The arguments of a lift from the fields of the page; ``sampling`` is dense, oversampled or pyramid."""
    levels, grid = whole("levels", num_levels, 1, MOST_LEVELS), sampling
    if sampling == "oversampled" and (grid := number("oversampling", oversampling)) < 1:
        raise ValueError(f"oversampling must be 1 (a pyramid) or more, got {grid:g}")
    return {
        "num_levels": levels,
        "base": check_base(number("base", base)),
        "zero_scale": check_zero_scale(number("zero-scale", zero_scale)),
        "kernel": kernel,
        "method": method,
        "sampling": grid,
        "first_level": whole("first level", first_level, 1 - levels, 0),
    }


def check_size(arguments: Arguments, size: Sequence[int]) -> None:
    """Refuse lifts that the library warns of, and lifts that would take too much memory or time."""
    base, first, levels = (arguments[name] for name in ("base", "first_level", "num_levels"))
    top, most, pixels = first + levels - 1, most_levels(tuple(size), base, first), math.prod(size)
    what = f"an image of {size[1]} × {size[0]} pixels"
    if levels > most:
        why = f"the last ones would have a single sample; choose {most} at most, or a larger image"
        raise ValueError(f"{levels} levels of base {base:.4g} are too many for {what}: {why}")
    finest = -first * math.log(base)
    if finest > math.log(64) or (top + 1) * pixels + pixels * math.exp(2 * finest) * 4 / 3 > MOST_SAMPLES:
        ways = "choose fewer levels, a first level nearer to 0, a smaller base, or a smaller image"
        raise ValueError(f"levels from {first} on make too many samples of {what}; {ways}")
    blur = _blur(arguments["kernel"], base ** max(top, 0), arguments["zero_scale"])
    if blur > _MOST_BLUR:
        rule = f"the last level would be blurred over {blur:.3g} pixels, and the explorer stops at {_MOST_BLUR}"
        raise ValueError(f"{rule}; choose fewer levels, or a smaller base or zero-scale")


def _blur(kernel: str | Kernel, dilation: float, zero_scale: float) -> float:
    """The blur of a level in pixels: of a Gaussian, the standard deviation."""
    family = get_kernel(kernel)
    return family.scale(dilation, zero_scale) ** (0.5 / family.alpha)


@dataclass(frozen=True)
class Level:
    """A level: its number, its grid, and its blur in pixels unless it is finer than the image."""

    number: int
    pixels: Tensor
    step: float
    blur: float | None


@torch.no_grad()
def scale_space(image: Tensor, arguments: Arguments) -> tuple[list[Level], dict[str, str]]:
    """Lift an image ``(1, C, H, W)``, and measure the cost: facts by name."""
    check_size(arguments, image.shape[2:])
    lift, weight = Lift(**arguments), torch.randn(16, image.shape[1], 3, 3)
    start = time.perf_counter()
    space = lift(image)
    runs = max(1, min(_RUNS, int(_SECONDS / (time.perf_counter() - start))))
    convolve = {"3 × 3 convolution to 16 channels": lambda: F.conv2d(image, weight, padding=1)}
    seconds = take_turns({"lift, measured": lambda: lift(image)} | convolve, runs)
    samples, levels = sum(math.prod(level.shape[2:]) for level in space.levels), []
    for index, pixels in enumerate(space.levels):
        k = space.first_level + index
        blur = _blur(lift.kernel, space.expansion(index), lift.zero_scale) if k >= 0 else None
        levels.append(Level(k, pixels[0], space.steps[index], blur))
    sizes = {"samples per channel": f"{samples:,}", "times the image": f"{samples / math.prod(image.shape[2:]):.2f}"}
    return levels, sizes | {name: f"{1000 * statistics.median(found):.3g} ms" for name, found in seconds.items()}
