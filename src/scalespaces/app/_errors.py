"""Equivariance errors of the explorer's networks: measured, drawn, and explained in a sentence."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from scalespaces import models
from scalespaces.app._explore import Arguments, check_size
from scalespaces.app._predictions import Loaded
from scalespaces.functional import ScaleSpace
from scalespaces.models import ScaleNetwork
from scalespaces.models._random import random_network
from scalespaces.models._registry import entry
from scalespaces.nn import Lift, ScaleConv2d
from scalespaces.testing import EquivarianceTable, equivariance_error

LIFT, LOADED = "the lift alone", "the loaded network"
LAYERS = {"1 random layer": 1, "2 random layers": 2, "3 random layers": 3}
UNTRAINED = {f"{name}, untrained": name for name in models.list_models("s_*")}
NETWORKS = (LIFT, *LAYERS, *UNTRAINED, LOADED)
SIDES = (65, 129, 257, 513)
_EXACT = 1e-9  # relative, in float64; what rounding leaves is well below, and what anything else does well above

Report = Callable[[int, int], None]
"""Called with how many images of how many the network has seen."""


@dataclass(frozen=True)
class Errors:
    """The errors of a network: the table, the first k + l that sees past the last level, and what it all means."""

    network: str
    table: EquivarianceTable
    boundary: int
    size: tuple[int, int]
    sentence: str

    @property
    def before(self) -> np.ndarray:
        """The errors before the boundary."""
        return self.table.before(self.boundary)


def equivariance(
    image: Tensor,
    arguments: Arguments,
    network: str,
    side: int = 257,
    loaded: Loaded | None = None,
    report: Report = lambda done, all: None,
) -> Errors:
    """Measure a network in float64 on a square cut from the middle of an image.

    Args:
        image: ``(1, 3, H, W)``.
        arguments: of the lift; the loaded network has its own.
        network: one of ``NETWORKS``.
        side: the longest side of the cut.
        loaded: the network that was loaded.
        report: progress.
    """
    module, title = _network(network, arguments, loaded)
    lift = next(m for m in module.modules() if isinstance(m, Lift))
    levels = lift.num_levels
    if levels < 2:
        raise ValueError("an equivariance error compares levels, and there is only one; choose 2 levels or more")
    used = {name: getattr(lift, name) for name in ("base", "zero_scale", "kernel", "first_level")}
    cut, fits = _cut(loaded.see(image) if network == LOADED and loaded else image, lift, side)
    check_size({"num_levels": levels, **used}, cut.shape[2:])
    truncated = _truncated(module)
    shifts = _shifts(module, lift, cut)
    with torch.no_grad():
        counted = _Counted(module.double(), len(shifts) + 1, report)
        table = equivariance_error(counted, cut.double(), downscaling=lift.method, shifts=shifts)
    boundary = table.levels[-1] + 1 - truncated
    size = (cut.shape[3], cut.shape[2])
    sentence = _explain(table, boundary, module, lift, fits)
    return Errors(title, table, boundary, size, sentence)


def _network(network: str, arguments: Arguments, loaded: Loaded | None) -> tuple[nn.Module, str]:
    """The module to measure, up to its pooling over levels, and its name."""
    if network == LOADED:
        if loaded is None:
            raise ValueError("no network is loaded; drop a .safetensors file on the tab Predictions first")
        return _Features(copy.deepcopy(loaded.model)), loaded.name
    if network in UNTRAINED:
        if arguments["kernel"] != "discrete_gaussian":
            raise ValueError("the networks of the paper lift with the discrete Gaussian; choose that kernel for them")
        name = UNTRAINED[network]
        chosen = {key: value for key, value in arguments.items() if key in entry(name).arguments}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return _Features(models.create_model(name, in_channels=3, **chosen).eval()), network
    if network != LIFT and network not in LAYERS:
        raise ValueError(f"network is one of {', '.join(NETWORKS)}, got {network!r}")
    return random_network(LAYERS.get(network, 0), **arguments), network


class _Features(nn.Module):
    """A network up to its pooling over levels."""

    def __init__(self, network: ScaleNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, image: Tensor) -> ScaleSpace:
        return self.network.features(image)


class _Counted(nn.Module):
    """A network that reports every image it has seen."""

    def __init__(self, network: nn.Module, all: int, report: Report) -> None:
        super().__init__()
        self.network, self.all, self.report, self.done = network, all, report, 0

    def forward(self, image: Tensor) -> ScaleSpace:
        self.report(self.done, self.all)
        out = self.network(image)
        self.done += 1
        self.report(self.done, self.all)
        return out


def _truncated(module: nn.Module) -> int:
    """How many of the last levels see past the end: k - 1 for each filter of k levels that does not use levels up."""
    convs = [m for m in module.modules() if isinstance(m, ScaleConv2d)]
    return sum(m.kernel_size[0] - 1 for m in convs if m.scale_padding != "valid")


def _cut(image: Tensor, lift: Lift, side: int) -> tuple[Tensor, bool]:
    """The middle of an image, and whether its borders are the same at all scales.

    Reflection at the last pixel is reflection at every level if that pixel belongs to all of them: if sides are 1
    modulo ``base ** (levels - 1)``.
    """
    base, top = lift.plan.base, lift.num_levels + lift.first_level - 1
    period = round(base**top) if isinstance(base, float) and base == round(base) and top * math.log(base) < 20 else 1
    sides = [min(n, side) for n in image.shape[2:]]
    fits = period > 1 and all(n > period for n in sides)
    sides = [(n - 1) // period * period + 1 for n in sides] if fits else sides
    top, left = ((n - m) // 2 for n, m in zip(image.shape[2:], sides, strict=True))
    return image[..., top : top + sides[0], left : left + sides[1]], fits


def _shifts(module: nn.Module, lift: Lift, image: Tensor) -> list[int]:
    """The downscalings that leave levels to compare, and an image large enough for the network."""
    smallest = module.network.smallest_side if isinstance(module, _Features) else 1
    base = lift.plan.base
    assert isinstance(base, float)
    levels = module.network.config["num_levels"] if isinstance(module, _Features) else lift.num_levels
    left = [n for n in range(1, levels) if (min(image.shape[2:]) - 1) / base**n + 1 >= smallest]
    if not left:
        raise ValueError(
            f"the network takes images of {smallest} pixels or more, and {min(image.shape[2:])} pixels downscaled by "
            f"{base:.4g} are fewer; use a larger image or a larger side"
        )
    return left


def _explain(table: EquivarianceTable, boundary: int, module: nn.Module, lift: Lift, fits: bool) -> str:
    """What is exact, and why or why not."""
    before = table.before(boundary)
    past = int((~np.isnan(table.errors)).sum()) - before.size
    if not before.size:
        enough = lift.num_levels + table.levels[0] + 2 - boundary
        return (
            "Nothing is exact: from every level, the filters of this network reach past the last one, where there is "
            f"nothing to see. {enough} levels would leave some that do not."
        )
    largest = before.max()
    if largest <= _EXACT:
        found = f"Exact: the largest error is {largest:.1e}, which is rounding." if largest else "Exact: errors are 0."
        why = [
            "One and the same step leads from each level to the next, so that level k of the downscaled image is level "
            "k + 1 of the image"
        ]
    else:
        found, why = f"Not exact: the largest error is {largest:.1e}.", _reasons(module, lift, fits)
    behind = f"{past} {'entry' if past == 1 else 'entries'}, shown pale, reached past the last level" if past else ""
    return " ".join([found, *(f"{text}." for text in (*why, behind) if text)])


def _reasons(module: nn.Module, lift: Lift, fits: bool) -> list[str]:
    reasons, base, dense = [], lift.plan.base, lift.sampling != "pyramid"
    on_pixels = isinstance(base, float) and base.is_integer() and all(map(float.is_integer, lift.plan.steps))
    if lift.first_level < 0:
        reasons.append("Levels finer than the image are interpolated, and no downscaling undoes that")
    if lift.method == "direct":
        reasons.append(
            "The direct lift blurs the image anew for each level, and blurring twice on coarser pixels is not quite "
            "blurring once; the cascade repeats one step instead"
        )
    if dense and isinstance(module, _Features) and module.network.window == "plain":
        reasons.append("Its poolings join neighboring pixels at every level; in a pyramid, neighboring samples")
    if dense and not on_pixels:
        reasons.append("Samples of its levels do not lie on whole pixels; in a pyramid they need not")
    elif dense and not fits:
        reasons.append("The levels end at different pixels, so that their borders differ; in a pyramid they agree")
    return reasons or ["The layers behind its lift are not equivariant"]
