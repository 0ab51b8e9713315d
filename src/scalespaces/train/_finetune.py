"""Fine-tuning: which parameters are trained, and how fast. The options are in ``_recipe``, the hooks in ``_tasks``."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from scalespaces.models import Converted
from scalespaces.theory._arguments import did_you_mean
from scalespaces.train._levels import POOL


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
    """Whether the parameter is of the head, or of trust, which is on top of it and as new."""
    return name.startswith((f"{head}.", POOL))


def depths(network: nn.Module, head: str) -> dict[str, int]:
    """How many layers below the head each parameter is, by name. Layers are in the order of their definition."""
    parameters, layers, places = dict(network.named_parameters()), {}, {}
    for name in parameters:
        parts = name.removeprefix("model.").split(".")[:-1]
        end = next((n for n, part in enumerate(parts, 1) if any(map(str.isdigit, part))), len(parts))
        layers.setdefault(tuple(parts[:end]), []).append(name)
    for names in layers.values():
        places |= dict.fromkeys(names, max(places.values(), default=0) + any(parameters[n].ndim > 1 for n in names))
    top = max(place for name, place in places.items() if name.startswith(f"{head}."))
    return {name: 0 if in_head(name, head) else max(0, top - place) for name, place in places.items()}
