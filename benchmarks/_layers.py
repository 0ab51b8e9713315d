"""Layers, compared with PyTorch's own: correlation, batch normalization, average pooling, and pooling over levels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scalespaces.bench import _paper as paper
from scalespaces.bench._arithmetic import layer_limits
from scalespaces.bench._case import Axis, Case, Contender, Settings
from scalespaces.nn import ScaleAvgPool, ScaleBatchNorm, ScaleConv2d, ScalePool
from scalespaces.space import ScaleSpace


@dataclass(frozen=True)
class Shape:
    """Of the levels that a layer sees."""

    batch: int = 4
    channels: int = 64
    side: int = 128
    levels: int = 4

    def __str__(self) -> str:
        return f"{self.channels} channels, {self.side} x {self.side}, batch {self.batch}, {self.levels} levels"

    def image(self, settings: Settings) -> Tensor:
        """What a plain layer sees."""
        return settings.tensor(self.batch, self.channels, self.side, self.side, requires_grad=True)

    def volume(self, settings: Settings) -> Tensor:
        """What a layer of the paper's algorithm sees."""
        shape = (self.batch, self.channels, self.levels, self.side, self.side)
        return settings.volume(*shape, requires_grad=True)

    def space(self, settings: Settings, sampling: str) -> ScaleSpace:
        """What a layer of ours sees."""
        steps = [2**k if sampling == "pyramid" else 1 for k in range(self.levels)]
        sides = [(self.side - 1) // step + 1 for step in steps]
        levels = [settings.tensor(self.batch, self.channels, n, n, requires_grad=True) for n in sides]
        return ScaleSpace(tuple(levels), 2.0, tuple(steps))


def cases(settings: Settings) -> Iterator[Case]:
    """All cases of the suite."""
    shape = Shape(1, 4, 16, 3) if settings.quick else Shape()
    yield correlation(settings, shape)
    yield pointwise(settings, shape, "batch normalization", nn.BatchNorm2d, ScaleBatchNorm, nn.BatchNorm3d)
    pool = partial(ScaleAvgPool, 2, window="plain")
    makers = [lambda _: nn.AvgPool2d(2), lambda _: pool(), lambda _: nn.AvgPool3d((1, 2, 2))]
    yield pointwise(settings, shape, "average pooling, 2 x 2", *makers)
    yield scale_pooling(settings, shape)


def correlation(settings: Settings, shape: Shape, depths: tuple[int, ...] = (1, 2), *, rivals: bool = True) -> Case:
    """A 3 x 3 correlation with filters of some levels."""
    width = shape.channels
    plain = nn.Conv2d(width, width, 3, padding=1)
    contenders = [Contender("plain", settings.module(plain), (shape.image(settings),))]
    papers = []
    for sampling in ("pyramid", "dense"):
        for k in depths:
            limits = layer_limits(k, (3, 3), shape.levels, (shape.side, shape.side))
            layer = ScaleConv2d(width, width, (k, 3, 3))
            rival = f"paper, k = {k}" if sampling == "dense" and rivals else None
            folded = limits.folded if sampling == "pyramid" else None
            name, limit, x = f"{sampling}, k = {k}", getattr(limits, sampling), shape.space(settings, sampling)
            contenders.append(Contender(name, settings.module(layer), (x,), limit, folded, rival))
            if rival:
                theirs = settings.module(paper.ScaleConv(layer))
                papers.append(Contender(rival, theirs, (shape.volume(settings),), limit))
    return Case("layers", f"3 x 3 correlation, {shape}", (*contenders, *papers))


def pointwise(
    settings: Settings,
    shape: Shape,
    title: str,
    plain: Callable[[int], nn.Module],
    ours: Callable[[int], nn.Module],
    papers: Callable[[int], nn.Module],
) -> Case:
    """A layer whose work is proportional to the samples."""
    limits = layer_limits(1, (1, 1), shape.levels, (shape.side, shape.side))
    width = shape.channels
    spaces = {sampling: shape.space(settings, sampling) for sampling in ("pyramid", "dense")}
    modules = [settings.module(make(width)) for make in (plain, ours, ours, papers)]
    contenders = (
        Contender("plain", modules[0], (shape.image(settings),)),
        Contender("pyramid", modules[1], (spaces["pyramid"],), limits.pyramid),
        Contender("dense", modules[2], (spaces["dense"],), limits.dense, rival="paper"),
        Contender("paper", modules[3], (shape.volume(settings),), limits.dense),
    )
    return Case("layers", f"{title}, {shape}", contenders)


class _PlainPool(nn.Module):
    """What a plain feature pyramid does: bring all levels to the size of the first, and average them."""

    def forward(self, *levels: Tensor) -> Tensor:
        size = levels[0].shape[2:]
        same = [F.interpolate(x, size, mode="bilinear", align_corners=False) for x in levels[1:]]
        return torch.stack([levels[0], *same]).mean(0)


class _Mean(nn.Module):
    """The paper's pooling over levels."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(2)


def scale_pooling(settings: Settings, shape: Shape) -> Case:
    """The mean over levels, those of a pyramid upsampled."""
    pyramid, dense = (shape.space(settings, sampling) for sampling in ("pyramid", "dense"))
    contenders = (
        Contender("plain: interpolate, mean", _PlainPool(), tuple(shape.space(settings, "pyramid").levels)),
        Contender("pyramid", ScalePool(), (pyramid,), 1.0),
        Contender("plain: mean over one tensor", _Mean(), (shape.volume(settings),)),
        Contender("dense", ScalePool(), (dense,), 1.0, baseline="plain: mean over one tensor"),
    )
    return Case("layers", f"mean over levels, {shape}", contenders)


def axes(settings: Settings) -> Iterator[Axis]:
    """What a training step of a correlation with filters of one level costs as things grow."""
    quick = settings.quick

    def along(name: str, values: tuple[int, ...], make: Callable[[int], Shape], fixed: str) -> Axis:
        def case(value: int) -> Case:
            return correlation(settings, make(value), (1,), rivals=False)

        made: dict[int, Any] = {value: partial(case, value) for value in values}
        return Axis("layers", f"3 x 3 correlation, {fixed}", name, made)

    sides = (16, 32) if quick else (32, 64, 128, 256, 512)
    yield along(
        "image size", sides, lambda n: Shape(1, 4 if quick else 16, n), f"{4 if quick else 16} channels, 4 levels"
    )
    levels = (1, 2) if quick else tuple(range(1, 9))
    side, width = (16, 4) if quick else (128, 16)
    yield along("levels", levels, lambda n: Shape(1, width, side, n), f"{width} channels, {side} x {side}")
    widths = (2, 4) if quick else (8, 16, 32, 64, 128, 256)
    side = 16 if quick else 64
    yield along("channels", widths, lambda n: Shape(1, n, side), f"{side} x {side}, 4 levels")
