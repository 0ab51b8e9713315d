"""Ordinary CNNs, run on scale-spaces as they are."""

from __future__ import annotations

import copy
import dataclasses
import linecache
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from traceback import walk_tb
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from scalespaces.functional import ScaleSpace, resample
from scalespaces.functional._conv import SCALE_PADDINGS
from scalespaces.functional._lift import Sampling
from scalespaces.functional._strict import strictly
from scalespaces.models._card import Card
from scalespaces.nn import Lift, ScaleConv1d, ScaleConv2d, ScaleConv3d, ScalePool, synchronize
from scalespaces.testing import equivariance_error
from scalespaces.theory._checks import PaddingMode, check_choice, check_integer
from scalespaces.theory._scale import Base, check_base

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


class Converted(nn.Module):
    """A model on scale-spaces: a lift in front, the model, a pooling over levels behind; see :func:`convert`.

    Every ScaleSpace in the model's output, which may be nested, is pooled over levels on the grid of level 0. With
    ``return_levels`` none is.

    Args:
        lift: from images to scale-spaces.
        model: from scale-spaces to scale-spaces, or nests of them.
        pool: from scale-spaces to tensors.
        config: the arguments of :func:`convert`, fit for JSON.
    """

    card: Card
    """What predictions need beside the network; may be set, and is saved with it."""

    def __init__(self, lift: Lift, model: nn.Module, pool: ScalePool, config: dict[str, Any]) -> None:
        super().__init__()
        self.lift, self.model, self.pool, self.config = lift, model, pool, config
        self.training = model.training
        self._before = None
        if config["pool_before"] is not None:
            self._before = _PoolBefore(pool)
            model.get_submodule(config["pool_before"]).register_forward_pre_hook(self._before)

    def forward(self, image: Tensor, return_levels: bool = False) -> Any:
        """Lift, run the model, and pool over levels."""
        if self._before is not None:
            self._before.active = not return_levels
        x = self.lift(image)
        if torch.compiler.is_compiling():
            output = self.model(x)
        else:
            try:
                with strictly():
                    output = self.model(x)
            except (torch.OutOfMemoryError, ConversionError):
                raise
            except Exception as error:
                raise ConversionError(_describe(error, self.model)) from error
        return output if return_levels else _map_spaces(output, self._pooled)

    def level_answers(self, image: Tensor) -> Tensor:
        """Every level's own output, coarse levels last: one more axis in front than what levels pool to.

        Maps are on the grid of level 0. The model's output must be one ScaleSpace, not a nest of them.
        """
        output = self(image, return_levels=True)
        if not isinstance(output, ScaleSpace):
            raise TypeError(
                f"level_answers is for models with a single output, got a {type(output).__name__}; take what you need "
                "of model(image, return_levels=True)"
            )
        return torch.stack(resample(_check_grids(output)).levels)

    def _pooled(self, x: ScaleSpace) -> Tensor:
        return self.pool(_check_grids(x))

    def extra_repr(self) -> str:
        """Which convolutions see the next level, too."""
        chosen = self.config["interaction"]
        return f"interaction={chosen}" if chosen else ""


def _check_grids(x: ScaleSpace) -> ScaleSpace:
    """Refuse levels that cannot be brought to one shape."""
    if not x.dims and any(shape != x.shapes[0] for shape in x.shapes):
        raise ConversionError(
            f"an output whose levels have shapes {x.shapes} and no grids cannot be pooled over levels; take them "
            "with return_levels=True"
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
    num_levels: int = 4,
    base: Base = 2.0,
    zero_scale: float = 0.25,
    sampling: Sampling = "pyramid",
    method: str = "cascade",
    kernel: str = "discrete_gaussian",
    padding_mode: PaddingMode = "reflect",
    first_level: int = 0,
    interaction: Interaction = None,
    scale_padding: str = "zeros",
    pool: str = "mean",
    pool_before: str | None = None,
    report: bool = False,
    image: Tensor | None = None,
) -> Converted:
    r"""Turn an ordinary CNN :math:`\Phi` into one that is equivariant to scale, with the same parameters.

    .. math:: \hat\Phi[f]_k = \Phi[f_k], \qquad f_k = D^k f

    Plain layers run on the container: the model's own code is run on the lifted image, its convolutions, poolings and
    normalizations with taps :math:`c^k` apart at level :math:`k` (:mod:`scalespaces.functional._torch_functions`). In
    evaluation level 0 is what the model computes from the image, and on a pyramid level :math:`k` what it computes
    from :math:`D^k f`. While training, batch norms take their statistics over all levels. The model is copied;
    parameters keep their names, after ``model.``, but ``interaction`` gives the weights it chooses another axis.

    What cannot run on scale-spaces is refused with the module, the line and the reason: branches on a size that
    differs between levels, ``isinstance(x, Tensor)``, flattened maps that have one size. (A test
    ``type(x) is Tensor`` cannot be seen.)

    Args:
        model: from images to tensors, or nests of them: dictionaries, lists, tuples, dataclasses.
        num_levels: of the lift; as in :func:`~scalespaces.functional.lift`, like ``base``, ``zero_scale``,
            ``sampling``, ``method``, ``kernel`` (by name), ``padding_mode`` and ``first_level``.
        interaction: convolutions that get a filter of two levels, the second of which starts at zero: ``"all"``,
            patterns of names (``["layer4.*.conv2"]``), a function of name and module, or ``n`` for the first of every
            ``n``. Only plain ``nn.Conv1d``, ``2d`` and ``3d`` can be chosen.
        scale_padding: what those convolutions see past the last level.
        pool: over levels at the end, ``"mean"``, ``"max"`` or ``"logsumexp"``.
        pool_before: the name of a module; levels are pooled in front of it already, features of a classifier with
            ``pool_before="fc"`` instead of logits.
        report: print the equivariance error, measured on ``image``.
        image: ``(B, C, *spatial)``; noise of 256 pixels along each axis when left out.

    Example:
        >>> cnn = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, stride=2), torch.nn.ReLU(),
        ...                           torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 5))
        >>> network, image = scalespaces.convert(cnn, num_levels=3), torch.rand(1, 3, 64, 64)
        >>> network(image).shape
        torch.Size([1, 5])
        >>> torch.equal(network(image, return_levels=True).levels[0], cnn(image))
        True
    """
    _check(model)
    check_choice("scale_padding", scale_padding, SCALE_PADDINGS)
    lift = Lift(num_levels, base, zero_scale, kernel, method, sampling, padding_mode, first_level)
    chosen = _choose(model, interaction)
    if pool_before is not None and pool_before not in dict(model.named_modules()):
        raise ValueError(f"pool_before is the name of a module, got {pool_before!r}{_similar(pool_before, model)}")
    config = {
        "num_levels": num_levels,
        "base": check_base(base),
        "zero_scale": zero_scale,
        "sampling": sampling,
        "method": method,
        "kernel": kernel,
        "padding_mode": padding_mode,
        "first_level": first_level,
        "interaction": chosen or None,
        "scale_padding": scale_padding,
        "pool": pool,
        "pool_before": pool_before,
    }
    lift = _like(lift, model)
    converted = Converted(lift, _replace(copy.deepcopy(model), chosen, scale_padding), ScalePool(pool), config)
    if report:
        print(_report(converted, image))
    return converted


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
    close = get_close_matches(name, [other for other, _ in model.named_modules()], 1, 0.4)
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


class _Output(nn.Module):
    """One ScaleSpace of the output."""

    def __init__(self, converted: Converted, index: int) -> None:
        super().__init__()
        self.converted, self.index = converted, index

    def forward(self, image: Tensor) -> ScaleSpace:
        """Run."""
        found: list[ScaleSpace] = []
        _map_spaces(self.converted(image, return_levels=True), found.append)
        return found[self.index]


def _report(converted: Converted, image: Tensor | None) -> str:
    if image is None:
        image = _noise(converted)
    outputs: list[ScaleSpace] = []
    training = [module for module in converted.modules() if module.training]
    converted.eval()
    with torch.no_grad():
        _map_spaces(converted(image, return_levels=True), outputs.append)
    tables = [equivariance_error(_Output(converted, index), image) for index in range(len(outputs))]
    for module in training:
        module.training = True
    head = f"equivariance error on images {tuple(image.shape)}, downscaled by base**l"
    return "\n\n".join(
        f"{head}, output {index}\n{table}" if len(tables) > 1 else f"{head}\n{table}"
        for index, table in enumerate(tables)
    )


def _noise(converted: Converted) -> Tensor:
    kinds = (*_CONVOLUTIONS, *_CONVOLUTIONS.values())
    found: list[Any] = [module for module in converted.modules() if isinstance(module, kinds)]
    if found:
        first, generator = found[0], torch.Generator().manual_seed(0)
        dims = first.weight.ndim - 2 if type(first) not in _CONVOLUTIONS.values() else first.dims
        return torch.randn(1, first.in_channels, *[256] * dims, generator=generator).to(first.weight)
    raise ValueError("the model has no convolution that says what images it takes; give report an image")


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
