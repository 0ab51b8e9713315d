"""Layers compared with PyTorch's own: correlation, batch normalization, average pooling."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

import scalespaces
from benchmarks._case import Case, Contender, Settings
from benchmarks._limits import layer_limits
from benchmarks._rivals import ScaleConv
from scalespaces.nn import ScaleAvgPool, ScaleBatchNorm, ScaleConv2d
from scalespaces.space import ScaleSpace


@dataclass(frozen=True)
class Signal:
    """A layer's input: tensors, and levels of them."""

    settings: Settings
    batch: int
    channels: int
    side: int
    levels: int

    def __str__(self) -> str:
        return f"{self.channels} channels, {self.side} x {self.side}, batch {self.batch}, {self.levels} levels"

    def tensor(self, *size: int) -> Tensor:
        return self.settings.tensor(self.batch, self.channels, *size, requires_grad=True)

    def space(self, sampling: str) -> ScaleSpace:
        space = scalespaces.lift(torch.zeros(1, 1, self.side, self.side), self.levels, sampling=sampling)
        return space.replace(tuple(self.tensor(*level.shape[2:]) for level in space.levels))


def cases(settings: Settings) -> Iterator[Case]:
    signal = Signal(settings, *((1, 4, 16, 3) if settings.quick else (4, 64, settings.side or 128, 4)))
    n = signal.channels
    convs = {f", k = {k}": partial(ScaleConv2d, n, n, (k, 3, 3)) for k in (1, 2)}
    yield compare(signal, "3 x 3 correlation", nn.Conv2d(n, n, 3, padding=1), convs, ScaleConv)
    norm, pool = partial(ScaleBatchNorm, n), partial(ScaleAvgPool, 2, window="plain")
    yield compare(signal, "batch normalization", nn.BatchNorm2d(n), {"": norm}, lambda _: nn.BatchNorm3d(n))
    yield compare(signal, "average pooling, 2 x 2", nn.AvgPool2d(2), {"": pool}, lambda _: nn.AvgPool3d((1, 2, 2)))


def compare(
    signal: Signal,
    title: str,
    plain: nn.Module,
    ours: Mapping[str, Callable[[], nn.Module]],
    paper: Callable[[nn.Module], nn.Module],
) -> Case:
    """A plain layer, ours on a pyramid and on dense levels, and the paper's layer like ours."""
    module, side, papers = signal.settings.module, signal.side, []
    volume = signal.tensor(signal.levels, side, side)
    contenders = [Contender("plain", module(plain), (signal.tensor(side, side),))]
    for sampling in ("pyramid", "dense"):
        for k, make in ours.items():
            layer, x = make(), signal.space(sampling)
            rival = f"paper{k}" if sampling == "dense" else None
            limit, folded = layer_limits(layer.weight if isinstance(layer, ScaleConv2d) else torch.ones(1, 1, 1, 1), x)
            contenders.append(Contender(f"{sampling}{k}", module(layer), (x,), limit, folded, rival))
            if rival:
                papers.append(Contender(rival, module(paper(layer)), (volume,), limit))
    return Case("layers", f"{title}, {signal}", [*contenders, *papers])
