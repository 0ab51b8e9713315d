"""CNNs in the idioms of those that people have, and what tests need of them."""

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree

from scalespaces import ScaleSpace


def conv_bn(n: int, m: int, size: int = 3, stride: int = 1, groups: int = 1, act: type[nn.Module] | None = nn.ReLU):
    layers = [nn.Conv2d(n, m, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(m)]
    return nn.Sequential(*layers, *([act()] if act else []))


class Basic(nn.Module):
    def __init__(self, n: int, m: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n, m, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(m)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(m, m, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(m)
        self.downsample = conv_bn(n, m, 1, stride, act=None) if stride != 1 or n != m else None

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class Bottleneck(nn.Module):
    def __init__(self, n: int, m: int, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(conv_bn(n, m, 1), conv_bn(m, m, 3, stride), conv_bn(m, 2 * m, 1, act=None))
        pool = nn.AvgPool2d(2, stride, ceil_mode=True, count_include_pad=False)
        self.shortcut = nn.Sequential(pool, conv_bn(n, 2 * m, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x), inplace=True)


class ResNet(nn.Module):
    def __init__(self, num_classes: int = 5) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = nn.Sequential(Basic(8, 8), Basic(8, 8))
        self.layer2 = nn.Sequential(Basic(8, 16, 2), Bottleneck(16, 8, 2))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(16, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.avgpool(self.layer2(self.layer1(x)))
        x = torch.flatten(x, 1)
        return self.fc(x)


class SqueezeExcite(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.avgpool, self.fc1, self.fc2 = nn.AdaptiveAvgPool2d(1), nn.Conv2d(n, 4, 1), nn.Conv2d(4, n, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.hardsigmoid(self.fc2(F.relu(self.fc1(self.avgpool(x))))) * x


def stochastic_depth(x: Tensor, p: float, training: bool) -> Tensor:
    """As torchvision draws it, and as timm does."""
    if not training:
        return x
    noise = torch.empty([x.shape[0]] + [1] * (x.ndim - 1), dtype=x.dtype, device=x.device).bernoulli_(1 - p)
    keep = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(1 - p)
    return x * noise.div_(1 - p) * keep.div_(1 - p)


class MobileBlock(nn.Module):
    def __init__(self, n: int, m: int, stride: int, act: type[nn.Module]) -> None:
        super().__init__()
        self.block = nn.Sequential(
            conv_bn(n, 2 * n, 1, act=act),
            conv_bn(2 * n, 2 * n, 5, stride, 2 * n, act),
            SqueezeExcite(2 * n),
            conv_bn(2 * n, m, 1, act=None),
        )
        self.use_res_connect = stride == 1 and n == m

    def forward(self, x: Tensor) -> Tensor:
        y = self.block(x)
        return x + stochastic_depth(y, 0.2, self.training) if self.use_res_connect else y


class MobileNet(nn.Module):
    def __init__(self, act: type[nn.Module] = nn.Hardswish) -> None:
        super().__init__()
        self.stem = conv_bn(3, 8, 3, 2, act=act)
        self.blocks = nn.Sequential(MobileBlock(8, 8, 1, act), MobileBlock(8, 12, 2, act), conv_bn(12, 12, groups=3))
        self.head = nn.Sequential(nn.Linear(12, 16), act(), nn.Dropout(0.2), nn.Linear(16, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean([2, 3]))


class Permute(nn.Module):
    def __init__(self, dims: list[int]) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        return torch.permute(x, self.dims)


class LayerNorm2d(nn.LayerNorm):
    def forward(self, input: Tensor) -> Tensor:
        x = F.layer_norm(input.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class NextBlock(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv2d(n, n, 7, padding=3, groups=n),
            Permute([0, 2, 3, 1]),
            nn.LayerNorm(n, eps=1e-6),
            nn.Linear(n, 2 * n),
            nn.GELU(),
            nn.Linear(2 * n, n),
            Permute([0, 3, 1, 2]),
        )
        self.layer_scale = nn.Parameter(torch.rand(n, 1, 1))
        self.gamma = nn.Parameter(torch.rand(n))

    def forward(self, input: Tensor) -> Tensor:
        x = self.layer_scale * self.block(input) + input
        y = x.permute(0, 2, 3, 1).mul(self.gamma).permute(0, 3, 1, 2)
        return x + self.gamma.reshape(1, -1, 1, 1) * y


class ConvNeXt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 4, 4), LayerNorm2d(8))
        self.stages = nn.Sequential(NextBlock(8), LayerNorm2d(8), nn.Conv2d(8, 12, 2, 2), NextBlock(12))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), LayerNorm2d(12), nn.Flatten(1), nn.Linear(12, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(x)))


def vgg() -> nn.Module:
    first = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(kernel_size=2, stride=2)]
    features = nn.Sequential(*first, conv_bn(8, 8), nn.MaxPool2d(2))
    head = nn.Sequential(nn.Linear(8 * 49, 16), nn.ReLU(True), nn.Dropout(), nn.Linear(16, 5))
    parts = {"features": features, "avgpool": nn.AdaptiveAvgPool2d((7, 7)), "flatten": nn.Flatten(), "classifier": head}
    return nn.Sequential(OrderedDict(parts))


class UNet(nn.Module):
    def __init__(self, up: str = "transposed") -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = conv_bn(3, 6), conv_bn(6, 8), conv_bn(8, 8)
        self.pool = nn.MaxPool2d(2)
        self.up2, self.up1 = (nn.ConvTranspose2d(n, n, 2, stride=2) for n in (8, 8))
        if up == "upsample":
            self.up2 = self.up1 = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.conv2, self.conv1, self.out = conv_bn(16, 8), conv_bn(14, 6), nn.Conv2d(6, 2, 1)
        self.up = up

    def raise_to(self, up: nn.Module, x: Tensor, skip: Tensor) -> Tensor:
        if self.up == "interpolate":
            x = F.interpolate(x, size=skip.shape[-2:], mode="nearest")
        elif self.up == "padded":
            x = up(x)
            dy, dx = skip.size()[2] - x.size()[2], skip.size()[3] - x.size()[3]
            x = F.pad(x, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        elif self.up == "cropped":
            x = F.interpolate(x, scale_factor=2, mode="bilinear")[:, :, : skip.size(2), : skip.size(3)]
        else:
            x = up(x)
        return torch.cat([skip, x], dim=1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(self.pool(first))
        x = self.conv2(self.raise_to(self.up2, self.bottom(self.pool(second)), second))
        return self.out(self.conv1(self.raise_to(self.up1, x, first)))


class DynamicSame(nn.Conv2d):
    """Padding as TensorFlow has it."""

    def pad(self, input: Tensor) -> Tensor:
        amounts = []
        for n, k, s in zip(input.shape[-2:], self.weight.shape[-2:], self.stride, strict=True):
            total = max((math.ceil(n / s) - 1) * s + k - n, 0)
            amounts = [total // 2, total - total // 2, *amounts]
        return F.pad(input, amounts)

    def forward(self, input: Tensor) -> Tensor:
        return F.conv2d(self.pad(input), self.weight, self.bias, self.stride)


class Same2d(DynamicSame):
    """Standardized weights, too."""

    def forward(self, input: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(self.pad(input), weight, self.bias, self.stride)


class Zoo(nn.Module):
    """What else there is."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Same2d(3, 8, 3, stride=2)
        self.group, self.instance = nn.GroupNorm(2, 8), nn.InstanceNorm2d(8, affine=True)
        self.gate, self.mix = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect")
        self.scale = nn.Parameter(torch.rand(1, 8, 1, 1))
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Any]]:
        x = 2 * self.group(self.stem(x))
        batch, channels, height, width = x.shape
        x = x.view(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(batch, channels, height, width)
        y = self.instance(F.leaky_relu(x, 0.1, inplace=True))
        gate = torch.sigmoid(self.gate(y))
        x = gate * y + (1 - gate) * self.scale
        x += y
        x = torch.cat([part.tanh() for part in x.chunk(2, dim=1)], 1) ** 2
        x = x + torch.zeros_like(x) + x.new_ones(batch, 1, height, width) / (height * width)
        features = F.silu(self.mix(F.pad(x, (1, 1, 1, 1), mode="replicate")))
        best, _ = features.max(dim=1, keepdim=True)
        stacked = torch.stack([features, best.expand(-1, channels, -1, -1)], dim=1).sum(dim=1)
        return self.fc(stacked.mean((-2, -1))), {"features": stacked, "list": [best, 3, None]}


class ViT(nn.Module):
    """Attention over the patches, with position embeddings that are resized to the image."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.position = nn.Conv2d(3, 8, 8, 8), nn.Parameter(torch.randn(1, 8, 4, 4))
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        assert isinstance(x, Tensor)
        x = self.patches(x)
        x = x + F.interpolate(self.position, size=x.shape[2:], mode="bicubic")
        tokens = self.block(x.flatten(2).transpose(1, 2))
        return {"scores": self.head(tokens.mean(1)), "tokens": tokens, "map": x}


class Attention(nn.Module):
    """Channels that attend to their neighbors, by a convolution along the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 1, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x.mean((2, 3)).view(x.shape[0], 1, -1))
        return x * y.sigmoid().view(x.shape[0], -1, 1, 1).expand_as(x)


class Renamed(nn.Conv2d):
    """A plain convolution under another name."""


def same(conv: type[nn.Conv2d] = DynamicSame) -> nn.Module:
    """Channel attention between convolutions of a subclass."""
    layers = [conv(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), Attention(), conv(8, 8, 5, stride=2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


def volumes(dims: int) -> nn.Module:
    conv, norm, pool = (getattr(nn, f"{name}{dims}d") for name in ("Conv", "BatchNorm", "MaxPool"))
    up = nn.Upsample(scale_factor=2, mode={1: "linear", 3: "trilinear"}[dims])
    layers = [conv(3, 4, 3, padding=1), norm(4), nn.ReLU(), pool(2), conv(4, 4, 3, padding=1), up, conv(4, 2, 3)]
    return nn.Sequential(*layers)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet": (ResNet, (65, 70)),
    "mobilenet": (MobileNet, (50, 48)),
    "efficientnet": (lambda: MobileNet(nn.SiLU), (37, 48)),
    "convnext": (ConvNeXt, (66, 64)),
    "vgg": (vgg, (64, 57)),
    "unet": (UNet, (32, 64)),
    "unet, interpolate": (lambda: UNet("interpolate"), (49, 58)),
    "unet, upsample": (lambda: UNet("upsample"), (64, 32)),
    "unet, padded": (lambda: UNet("padded"), (64, 96)),
    "unet, cropped": (lambda: UNet("cropped"), (64, 96)),
    "zoo": (Zoo, (33, 44)),
    "same": (same, (64, 48)),
    "signals": (lambda: volumes(1), (96,)),
    "volumes": (lambda: volumes(3), (24, 24, 32)),
}

ALONE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {  # right on levels, but not on scale-spaces
    "vit": (ViT, (64, 96)),
    "pooling by norms": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.LPPool2d(2, 2)), (45, 64)),
    "scripted": (lambda: torch.jit.script(same(Renamed)), (64, 64)),
}


def build(name: str) -> tuple[Any, Tensor]:
    """The network in evaluation, with statistics that are not those it starts with, and an image."""
    torch.manual_seed(1)
    make, size = (NETWORKS | ALONE)[name]
    network = make().double()
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias)
            nn.init.normal_(module.running_mean)  # pyright: ignore[reportArgumentType]
            nn.init.uniform_(module.running_var, 0.5, 1.5)  # pyright: ignore[reportArgumentType]
    return network.eval(), torch.randn(2, 3, *size, dtype=torch.float64)


def spaces(output: Any) -> list[Any]:
    leaves = _pytree.tree_leaves(output, is_leaf=lambda leaf: isinstance(leaf, ScaleSpace))
    return [leaf for leaf in leaves if isinstance(leaf, (Tensor, ScaleSpace))]
