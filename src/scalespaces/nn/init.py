"""Initializations of filters."""

import torch
from torch import Tensor, nn

__all__ = ["he_", "paper_"]


def he_(weight: Tensor) -> Tensor:
    """He's normal initialization for ReLU; all levels of a filter count as inputs."""
    return nn.init.kaiming_normal_(weight, nonlinearity="relu")


def paper_(weight: Tensor, dims: int, groups: int = 1, std: float = 1e-2) -> Tensor:
    r"""The paper's initialization: center tap one for paired channels, noise elsewhere.

    The ones are at the filter's first level, so a layer starts as the identity plus noise. If the numbers of channels
    differ, output :math:`o` of :math:`O` is paired with the inputs :math:`i` of :math:`I` for which
    :math:`\lfloor o I / O \rfloor = i` or :math:`\lfloor i O / I \rfloor = o`, and the one is divided among them:
    channels are repeated or averaged, and constants are preserved.

    Args:
        weight: ``(C_out, C_in / groups, k, *kernel)``, or without the ``k``.
        dims: number of spatial axes, which distinguishes the two.
        groups: channels are paired within each group.
        std: standard deviation of the noise.
    """
    if weight.ndim not in (dims + 2, dims + 3):
        raise ValueError(f"expected a weight of {dims + 2} or {dims + 3} axes, got shape {tuple(weight.shape)}")
    if groups < 1 or len(weight) % groups:
        raise ValueError(f"output channels are divisible by groups, got {len(weight)} and {groups}")
    out_channels, in_channels = len(weight) // groups, weight.shape[1]
    o, i = torch.arange(len(weight))[:, None] % out_channels, torch.arange(in_channels)[None]
    paired = (o * in_channels // out_channels == i) | (i * out_channels // in_channels == o)
    share = paired / paired.sum(1, keepdim=True)
    center = tuple((n - 1) // 2 for n in weight.shape[-dims:])
    with torch.no_grad():
        nn.init.normal_(weight, std=std)
        taps = weight[:, :, 0] if weight.ndim == dims + 3 else weight
        taps = taps[(slice(None), slice(None), *center)]
        taps[paired] = share[paired].to(weight)
    return weight
