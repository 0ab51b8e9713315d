"""The paper's networks, compared with their baselines in plain PyTorch and with the paper's algorithm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from scalespaces import models
from scalespaces.bench import _paper as paper
from scalespaces.bench import _plain as plain
from scalespaces.bench._arithmetic import network_limits
from scalespaces.bench._case import Axis, Case, Contender, Settings

_PRESETS = {"pyramid": "recommended", "dense": "paper"}


def cases(settings: Settings) -> Iterator[Case]:
    """All cases of the suite."""
    quick = settings.quick
    width, side, batch = (4, 64, 1) if quick else (16, 256, 4)
    yield resnet(settings, {"width": width}, side, batch)
    growth, side, batch = ((2, 4, 8), 48, 2) if quick else ((12, 24, 48), 96, 32)
    yield densenet(settings, {"growth": growth}, side, batch)


def resnet(settings: Settings, arguments: dict[str, Any], side: int, batch: int) -> Case:
    """ResNet [1,1,N], and S-ResNet [1,4,N] and [2,4,N]."""
    names = {"k = 1": "s_resnet_no_interaction", "k = 2": "s_resnet"}
    base = plain.ResNet(models.create_model("resnet", **arguments))
    title = f"ResNet, N = {arguments['width']}, {side} x {side}, batch {batch}, 4 levels"
    return _network(settings, title, base, names, arguments, side, batch)


def densenet(settings: Settings, arguments: dict[str, Any], side: int, batch: int) -> Case:
    """DenseNet and S-DenseNet."""
    base = plain.DenseNet(models.create_model("densenet", **arguments))
    title = f"DenseNet, {side} x {side}, batch {batch}, 4 levels"
    return _network(settings, title, base, {"k = 3": "s_densenet"}, arguments, side, batch)


def _network(
    settings: Settings,
    title: str,
    base: plain.Network,
    names: dict[str, str],
    arguments: dict[str, Any],
    side: int,
    batch: int,
    *,
    rivals: bool = True,
) -> Case:
    image = settings.tensor(batch, 3, side, side)
    contenders, papers = [Contender("plain", settings.module(base), (image,))], []
    for sampling, preset in _PRESETS.items():
        for k, name in names.items():
            model = models.create_model(name, preset=preset, **arguments)
            limits = network_limits(models.create_model(name, preset="paper", **arguments), (side, side))
            rival = f"paper, {k}" if sampling == "dense" and rivals else None
            folded = limits.folded if sampling == "pyramid" else None
            limit = getattr(limits, sampling)
            if rival:
                papers.append(Contender(rival, settings.module(paper.of(model)), (image,), limit))
                if settings.format != "contiguous":  # where PyTorch's own poolings of volumes are faster
                    twin = replace(settings, format="contiguous").module(paper.of(model))
                    papers.append(Contender(f"{rival}, contiguous", twin, (image.contiguous(),), limit))
            contenders.append(Contender(f"{sampling}, {k}", settings.module(model), (image,), limit, folded, rival))
        if rivals:
            k, name = next(iter(names.items()))
            again = models.create_model(name, preset=preset, **arguments)
            again.recompute = True
            contenders.append(Contender(f"{sampling}, {k}, recomputed", settings.module(again), (image,)))
    return Case("models", title, (*contenders, *papers))


def axes(settings: Settings) -> Iterator[Axis]:
    """What a training step of the ResNet without interaction costs as things grow."""
    quick = settings.quick

    def case(side: int, width: int, levels: int) -> Case:
        base = plain.ResNet(models.create_model("resnet", width=width))
        names, arguments = {"k = 1": "s_resnet_no_interaction"}, {"width": width, "lift": {"num_levels": levels}}
        return _network(settings, "", base, names, arguments, side, 1, rivals=False)

    sides = (64, 128) if quick else (64, 128, 256, 512)
    width = 4 if quick else 8
    title = f"ResNet, N = {width}, 4 levels"
    yield Axis("models", title, "image size", {n: partial(case, n, width, 4) for n in sides})
    side = 64 if quick else 256
    levels = (1, 2) if quick else tuple(range(1, 7))
    title = f"ResNet, N = {width}, {side} x {side}"
    yield Axis("models", title, "levels", {n: partial(case, side, width, n) for n in levels})
    widths, side = ((3, 4), 64) if quick else ((4, 8, 16, 32), 128)
    title = f"ResNet, {side} x {side}, 4 levels"
    yield Axis("models", title, "channels", {n: partial(case, side, n, 4) for n in widths})
