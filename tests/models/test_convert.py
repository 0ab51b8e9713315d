"""Converted networks compute at every level what the plain ones compute, and refuse what they cannot."""

import copy
import inspect
import json
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils import _pytree

from scalespaces import ConversionError, ScaleSpace, assert_equivariant, convert, equivariance_error, resample
from scalespaces.nn import Lift, ScaleBatchNorm, ScaleConv2d

# --- networks, in the idioms of those that people have ---------------------------------------------------------------


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
        self.downsample = None
        if stride != 1 or n != m:
            self.downsample = nn.Sequential(nn.Conv2d(n, m, 1, stride, bias=False), nn.BatchNorm2d(m))

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
        self.shortcut = nn.Sequential(
            nn.AvgPool2d(2, stride, ceil_mode=True, count_include_pad=False), conv_bn(n, 2 * m, 1)
        )

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


class DenseLayer(nn.Module):
    def __init__(self, n: int, growth: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(n), nn.Conv2d(n, growth, 3, padding=1, bias=False)

    def forward(self, input: Any) -> Tensor:
        prev = [input] if isinstance(input, Tensor) else input
        return self.conv(F.relu(self.norm(torch.cat(prev, 1))))


class DenseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(OrderedDict(conv0=nn.Conv2d(3, 8, 3, 2, 1), norm0=nn.BatchNorm2d(8)))
        self.layers = nn.ModuleList([DenseLayer(8, 4), DenseLayer(12, 4)])
        self.transition = nn.Sequential(nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 1), nn.AvgPool2d(2, 2))
        self.classifier = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        features = [self.features(x)]
        for layer in self.layers:
            features.append(layer(features))
        out = F.avg_pool2d(F.relu(self.transition(torch.cat(features, 1))), 2)
        out = F.adaptive_avg_pool2d(out, (1, 1)).view(x.size(0), -1)
        return self.classifier(out)


class SqueezeExcite(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.avgpool, self.fc1, self.fc2 = nn.AdaptiveAvgPool2d(1), nn.Conv2d(n, 4, 1), nn.Conv2d(4, n, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.hardsigmoid(self.fc2(F.relu(self.fc1(self.avgpool(x))))) * x


def stochastic_depth(x: Tensor, p: float, training: bool) -> Tensor:
    if not training:
        return x
    noise = torch.empty([x.shape[0]] + [1] * (x.ndim - 1), dtype=x.dtype, device=x.device).bernoulli_(1 - p)
    return x * noise.div_(1 - p)


def drop_path(x: Tensor, p: float, training: bool) -> Tensor:
    if not training:
        return x
    keep = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(1 - p)
    return x * keep.div_(1 - p)


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
        return x + stochastic_depth(drop_path(y, 0.2, self.training), 0.2, self.training) if self.use_res_connect else y


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


class VGG(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.ReLU(True),
            nn.MaxPool2d(kernel_size=2, stride=2),
            conv_bn(8, 8),
            nn.MaxPool2d(2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d((7, 7))
        self.classifier = nn.Sequential(nn.Linear(8 * 49, 16), nn.ReLU(True), nn.Dropout(), nn.Linear(16, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


class ASPPPooling(nn.Sequential):
    def __init__(self, n: int, m: int) -> None:
        super().__init__(nn.AdaptiveAvgPool2d(1), nn.Conv2d(n, m, 1, bias=False), nn.BatchNorm2d(m), nn.ReLU())

    def forward(self, input: Tensor) -> Tensor:
        x, size = input, input.shape[-2:]
        for module in self:
            x = module(x)
        return F.interpolate(x, size=size, mode="bilinear", align_corners=False)


class DeepLab(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(conv_bn(3, 8, 7, 2), nn.MaxPool2d(3, 2, 1), Basic(8, 8, 2))
        dilated = [nn.Conv2d(8, 4, 3, padding=d, dilation=d, bias=False) for d in (2, 3)]
        self.convs = nn.ModuleList([nn.Conv2d(8, 4, 1), *dilated, ASPPPooling(8, 4)])
        self.classifier, self.aux_classifier = nn.Conv2d(16, 3, 1), nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        input_shape = x.shape[-2:]
        features = self.backbone(x)
        result = OrderedDict()
        x = self.classifier(torch.cat([conv(features) for conv in self.convs], dim=1))
        result["out"] = F.interpolate(x, size=input_shape, mode="bilinear", align_corners=False)
        result["aux"] = F.interpolate(self.aux_classifier(features), size=input_shape, mode="bilinear")
        return result


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


class Same2d(nn.Conv2d):
    """Padding as TensorFlow has it, and standardized weights."""

    def forward(self, input: Tensor) -> Tensor:
        amounts = []
        for n, k, s in zip(input.size()[-2:], self.kernel_size, self.stride, strict=True):
            total = max((math.ceil(n / s) - 1) * s + k - n, 0)
            amounts = [total // 2, total - total // 2, *amounts]
        w = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(F.pad(input, amounts), w, self.bias, self.stride)


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


def volumes(dims: int) -> nn.Module:
    conv, norm, pool = {
        1: (nn.Conv1d, nn.BatchNorm1d, nn.MaxPool1d),
        3: (nn.Conv3d, nn.BatchNorm3d, nn.MaxPool3d),
    }[dims]
    up = nn.Upsample(scale_factor=2, mode={1: "linear", 3: "trilinear"}[dims])
    layers = [conv(3, 4, 3, padding=1), norm(4), nn.ReLU(), pool(2), conv(4, 4, 3, padding=1), up, conv(4, 2, 3)]
    return nn.Sequential(*layers)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet": (ResNet, (65, 70)),
    "densenet": (DenseNet, (64, 65)),
    "mobilenet": (MobileNet, (50, 48)),
    "efficientnet": (lambda: MobileNet(nn.SiLU), (37, 48)),
    "convnext": (ConvNeXt, (66, 64)),
    "vgg": (VGG, (64, 57)),
    "deeplab": (DeepLab, (65, 81)),
    "deeplab, even": (DeepLab, (64, 96)),
    "unet": (UNet, (32, 64)),
    "unet, interpolate": (lambda: UNet("interpolate"), (49, 58)),
    "unet, upsample": (lambda: UNet("upsample"), (64, 32)),
    "unet, padded": (lambda: UNet("padded"), (64, 96)),
    "unet, cropped": (lambda: UNet("cropped"), (64, 96)),
    "zoo": (Zoo, (33, 44)),
    "signals": (lambda: volumes(1), (96,)),
    "volumes": (lambda: volumes(3), (24, 24, 32)),
}
NOT_DENSE = {"zoo"}  # its padding is computed from sizes: samples where taps are meant


def build(name: str) -> tuple[Any, Tensor]:
    """The network in evaluation, with statistics that are not those it starts with, and an image."""
    torch.manual_seed(1)
    make, size = NETWORKS[name]
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


# --- what they compute -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_level_k_is_the_network_on_the_downscaled_image(name):
    network, image = build(name)
    converted = convert(network, {"num_levels": 3})
    output = spaces(converted.outputs(image))
    for k in range(3):
        expected = spaces(network(converted.lift.downscale(image, k)))
        assert len(expected) == len(output)
        for got, wanted in zip(output, expected, strict=True):
            assert_close(got.levels[k], wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sampling", ["dense", 2])
@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in NOT_DENSE])
@torch.no_grad()
def test_level_0_is_the_network(name, sampling):
    network, image = build(name)
    output = spaces(convert(network, {"num_levels": 3, "sampling": sampling}).outputs(image))
    for got, wanted in zip(output, spaces(network(image)), strict=True):
        assert_close(got.levels[0], wanted, rtol=1e-12, atol=1e-12)
        assert all(level.isfinite().all() for level in got.levels)


@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in ("signals", "volumes")])
@torch.no_grad()
def test_interactions_start_at_nothing_and_then_matter(name):
    network, image = build(name)
    plain = spaces(convert(network, {"num_levels": 3}).outputs(image))
    converted = convert(network, {"num_levels": 3}, interaction="all")
    for got, wanted in zip(spaces(converted.outputs(image)), plain, strict=True):
        assert_close(got.levels, wanted.levels, rtol=1e-12, atol=1e-12)
    layers = [module for module in converted.modules() if isinstance(module, ScaleConv2d)]
    assert len(layers) == sum(type(module) is nn.Conv2d for module in network.modules())
    for layer in layers:
        layer.weight[:, :, 1].normal_(0, 0.3)
    for got, wanted in zip(spaces(converted.outputs(image)), plain, strict=True):
        assert (got.levels[0] - wanted.levels[0]).abs().max() > 1e-6


def photograph(size: int) -> Tensor:
    axis = torch.linspace(0, 9, size, dtype=torch.float64)
    waves = torch.stack([torch.sin(a * axis[:, None] + b * axis.cos()) for a, b in ((2, 5), (3, -4), (7, 9))])
    return (waves + 0.2 * torch.randn(3, size, size, dtype=torch.float64))[None]


@pytest.mark.parametrize("name", ["resnet", "unet", "unet, interpolate"])
def test_is_equivariant(name):
    network = build(name)[0]
    image = photograph(256)
    assert_equivariant(convert(network), image)
    two_layers = ["layer2.0.conv2", "layer2.1.body.2.0"] if name == "resnet" else ["out", "down1.0"]
    converted = convert(network, interaction=two_layers)
    with torch.no_grad():
        for layer in converted.modules():
            if isinstance(layer, ScaleConv2d):
                layer.weight[:, :, 1].normal_(0, 0.3)
    assert_equivariant(converted, image)
    table = equivariance_error(converted, image)
    assert table.boundary == 2
    assert table.errors[0, 2] > 1e-6  # the filters of the last levels do see past the end


def test_a_dense_unet_is_equivariant():
    """Where no level is averaged as a whole: a mean over all samples is another one than over every second."""
    converted = convert(build("unet, interpolate")[0], {"num_levels": 3, "sampling": "dense", "padding_mode": "zeros"})
    image = torch.randn(1, 3, 65, 65, dtype=torch.float64)
    assert np.nanmax(equivariance_error(converted, image).errors) < 1e-12


# --- the module ------------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Record:
    logits: Any
    name: str = "record"


class Nests(nn.Module):
    def forward(self, x: Any) -> Any:
        y = x.mean((2, 3))
        return Pair(x, [y, (y, 1)]), Record(y), OrderedDict(a={"b": y}), None


class Blank(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.new_zeros(x.shape[0], x.shape[2])


POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda levels: levels.mean(0),
    "max": lambda levels: levels.amax(0),
    "logsumexp": lambda levels: levels.exp().mean(0).log(),
    "probabilities": lambda levels: levels.softmax(2).mean(0).log(),
}


class TestScores:
    @pytest.mark.parametrize("pool", POOLS)
    @pytest.mark.parametrize("name", ["resnet", "unet", "unet, interpolate", "signals"])
    @torch.no_grad()
    def test_they_pool_to_the_answer(self, name, pool):
        network, image = build(name)
        converted = convert(network, {"num_levels": 3}, scale_pool=pool)
        scores, pooled = converted.scores(image), converted(image)
        on_level_0 = torch.stack(resample(scores).levels)
        assert_close(POOLS[pool](on_level_0), pooled)
        assert_close(scores.levels[0], network(image))
        for k, level in enumerate(scores.levels):
            assert_close(level, network(converted.lift.downscale(image, k)))
            if name == "unet, interpolate":  # its samples stay where the pixels are
                assert_close(on_level_0[k][:, :, :: 2**k, :: 2**k], level)

    @torch.no_grad()
    def test_with_finer_levels_and_pooling_inside(self):
        network, image = build("resnet")
        converted = convert(network, {"num_levels": 3, "first_level": -1}, pool_before="fc")
        answer, scores = converted.answer_and_scores(image)
        assert_close(torch.stack(scores.levels).mean(0), answer)
        assert_close(converted(image), answer)
        assert_close(scores.level(0), network(image))

    @torch.no_grad()
    def test_pooling_inside_pools_features_for_the_answer_alone(self):
        network, image = build("vgg")
        converted = convert(network, {"num_levels": 2}, scale_pool="max", pool_before="classifier")
        answer, scores = converted.answer_and_scores(image)
        assert_close(answer, converted(image))
        assert_close(scores.levels, converted.scores(image).levels)
        assert_close(scores.levels[0], network(image))
        assert not torch.allclose(torch.stack(scores.levels).amax(0), answer)

    def test_gradients(self):
        network, image = build("unet")
        converted = convert(network, {"num_levels": 2})
        torch.stack([level.square().mean() for level in converted.scores(image).levels]).sum().backward()
        assert all(p.grad is not None for p in converted.parameters())

    @pytest.mark.parametrize("model", ["deeplab", "nests"])
    def test_nests_are_refused(self, model):
        network = Nests() if model == "nests" else build(model)[0]
        image = torch.rand(1, 3, 64, 64, dtype=torch.float64)
        with pytest.raises(TypeError, match=r"with a single output, got a (OrderedDict|tuple); .*network\.outputs\("):
            convert(network, {"num_levels": 2}).scores(image)

    def test_levels_of_many_shapes_are_refused(self):
        converted = convert(Blank(), {"num_levels": 2})
        with pytest.raises(ConversionError, match="no grids cannot be pooled over levels"):
            converted.scores(torch.rand(1, 3, 8, 8))


class TestFeatures:
    @torch.no_grad()
    def test_they_are_what_the_last_linear_layer_sees(self):
        network, image = build("resnet")
        converted = convert(network, {"num_levels": 3})
        features = converted.features(image)
        assert features.shapes == ((2, 16),) * 3
        assert_close(features.map(network.fc).levels, converted.scores(image).levels)

    @torch.no_grad()
    def test_without_a_linear_layer_they_are_what_the_last_convolution_sees(self):
        network, image = build("unet")
        converted = convert(network, {"num_levels": 2}, interaction=["out"])
        features = converted.features(image)
        assert_close(network.out(features.levels[0]), network(image))
        assert [shape[2:] for shape in features.shapes] == [(32, 64), (16, 32)]

    @torch.no_grad()
    def test_any_module_can_be_named(self):
        network, image = build("resnet")
        converted = convert(network, {"num_levels": 3}, features="layer2", pool_before="fc")
        features = converted.features(image)
        for k, level in enumerate(features.levels):
            seen = network.maxpool(network.relu(network.bn1(network.conv1(converted.lift.downscale(image, k)))))
            assert_close(level, network.layer1(seen))
        assert converted.config["features"] == "layer2"
        assert not network.layer2._forward_pre_hooks
        model: Any = converted.model
        assert not model.layer2._forward_pre_hooks
        assert list(converted.pyramid(image)) == ["0", "1", "2"]

    def test_what_cannot_be(self):
        network = build("resnet")[0]
        with pytest.raises(ValueError, match="features is the name of a module, got 'layer9'; did you mean 'layer"):
            convert(network, features="layer9")
        with pytest.raises(ValueError, match=r"the model has no linear layer .*convert\(features=...\)"):
            convert(nn.ReLU()).features(torch.rand(1, 3, 8, 8))
        unused = nn.ModuleDict({"used": nn.Conv2d(3, 2, 1), "unused": nn.Linear(3, 2)})
        unused.forward = unused["used"].forward  # pyright: ignore[reportAttributeAccessIssue]
        with pytest.raises(ValueError, match="the module 'unused' is not called with a ScaleSpace; name another"):
            convert(unused, {"num_levels": 2}).features(torch.rand(1, 3, 8, 8))


class TestLift:
    def test_a_lift_or_its_arguments(self):
        network = build("resnet")[0]
        lift = Lift(3, 1.5, zero_scale=0.5)
        taken = convert(network, lift)
        assert taken.lift.config == taken.config["lift"] == lift.config
        assert taken.lift is not lift
        assert convert(network, {"base": 1.5}).lift.config == Lift(base=1.5).config
        assert convert(network).lift.config == Lift().config
        assert convert(network, Lift.paper(2)).lift.config == Lift.paper(2).config

    @pytest.mark.parametrize(("name", "dims"), [("signals", 1), ("resnet", 2), ("volumes", 3)])
    def test_the_axes_are_the_models(self, name, dims):
        network = build(name)[0]
        assert convert(network).lift.dims == dims
        assert convert(network, {"num_levels": 2}).config["lift"]["dims"] == dims
        interacting = convert(network, interaction="all").model
        assert convert(interacting).lift.dims == dims  # also of our own convolutions

    @pytest.mark.parametrize(
        ("lift", "error", "message"),
        [
            (3, TypeError, "lift is a Lift or a dict of its arguments, got int"),
            ({"levels": 3}, TypeError, "a lift takes no levels; it takes num_levels"),
            ({"sampling": "sparse"}, ValueError, "sampling is"),
        ],
    )
    def test_wrong_lifts(self, lift, error, message):
        with pytest.raises(error, match=message):
            convert(build("resnet")[0], lift)


class TestModule:
    def test_outputs_are_pooled_wherever_they_are(self):
        image = torch.rand(2, 3, 32, 32)
        pair, record, tree, none = convert(Nests(), {"num_levels": 3})(image)
        levels = convert(Nests(), {"num_levels": 3}).outputs(image)
        assert (type(pair), type(record), type(tree), none) == (Pair, Record, OrderedDict, None)
        assert pair.first.shape == image.shape
        expected = torch.stack(levels[1].logits.levels).mean(0)
        for got in (pair.second[0], pair.second[1][0], record.logits, tree["a"]["b"]):
            assert_close(got, expected)
        assert (pair.second[1][1], record.name) == (1, "record")
        assert isinstance(levels[0].first, ScaleSpace)

    def test_pools_features_instead_of_logits(self):
        network, image = build("vgg")
        converted = convert(network, {"num_levels": 3}, scale_pool="max", pool_before="classifier")
        features = [network.avgpool(network.features(converted.lift.downscale(image, k))) for k in range(3)]
        expected = network.classifier(torch.stack(features).amax(0).flatten(1))
        assert_close(converted(image), expected)
        assert converted.outputs(image).num_levels == 3
        assert_close(copy.deepcopy(converted)(image), expected)
        with pytest.raises(ValueError, match="pool_before is the name of a module, got 'clasifier'; did you mean"):
            convert(network, pool_before="clasifier")

    def test_dense_predictions_have_the_size_of_the_image(self):
        network, image = build("deeplab")
        assert convert(network, {"num_levels": 3})(image)["out"].shape == (2, 3, 65, 81)

    def test_the_network_is_copied_and_its_parameters_keep_their_names(self):
        network, image = build("resnet")
        before = copy.deepcopy(network.state_dict())
        converted = convert(network, {"num_levels": 3}, interaction=["layer1.*"])
        assert {key.removeprefix("model.") for key in converted.state_dict()} == set(before)
        with torch.no_grad():
            for parameter in converted.parameters():
                parameter.zero_()
        assert_close(network.state_dict(), before)
        plain = convert(network, {"num_levels": 3})
        plain.model.load_state_dict(before)
        twin = convert(ResNet().double().eval(), {"num_levels": 3})
        twin.load_state_dict(plain.state_dict())
        assert_close(twin(image), plain(image))
        assert_close(copy.deepcopy(plain)(image), plain(image))

    def test_the_arguments_rebuild_it(self):
        network, image = build("resnet")
        converted = convert(
            network,
            {"num_levels": 3, "sampling": 2},
            interaction=lambda name, module: "conv2" in name,
            scale_pool="max",
            features="layer2",
        )
        config = json.loads(json.dumps(converted.config))
        assert config["interaction"] == [f"layer1.{i}.conv2" for i in (0, 1)] + ["layer2.0.conv2"]
        twin = convert(network, **config)
        assert twin.config == converted.config == config
        twin.load_state_dict(converted.state_dict())
        assert_close(twin(image), converted(image))

    def test_which_convolutions_see_two_levels(self):
        network = build("resnet")[0]
        convs = [name for name, module in network.named_modules() if isinstance(module, nn.Conv2d)]

        def chosen(interaction: Any) -> list[str]:
            model = convert(network, {"num_levels": 2}, interaction=interaction).model
            return [name for name, module in model.named_modules() if isinstance(module, ScaleConv2d)]

        assert chosen(None) == []
        assert chosen("all") == convs
        assert chosen(3) == convs[::3]
        assert chosen("conv1") == ["conv1"]
        assert chosen(["layer1.*.conv1", "conv1"]) == ["conv1", "layer1.0.conv1", "layer1.1.conv1"]
        for wrong in ("conv9", ["conv1", "bn1"]):
            with pytest.raises(ValueError, match="which matches none; did you mean"):
                convert(network, interaction=wrong)
        with pytest.raises(ValueError, match="integer >= 1"):
            convert(network, interaction=0)

    def test_parameters_that_are_shared_stay_so(self):
        conv = nn.Conv2d(3, 3, 3, padding=1)
        other = nn.Conv2d(3, 3, 3, padding=1)
        other.weight = conv.weight
        model: Any = convert(nn.Sequential(conv, conv, other), {"num_levels": 2}, interaction="all").model
        assert model[0] is model[1]
        assert model[0].weight is model[2].weight
        lone: Any = convert(conv, {"num_levels": 2}, interaction="all").model
        assert isinstance(lone, ScaleConv2d)

    def test_convolutions_with_code_of_their_own_are_left_alone(self):
        assert convert(Zoo(), {"num_levels": 2}, interaction="all").config["interaction"] == ["gate", "mix"]

    def test_synchronized_batch_norms_are_ours(self):
        network = nn.SyncBatchNorm.convert_sync_batchnorm(build("resnet")[0])
        converted = convert(network, {"num_levels": 2})
        assert sum(isinstance(m, ScaleBatchNorm) and m.sync for m in converted.modules()) > 5
        image = build("resnet")[1]
        assert_close(converted(image), convert(build("resnet")[0], {"num_levels": 2})(image))

    def test_training_updates_the_statistics_once_and_every_parameter(self):
        network, image = build("efficientnet")
        converted = convert(network, {"num_levels": 3}, interaction="all").train()
        norm: Any = converted.model.get_submodule("stem.1")
        before = norm.running_mean.clone()
        stem: Any = converted.model.get_submodule("stem.0")
        x = stem(converted.lift(image))
        loss = converted(image).square().sum()
        loss.backward()
        mean = torch.stack([level.mean((0, 2, 3)) for level in x.levels]).mean(0)
        assert_close(norm.running_mean, 0.9 * before + 0.1 * mean)
        assert int(norm.num_batches_tracked) == 1
        assert all(p.grad is not None and p.grad.isfinite().all() for p in converted.parameters())
        assert stem.weight.grad[:, :, 1].abs().max() > 0

    def test_the_lift_has_the_precision_of_the_network(self):
        assert convert(volumes(1).double()).lift.taps0.dtype == torch.float64
        assert convert(volumes(1)).lift.taps0.dtype == torch.float32


@pytest.mark.parametrize("sampling", ["pyramid", "dense"])
class TestTorch:
    def test_autocast(self, sampling):
        network, image = build("resnet")
        converted = convert(network.float(), {"num_levels": 3, "sampling": sampling})
        expected = converted(image.float())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = converted(image.float())
        assert_close(out.float(), expected, rtol=0.1, atol=0.2)

    def test_channels_last(self, sampling):
        network, image = build("unet, interpolate")
        converted = convert(network, {"num_levels": 3, "sampling": sampling})
        expected = converted(image)
        layout: Any = {"memory_format": torch.channels_last}
        assert_close(converted.to(**layout)(image.to(**layout)), expected)

    def test_export(self, sampling):
        network, image = build("resnet")
        converted = convert(network, {"num_levels": 3, "sampling": sampling}, interaction="all")
        exported = torch.export.export(converted, (image,), strict=False)
        assert_close(exported.module()(image), converted(image))

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["resnet", "convnext", "deeplab", "unet, interpolate"])
    def test_compile_whole_graph(self, sampling, name):
        torch._dynamo.reset()
        network, image = build(name)
        converted = convert(network.float(), {"num_levels": 3, "sampling": sampling})
        compiled: Any = torch.compile(converted, fullgraph=True)
        for got, wanted in zip(spaces(compiled(image.float())), spaces(converted(image.float())), strict=True):
            assert_close(got, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13),
    reason="before 2.13, torch exports pooling for even or for odd sizes only",
)
@pytest.mark.parametrize("name", ["resnet", "mobilenet"])
def test_export_with_dynamic_sizes(name):
    network: Any = build(name)[0]
    if name == "resnet":
        network.layer2[1] = Basic(16, 16, 2).double().eval()  # torch exports ceil_mode for sizes of one kind only
    converted = convert(network, {"num_levels": 3}, interaction=4)
    batch, height, width = (torch.export.Dim(n, min=low, max=512) for n, low in (("b", 1), ("h", 160), ("w", 160)))
    image, shapes = torch.randn(2, 3, 161, 180).double(), ({0: batch, 2: height, 3: width},)
    exported = torch.export.export(converted, (image,), dynamic_shapes=shapes, strict=False)
    for size in ((2, 3, 161, 180), (1, 3, 200, 163)):
        image = torch.randn(size).double()
        assert_close(exported.module()(image), converted(image))


# --- refusals --------------------------------------------------------------------------------------------------------


class Foreign(nn.Module):
    """One layer, then what a subclass does."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.part = nn.Sequential(nn.ReLU(), Step(self.step))

    def step(self, x: Any) -> Any:
        raise NotImplementedError

    def forward(self, x: Any) -> Any:
        return self.part(self.conv(x))


class Step(nn.Module):
    def __init__(self, step: Callable[[Any], Any]) -> None:
        super().__init__()
        self.run = step.__func__  # pyright: ignore[reportFunctionMemberAccess]

    def forward(self, x: Any) -> Any:
        return self.run(self, x)


class Branches(Foreign):
    def step(self, x: Any) -> Any:
        return x if x.shape[2] > 20 else 2 * x  # here


class Remainder(Foreign):
    def step(self, x: Any) -> Any:
        if x.size(-1) % 16:  # here
            raise AssertionError
        return x


class Gate(Foreign):
    def step(self, x: Any) -> Any:
        return x if not isinstance(x, Tensor) else 2 * x  # here


class GateOfSeveral(Foreign):
    def step(self, x: Any) -> Any:
        found = isinstance(  # here
            x,
            (list, torch.Tensor),
        )
        return x if found else 2 * x


class GateOfTorch(Foreign):
    def step(self, x: Any) -> Any:
        return x if torch.is_tensor(x) else 2 * x  # here


class ViT(Foreign):
    def step(self, x: Any) -> Any:
        return x.flatten(2).transpose(1, 2) + torch.zeros(1, 1024, 4)  # here


class Slices(Foreign):
    def step(self, x: Any) -> Any:
        return x[:, :, ::2, ::2]  # here


class LinearOverSpace(Foreign):
    def step(self, x: Any) -> Any:
        return F.linear(x, torch.ones(5, x.size(0) * 16))  # here


class Zeros(Foreign):
    def step(self, x: Any) -> Any:
        batch, channels, height, width = x.shape
        return x + torch.zeros(batch, channels, height, width)  # here


class FlattenAndLinear(Foreign):
    def step(self, x: Any) -> Any:
        return F.linear(x.view(x.size(0), -1), torch.ones(5, 4 * 1024))  # here


class Embedding(Foreign):
    def step(self, x: Any) -> Any:
        return x + torch.zeros(1, 4, 32, 32)  # here


class Loops(Foreign):
    def step(self, x: Any) -> Any:
        return sum(x.mean((2, 3)) for _ in range(x.shape[3]))  # here


class Counts(Foreign):
    def step(self, x: Any) -> Any:
        return F.unfold(x, 3)  # here


REFUSALS: dict[type[Foreign], tuple[str, str]] = {
    Branches: ("branch differently at different levels", "fewer levels"),
    Remainder: ("branch differently at different levels", "rewrite the branch"),
    Gate: ("asks whether a scale-space is a tensor", "remove the test"),
    GateOfSeveral: ("asks whether a scale-space is a tensor", "remove the test"),
    GateOfTorch: ("asks whether a scale-space is a tensor", "remove the test"),
    ViT: ("merged", "pool space first"),
    Slices: ("samples of space", "convolutions, poolings and F.pad"),
    LinearOverSpace: ("for channels, but space is at", "permute the channels there first"),
    Zeros: ("PerLevel", "x.new_zeros"),
    FlattenAndLinear: ("merged", "pool space first"),
    Embedding: ("at level 1", "fewer levels"),
    Loops: ("cannot be used as one integer", "functions of the scale-space"),
    Counts: ("knows nothing of the grids", "as a convolution"),
}


class TestRefusals:
    @pytest.mark.parametrize("kind", REFUSALS)
    def test_says_the_module_the_line_the_reason_and_what_to_do(self, kind):
        reason, hint = REFUSALS[kind]
        with pytest.raises(ConversionError) as refusal:
            convert(kind(), {"num_levels": 3})(torch.rand(1, 3, 32, 32))
        message = str(refusal.value)
        source, first = inspect.getsourcelines(kind)
        line = first + next(i for i, text in enumerate(source) if "# here" in text)
        assert "part.1 (Step)" in message
        assert f"test_convert.py:{line}: {source[line - first].strip()}" in message
        assert reason in message
        assert hint in message
        assert refusal.value.__cause__ is not None

    @pytest.mark.parametrize("kind", [Gate, GateOfTorch, ViT, Slices, FlattenAndLinear, Counts])
    def test_in_dense_sampling_too(self, kind):
        with pytest.raises(ConversionError, match=r"part\.1"):
            convert(kind(), {"num_levels": 2, "sampling": "dense"})(torch.rand(1, 3, 32, 32))

    @pytest.mark.parametrize("kind", REFUSALS)
    def test_what_all_levels_answer_alike_is_not_refused(self, kind):
        """One level is the plain network, but for what is never right."""
        if kind in (Branches, Remainder, Zeros, Embedding, Loops):
            image = torch.rand(1, 3, 32, 32)
            network = kind()
            assert_close(convert(network, {"num_levels": 1})(image), network(image))

    def test_tests_for_tensors_are_no_concern_elsewhere(self):
        x: Any = convert(nn.ReLU(), {"num_levels": 2}).outputs(torch.rand(1, 3, 8, 8))
        assert not isinstance(x, Tensor)
        assert not torch.is_tensor(x)
        assert x.__class__ is type(x) is ScaleSpace

    @pytest.mark.parametrize(
        ("module", "reason"),
        [
            (nn.MultiheadAttention(4, 2), "attends over the positions"),
            (nn.LSTM(4, 4), "runs along one axis"),
            (nn.Unfold(3), "as a convolution"),
            (nn.MaxUnpool2d(2), "use nn.Upsample"),
            (nn.MaxPool2d(2, return_indices=True), "returns indices"),
            (nn.LazyConv2d(4, 3), "run the model on an image first"),
            (torch.jit.script(nn.ReLU()), "before it is scripted"),
            (convert(nn.ReLU()), "already"),
        ],
    )
    @pytest.mark.filterwarnings("ignore")
    def test_what_is_certain_is_refused_at_once(self, module, reason):
        with pytest.raises(ConversionError, match=reason) as refusal:
            convert(nn.Sequential(nn.ReLU(), nn.ModuleDict({"bad": module})))
        assert "1.bad" in str(refusal.value)

    def test_arguments(self):
        wrong: Any = torch.relu
        with pytest.raises(TypeError, match=r"expected an nn\.Module"):
            convert(wrong)
        with pytest.raises(ValueError, match="scale_padding is one of"):
            convert(nn.ReLU(), scale_padding="none")
        with pytest.raises(ValueError, match="scale_pool is one of mean, max, logsumexp, probabilities"):
            convert(nn.ReLU(), scale_pool="median")

    def test_images_that_are_none_are_the_lifts_concern(self):
        with pytest.raises(ValueError, match="an image holds floating-point numbers"):
            convert(nn.ReLU())(torch.ones(1, 3, 8, 8, dtype=torch.int64))

    def test_outputs_without_a_common_grid(self):
        with pytest.raises(ConversionError, match=r"take them from network\.outputs\(image\)"):
            convert(Nested(), {"num_levels": 2})(torch.rand(1, 3, 16, 16))


class Nested(nn.Module):
    def forward(self, x: Any) -> Any:
        return F.interpolate(x.mean((2, 3), keepdim=True), size=x.shape[2:])
