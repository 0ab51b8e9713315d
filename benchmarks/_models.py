"""The paper's networks compared with their baselines in plain PyTorch and with the paper's algorithm."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from benchmarks._case import Case, Contender, Settings
from benchmarks._limits import network_limits
from benchmarks._rivals import rival
from scalespaces.models import create_model


def cases(settings: Settings) -> Iterator[Case]:
    """ResNet [1,1,N], S-ResNet [1,4,N] and [2,4,N]; DenseNet and S-DenseNet."""
    width, side, batch = (4, 64, 1) if settings.quick else (16, settings.side or 256, 4)
    names = {"plain": "resnet", "k = 1": "s_resnet_no_interaction", "k = 2": "s_resnet"}
    yield network(settings, f"ResNet, N = {width}", names, side, batch, width=width)
    growth, side, batch = ((2, 4, 8), 48, 2) if settings.quick else ((12, 24, 48), settings.side or 96, 32)
    yield network(settings, "DenseNet", {"plain": "densenet", "k = 3": "s_densenet"}, side, batch, growth=growth)


def network(settings: Settings, title: str, names: dict[str, str], side: int, batch: int, **arguments: Any) -> Case:
    """The baseline, our networks by the levels of their filters and, as rivals, the paper's algorithm."""
    image, papers = settings.tensor(batch, 3, side, side), []
    baseline, *ours = names.items()
    plain = rival(create_model(baseline[1], **arguments))
    contenders = [Contender(baseline[0], settings.module(plain), (image,))]
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
