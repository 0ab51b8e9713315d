"""The paper's algorithm as its equations read, on tensors (B, C, S, H, W), and the paper's networks built that way.

It computes what the library computes in dense sampling, with ``scale_padding="zeros"`` and plain pooling windows.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scalespaces import models
from scalespaces.bench import _plain as plain


def scale_conv(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    r"""The scale-space correlation: each level sees itself and the levels above it, in one dilated convolution.

    .. math:: [\psi \star f]^o_k(z) = \sum_i \sum_{\ell \ge 0} \sum_y \psi^{i,o}_\ell(y)\, f^i_{k+\ell}(2^k y + z)

    Levels :math:`k, k + 1, \dots` are put side by side along channels; past the last one there are none, and the
    part of the filter that would meet zeros is left out.

    Args:
        x: ``(B, C, S, H, W)``.
        weight: ``(C_out, k C, h, w)``, the filter levels side by side along channels, too.
        bias: ``(C_out,)``.

    Example:
        >>> scale_conv(torch.zeros(1, 3, 4, 32, 32), torch.zeros(8, 2 * 3, 3, 3)).shape
        torch.Size([1, 8, 4, 32, 32])
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
    """A correlation of the same size as a :class:`~scalespaces.nn.ScaleConv2d`, with its weights."""

    def __init__(self, like: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(side_by_side(like.weight))
        self.bias = None if like.bias is None else nn.Parameter(like.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """Correlate."""
        return scale_conv(x, self.weight, self.bias)


def side_by_side(weight: Tensor) -> Tensor:
    """The levels of a filter ``(C_out, C_in, k, h, w)`` along channels, ``(C_out, k C_in, h, w)``; others as a copy."""
    return (weight.transpose(1, 2).flatten(1, 2) if weight.ndim == 5 else weight).detach().clone()


class _Network(plain.Network):
    lift: nn.Module

    def conv(self, like: Any) -> nn.Module:
        return ScaleConv(like)

    def norm(self, like: Any) -> nn.Module:
        return nn.BatchNorm3d(like.num_features)

    def pool(self, x: Tensor) -> Tensor:
        return F.avg_pool3d(x, (1, 2, 2))

    def lifted(self, image: Tensor) -> Tensor:
        levels = self.lift(image).stack()
        channels_last = image.is_contiguous(memory_format=torch.channels_last) and not image.is_contiguous()
        return levels.contiguous(memory_format=torch.channels_last_3d) if channels_last else levels

    def over_levels(self, x: Tensor) -> Tensor:
        return x.mean(2)

    def take_weights(self, model: nn.Module) -> None:
        # Other five-dimensional tensors than filters there are none.
        state = {name: side_by_side(tensor) for name, tensor in model.state_dict().items()}
        self.to(next(model.parameters()).dtype).load_state_dict(state)
        self.lift = _paper_lift(model)


def _paper_lift(model: Any) -> nn.Module:
    if model.lift.sampling != "dense" or model.lift.base != 2.0 or model.window != "plain" or model.lift.first_level:
        raise ValueError(
            'the paper\'s algorithm is for base 2, sampling="dense", window="plain" and first_level=0, got base '
            f"{model.lift.base}, {model.lift.sampling!r}, {model.window!r} and {model.lift.first_level}; build the "
            'network with preset="paper"'
        )
    return copy.deepcopy(model.lift)


class ResNet(_Network, plain.ResNet):
    """The paper's S-ResNet, with the weights and the lift of ``models.create_model("s_resnet", preset="paper")``.

    Example:
        >>> model = scalespaces.models.create_model("s_resnet", preset="paper")
        >>> ResNet(model)(torch.zeros(1, 3, 64, 64)).shape
        torch.Size([1, 19, 64, 64])
    """


class DenseNet(_Network, plain.DenseNet):
    """The paper's S-DenseNet, with the weights and the lift of ``models.create_model("s_densenet", preset="paper")``.

    Example:
        >>> model = scalespaces.models.create_model("s_densenet", preset="paper")
        >>> DenseNet(model)(torch.zeros(1, 3, 96, 96)).shape
        torch.Size([1, 2])
    """


def of(model: models.ScaleNetwork) -> nn.Module:
    """The paper's algorithm for that network."""
    if isinstance(model, models.ResNet):
        return ResNet(model)
    if isinstance(model, models.DenseNet) and model.stem is None:
        return DenseNet(model)
    raise ValueError(f"the paper's networks are ResNets and DenseNets without a group, got {type(model).__name__}")
