"""The paper's networks compared with their baselines in plain PyTorch and with the paper's algorithm."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from benchmarks import _paper as paper
from benchmarks import _plain as plain
from benchmarks._case import Case, Contender, Settings
from benchmarks._growth import Growth, grow
from benchmarks._limits import network_limits
from scalespaces.models import create_model

PRESETS = {"pyramid": "recommended", "dense": "paper"}


def cases(settings: Settings) -> Iterator[Case]:
    """ResNet [1,1,N], S-ResNet [1,4,N] and [2,4,N]; DenseNet and S-DenseNet."""
    width, side, batch = (4, 64, 1) if settings.quick else (16, settings.side or 256, 4)
    base = plain.ResNet(create_model("resnet", width=width))
    names, title = {"k = 1": "s_resnet_no_interaction", "k = 2": "s_resnet"}, f"ResNet, N = {width}"
    yield network(settings, title, base, names, {"width": width}, side, batch)
    growth, side, batch = ((2, 4, 8), 48, 2) if settings.quick else ((12, 24, 48), settings.side or 96, 32)
    base = plain.DenseNet(create_model("densenet", growth=growth))
    yield network(settings, "DenseNet", base, {"k = 3": "s_densenet"}, {"growth": growth}, side, batch)


def network(
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
    """The baseline, our networks by the levels of their filters and, as rivals, the paper's algorithm."""
    image = settings.tensor(batch, 3, side, side)
    contenders, papers = [Contender("plain", settings.module(base), (image,))], []
    for sampling, preset in PRESETS.items():
        for k, name in names.items():
            model = create_model(name, preset=preset, **arguments)
            limit, folded = network_limits(model, (3, side, side))
            rival = f"paper, {k}" if sampling == "dense" and rivals else None
            if rival:
                papers.append(Contender(rival, settings.module(paper.of(model)), (image,), limit))
                if settings.format != "contiguous":  # where PyTorch's own poolings of volumes are faster
                    twin = replace(settings, format="contiguous").module(paper.of(model))
                    papers.append(Contender(f"{rival}, contiguous", twin, (image.contiguous(),), limit))
            contenders.append(Contender(f"{sampling}, {k}", settings.module(model), (image,), limit, folded, rival))
        if rivals:
            k, name = next(iter(names.items()))
            again = create_model(name, preset=preset, **arguments)
            again.recompute = True
            contenders.append(Contender(f"{sampling}, {k}, recomputed", settings.module(again), (image,)))
    return Case("models", f"{title}, {side} x {side}, batch {batch}, 4 levels", [*contenders, *papers])


def growths(settings: Settings) -> Iterator[Growth]:
    """A training step of the ResNet without interaction, as sizes grow."""

    def case(side: int, width: int, levels: int) -> Case:
        base, names = plain.ResNet(create_model("resnet", width=width)), {"k = 1": "s_resnet_no_interaction"}
        arguments = {"width": width, "lift": {"num_levels": levels}}
        return network(settings, "ResNet", base, names, arguments, side, 1, rivals=False)

    quick = settings.quick
    width, side, small = (4, 64, 64) if quick else (8, 256, 128)
    sides, levels = ((64, 128), (1, 2)) if quick else ((64, 128, 256, 512), range(1, 7))
    widths = (3, 4) if quick else (4, 8, 16, 32)
    yield grow(f"ResNet, N = {width}, 4 levels", "image size", sides, lambda n: case(n, width, 4), settings)
    yield grow(f"ResNet, N = {width}, {side} x {side}", "levels", levels, lambda n: case(side, width, n), settings)
    yield grow(f"ResNet, {small} x {small}, 4 levels", "channels", widths, lambda n: case(small, n, 4), settings)
