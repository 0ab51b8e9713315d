"""Layers compared with PyTorch's own: correlation, batch normalization, average pooling, mean over levels."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import scalespaces
from benchmarks import _paper as paper
from benchmarks._case import Case, Contender, Settings
from benchmarks._growth import Growth, grow
from benchmarks._limits import layer_limits
from scalespaces.nn import ScaleAvgPool, ScaleBatchNorm, ScaleConv2d, ScalePool
from scalespaces.space import ScaleSpace


@dataclass(frozen=True)
class Shape:
    """The shape of a layer's input, as a plain layer, the paper's algorithm and ours see it."""

    batch: int = 4
    channels: int = 64
    side: int = 128
    levels: int = 4

    def __str__(self) -> str:
        return f"{self.channels} channels, {self.side} x {self.side}, batch {self.batch}, {self.levels} levels"

    def image(self, settings: Settings) -> Tensor:
        return settings.tensor(self.batch, self.channels, self.side, self.side, requires_grad=True)

    def volume(self, settings: Settings) -> Tensor:
        shape = (self.batch, self.channels, self.levels, self.side, self.side)
        return settings.tensor(*shape, requires_grad=True)

    def space(self, settings: Settings, sampling: str) -> ScaleSpace:
        space = scalespaces.lift(torch.zeros(1, 1, self.side, self.side), self.levels, sampling=sampling)
        shapes = [(self.batch, self.channels, *level.shape[2:]) for level in space.levels]
        return space.replace(tuple(settings.tensor(*shape, requires_grad=True) for shape in shapes))


def cases(settings: Settings) -> Iterator[Case]:
    shape = Shape(1, 4, 16, 3) if settings.quick else Shape(side=settings.side or 128)
    yield correlation(settings, shape)
    yield pointwise(settings, shape, "batch normalization", nn.BatchNorm2d, ScaleBatchNorm, nn.BatchNorm3d)
    pool = partial(ScaleAvgPool, 2, window="plain")
    makers = [lambda _: nn.AvgPool2d(2), lambda _: pool(), lambda _: nn.AvgPool3d((1, 2, 2))]
    yield pointwise(settings, shape, "average pooling, 2 x 2", *makers)
    yield scale_pooling(settings, shape)


def correlation(settings: Settings, shape: Shape, depths: tuple[int, ...] = (1, 2), *, rivals: bool = True) -> Case:
    """A 3 x 3 correlation with filters of some levels."""
    width, papers = shape.channels, []
    contenders = [Contender("plain", settings.module(nn.Conv2d(width, width, 3, padding=1)), (shape.image(settings),))]
    for sampling in ("pyramid", "dense"):
        for k in depths:
            layer, x = ScaleConv2d(width, width, (k, 3, 3)), shape.space(settings, sampling)
            limit, folded = layer_limits(layer.weight, x)
            rival = f"paper, k = {k}" if sampling == "dense" and rivals else None
            contenders.append(Contender(f"{sampling}, k = {k}", settings.module(layer), (x,), limit, folded, rival))
            if rival:
                theirs = settings.module(paper.ScaleConv(layer))
                papers.append(Contender(rival, theirs, (shape.volume(settings),), limit))
    return Case("layers", f"3 x 3 correlation, {shape}", [*contenders, *papers])


def pointwise(settings: Settings, shape: Shape, title: str, *makers: Callable[[int], nn.Module]) -> Case:
    """A layer whose work is proportional to the number of samples: plain, ours, and the paper's."""
    plain, ours, papers = makers
    contenders = [Contender("plain", settings.module(plain(shape.channels)), (shape.image(settings),))]
    for sampling, rival in (("pyramid", None), ("dense", "paper")):
        x, module = shape.space(settings, sampling), settings.module(ours(shape.channels))
        limit, _ = layer_limits(torch.ones(1, 1, 1, 1), x)
        contenders.append(Contender(sampling, module, (x,), limit, rival=rival))
    volume = shape.volume(settings)
    contenders.append(Contender("paper", settings.module(papers(shape.channels)), (volume,), contenders[-1].limit))
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
    """The mean over levels; those of a pyramid are upsampled first."""
    pyramid, dense = (shape.space(settings, sampling) for sampling in ("pyramid", "dense"))
    contenders = [
        Contender("plain: interpolate, mean", _PlainPool(), tuple(shape.space(settings, "pyramid").levels)),
        Contender("pyramid", ScalePool(), (pyramid,), 1.0),
        Contender("plain: mean over one tensor", _Mean(), (shape.volume(settings),)),
        Contender("dense", ScalePool(), (dense,), 1.0, baseline="plain: mean over one tensor"),
    ]
    return Case("layers", f"mean over levels, {shape}", contenders)


def growths(settings: Settings) -> Iterator[Growth]:
    """A training step of a correlation with filters of one level, as sizes grow."""

    def along(name: str, values: Sequence[int], fixed: str, shape: Callable[[int], Shape]) -> Growth:
        make = lambda n: correlation(settings, shape(n), (1,), rivals=False)  # noqa: E731
        return grow(f"3 x 3 correlation, {fixed}", name, values, make, settings)

    quick = settings.quick
    width, side, small = (4, 16, 16) if quick else (16, 128, 64)
    sides, levels = ((16, 32), (1, 2)) if quick else ((32, 64, 128, 256, 512), range(1, 9))
    widths = (2, 4) if quick else (8, 16, 32, 64, 128, 256)
    yield along("image size", sides, f"{width} channels, 4 levels", lambda n: Shape(1, width, n))
    yield along("levels", levels, f"{width} channels, {side} x {side}", lambda n: Shape(1, width, side, n))
    yield along("channels", widths, f"{small} x {small}, 4 levels", lambda n: Shape(1, n, small))
