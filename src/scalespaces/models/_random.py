"""Networks with random weights, to measure equivariance with."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from scalespaces.nn import Lift, ScaleConv2d
from scalespaces.theory._padding import PaddingMode


def random_network(
    layers: int,
    *,
    in_channels: int = 3,
    channels: int = 8,
    filter_levels: int = 2,
    scale_padding: str = "zeros",
    padding_mode: PaddingMode = "reflect",
    seed: int = 0,
    **lift_arguments: Any,
) -> nn.Sequential:
    """A lift, then layers of corr[k,3,3] and ReLU with He's random weights: the paper's test of equivariance.

    ``filter_levels`` is k, ``padding_mode`` is that of the lift and of the layers, and other arguments are those of
    the lift. The global random state is left as it was.

    Example:
        >>> random_network(2, num_levels=3)(torch.rand(1, 3, 16, 16)).shapes
        ((1, 8, 16, 16), (1, 8, 8, 8), (1, 8, 4, 4))
    """
    modules: list[nn.Module] = [Lift(padding_mode=padding_mode, **lift_arguments)]
    paddings: dict[str, Any] = {"padding_mode": padding_mode, "scale_padding": scale_padding}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for layer in range(layers):
            width = channels if layer else in_channels
            modules += [ScaleConv2d(width, channels, (filter_levels, 3, 3), bias=False, **paddings), nn.ReLU()]
    return nn.Sequential(*modules)
