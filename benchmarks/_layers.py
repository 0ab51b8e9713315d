"""Layers compared with PyTorch's own: correlation, batch normalization, average pooling."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor, nn

import scalespaces
from benchmarks._case import Case, Contender, Settings
from benchmarks._limits import layer_limits
from benchmarks._rivals import ScaleConv
from scalespaces.nn import ScaleAvgPool, ScaleBatchNorm, ScaleConv2d


def cases(settings: Settings) -> Iterator[Case]:
    batch, n, side, levels = (1, 4, 16, 3) if settings.quick else (4, 64, settings.side or 128, 4)

    def tensor(*size: int) -> Tensor:
        return settings.tensor(batch, n, *size, requires_grad=True)

    def compare(title: str, plain: nn.Module, ours: Mapping[str, Callable[[], nn.Module]], paper: Callable) -> Case:
        """A plain layer, ours on a pyramid and on dense levels, and the paper's layer like ours."""
        volume, papers = tensor(levels, side, side), []
        contenders = [Contender("plain", settings.module(plain), (tensor(side, side),))]
        for sampling in ("pyramid", "dense"):
            space = scalespaces.lift(torch.zeros(1, 1, side, side), levels, sampling=sampling)
            for k, make in ours.items():
                layer, x = make(), space.replace(tuple(tensor(*level.shape[2:]) for level in space.levels))
                weight = layer.weight if isinstance(layer, ScaleConv2d) else torch.ones(1, 1, 1, 1)
                (limit, folded), rival = layer_limits(weight, x), f"paper{k}" if sampling == "dense" else None
                contenders.append(Contender(f"{sampling}{k}", settings.module(layer), (x,), limit, folded, rival))
                if rival:
                    papers.append(Contender(rival, settings.module(paper(layer)), (volume,), limit))
        shape = f"{n} channels, {side} x {side}, batch {batch}, {levels} levels"
        return Case("layers", f"{title}, {shape}", [*contenders, *papers])

    convs = {f", k = {k}": partial(ScaleConv2d, n, n, (k, 3, 3)) for k in (1, 2)}
    yield compare("3 x 3 correlation", nn.Conv2d(n, n, 3, padding=1), convs, ScaleConv)
    norm, pool = partial(ScaleBatchNorm, n), partial(ScaleAvgPool, 2, window="plain")
    yield compare("batch normalization", nn.BatchNorm2d(n), {"": norm}, lambda _: nn.BatchNorm3d(n))
    yield compare("average pooling, 2 x 2", nn.AvgPool2d(2), {"": pool}, lambda _: nn.AvgPool3d((1, 2, 2)))
