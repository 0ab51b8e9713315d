"""What a ratio would be if time were multiplications: the limit to compare measured ratios with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from scalespaces import models
from scalespaces.bench import _paper as paper


@dataclass(frozen=True)
class Limits:
    """Multiplications in those of the plain counterpart; ``folded`` is the pyramid with folded filters."""

    dense: float
    pyramid: float
    folded: float


@dataclass(frozen=True)
class Correlation:
    """A correlation of ``filter_levels`` x ``size`` taps on levels whose first one is ``image``."""

    channels: int
    filter_levels: int
    size: tuple[int, ...]
    levels: int
    image: tuple[int, ...]

    @property
    def plain(self) -> float:
        """Multiplications of the plain convolution, on level 0 alone."""
        return self.channels * math.prod(self.size) * math.prod(self.image)

    def cost(self, sampling: str, *, folded: bool = False) -> float:
        r"""Multiplications of the correlation.

        On a pyramid level :math:`k` has :math:`4^{-k}` of the samples. A level :math:`\ell` further up is upsampled
        linearly by :math:`r = 2^\ell` and then correlated; folded into one filter for each of the :math:`r^2` phases,
        that is fewer taps on the coarse grid: 25 instead of 36 for :math:`3 \times 3` and :math:`r = 2`.
        """
        total = 0.0
        for k in range(self.levels):
            grid = [math.ceil(n / 2**k) if sampling == "pyramid" else n for n in self.image]
            for el in range(min(self.filter_levels, self.levels - k)):
                share = folded_share(self.size, 2**el) if folded and sampling == "pyramid" else 1.0
                total += self.channels * math.prod(self.size) * math.prod(grid) * share
        return total


def folded_share(size: Sequence[int], factor: int) -> float:
    r"""Taps of a filter folded with linear upsampling, in those of the filter on the fine grid; 1 if there are more.

    Example:
        >>> round(36 * folded_share((3, 3), 2), 9)
        25.0
    """
    share = 1.0
    for n in size:
        reach = n // 2
        phases = range(factor)
        share *= sum(math.ceil((p + reach) / factor) - math.floor((p - reach) / factor) + 1 for p in phases)
        share /= n * factor
    return min(share, 1.0)


def layer_limits(filter_levels: int, size: Sequence[int], levels: int, image: Sequence[int]) -> Limits:
    """The limits of one layer.

    Example:
        >>> limits = layer_limits(2, (3, 3), 4, (128, 128))
        >>> limits.dense, round(limits.pyramid, 2), round(limits.folded, 2)
        (7.0, 2.64, 2.24)
    """
    return _limits([Correlation(1, filter_levels, tuple(size), levels, tuple(image))])


def network_limits(model: models.ScaleNetwork, image: Sequence[int]) -> Limits:
    """The limits of a network built with ``preset="paper"``, compared with the same one with a single level.

    All correlations and linear layers count; the lift, which the plain network has not, and pointwise work do not.
    """
    network = paper.of(model).to("meta").eval()
    seen: list[Correlation] = []

    def note(module: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        x, weight = inputs[0], module.weight
        levels = x.shape[2] if x.ndim == 5 else 1
        depth = weight.shape[1] // x.shape[1]
        channels = x.shape[1] * weight.shape[0]
        seen.append(Correlation(channels, depth, tuple(weight.shape[2:]), levels, tuple(x.shape[2:][-2:])))

    for module in network.modules():
        if isinstance(module, paper.ScaleConv | nn.Conv2d | nn.Linear):
            module.register_forward_hook(note)
    dtype = next(network.parameters()).dtype
    with torch.no_grad():
        network(torch.zeros(1, model.in_channels, *image, device="meta", dtype=dtype))
    return _limits(seen)


def _limits(correlations: Sequence[Correlation]) -> Limits:
    plain = sum(c.plain for c in correlations)
    return Limits(
        sum(c.cost("dense") for c in correlations) / plain,
        sum(c.cost("pyramid") for c in correlations) / plain,
        sum(c.cost("pyramid", folded=True) for c in correlations) / plain,
    )
