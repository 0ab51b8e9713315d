"""Ordinary CNNs, run on scale-spaces as they are."""

from __future__ import annotations

import copy
import dataclasses
import linecache
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from traceback import walk_tb
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from scalespaces.functional._conv import SCALE_PADDINGS
from scalespaces.functional._pool import SCALE_MODES
from scalespaces.models._network import ScaleNetwork, first_channels
from scalespaces.models._registry import plain
from scalespaces.nn import Lift, ScaleConv1d, ScaleConv2d, ScaleConv3d, ScalePool, synchronize
from scalespaces.nn._lift import as_lift
from scalespaces.space import ScaleSpace
from scalespaces.space._strict import strictly
from scalespaces.theory._arguments import check_choice, check_integer

Interaction = None | str | int | Sequence[str] | Callable[[str, nn.Module], bool]

_CONVOLUTIONS: dict[type[nn.Module], Any] = {nn.Conv1d: ScaleConv1d, nn.Conv2d: ScaleConv2d, nn.Conv3d: ScaleConv3d}

_REFUSED: dict[tuple[type, ...], str] = {
    (nn.MultiheadAttention, nn.Transformer, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer): (
        "attends over the positions of a map of one size"
    ),
    (nn.RNNBase, nn.RNNCellBase): "runs along one axis of one size",
    (nn.Fold, nn.Unfold): "takes windows apart; write the sum over them as a convolution",
    (nn.MaxUnpool1d, nn.MaxUnpool2d, nn.MaxUnpool3d): "puts samples where a pooling took them; use nn.Upsample",
    (nn.FractionalMaxPool2d, nn.FractionalMaxPool3d): "pools windows at random places; use nn.MaxPool2d",
    (nn.LPPool1d, nn.LPPool2d): "has no windows that are spread; use nn.AvgPool2d or nn.MaxPool2d",
    (torch.jit.ScriptModule,): "is compiled for tensors; convert the model before it is scripted",
    (LazyModuleMixin,): "has no parameters yet; run the model on an image first",
    (Lift,): "lifts images by itself; the model is one of scale-spaces already",
}


class ConversionError(RuntimeError):
    """What of a model cannot run on scale-spaces: the module, the line, the reason and what to do."""


class Converted(ScaleNetwork):
    """A model on scale-spaces: a lift in front, the model, and levels combined behind; made by :func:`convert`.

    Every ScaleSpace in the model's output, which may be nested, is pooled over levels on the grid of level 0;
    :meth:`outputs` has them before.

    Args:
        lift: from images to scale-spaces.
        model: from scale-spaces to scale-spaces, or nests of them.
        config: the arguments of :func:`convert`, fit for JSON.
    """

    def __init__(self, lift: Lift, model: nn.Module, config: dict[str, Any]) -> None:
        super().__init__()
        self.lift, self.model, self.config, self.pool = lift, model, config, ScalePool(config["scale_pool"])
        self.in_channels = first_channels(model)
        self.training = model.training
        self._before = None
        if config["pool_before"] is not None:
            self._before = _PoolBefore(self.pool)
            model.get_submodule(config["pool_before"]).register_forward_pre_hook(self._before)

    def forward(self, image: Tensor) -> Any:
        """The model's answer, with levels combined."""
        return _map_spaces(self._run(image, pooled=True), self._pooled)

    def outputs(self, image: Tensor) -> Any:
        """What the model puts out, every tensor of it a ScaleSpace: before levels are combined."""
        return self._run(image, pooled=False)

    def scores(self, image: Tensor) -> ScaleSpace:
        """Each level's own answer; the model's output must be one tensor, not a nest of them."""
        output = self.outputs(image)
        if not isinstance(output, ScaleSpace):
            raise TypeError(
                f"scores are for models with a single output, got a {type(output).__name__}; take what you need of "
                "network.outputs(image)"
            )
        return _check_grids(output)

    def answer_and_scores(self, image: Tensor) -> tuple[Any, ScaleSpace]:
        """The answer and each level's own, computed together unless levels are pooled inside the model."""
        scores = self.scores(image)
        return self._pooled(scores) if self._before is None else self(image), scores

    def features(self, image: Tensor) -> ScaleSpace:
        """What goes into the model's last linear layer, or into the module that ``features`` of the config names."""
        name = self.config["features"] or _last_layer(self.model)
        seen: list[Any] = []
        hook = self.model.get_submodule(name).register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
        try:
            self.outputs(image)
        finally:
            hook.remove()
        if not seen or not isinstance(seen[-1], ScaleSpace):
            raise ValueError(
                f"the module {name!r} is not called with a ScaleSpace; name another: convert(features=...)"
            )
        return seen[-1]

    def _run(self, image: Tensor, pooled: bool) -> Any:
        if self._before is not None:
            self._before.active = pooled
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

    def _pooled(self, x: ScaleSpace) -> Tensor:
        return self.pool(_check_grids(x))

    def extra_repr(self) -> str:
        """Which convolutions see the next level, too."""
        chosen = self.config["interaction"]
        return f"interaction={chosen}" if chosen else ""


def _first_convolution(model: nn.Module) -> Any:
    kinds = (*_CONVOLUTIONS, *_CONVOLUTIONS.values())
    return next((module for module in model.modules() if isinstance(module, kinds)), None)


def _last_layer(model: nn.Module) -> str:
    """The name of the last linear layer, or of the last convolution of a model without one."""
    layers = dict(model.named_modules())
    for kinds in ((nn.Linear,), (*_CONVOLUTIONS, *_CONVOLUTIONS.values())):
        if names := [name for name, module in layers.items() if isinstance(module, kinds)]:
            return names[-1]
    raise ValueError("the model has no linear layer whose input are the features; name one: convert(features=...)")


def _check_grids(x: ScaleSpace) -> ScaleSpace:
    """Refuse levels that cannot be brought to one shape."""
    if not x.dims and any(shape != x.shapes[0] for shape in x.shapes):
        raise ConversionError(
            f"an output whose levels have shapes {x.shapes} and no grids cannot be pooled over levels; take them "
            "from network.outputs(image)"
        )
    return x


class _PoolBefore:
    """Pools what a module is called with, over levels."""

    def __init__(self, pool: ScalePool) -> None:
        self.pool, self.active = pool, True

    def __call__(self, module: nn.Module, inputs: tuple) -> Any:
        return _map_spaces(inputs, self.pool) if self.active else inputs


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

    Plain layers run on the container: the model's own code is run on the lifted image, its convolutions, poolings and
    normalizations with taps :math:`c^k` apart at level :math:`k`. In evaluation level 0 is what the model computes
    from the image, and on a pyramid level :math:`k` what it computes from :math:`D^k f`. While training, batch norms
    take their statistics over all levels. The model is copied; parameters keep their names, after ``model.``, but
    ``interaction`` gives the weights it chooses another axis.

    What cannot run on scale-spaces is refused with the module, the line and the reason: branches on a size that
    differs between levels, ``isinstance(x, Tensor)``, flattened maps that have one size. (A test
    ``type(x) is Tensor`` cannot be seen.)

    Args:
        model: from images to tensors, or nests of them: dictionaries, lists, tuples, dataclasses.
        lift: how images become levels: a :class:`~scalespaces.nn.Lift`, or a dict of arguments that differ from the
            recommended ones. ``Lift()``, with the spatial axes of the model, when left out.
        interaction: convolutions that get a filter of two levels, the second of which starts at zero: ``"all"``,
            patterns of names (``["layer4.*.conv2"]``), a function of name and module, or ``n`` for the first of every
            ``n``. Only plain ``nn.Conv1d``, ``2d`` and ``3d`` can be chosen.
        scale_padding: what those convolutions see past the last level.
        scale_pool: how levels are combined at the end: ``"mean"``, ``"max"``, ``"logsumexp"`` or ``"probabilities"``.
        pool_before: the name of a module; levels are pooled in front of it already, features of a classifier with
            ``pool_before="fc"`` instead of logits.
        features: the name of a module whose input are the features; the last linear layer when left out.

    Example:
        >>> cnn = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, stride=2), torch.nn.ReLU(),
        ...                           torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 5))
        >>> network, image = scalespaces.convert(cnn, {"num_levels": 3}), torch.rand(1, 3, 64, 64)
        >>> network(image).shape
        torch.Size([1, 5])
        >>> torch.equal(network.scores(image).levels[0], cnn(image))
        True
    """
    _check(model)
    check_choice("scale_padding", scale_padding, SCALE_PADDINGS)
    check_choice("scale_pool", scale_pool, SCALE_MODES)
    first = _first_convolution(model)
    lift = as_lift(lift, {} if first is None else {"dims": len(first.stride)})
    chosen = _choose(model, interaction)
    for argument, name in (("pool_before", pool_before), ("features", features)):
        if name is not None and name not in dict(model.named_modules()):
            raise ValueError(f"{argument} is the name of a module, got {name!r}{_similar(name, model)}")
    config: dict[str, Any] = {
        "lift": plain(lift.config),
        "interaction": chosen or None,
        "scale_padding": scale_padding,
        "scale_pool": scale_pool,
        "pool_before": pool_before,
        "features": features,
    }
    lift = _like(Lift(**lift.config), model)
    return Converted(lift, _replace(copy.deepcopy(model), chosen, scale_padding), config)


def _like(lift: Lift, model: nn.Module) -> Lift:
    """The lift on the device of the model and in its precision."""
    tensor = next(iter(model.parameters()), None)
    if tensor is None or not tensor.is_floating_point():
        return lift
    return lift.to(tensor.device, tensor.dtype if tensor.dtype.itemsize >= 4 else None)


def _check(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected an nn.Module to convert, got {type(model).__name__}")
    for name, module in model.named_modules():
        for kinds, reason in _REFUSED.items():
            if isinstance(module, kinds):
                raise ConversionError(f"{_called(name, module)} {reason}: it cannot run on scale-spaces")
        if getattr(module, "return_indices", False):
            raise ConversionError(f"{_called(name, module)} returns indices, which have no place on grids")


def _called(name: str, module: nn.Module) -> str:
    return f"{name or 'the model'} ({type(module).__name__})"


# --- filters of two levels -------------------------------------------------------------------------------------------


def _choose(model: nn.Module, interaction: Interaction) -> list[str]:
    """The names of the convolutions that get filters of two levels."""
    modules = {name: module for name, module in model.named_modules() if _is_plain(module)}
    if interaction is None:
        return []
    if interaction == "all":
        return list(modules)
    if isinstance(interaction, int):
        return list(modules)[:: check_integer("interaction", interaction, 1)]
    if callable(interaction):
        return [name for name, module in modules.items() if interaction(name, module)]
    patterns = [interaction] if isinstance(interaction, str) else interaction
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in modules):
            raise ValueError(
                f"interaction names plain convolutions, got {pattern!r}, which matches none{_similar(pattern, model)}"
            )
    return [name for name in modules if any(fnmatchcase(name, pattern) for pattern in patterns)]


def _similar(name: str, model: nn.Module) -> str:
    close = get_close_matches(str(name), [other for other, _ in model.named_modules()], 1, 0.4)
    return f"; did you mean {close[0]!r}?" if close else ""


def _is_plain(module: nn.Module) -> bool:
    return type(module) in _CONVOLUTIONS and not module._forward_hooks and not module._forward_pre_hooks


def _replace(model: nn.Module, chosen: Sequence[str], scale_padding: str) -> nn.Module:
    """Put our layers where plain ones will not do; parameters that were shared stay so."""
    convolutions = {id(model.get_submodule(name)) for name in chosen}
    new: dict[int, nn.Module] = {}
    weights: dict[int, nn.Parameter] = {}
    for module in list(model.modules()):
        if id(module) in convolutions:
            new[id(module)] = _two_levels(module, scale_padding, weights)
        elif isinstance(module, nn.SyncBatchNorm):  # it reduces one tensor over processes
            new[id(module)] = synchronize(module)
    for module in list(model.modules()):
        for name, child in module._modules.items():
            if child is not None and id(child) in new:
                module._modules[name] = new[id(child)]
    return new.get(id(model), model)


def _two_levels(conv: Any, scale_padding: str, weights: dict[int, nn.Parameter]) -> nn.Module:
    layer = _CONVOLUTIONS[type(conv)](
        conv.in_channels,
        conv.out_channels,
        (2, *conv.kernel_size),
        conv.stride,
        conv.padding,
        conv.dilation,
        conv.groups,
        conv.bias is not None,
        conv.padding_mode,
        scale_padding,
        device="meta",
    )
    plain = conv.weight
    if id(plain) not in weights:
        both = torch.stack([plain.detach(), torch.zeros_like(plain)], 2)
        weights[id(plain)] = nn.Parameter(both, plain.requires_grad)
    layer.weight, layer.bias, layer.training = weights[id(plain)], conv.bias, conv.training
    return layer


# --- outputs ---------------------------------------------------------------------------------------------------------


def _map_spaces(value: Any, function: Callable[[ScaleSpace], Any]) -> Any:
    """The nest with every ScaleSpace in it replaced."""
    if isinstance(value, ScaleSpace):
        return function(value)
    if isinstance(value, dict):
        new = {key: _map_spaces(item, function) for key, item in value.items()}
        if type(value) is dict:
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


# --- errors with their place -----------------------------------------------------------------------------------------


def _describe(error: Exception, model: nn.Module) -> str:
    """Where in the model the error came from, the reason, and what to do."""
    names = {id(module): (name, module) for name, module in model.named_modules()}
    called, line = _called("", model), ""
    for frame, number in walk_tb(error.__traceback__):
        found = names.get(id(frame.f_locals.get("self")))
        if found is not None:
            called = _called(*found)
        if not _is_library(frame):
            code = linecache.getline(frame.f_code.co_filename, number, frame.f_globals).strip()
            line = f", {frame.f_code.co_filename}:{number}" + (f": {code}" if code else "")
    notes = getattr(error, "__notes__", [])
    text = "\n".join([f"{called}{line}", f"{type(error).__name__}: {error}", *notes])
    if isinstance(error, TypeError) and "PerLevel" in text and "x.new_" not in text:
        text += (
            "\na size that differs between levels makes no single tensor: use x.new_zeros(...), not torch.zeros(...)"
        )
    if notes:
        text += (
            "\nthe model must be able to take an image as small as that level, and space must be pooled before layers "
            "of one size: try fewer levels, a larger image, or adaptive pooling"
        )
    return f"cannot run on scale-spaces: {text}"


def _is_library(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__", "").split(".")[0] in ("torch", "scalespaces", "contextlib")
