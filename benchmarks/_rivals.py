"""The paper's networks in plain PyTorch: its baselines, and its algorithm on tensors (B, C, S, H, W), which computes
what the library does with dense sampling, scale_padding="zeros" and plain pooling windows."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scalespaces import models
from scalespaces._torch import is_channels_last
from scalespaces.nn import ScaleBatchNorm, ScaleConv2d


def scale_conv(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The scale-space correlation: each level sees itself and the levels above it, in one dilated convolution."""
    # Levels k, k + 1, ... are concatenated along channels, and so are the filter levels of the weight, (C_out, k C_in,
    # h, w). Filter levels that would meet zeros past the last level are left out.
    channels, levels = x.shape[1:3]
    depth = weight.shape[1] // channels
    outputs = []
    for k in range(levels):
        seen = torch.cat(x[:, :, k : k + depth].unbind(2), 1)
        outputs.append(F.conv2d(seen, weight[:, : seen.shape[1]], bias, padding="same", dilation=2**k))
    return torch.stack(outputs, 2)


class Conv(nn.Module):
    """With the weights of a :class:`~scalespaces.nn.ScaleConv2d`: the paper's correlation, or a plain one of images."""

    def __init__(self, like: ScaleConv2d) -> None:
        super().__init__()
        self.weight = nn.Parameter(side_by_side(like.weight))
        self.bias = None if like.bias is None else nn.Parameter(like.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 4:
            return F.conv2d(x, self.weight, self.bias, padding="same")
        return scale_conv(x, self.weight, self.bias)


def side_by_side(weight: Tensor) -> Tensor:
    """The levels of a filter ``(C_out, C_in, k, h, w)`` along channels, ``(C_out, k C_in, h, w)``; others as a copy."""
    return (weight.transpose(1, 2).flatten(1, 2) if weight.ndim == 5 else weight).detach().clone()


class Network(nn.Module):
    """A copy of a network of ours with PyTorch's layers: a baseline, or the paper's algorithm if it has levels."""

    def __init__(self: Any, model: nn.Module) -> None:
        super().__init__()
        for name, part in copy.deepcopy(model).named_children():
            self.add_module(name, part)
        self.lift = self.lift if self.lift.num_levels > 1 else None
        for name, layer in [*self.named_modules()]:
            if isinstance(layer, ScaleConv2d):
                self.set_submodule(name, Conv(layer))
            elif isinstance(layer, ScaleBatchNorm):
                norm = nn.BatchNorm3d if self.lift else nn.BatchNorm2d
                own = norm(layer.num_features).to(layer.running_mean)
                own.load_state_dict(layer.state_dict())
                self.set_submodule(name, own)

    def lifted(self: Any, image: Tensor) -> Tensor:
        if self.lift is None:
            return image
        levels = self.lift(image).stack()
        return levels.contiguous(memory_format=torch.channels_last_3d) if is_channels_last(image) else levels


class ResNet(Network):
    """The paper's ResNet, for images whose sides 8 divides: then its upsampling is that of ``F.interpolate``."""

    def forward(self: Any, image: Tensor) -> Tensor:
        x = self.lifted(image)
        for n, block in enumerate(self.blocks):  # the supplement's res[1,h,w], without a skip in the last one
            x = pool(x) if n and block.missing else x
            out = block.norm2(block.conv2(F.relu(block.norm1(block.conv1(x)))))
            if block.missing is not None:
                out = out + (F.pad(x, [0, 0] * (x.ndim - 2) + [0, block.missing]) if block.missing else x)
            x = out
        return F.interpolate(self.classifier(x.mean(2) if self.lift else x), image.shape[2:], mode="bilinear")


class DenseNet(Network):
    """The paper's DenseNet."""

    def forward(self: Any, image: Tensor) -> Tensor:
        x = self.lifted(image)
        for block, transition in zip(self.blocks, self.transitions, strict=False):
            mixed = transition.mix(pool(transition.reduce(dense_block(block, x))))
            x = torch.cat([mixed, pool(x)], 1)
        x = dense_block(self.blocks[-1], x)
        return self.linear(x.mean([*range(2, x.ndim)]))


def rival(model: nn.Module) -> Network:
    """The same network in plain PyTorch; one with levels was built with ``preset="paper"``."""
    return ResNet(model) if isinstance(model, models.ResNet) else DenseNet(model)


def pool(x: Tensor) -> Tensor:
    return F.avg_pool3d(x, (1, 2, 2)) if x.ndim == 5 else F.avg_pool2d(x, 2)


def dense_block(block: Any, x: Tensor) -> Tensor:
    """Each layer, BN - ReLU - conv, sees the input and the outputs of all layers before it."""
    for layer in block.layers:
        x = torch.cat([x, layer(x)], 1)
    return x
