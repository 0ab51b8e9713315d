"""Layers and networks on a pyramid and on dense levels, compared with PyTorch's own and with the paper's algorithm."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import scalespaces
from benchmarks._case import Case, Contender, Settings
from benchmarks._limits import layer_limits, network_limits
from benchmarks._rivals import ScaleConv, rival
from scalespaces.models import create_model
from scalespaces.nn import ScaleAvgPool, ScaleBatchNorm, ScaleConv2d


def layers(settings: Settings) -> Iterator[Case]:
    """Correlation, batch normalization and average pooling."""
    batch, n, side, levels = (1, 4, 16, 3) if settings.quick else (4, 64, settings.side or 128, 4)

    def tensor(*size: int) -> Tensor:
        return settings.tensor(batch, n, *size, requires_grad=True)

    def compare(title: str, plain: nn.Module, ours: Mapping[str, Callable[[], nn.Module]], paper: Callable) -> Case:
        """A plain layer, ours by the levels of their filters and, as rivals, the paper's layers like ours."""
        volume, papers = tensor(levels, side, side), []
        contenders = [Contender("plain", settings.module(plain), (tensor(side, side),))]
        for sampling in ("pyramid", "dense"):
            space = scalespaces.lift(torch.zeros(1, 1, side, side), levels, sampling=sampling)
            for k, make in ours.items():
                layer, x = make(), space.replace(tuple(tensor(*level.shape[2:]) for level in space.levels))
                weight = layer.weight if isinstance(layer, ScaleConv2d) else torch.ones(1, 1, 1, 1)
                (limit, folded), theirs = layer_limits(weight, x), f"paper{k}" if sampling == "dense" else None
                contenders.append(Contender(f"{sampling}{k}", settings.module(layer), (x,), limit, folded, theirs))
                if theirs:
                    papers.append(Contender(theirs, settings.module(paper(layer)), (volume,), limit))
        shape = f"{n} channels, {side} x {side}, batch {batch}, {levels} levels"
        return Case("layers", f"{title}, {shape}", [*contenders, *papers])

    convs = {f", k = {k}": partial(ScaleConv2d, n, n, (k, 3, 3)) for k in (1, 2)}
    yield compare("3 x 3 correlation", nn.Conv2d(n, n, 3, padding=1), convs, ScaleConv)
    norm, pool = partial(ScaleBatchNorm, n), partial(ScaleAvgPool, 2, window="plain")
    yield compare("batch normalization", nn.BatchNorm2d(n), {"": norm}, lambda _: nn.BatchNorm3d(n))
    yield compare("average pooling, 2 x 2", nn.AvgPool2d(2), {"": pool}, lambda _: nn.AvgPool3d((1, 2, 2)))


def models(settings: Settings) -> Iterator[Case]:
    """ResNet [1,1,N], S-ResNet [1,4,N] and [2,4,N]; DenseNet and S-DenseNet."""
    width, side, batch = (4, 64, 1) if settings.quick else (16, settings.side or 256, 4)
    names = {"plain": "resnet", "k = 1": "s_resnet_no_interaction", "k = 2": "s_resnet"}
    yield network(settings, f"ResNet, N = {width}", names, side, batch, width=width)
    growth, side, batch = ((2, 4, 8), 48, 2) if settings.quick else ((12, 24, 48), settings.side or 96, 32)
    yield network(settings, "DenseNet", {"plain": "densenet", "k = 3": "s_densenet"}, side, batch, growth=growth)


def network(settings: Settings, title: str, names: dict[str, str], side: int, batch: int, **arguments: Any) -> Case:
    """The baseline, our networks by the levels of their filters and, as rivals, the paper's algorithm."""
    image, papers = settings.tensor(batch, 3, side, side), []
    (first, baseline), *ours = names.items()
    contenders = [Contender(first, settings.module(rival(create_model(baseline, **arguments))), (image,))]
    for sampling, preset in (("pyramid", "recommended"), ("dense", "paper")):
        for k, name in ours:
            model = create_model(name, preset=preset, **arguments)
            limit, folded = network_limits(model, (3, side, side))
            theirs = f"paper, {k}" if sampling == "dense" else None
            if theirs:
                papers.append(Contender(theirs, settings.module(rival(model)), (image,), limit))
                if settings.format != "contiguous":  # where PyTorch's own poolings of volumes are faster
                    twin = replace(settings, format="contiguous").module(rival(model))
                    papers.append(Contender(f"{theirs}, contiguous", twin, (image.contiguous(),), limit))
            contenders.append(Contender(f"{sampling}, {k}", settings.module(model), (image,), limit, folded, theirs))
        k, name = ours[0]
        again = create_model(name, preset=preset, **arguments)
        again.recompute = True
        contenders.append(Contender(f"{sampling}, {k}, recomputed", settings.module(again), (image,)))
    return Case("models", f"{title}, {side} x {side}, batch {batch}, 4 levels", [*contenders, *papers])
