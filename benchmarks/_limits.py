"""What a ratio would be if time were multiplications: the limit to compare measured ratios with."""

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from scalespaces.nn import ScaleConv2d
from scalespaces.space import ScaleSpace


def layer_limits(weight: Tensor, x: ScaleSpace | Tensor) -> tuple[float, float]:
    """Multiplications of a correlation, divided by those on level 0 alone; the second one with folded filters."""
    plain, ours, folded = _multiplications(weight, x)
    return ours / plain, folded / plain


def network_limits(network: nn.Module, image: Sequence[int]) -> tuple[float, float]:
    """The same for a network and images ``(channels, height, width)``: correlations and linear layers count."""
    network, total = copy.deepcopy(network).to("meta").eval(), np.zeros(3)

    def note(module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        total[:] += _multiplications(module.weight, inputs[0])

    for module in network.modules():
        if isinstance(module, ScaleConv2d | nn.Linear):
            module.register_forward_hook(note)
    with torch.no_grad():
        network(torch.zeros(1, *image, device="meta", dtype=next(network.parameters()).dtype))
    return total[1] / total[0], total[2] / total[0]


def _multiplications(weight: Tensor, x: ScaleSpace | Tensor) -> tuple[float, float, float]:
    """For one image: on level 0 alone, on all levels, and on all levels with folded filters."""
    levels, steps = (x.levels, x.steps) if isinstance(x, ScaleSpace) else ((x,), (1.0,))
    depth, size = weight.shape[2] if weight.ndim == 5 else 1, weight.shape[2:][-2:]
    taps, ours, folded = weight.numel() / depth, 0.0, 0.0
    for k, level in enumerate(levels):  # each meets filter levels on its own grid, coarser levels upsampled to it
        for ell in range(min(depth, len(levels) - k)):
            number = taps * math.prod(level.shape[2:])
            ours += number
            folded += number * folded_share(size, round(steps[k + ell] / steps[k]))
    return taps * math.prod(levels[0].shape[2:]), ours, folded


def folded_share(size: Sequence[int], factor: int) -> float:
    """Taps of a filter folded with linear upsampling, in those of the filter on the fine grid; 1 if there are more."""
    # A filter on a level upsampled by r is one filter on the coarse grid for each of the r^2 phases: 25 taps in place
    # of 36 for 3 x 3 and r = 2.
    share = 1.0
    for n in size:
        reach = n // 2
        phases = [math.ceil((p + reach) / factor) - math.floor((p - reach) / factor) + 1 for p in range(factor)]
        share *= sum(phases) / (n * factor)
    return min(share, 1.0)
