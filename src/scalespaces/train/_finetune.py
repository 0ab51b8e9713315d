"""Fine-tuning: which parameters are trained and how fast, and trust, which is fitted at the end."""

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch import nn

from scalespaces._extras import require
from scalespaces.data import to_unit
from scalespaces.models import Card, Converted, ScaleNetwork, calibrate, save
from scalespaces.models._calibrate import FEWEST, SCALES, Calibration
from scalespaces.nn import ScalePool
from scalespaces.theory._arguments import did_you_mean
from scalespaces.train._data import open_split
from scalespaces.train._recipe import Recipe

_MOST_IMAGES, _MOST_NUMBERS = 500, 2**28  # that trust is fitted to; a gigabyte
POOL = "scale_pool."  # the prefix of trust, which is new, so it learns as the head does


def freeze(network: nn.Module, patterns: Sequence[str]) -> None:
    """Keep the parameters whose names match from being trained; ``model.`` of converted networks may be left out."""
    parameters = dict(network.named_parameters())
    parts = [f"{name}.*" for name, module in network.named_modules() if name and list(module.parameters())]
    for pattern in patterns:
        chosen = [n for n in parameters if fnmatchcase(n, pattern) or fnmatchcase(n.removeprefix("model."), pattern)]
        if not chosen:
            got = f"{pattern!r}, which matches none{did_you_mean(pattern, [*parts, *parameters])}"
            raise ValueError(f"finetune.freeze has patterns of parameters' names, such as layer1.*, got {got}")
        for name in chosen:
            parameters[name].requires_grad_(False)
    if patterns and not any(parameter.requires_grad for parameter in parameters.values()):
        raise ValueError(f"finetune.freeze leaves parameters to train, got {', '.join(patterns)}, which match all")


def head_of(network: nn.Module, classes: int) -> str:
    """The name of the module that scores come from: the last linear layer or convolution with an output per class."""
    named = f"model.{network.config['features']}" if isinstance(network, Converted) else ""
    if any(name.startswith(f"{named}.") for name, _ in network.named_parameters()):
        return named
    for name, module in reversed(list(network.named_modules())):
        outputs = getattr(module, "out_features", getattr(module, "out_channels", None))
        if outputs == classes and hasattr(module, "weight") and not name.startswith(POOL):
            return name
    rule = f"finetune.head_first and layer_decay need the layer that scores come from, with {classes} outputs"
    raise ValueError(f"{rule}, and the {type(network).__name__} has none; name it with model.convert.features")


def in_head(name: str, head: str) -> bool:
    """Whether the parameter is of the head, or of trust, which is on top of it."""
    return name.startswith((f"{head}.", POOL))


def depths(network: nn.Module, head: str) -> dict[str, int]:
    """How many layers below the head each parameter is, by name; layers are in the order of their definition.

    A layer is all parameters whose names agree up to the first number: ``layer1``, ``blocks.3``, ``fc``. A norm belongs
    to the layer before it.
    """
    parameters, layers, places = dict(network.named_parameters()), {}, {}
    for name in parameters:
        parts = name.removeprefix("model.").split(".")[:-1]
        end = next((n for n, part in enumerate(parts, 1) if any(map(str.isdigit, part))), len(parts))
        layers.setdefault(tuple(parts[:end]), []).append(name)
    for names in layers.values():
        places |= dict.fromkeys(names, max(places.values(), default=0) + any(parameters[n].ndim > 1 for n in names))
    top = max(place for name, place in places.items() if name.startswith(f"{head}."))
    return {name: 0 if in_head(name, head) else max(0, top - place) for name, place in places.items()}


def combine_by(network: ScaleNetwork, mode: str) -> None:
    """Let the network combine the scores of its levels in another way."""
    if network.lift.num_levels < 2 or network.config.get("pool_before") is not None:
        way = "use model.lift.num_levels, and no model.convert.pool_before"
        raise ValueError(f"levels.pool trust weighs the scores of several levels, and the network has one; {way}")
    if network.scale_pool.mode != mode:
        network.scale_pool = ScalePool(mode).to(next(network.parameters()).dtype)
        network.config = network.config | {"scale_pool": mode}


def fit_trust(network: ScaleNetwork, file: Path, recipe: Recipe, device: torch.device) -> Calibration:
    """Fit trust to the network whose weights are in the file, and save it there."""
    state = require("safetensors.torch", "files").load_file(file)
    network.load_state_dict({name: value for name, value in state.items() if not name.startswith(POOL)}, assign=True)
    network.to(device, next(network.parameters()).dtype)
    images = open_split(replace(recipe.data, flip=False), "train", seed=recipe.seed)
    size, card = images[0][0].shape, Card.of(network)
    count = min(_MOST_IMAGES, len(images), max(FEWEST, _MOST_NUMBERS // size.numel()))
    views = [images[n * len(images) // count] for n in range(count)]
    shown, labels = [card.normalize(to_unit(image)) for image, _ in views], [label for _, label in views]
    scales = [scale for scale in SCALES if round(min(size[1:]) * scale) >= network.smallest_side]
    found = calibrate(network, shown, labels, scales=scales, batch=min(16, recipe.data.batch_size), seed=recipe.seed)
    save(network, file)
    return found
