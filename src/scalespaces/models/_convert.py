"""Ordinary CNNs, run on scale-spaces as they are."""

from __future__ import annotations

import copy
import dataclasses
import linecache
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from traceback import walk_tb
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from scalespaces._torch import has_hooks
from scalespaces.functional._conv import SCALE_PADDINGS
from scalespaces.functional._pool import SCALE_MODES
from scalespaces.models._network import ScaleNetwork, first_channels, plain
from scalespaces.nn import Lift, ScaleConv1d, ScaleConv2d, ScaleConv3d, ScalePool, synchronize
from scalespaces.nn._lift import as_lift
from scalespaces.space import ScaleSpace
from scalespaces.space._strict import strictly
from scalespaces.theory._arguments import check_choice, did_you_mean

Interaction = None | str | Sequence[str] | Callable[[str, nn.Module], bool]

_WITH_LEVELS: dict[type[nn.Module], Any] = {nn.Conv1d: ScaleConv1d, nn.Conv2d: ScaleConv2d, nn.Conv3d: ScaleConv3d}
_CONVOLUTIONS = (*_WITH_LEVELS, *_WITH_LEVELS.values())

_REFUSED: dict[tuple[type, ...], str] = {
    (nn.MultiheadAttention, nn.Transformer, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer): (
        "attends over the positions of a map of one size"
    ),
    (nn.RNNBase, nn.RNNCellBase): "runs along one axis of one size",
    (nn.Fold, nn.Unfold): "takes windows apart; write the sum over them as a convolution",
    (nn.MaxUnpool1d, nn.MaxUnpool2d, nn.MaxUnpool3d): "puts samples where a pooling took them; use nn.Upsample",
    (nn.FractionalMaxPool2d, nn.FractionalMaxPool3d): "pools windows at random places; use nn.MaxPool2d",
    (nn.LPPool1d, nn.LPPool2d): "has no dilated windows; use nn.AvgPool2d or nn.MaxPool2d",
    (torch.jit.ScriptModule,): "is compiled for tensors; convert the model before it is scripted",
    (LazyModuleMixin,): "has no parameters yet; run the model on an image first",
    (Lift,): "lifts images itself; the model runs on scale-spaces already",
}


class ConversionError(RuntimeError):
    """A part of a model cannot run on scale-spaces; the message has the module, the line, the reason and a remedy."""


def convert(
    model: nn.Module,
    lift: Lift | Mapping[str, Any] | None = None,
    *,
    interaction: Interaction = None,
    scale_padding: str = "zeros",
    scale_pool: str = "mean",
    pool_before: str | None = None,
    features: str | None = None,
) -> Converted:
    r"""Turn an ordinary CNN :math:`\Phi` into one that is equivariant to scale, with the same parameters.

    .. math:: \hat\Phi[f]_k = \Phi[f_k], \qquad f_k = D^k f

    The model's own code runs on the lifted image: its convolutions, poolings and normalizations have taps :math:`c^k`
    apart at level :math:`k`. In evaluation, level 0 is what the model computes from the image, and on a pyramid level
    :math:`k` is what it computes from :math:`D^k f`. While training, batch norms take their statistics over all
    levels. The model is copied. Parameters keep their names, after ``model.``; those that ``interaction`` selects get
    one more axis.

    What cannot run on scale-spaces raises an error that names the module, the line and the reason. (A test
    ``type(x) is Tensor`` cannot be detected.)

    Args:
        model: from images to tensors, or nests of them: dictionaries, lists, tuples, dataclasses.
        lift: how images become levels: a :class:`~scalespaces.nn.Lift`, or a dict of arguments that differ from the
            recommended ones. ``Lift()``, with the spatial axes of the model, when left out.
        interaction: convolutions that get a filter of two levels, the second of which starts at zero: ``"all"``,
            patterns of names (``["layer4.*.conv2"]``), or a function of name and module. Only plain ``nn.Conv1d``,
            ``2d`` and ``3d`` can be selected.
        scale_padding: what those convolutions see past the last level.
        scale_pool: how levels are combined at the end: ``"mean"``, ``"max"``, ``"logsumexp"`` or ``"probabilities"``.
        pool_before: the name of a module; levels are combined in front of it instead. ``pool_before="fc"`` combines the
            features of a classifier, not its logits.
        features: the name of the module whose input are the features; the last linear layer when left out.

    Example:
        >>> cnn = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, stride=2), torch.nn.ReLU(),
        ...                           torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 5))
        >>> network, image = scalespaces.convert(cnn, {"num_levels": 3}), torch.rand(1, 3, 64, 64)
        >>> network(image).shape
        torch.Size([1, 5])
        >>> torch.equal(network.scores(image).levels[0], cnn(image))
        True
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected an nn.Module to convert, got {type(model).__name__}")
    modules = dict(model.named_modules())
    for name, module in modules.items():
        for kinds, reason in _REFUSED.items():
            if isinstance(module, kinds):
                raise ConversionError(f"{_called(name, module)} {reason}: it cannot run on scale-spaces")
        if getattr(module, "return_indices", False):
            raise ConversionError(f"{_called(name, module)} returns indices, which have no place on grids")
    check_choice("scale_padding", scale_padding, SCALE_PADDINGS)
    check_choice("scale_pool", scale_pool, SCALE_MODES)
    for argument, name in (("pool_before", pool_before), ("features", features)):
        if name is not None and name not in modules:
            raise ValueError(f"{argument} is the name of a module, got {name!r}{did_you_mean(name, modules)}")
    first: Any = next((module for module in modules.values() if isinstance(module, _CONVOLUTIONS)), None)
    lift = as_lift(lift, {} if first is None else {"dims": len(first.stride)})
    chosen = _choose(modules, interaction)
    config: dict[str, Any] = {"lift": plain(lift.config), "interaction": chosen or None, "scale_padding": scale_padding}
    config |= {"scale_pool": scale_pool, "pool_before": pool_before, "features": features}
    lift, parameter = Lift(**lift.config), next(model.parameters(), None)
    if parameter is not None and parameter.is_floating_point():
        lift = lift.to(parameter.device, parameter.dtype if parameter.dtype.itemsize >= 4 else None)
    return Converted(lift, _replace(copy.deepcopy(model), chosen, scale_padding), config)


class Converted(ScaleNetwork):
    """A model on scale-spaces, made by :func:`convert`: a lift, the model, and levels combined at the end.

    Every ScaleSpace in the model's output, which may be nested, is combined on the grid of level 0; :meth:`outputs`
    returns them before that. ``config`` has the arguments of :func:`convert`.
    """

    def __init__(self, lift: Lift, model: nn.Module, config: dict[str, Any]) -> None:
        super().__init__()
        self.lift, self.model, self.config, self.scale_pool = lift, model, config, ScalePool(config["scale_pool"])
        self.in_channels, self.training = first_channels(model), model.training
        self._combines_inside = False
        if config["pool_before"] is not None:
            model.get_submodule(config["pool_before"]).register_forward_pre_hook(self._combine_inputs)

    def forward(self, image: Tensor) -> Any:
        """Run the model on all levels, and combine them."""
        return _map_spaces(self._run(image, combine=True), self.combine)

    def outputs(self, image: Tensor) -> Any:
        """The model's output before levels are combined: every tensor of it is a ScaleSpace."""
        return self._run(image, combine=False)

    def scores(self, image: Tensor) -> ScaleSpace:
        """Each level's own answer; the model's output must be one tensor, not a nest of them."""
        output = self.outputs(image)
        if not isinstance(output, ScaleSpace):
            given = f"got a {type(output).__name__}; take what you need of network.outputs(image)"
            raise TypeError(f"scores are for models with a single output, {given}")
        return _check_grids(output)

    def answer_and_scores(self, image: Tensor) -> tuple[Any, ScaleSpace]:
        """The answer and each level's own, computed together unless levels are combined inside the model."""
        scores = self.scores(image)
        return self.combine(scores) if self.config["pool_before"] is None else self(image), scores

    def features(self, image: Tensor) -> ScaleSpace:
        """The input of the model's last linear layer, or of the module that ``features`` of the config names."""
        modules = list(self.model.named_modules())
        names = [name for kind in (_CONVOLUTIONS, nn.Linear) for name, module in modules if isinstance(module, kind)]
        name = self.config["features"] or (names[-1] if names else None)
        if name is None:
            raise ValueError("the model has no linear layer to take features from; name one: convert(features=...)")
        seen: list[Any] = []
        hook = self.model.get_submodule(name).register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
        try:
            self.outputs(image)
        finally:
            hook.remove()
        if not seen or not isinstance(seen[-1], ScaleSpace):
            raise ValueError(f"{name!r} is not called with a ScaleSpace; name another module: convert(features=...)")
        return seen[-1]

    def combine(self, scores: ScaleSpace) -> Tensor:
        """From the scores of levels to one answer: the one place where levels are combined."""
        return self.scale_pool(_check_grids(scores))

    def _combine_inputs(self, module: nn.Module, inputs: tuple) -> Any:
        """The hook of ``pool_before``."""
        return _map_spaces(inputs, self.scale_pool) if self._combines_inside else inputs

    def _run(self, image: Tensor, combine: bool) -> Any:
        """Run the model on all levels: the one place where it runs."""
        if self.config["pool_before"] is not None:
            self._combines_inside = combine
        x = self.lift(image)
        if torch.compiler.is_compiling():
            return self.model(x)
        try:
            with strictly():
                return self.model(x)
        except (torch.OutOfMemoryError, ConversionError):
            raise
        except Exception as error:
            raise ConversionError(_describe(error, self.model)) from error

    def extra_repr(self) -> str:
        return f"interaction={self.config['interaction']}" if self.config["interaction"] else ""


def _check_grids(x: ScaleSpace) -> ScaleSpace:
    """Refuse levels that cannot be brought to one shape."""
    if not x.dims and any(shape != x.shapes[0] for shape in x.shapes):
        levels = f"levels of shapes {x.shapes} and with no grids cannot be pooled"
        raise ConversionError(f"{levels} to one output; take them from network.outputs(image)")
    return x


def _map_spaces(value: Any, function: Callable[[ScaleSpace], Any]) -> Any:
    """The nest with the function applied to every ScaleSpace in it."""
    if isinstance(value, ScaleSpace):
        return function(value)
    if isinstance(value, dict):
        new = {key: _map_spaces(item, function) for key, item in value.items()}
        if type(value) is dict:  # which torch.compile cannot copy
            return new
        other = copy.copy(value)
        other.update(new)
        return other
    if isinstance(value, list):
        return [_map_spaces(item, function) for item in value]
    if isinstance(value, tuple):
        items = [_map_spaces(item, function) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return dataclasses.replace(value, **{name: _map_spaces(getattr(value, name), function) for name in names})
    return value


def _choose(modules: Mapping[str, nn.Module], interaction: Interaction) -> list[str]:
    """The names of the convolutions that get filters of two levels."""
    convs = {name: conv for name, conv in modules.items() if type(conv) in _WITH_LEVELS and not has_hooks(conv)}
    if interaction is None:
        return []
    if interaction == "all":
        return list(convs)
    if callable(interaction):
        return [name for name, conv in convs.items() if interaction(name, conv)]
    patterns = [interaction] if isinstance(interaction, str) else interaction
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in convs):
            hint = did_you_mean(pattern, modules)
            raise ValueError(f"interaction names plain convolutions, got {pattern!r}, which matches none{hint}")
    return [name for name in convs if any(fnmatchcase(name, pattern) for pattern in patterns)]


def _replace(model: nn.Module, chosen: Sequence[str], scale_padding: str) -> nn.Module:
    """Put our layers where plain ones will not do; shared modules and parameters stay shared."""
    weights: dict[nn.Parameter, nn.Parameter] = {}
    new = {conv: _two_levels(conv, scale_padding, weights) for conv in map(model.get_submodule, chosen)}
    # nn.SyncBatchNorm reduces one tensor over processes.
    new |= {norm: synchronize(norm) for norm in model.modules() if isinstance(norm, nn.SyncBatchNorm)}
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if name and module in new:
            parent, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(parent), attribute, new[module])
    return new.get(model, model)


def _two_levels(conv: Any, scale_padding: str, weights: dict[nn.Parameter, nn.Parameter]) -> nn.Module:
    """The convolution with a second level of zeros."""
    shape = (conv.in_channels, conv.out_channels, (2, *conv.kernel_size), conv.stride, conv.padding, conv.dilation)
    options = (conv.groups, conv.bias is not None, conv.padding_mode, scale_padding)
    layer = _WITH_LEVELS[type(conv)](*shape, *options, device="meta")
    if conv.weight not in weights:
        both = torch.stack([conv.weight.detach(), torch.zeros_like(conv.weight)], 2)
        weights[conv.weight] = nn.Parameter(both, conv.weight.requires_grad)
    layer.weight, layer.bias, layer.training = weights[conv.weight], conv.bias, conv.training
    return layer


def _describe(error: Exception, model: nn.Module) -> str:
    """Where in the model the error came from, the reason, and what to do."""
    names = {id(module): (name, module) for name, module in model.named_modules()}
    called, line = _called("", model), ""
    for frame, number in walk_tb(error.__traceback__):
        found = names.get(id(frame.f_locals.get("self")))
        if found is not None:
            called = _called(*found)
        if frame.f_globals.get("__name__", "").split(".")[0] not in ("torch", "scalespaces", "contextlib"):
            code = linecache.getline(frame.f_code.co_filename, number, frame.f_globals).strip()
            line = f", {frame.f_code.co_filename}:{number}" + (f": {code}" if code else "")
    notes = getattr(error, "__notes__", [])
    text = "\n".join([f"{called}{line}", f"{type(error).__name__}: {error}", *notes])
    if isinstance(error, TypeError) and "PerLevel" in text and "x.new_" not in text:
        text += (
            "\na size that differs between levels makes no single tensor: use x.new_zeros(...), not torch.zeros(...)"
        )
    if notes:
        text += "\nthe model must take images as small as that level, and pool space before layers of one size: "
        text += "try fewer levels, a larger image, or adaptive pooling"
    return f"cannot run on scale-spaces: {text}"


def _called(name: str, module: nn.Module) -> str:
    return f"{name or 'the model'} ({type(module).__name__})"
