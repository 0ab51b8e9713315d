"""Equivariance errors of the explorer's networks: measured, drawn, and explained in a sentence."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from scalespaces import models
from scalespaces.app._explore import Arguments, check_size
from scalespaces.app._predictions import Loaded
from scalespaces.models._random import random_network
from scalespaces.nn import Lift, ScaleAvgPool, ScaleMaxPool
from scalespaces.space import ScaleSpace
from scalespaces.testing import EquivarianceTable, equivariance_error

LIFT, LOADED = "the lift alone", "the loaded network"
LAYERS = {"1 random layer": 1, "2 random layers": 2, "3 random layers": 3}
UNTRAINED = {f"{name}, untrained": name for name in models.list_models("s_*")}
NETWORKS = (LIFT, *LAYERS, *UNTRAINED, LOADED)
SIDES = (65, 129, 257, 513)
_EXACT = 1e-9  # relative, in float64; what rounding leaves is well below, and what anything else does well above

Features = Callable[[Tensor], ScaleSpace]
Report = Callable[[int, int], None]
"""Called with how many images of how many the network has seen: the image, and the image downscaled l times."""


@dataclass(frozen=True)
class Errors:
    """The errors of a network's features, and what they mean."""

    network: str
    table: EquivarianceTable
    size: tuple[int, int]
    sentence: str

    @property
    def boundary(self) -> int:
        """The first k + l that sees past the last level."""
        return self.table.boundary

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
    """Measure the features of a network in float64 on a square cut from the middle of an image.

    Args:
        image: ``(1, 3, H, W)``.
        arguments: of the lift; the loaded network has its own.
        network: one of ``NETWORKS``.
        side: the longest side of the cut.
        loaded: the network that was loaded.
        report: progress.
    """
    if network == LOADED and loaded is not None:
        image, arguments = loaded.see(image), loaded.model.lift.config
    levels = arguments["num_levels"]
    if not isinstance(arguments["base"], float):
        raise ValueError("the explorer measures lifts whose base is a number, and this network's is a matrix")
    if levels < 2:
        raise ValueError("an equivariance error compares levels, and there is only one; choose 2 levels or more")
    check_size(arguments, [min(n, side) for n in image.shape[2:]])  # before kernels are computed
    module, features, title = _network(network, arguments, loaded)
    lift = next(m for m in module.double().modules() if isinstance(m, Lift))
    cut = _cut(image, lift, side)
    table = equivariance_error(_reporting(features, levels, report), cut.double(), downscaling=lift.method)
    report(levels, levels)
    return Errors(title, table, (cut.shape[3], cut.shape[2]), _explain(table, module, lift))


def _network(network: str, arguments: Arguments, loaded: Loaded | None) -> tuple[nn.Module, Features, str]:
    """The network, what computes its features, and its name."""
    if network == LOADED:
        if loaded is None:
            raise ValueError("no network is loaded; drop a .safetensors file on the tab Predictions first")
        model = copy.deepcopy(loaded.model)
        return model, model.features, loaded.name
    if network in UNTRAINED:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = models.create_model(UNTRAINED[network], in_channels=3, lift=arguments).eval()
            return model, model.features, network
    if network != LIFT and network not in LAYERS:
        raise ValueError(f"network is one of {', '.join(NETWORKS)}, got {network!r}")
    layers = random_network(LAYERS.get(network, 0), **arguments)
    return layers, layers, network


def _reporting(features: Features, all: int, report: Report) -> Features:
    """The features, with a report for each image of a new size."""
    sizes = set()

    def run(image: Tensor) -> ScaleSpace:
        if image.shape not in sizes:
            report(len(sizes), all)
            sizes.add(image.shape)
        return features(image)

    return run


def _cut(image: Tensor, lift: Lift, side: int) -> Tensor:
    """The middle of an image, with borders that are the same at all scales where the base is an integer.

    Reflection at the last pixel is reflection at every level if that pixel belongs to all of them: if sides are 1
    modulo ``base ** (levels - 1)``.
    """
    base: Any = lift.base
    period = round(base ** (lift.num_levels + lift.first_level - 1)) if base.is_integer() else 1
    sides = [(min(n, side) - 1) // period * period + 1 for n in image.shape[2:]]
    top, left = ((n - m) // 2 for n, m in zip(image.shape[2:], sides, strict=True))
    return image[..., top : top + sides[0], left : left + sides[1]]


def _explain(table: EquivarianceTable, module: nn.Module, lift: Lift) -> str:
    """What is exact, and why or why not."""
    before = table.before(table.boundary)
    past = int((~np.isnan(table.errors)).sum()) - before.size
    if not before.size:
        finer = ", or is finer than the image" if lift.first_level < 0 else ""
        enough = lift.num_levels + 2 - len(set(table.levels) - set(table.left_out))
        return (
            f"Nothing is exact: of any two levels, one sees past the last level{finer}. Choose more levels, {enough} "
            "at least, or a network whose filters have fewer levels."
        )
    largest = before.max()
    if largest <= _EXACT:
        found = f"Exact: the largest error is {largest:.1e}, which is rounding." if largest else "Exact: errors are 0."
        why = [
            "One and the same step leads from each level to the next, so that level k of the downscaled image is level "
            "k + 1 of the image"
        ]
    else:
        found, why = f"Not exact: the largest error is {largest:.1e}.", _reasons(module, lift)
    behind = f"{past} {'entry' if past == 1 else 'entries'}, shown pale, reached past the last level" if past else ""
    return " ".join([found, *(f"{text}." for text in (*why, behind) if text)])


def _reasons(module: nn.Module, lift: Lift) -> list[str]:
    base: Any = lift.base
    reasons, dense = [], lift.sampling != "pyramid"
    poolings = [m for m in module.modules() if isinstance(m, ScaleAvgPool | ScaleMaxPool)]
    if lift.first_level < 0:
        reasons.append("Levels finer than the image are interpolated, and no downscaling undoes that")
    if lift.method == "direct":
        reasons.append(
            "The direct lift blurs the image anew for each level, and blurring twice on coarser pixels is not quite "
            "blurring once; the cascade repeats one step instead"
        )
    if dense and any(pooling.window == "plain" for pooling in poolings):
        reasons.append("Its poolings join neighboring pixels at every level; in a pyramid, neighboring samples")
    if dense and not all(map(float.is_integer, (base, *lift.plan.steps))):
        reasons.append("Samples of its levels do not lie on whole pixels; in a pyramid they need not")
    return reasons or ["The layers behind its lift are not equivariant"]
