"""The paper's algorithm as its equations read, on tensors (B, C, S, H, W), and the paper's networks built that way.

It computes what the library computes with dense sampling, ``scale_padding="zeros"`` and plain pooling windows.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import _plain as plain
from scalespaces import models


def scale_conv(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    r"""The scale-space correlation: each level sees itself and the levels above it, in one dilated convolution.

    .. math:: [\psi \star f]^o_k(z) = \sum_i \sum_{\ell \ge 0} \sum_y \psi^{i,o}_\ell(y)\, f^i_{k+\ell}(2^k y + z)

    Levels :math:`k, k + 1, \dots` are concatenated along channels, and so are the filter levels of the weight,
    ``(C_out, k C_in, h, w)``. Filter levels that would meet zeros past the last level are left out.
    """
    channels, levels = x.shape[1:3]
    depth = weight.shape[1] // channels
    outputs = []
    for k in range(levels):
        seen = torch.cat(x[:, :, k : k + depth].unbind(2), 1)
        padding = [2**k * (n // 2) for n in weight.shape[2:]]
        outputs.append(F.conv2d(seen, weight[:, : seen.shape[1]], bias, padding=padding, dilation=2**k))
    return torch.stack(outputs, 2)


class ScaleConv(nn.Module):
    """A correlation with the weights of a :class:`~scalespaces.nn.ScaleConv2d`."""

    def __init__(self, like: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(side_by_side(like.weight))
        self.bias = None if like.bias is None else nn.Parameter(like.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return scale_conv(x, self.weight, self.bias)


def side_by_side(weight: Tensor) -> Tensor:
    """The levels of a filter ``(C_out, C_in, k, h, w)`` along channels, ``(C_out, k C_in, h, w)``; others as a copy."""
    return (weight.transpose(1, 2).flatten(1, 2) if weight.ndim == 5 else weight).detach().clone()


class _Network(plain.Network):
    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.lift = copy.deepcopy(model.lift)

    def conv(self, like: Any) -> nn.Module:
        return ScaleConv(like)

    def norm(self, channels: int) -> nn.Module:
        return nn.BatchNorm3d(channels)

    def pool(self, x: Tensor) -> Tensor:
        return F.avg_pool3d(x, (1, 2, 2))

    def lifted(self, image: Tensor) -> Tensor:
        levels = self.lift(image).stack()
        channels_last = image.is_contiguous(memory_format=torch.channels_last) and not image.is_contiguous()
        return levels.contiguous(memory_format=torch.channels_last_3d) if channels_last else levels

    def over_levels(self, x: Tensor) -> Tensor:
        return x.mean(2)


class ResNet(_Network, plain.ResNet):
    """The paper's S-ResNet."""


class DenseNet(_Network, plain.DenseNet):
    """The paper's S-DenseNet."""


def of(model: Any) -> nn.Module:
    """The paper's algorithm for a network built with ``preset="paper"``."""
    return ResNet(model) if isinstance(model, models.ResNet) else DenseNet(model)
