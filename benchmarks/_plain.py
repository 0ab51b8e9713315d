"""The paper's baselines in plain PyTorch: a ResNet and a DenseNet that know nothing of levels.

Both are built after a network of :mod:`scalespaces.models`, block by block, and take over its weights.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Residual(nn.Module):
    """The supplement's res[1,h,w]: conv - BN - ReLU - conv - BN, and the input beside it."""

    def __init__(self, network: Network, like: Any) -> None:
        super().__init__()
        self.missing: int | None = like.missing
        self.conv1, self.norm1 = network.conv(like.conv1), network.norm(like.norm1)
        self.relu = nn.ReLU()
        self.conv2, self.norm2 = network.conv(like.conv2), network.norm(like.norm2)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        out = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        if self.missing is None:
            return out
        return out + F.pad(x, [0, 0] * (x.ndim - 2) + [0, self.missing]) if self.missing else out + x


class DenseLayer(nn.Module):
    """The supplement's BN - ReLU - conv."""

    def __init__(self, network: Network, like: Any) -> None:
        super().__init__()
        self.norm, self.relu, self.conv = network.norm(like.norm), nn.ReLU(), network.conv(like.conv)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer."""
        return self.conv(self.relu(self.norm(x)))


class DenseBlock(nn.Module):
    """Each layer sees the input and what all layers before it gave."""

    def __init__(self, network: Network, like: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DenseLayer(network, layer) for layer in like.layers)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


class Transition(nn.Module):
    """A dense layer of 1 x 1, average pooling, a dense layer of 3 x 3."""

    def __init__(self, network: Network, like: Any) -> None:
        super().__init__()
        self.reduce, self.mix = DenseLayer(network, like.reduce), DenseLayer(network, like.mix)
        self.pool = network.pool

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        return self.mix(self.pool(self.reduce(x)))


class Network(nn.Module):
    """What a network is made of; the paper's algorithm has other parts."""

    def conv(self, like: Any) -> nn.Module:
        """A convolution of the same size."""
        bias, (height, width) = like.bias is not None, like.kernel_size[1:]
        padding = (height // 2, width // 2)
        return nn.Conv2d(like.in_channels, like.out_channels, (height, width), padding=padding, bias=bias)

    def norm(self, like: Any) -> nn.Module:
        """A batch normalization of the same size."""
        return nn.BatchNorm2d(like.num_features)

    def pool(self, x: Tensor) -> Tensor:
        """Average pooling of 2 x 2."""
        return F.avg_pool2d(x, 2)

    def lifted(self, image: Tensor) -> Tensor:
        """What the first layer sees."""
        return image

    def over_levels(self, x: Tensor) -> Tensor:
        """The features, one level of them."""
        return x

    def take_weights(self, model: nn.Module) -> None:
        """Copy the weights and statistics, whose names are the same."""
        self.to(next(model.parameters()).dtype).load_state_dict(model.state_dict())


class ResNet(Network):
    """The paper's ResNet, with the weights of ``models.create_model("resnet")``.

    For images whose sides 8 divides: then bilinear upsampling is the one of ``F.interpolate``.

    Example:
        >>> model = scalespaces.models.create_model("resnet")
        >>> ResNet(model)(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 19, 32, 32])
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        blocks: Any = model.blocks
        self.blocks = nn.ModuleList(Residual(self, block) for block in blocks)
        self.pooled = [n > 0 and block.conv1.in_channels < block.conv1.out_channels for n, block in enumerate(blocks)]
        self.classifier = nn.Conv2d(model.classifier.in_channels, model.classifier.out_channels, 1)
        self.take_weights(model)

    def forward(self, image: Tensor) -> Tensor:
        """The class scores of every pixel."""
        x = self.lifted(image)
        for block, pooled in zip(self.blocks, self.pooled, strict=True):
            x = block(self.pool(x) if pooled else x)
        scores = self.classifier(self.over_levels(x))
        return F.interpolate(scores, image.shape[2:], mode="bilinear", align_corners=False)


class DenseNet(Network):
    """The paper's DenseNet, with the weights of ``models.create_model("densenet")``.

    Example:
        >>> model = scalespaces.models.create_model("densenet")
        >>> DenseNet(model)(torch.zeros(1, 3, 96, 96)).shape
        torch.Size([1, 2])
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(DenseBlock(self, block) for block in model.blocks)
        self.transitions = nn.ModuleList(Transition(self, transition) for transition in model.transitions)
        self.linear = nn.Linear(model.linear.in_features, model.linear.out_features)
        self.take_weights(model)

    def forward(self, image: Tensor) -> Tensor:
        """The class scores."""
        x = self.lifted(image)
        for block, transition in zip(self.blocks, self.transitions, strict=False):
            x = torch.cat([transition(block(x)), self.pool(x)], 1)
        return self.linear(self.over_levels(self.blocks[-1](x)).mean((2, 3)))
