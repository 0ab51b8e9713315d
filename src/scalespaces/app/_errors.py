"""Equivariance errors of the explorer's networks: measured, and explained in a sentence."""

import copy
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from scalespaces import models
from scalespaces.app._explore import Arguments, Report, check_size
from scalespaces.app._predictions import Loaded
from scalespaces.models._convnet import random_network
from scalespaces.nn import Lift, ScaleAvgPool, ScaleMaxPool
from scalespaces.space import ScaleSpace
from scalespaces.testing import EquivarianceTable, equivariance_error
from scalespaces.testing._equivariance import cropped
from scalespaces.theory._arguments import check_choice

LIFT, LOADED = "the lift alone", "the loaded network"
LAYERS = {"1 random layer": 1, "2 random layers": 2, "3 random layers": 3}
UNTRAINED = {f"{name}, untrained": name for name in models.list_models("s_*")}
NETWORKS = (LIFT, *LAYERS, *UNTRAINED, LOADED)
SIDES = (65, 129, 257, 513)
_EXACT = 1e-9  # relative, in float64; rounding leaves much less, and everything else much more


@dataclass(frozen=True)
class Errors:
    """The errors of a network's features, and what they mean."""

    network: str
    table: EquivarianceTable
    size: tuple[int, int]
    sentence: str


def equivariance(
    image: Tensor,
    arguments: Arguments,
    network: str,
    side: int = 257,
    loaded: Loaded | None = None,
    report: Report = lambda done: None,
) -> Errors:
    """Measure the features of one of ``NETWORKS`` in float64 on a square of at most ``side`` from an image's middle.

    ``arguments`` are those of its lift; the loaded network has its own. ``report`` is called with the number of images
    that the network has seen, and of all: the image, downscaled or not.
    """
    check_choice("network", network, NETWORKS)
    if network == LOADED:
        if loaded is None:
            raise ValueError("no network is loaded; drop a .safetensors file on the tab Predictions first")
        image, arguments = loaded.see(image), loaded.model.lift.config
    base, levels = arguments["base"], arguments["num_levels"]
    if not isinstance(base, float):
        raise ValueError("the explorer measures lifts whose base is a number, but this network's is a matrix")
    if levels < 2:
        raise ValueError("an equivariance error compares levels, but there is only one; choose 2 levels or more")
    check_size(arguments, [min(n, side) for n in image.shape[2:]])  # before kernels are computed
    if loaded is not None and network == LOADED:
        module = copy.deepcopy(loaded.model)
    elif network in UNTRAINED:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = models.create_model(UNTRAINED[network], in_channels=3, lift=arguments).eval()
    else:
        module = random_network(LAYERS.get(network, 0), **arguments)
    features = getattr(module.double(), "features", module)
    lift = next(m for m in module.modules() if isinstance(m, Lift))
    period = round(base ** (levels + lift.first_level - 1)) if base.is_integer() else 1
    image, sizes = cropped(image, period, side).double(), set()

    def reporting(image: Tensor) -> ScaleSpace:
        if image.shape not in sizes:
            report((len(sizes), levels))
            sizes.add(image.shape)
        return features(image)

    table = equivariance_error(reporting, image, downscaling=lift.method)
    report((levels, levels))
    name = loaded.name if loaded is not None and network == LOADED else network
    return Errors(name, table, (image.shape[3], image.shape[2]), _explain(table, module, lift))


def _explain(table: EquivarianceTable, module: nn.Module, lift: Lift) -> str:
    """What is exact, and why or why not."""
    before, past = table.before(table.boundary), np.count_nonzero(table.past())
    if not before.size:
        finer = ", or is finer than the image" if lift.first_level < 0 else ""
        enough = lift.num_levels + 2 - len(set(table.levels) - set(table.left_out))
        way = f"Choose more levels, {enough} at least, or a network whose filters have fewer levels."
        return f"Nothing is exact: of any two levels, one sees past the last level{finer}. {way}"
    largest, base, dense = before.max(), cast(float, lift.base), lift.sampling != "pyramid"
    if largest <= _EXACT:
        found = f"Exact: the largest error is {largest:.1e}, which is rounding" if largest else "Exact: errors are 0"
        why = ["One step leads from level to level, so level k of the downscaled image is level k + 1 of the image"]
    else:
        found = f"Not exact: the largest error is {largest:.1e}"
        plain = any(isinstance(m, ScaleAvgPool | ScaleMaxPool) and m.window == "plain" for m in module.modules())
        reasons = {
            "Levels finer than the image are interpolated, and no downscaling undoes that": lift.first_level < 0,
            "The direct lift blurs the image separately for each level, and blurring twice on coarser pixels is not "
            "quite the same as blurring once; the cascade repeats one step instead": lift.method == "direct",
            "Its poolings join neighboring pixels at every level; on a pyramid, neighboring samples": dense and plain,
            "Samples of its levels do not lie on whole pixels; on a pyramid they need not": dense
            and not all(map(float.is_integer, (base, *lift.plan.steps))),
        }
        why = [text for text, holds in reasons.items() if holds] or ["The layers after its lift are not equivariant"]
    if past:
        what = "1 entry in a dashed frame reaches" if past == 1 else f"{past} entries in dashed frames reach"
        why.append(f"{what} past the last level")
    return " ".join(f"{sentence}." for sentence in (found, *why))
