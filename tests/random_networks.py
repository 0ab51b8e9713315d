"""Random networks: exact ones, ones that are broken on purpose, and ones that prove nothing."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scalespaces import ScaleSpace, lift
from scalespaces import nn as scale
from scalespaces.testing import assert_equivariant

PADDINGS = ("zeros", "reflect", "replicate", "circular")
SCALE_PADDINGS = ("zeros", "replicate", "valid")
PYRAMIDS = (("pyramid", 2.0), ("pyramid", 2**0.5), ("pyramid", 1.5), ("pyramid", 3.0))
DENSE = (("dense", 2.0), (2, 2.0))
UNSEEN = "no channel of the output depends on the image"
REFUSED = f"rounding hides the answer|{UNSEEN}|to compare have a single sample"


def draw_layers(draw: random.Random, sampling: Any) -> tuple[list[nn.Module], int]:
    """Layers that are exact, from 2 channels to 3, and how many levels above its own each level sees."""
    layers, reach, channels, halved = [], 0, 2, draw.randint(0, 2)
    for _ in range(draw.randint(1, 3)):
        k, side, width = draw.choice([1, 2, 2]), draw.choice([1, 3]), draw.randint(4, 6)
        halved -= (stride := draw.choice([1, 2]) if halved else 1) == 2
        options: dict[str, Any] = {"stride": stride, "scale_padding": draw.choice(SCALE_PADDINGS)}
        options["padding_mode"] = draw.choice(PADDINGS) if sampling == "pyramid" else "zeros"
        layers.append(scale.ScaleConv2d(channels, width, (k, side, side), **options))
        channels, reach = width, reach + k - 1
        if draw.random() < 0.5:
            norm: Any = scale.ScaleBatchNorm(channels)
            norm.running_mean.normal_(0, 0.2)
            norm.running_var.uniform_(0.5, 2)
            layers.append(norm)
        if draw.random() < 0.7:
            layers.append(draw.choice([nn.ReLU(), nn.Tanh(), nn.LeakyReLU(0.2)]))
        if draw.random() < 0.4 and halved:
            halved -= 1
            pools = [scale.ScaleAvgPool(3, 2, 1), scale.ScaleMaxPool(3, 2, 1), scale.ScaleBlurPool()]
            layers.append(draw.choice(pools if sampling == "pyramid" else pools[:2]))
    return [*layers, scale.ScaleConv2d(channels, 3, (1, 1, 1))], reach


def network(
    draw: random.Random, samplings: Sequence = PYRAMIDS * 2 + DENSE, pooled: bool = False, **lifted: Any
) -> tuple[nn.Sequential, Tensor]:
    """A random network with three exact levels, and noise for it."""
    sampling, base = draw.choice(samplings)
    layers, reach = draw_layers(draw, sampling)
    padding_mode = draw.choice(PADDINGS) if sampling == "pyramid" else "zeros"
    options = {"zero_scale": draw.choice([0.25, 0.5, 1.0]), "padding_mode": padding_mode, **lifted}
    first = scale.Lift(reach + 3, base, sampling=sampling, **options)
    image = torch.randn(draw.randint(1, 2), 2, draw.randint(25, 40), draw.randint(25, 40))
    return nn.Sequential(first, *layers, *([scale.GlobalPool()] if pooled else [])), image


def exact_network(seed: int) -> tuple[nn.Sequential, Tensor]:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    if seed % 10 == 8:
        layers = [scale.CausalLift(5, stages=3, sampling=draw.choice(["pyramid", "dense"]))]
        layers += [scale.ScaleConv1d(1, 3, (draw.choice([1, 2]), 5), stride=draw.choice([1, 2])), nn.Tanh()]
        layers += [scale.ScaleConv1d(3, 3, (2, 3), scale_padding="replicate")]
        return nn.Sequential(*layers), torch.randn(1, 1, 101)
    if seed % 10 == 9:
        first = scale.P4MConv2d(2, 2, (2, 3, 3), lifting=True, scale_padding=draw.choice(SCALE_PADDINGS))
        layers = [first, scale.P4MBatchNorm(2), nn.ReLU(), scale.P4MConv2d(2, 2, (1, 3, 3)), scale.P4MPool()]
        return nn.Sequential(scale.Lift(4), *layers), torch.randn(1, 2, draw.randint(25, 40), 33)
    return network(draw, PYRAMIDS, pooled=True) if seed % 10 == 7 else network(draw)


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def inserted(network: nn.Sequential, function: Callable[[ScaleSpace], ScaleSpace], at: int = 1) -> nn.Sequential:
    """A network with a function of levels between its layers."""
    layers = list(network)
    return nn.Sequential(*layers[:at], Call(function), *layers[at:])


def then(network: nn.Module, function: Callable[[Tensor, int], Tensor]) -> nn.Sequential:
    """A network, and a function of each level and its index."""

    def each(x: ScaleSpace) -> ScaleSpace:
        return x.replace(tuple(function(level, k) for k, level in enumerate(x.levels)))

    return nn.Sequential(network, Call(each))


def biased(network: nn.Module, seed: int) -> nn.Module:
    """The network with a bias of 1e4: in all channels, in the first, or in the others."""
    channels = [slice(None), slice(0, 1), slice(1, 3)][seed]

    def add(level: Tensor, k: int) -> Tensor:
        bias = torch.zeros_like(level)
        bias[:, channels] = 1e4
        return level + bias

    return then(network, add)


def ramp(level: Tensor) -> Tensor:
    return torch.arange(level.shape[-1]).to(level)


def fails(error: Any, message: str, model: Any, image: Tensor, **options: Any) -> None:
    with pytest.raises(error, match=message):
        assert_equivariant(model, image, **options)


Maker = Callable[[random.Random], tuple[nn.Module, Tensor]]


def altered(change: Callable[[nn.Sequential, random.Random], nn.Module], **options: Any) -> Maker:
    """Random networks of these options, changed."""

    def make(draw: random.Random) -> tuple[nn.Module, Tensor]:
        model, image = network(draw, **options)
        return change(model, draw), image

    return make


def by_level(change: Callable[[Tensor, float], Tensor], low: float = -2) -> Any:
    """A change that grows with the level, more or less strong."""

    def apply(model: nn.Sequential, draw: random.Random) -> nn.Module:
        strength = 10 ** draw.uniform(low, 0)
        return then(model, lambda level, k: change(level, strength * k))

    return apply


def see_finer(x: ScaleSpace) -> ScaleSpace:
    """Each level sees the one below it, if there is one."""
    return x.replace((x.levels[0], *(a + b for a, b in zip(x.levels, x.levels[1:], strict=False))))


def see_further(x: ScaleSpace) -> ScaleSpace:
    """Level 0 sees one level more than the others, so that it would seem that more of them see past the end."""
    first, *others = x.levels
    return x.replace((first + 1e-6 * others[0].mean(), *others[:-1], 2 * others[-1]))


def pixel_ramp(model: nn.Sequential, draw: random.Random) -> nn.Module:
    """The position in the image, in pixels, is added."""
    size = 10 ** draw.uniform(-2, 0)

    def add(x: ScaleSpace) -> ScaleSpace:
        pixels = [step * x.unit[-1] * ramp(level) for step, level in zip(x.steps, x.levels, strict=True)]
        return x.replace(tuple(f + size * p for f, p in zip(x.levels, pixels, strict=True)))

    return inserted(model, add, len(model))


def pixel_weight(model: nn.Sequential, draw: random.Random) -> nn.Module:
    """Pixels to the right weigh more."""
    size = draw.uniform(0.5, 2)
    return nn.Sequential(Call(lambda x: x * (1 + size * torch.linspace(0, 1, x.shape[-1]).to(x))), *model)


def index_ramp(draw: random.Random) -> tuple[nn.Module, Tensor]:
    """The index of the sample is added, which scaling keeps, and translations do not."""
    size, down = 10 ** draw.uniform(-2, 0), draw.choice([True, False])
    model = nn.Sequential(scale.Lift(3), scale.ScaleConv2d(2, 3, (2, 3, 3)))
    model = then(model, lambda level, k: level + size * (ramp(level.mT)[:, None] if down else ramp(level)))
    return model, torch.randn(1, 2, 56, 60)


def one_level_lifted_otherwise(model: nn.Sequential, draw: random.Random) -> nn.Module:
    first: Any = model[0]
    number, found = draw.randint(1, 2), draw.choice([True, False])
    arguments = {**first.config, "zero_scale": 1.3 * first.zero_scale}
    other: Any = scale.Lift(**arguments) if found else lambda image: lift(image, **arguments)

    def mixed(image: Tensor) -> ScaleSpace:
        x, y = first(image), other(image)
        return x.replace(tuple((y if k == number else x).levels[k] for k in range(x.num_levels)))

    layer = Call(mixed)
    layer.lift, layer.other = first, other  # so that they are cast with the network
    return nn.Sequential(layer, *list(model)[1:])


def plain_windows(draw: random.Random) -> tuple[nn.Module, Tensor]:
    pool = draw.choice([scale.ScaleAvgPool, scale.ScaleMaxPool])(draw.choice([2, 3]), window="plain")
    layers = [scale.ScaleConv2d(2, 4, (2, 3, 3)), pool, scale.ScaleConv2d(4, 3, (1, 3, 3))]
    return nn.Sequential(scale.Lift(4, sampling="dense", padding_mode="zeros"), *layers), torch.randn(1, 2, 48, 40)


def plain_filters(draw: random.Random) -> tuple[nn.Module, Tensor]:
    model = nn.Sequential(scale.Lift(4, sampling="dense", padding_mode="zeros"), scale.ScaleConv2d(2, 3, (2, 3, 3)))
    filters = torch.randn(3, 3, 3, 3)
    return then(model, lambda level, k: F.conv2d(level, filters.to(level), padding=1)), torch.randn(1, 2, 40, 40)


BROKEN: dict[str, Maker] = {
    "level bias": altered(by_level(lambda f, s: f + s)),
    "level weight": altered(by_level(lambda f, s: f * (1 + s))),
    "level temperature": altered(by_level(lambda f, s: (f / (1 + s)).softmax(1), -1), samplings=PYRAMIDS, pooled=True),
    "finer levels": altered(lambda model, _: inserted(model, see_finer), samplings=[("dense", 2.0)]),
    "one level sees further": altered(
        lambda model, _: inserted(model, see_further), samplings=[("dense", 2.0), ("pyramid", 2.0)]
    ),
    "pixel ramp": altered(pixel_ramp, samplings=[("pyramid", 2.0), ("pyramid", 1.5), ("dense", 2.0)]),
    "pixel weight": altered(pixel_weight),
    "index ramp": index_ramp,
    "direct lift": altered(lambda model, _: model, method="direct"),
    "one level lifted otherwise": altered(one_level_lifted_otherwise),
    "plain windows": plain_windows,
    "plain filters": plain_filters,
}


def pixel(draw: random.Random, single: bool) -> tuple[nn.Module, Tensor]:
    """An image of one pixel, or the same one everywhere."""
    model, image = BROKEN[draw.choice(["level weight", "direct lift", "plain windows"][: 3 - single])](draw)
    return model, image[..., :1, :1] if single else image[..., :1, :1].expand(image.shape).clone()


def pattern(model: nn.Sequential, draw: random.Random) -> nn.Module:
    size = draw.choice([0, 1])
    return then(model, lambda level, k: 0 * level + 1 + size * ramp(level))


def see_all(model: nn.Sequential, _: object) -> nn.Module:
    return inserted(model, lambda x: x + torch.stack([f.mean() for f in x.levels]).mean(), len(model))


USELESS: dict[str, tuple[Maker, str]] = {
    "dead": (altered(lambda model, _: inserted(model, lambda x: (x - 1e6).relu(), -1)), UNSEEN),
    "constant": (
        altered(lambda model, _: then(model, lambda f, k: 0 * f + 1), samplings=PYRAMIDS, pooled=True),
        UNSEEN,
    ),
    "a pattern that does not vary with the image": (altered(pattern, samplings=PYRAMIDS), UNSEEN),
    "constant image": (lambda draw: pixel(draw, single=False), "an image that is constant"),
    "single pixel": (lambda draw: pixel(draw, single=True), "an image that is constant"),
    "everything past the end": (altered(see_all, samplings=PYRAMIDS), "no level is left to compare"),
}
