"""The paper's baselines in plain PyTorch: a ResNet and a DenseNet that know nothing of levels."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scalespaces.nn import ScaleBatchNorm, ScaleConv2d


class Network(nn.Module):
    """Parts of a network of ours, copied with their weights; PyTorch's own layers take the place of ours.

    The forward passes are written out below. The paper's algorithm has other layers.
    """

    blocks: Any
    transitions: Any
    linear: Any

    def __init__(self, model: Any, *parts: str) -> None:
        super().__init__()
        for part in parts:
            self.add_module(part, copy.deepcopy(getattr(model, part)))
        for name, layer in [*self.named_modules()]:
            if isinstance(layer, ScaleConv2d):
                self.set_submodule(name, self.conv(layer))
            elif isinstance(layer, ScaleBatchNorm):
                norm = self.norm(layer.num_features).to(layer.running_mean)
                norm.load_state_dict(layer.state_dict())
                self.set_submodule(name, norm)

    def conv(self, like: Any) -> nn.Module:
        return plain_conv(like)

    def norm(self, channels: int) -> nn.Module:
        return nn.BatchNorm2d(channels)

    def pool(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(x, 2)

    def lifted(self, image: Tensor) -> Tensor:
        return image

    def over_levels(self, x: Tensor) -> Tensor:
        return x


def plain_conv(like: Any) -> nn.Module:
    """A convolution with the weights of a correlation whose filters have one level."""
    size = like.kernel_size[1:]
    conv = nn.Conv2d(like.in_channels, like.out_channels, size, padding=tuple(n // 2 for n in size))
    conv.weight, conv.bias = like.weight, like.bias
    return conv


class ResNet(Network):
    """The paper's ResNet, for images whose sides 8 divides: then its upsampling is that of ``F.interpolate``."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, "blocks")
        self.classifier = plain_conv(copy.deepcopy(model.classifier))  # on one level, in the paper's algorithm too

    def forward(self, image: Tensor) -> Tensor:
        x = self.lifted(image)
        for n, block in enumerate(self.blocks):
            x = residual(block, self.pool(x) if n and block.missing else x)
        return F.interpolate(self.classifier(self.over_levels(x)), image.shape[2:], mode="bilinear")


class DenseNet(Network):
    """The paper's DenseNet."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, "blocks", "transitions", "linear")

    def forward(self, image: Tensor) -> Tensor:
        x = self.lifted(image)
        for block, transition in zip(self.blocks, self.transitions, strict=False):
            mixed = dense(transition.mix, self.pool(dense(transition.reduce, dense_block(block, x))))
            x = torch.cat([mixed, self.pool(x)], 1)
        return self.linear(self.over_levels(dense_block(self.blocks[-1], x)).mean((2, 3)))


def residual(block: Any, x: Tensor) -> Tensor:
    """The supplement's res[1,h,w]: conv - BN - ReLU - conv - BN, with a skip except in the last block."""
    out = block.norm2(block.conv2(F.relu(block.norm1(block.conv1(x)))))
    if block.missing is None:
        return out
    return out + F.pad(x, [0, 0] * (x.ndim - 2) + [0, block.missing]) if block.missing else out + x


def dense(layer: Any, x: Tensor) -> Tensor:
    """The supplement's BN - ReLU - conv."""
    return layer.conv(F.relu(layer.norm(x)))


def dense_block(block: Any, x: Tensor) -> Tensor:
    """Each layer sees the input and the outputs of all layers before it."""
    for layer in block.layers:
        x = torch.cat([x, dense(layer, x)], 1)
    return x
