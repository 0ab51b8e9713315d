"""The modules of a model to convert: which are refused, which get a second level, and where an error came from."""

import linecache
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from itertools import islice
from traceback import walk_tb
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.overrides import TorchFunctionMode

from scalespaces._torch import has_hooks
from scalespaces.nn import Lift, ScaleConv1d, ScaleConv2d, ScaleConv3d, synchronize
from scalespaces.nn._conv import as_images
from scalespaces.theory._arguments import did_you_mean

Interaction = None | str | Sequence[str] | Callable[[str, nn.Module], bool]

Conv = nn.Conv1d | nn.Conv2d | nn.Conv3d
TORCHS_OWN = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_WITH_LEVELS = {nn.Conv1d: ScaleConv1d, nn.Conv2d: ScaleConv2d, nn.Conv3d: ScaleConv3d}
CONVOLUTIONS = (*TORCHS_OWN, *_WITH_LEVELS.values())
_ATTENTION = (nn.MultiheadAttention, nn.Transformer, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
_NEVER: dict[tuple[type, ...], str] = {
    (LazyModuleMixin,): "has no parameters yet; run the model on an image first",
    (Lift,): "lifts images itself; the model runs on scale-spaces already",
}
_ON_TENSORS: dict[tuple[type, ...], str] = {  # right on each level by itself, but not on a scale-space
    _ATTENTION: "attends over the positions of a map of one size",
    (nn.RNNBase, nn.RNNCellBase): "runs along one axis of one size",
    (nn.Fold, nn.Unfold): "takes windows apart; write the sum over them as a convolution",
    (nn.MaxUnpool1d, nn.MaxUnpool2d, nn.MaxUnpool3d): "puts samples where a pooling took them; use nn.Upsample",
    (nn.FractionalMaxPool2d, nn.FractionalMaxPool3d): "pools windows at random places; use nn.MaxPool2d",
    (nn.LPPool1d, nn.LPPool2d): "has no dilated windows; use nn.AvgPool2d or nn.MaxPool2d",
    (torch.jit.ScriptModule,): "is compiled for tensors; convert the model before it is scripted",
}


class ConversionError(RuntimeError):
    """A part of a model cannot run on levels; the message has the module, the line, the reason and a remedy."""


def refuse(modules: Mapping[str, nn.Module], cause: str) -> None:
    """Refuse what can run on no levels, and, if there is a ``cause`` to run on scale-spaces, what cannot do that."""
    for name, module in modules.items():
        for kinds, reason in (_NEVER | _ON_TENSORS if cause else _NEVER).items():
            if isinstance(module, kinds):
                because = f", as {cause} needs" if kinds in _ON_TENSORS else ""
                raise ConversionError(f"{_called(name, module)} {reason}: it cannot run on scale-spaces{because}")
        if cause and getattr(module, "return_indices", False):
            raise ConversionError(f"{_called(name, module)} returns indices, which have no place on grids")


def _called(name: str, module: nn.Module) -> str:
    return f"{name or 'the model'} ({type(module).__name__})"


def choose(modules: Mapping[str, nn.Module], interaction: Interaction, dims: int, scale_padding: str) -> list[str]:
    """The names of the convolutions that get filters of two levels; what chooses none is an error that says why."""
    if interaction is None:
        return []
    reasons = {n: _obstacle(m, dims, scale_padding) for n, m in modules.items() if isinstance(m, TORCHS_OWN)}
    patterns = ["*"] if interaction == "all" else [interaction] if isinstance(interaction, str) else interaction
    if callable(patterns):
        chosen = [name for name, reason in reasons.items() if not reason and patterns(name, modules[name])]
        if not chosen:
            raise ValueError(f"interaction chooses convolutions, and the function chooses none; {_list(reasons)}")
        return chosen
    for pattern in patterns:
        matched = {name: reason for name, reason in reasons.items() if fnmatchcase(name, pattern)}
        if not all(matched.values()) and matched:
            continue
        given = f"interaction chooses convolutions, got {'all' if interaction == 'all' else pattern!r}"
        others = [name for name in modules if name and fnmatchcase(name, pattern)]
        if matched or pattern == "*":
            raise ValueError(f"{given}, which chooses none; {_list(matched)}")
        if others:
            raise ValueError(f"{given}, which is a {type(modules[others[0]]).__name__}; {_list(reasons)}")
        raise ValueError(f"{given}, which matches none{did_you_mean(pattern, reasons)}")
    return [name for name, reason in reasons.items() if not reason and any(fnmatchcase(name, p) for p in patterns)]


def _list(reasons: Mapping[str, str]) -> str:
    """The convolutions there are, and what speaks against them."""
    lines = [f"{name!r} {reason or 'can be chosen'}" for name, reason in islice(reasons.items(), 4)]
    more = f", and {len(reasons) - 4} more" if len(reasons) > 4 else ""
    return f"of the model's convolutions, {'; '.join(lines)}{more}" if lines else "the model has no convolutions"


def _obstacle(conv: Conv, dims: int, scale_padding: str) -> str:
    """Why the filters of a convolution cannot get a second level; empty if they can."""
    called = type(conv).__name__
    if len(conv.kernel_size) != dims:
        return f"({called}) slides over {len(conv.kernel_size)} axes, and images have {dims}: it is not over space"
    if has_hooks(conv):
        return f"({called}) has hooks, which would not run"
    if conv._parameters.get("weight") is None:
        return f"({called}) computes its weight from others (a parametrization)"
    if is_plain(conv):
        return ""
    if scale_padding != "zeros":
        return f"({called}) has a forward of its own, which takes scale_padding='zeros' only"
    if _uses_weight_once(conv):
        return ""
    return f"({called}) has a forward of its own, which changes the weight or does not use it as {_kind(conv).__name__}"


def _kind(conv: nn.Module) -> type[Conv]:
    return next(kind for kind in TORCHS_OWN if isinstance(conv, kind))


def is_plain(conv: Conv) -> bool:
    """Whether the convolution computes what nn.Conv1d, 2d or 3d does, be it of a subclass."""
    kind, own = _kind(conv), type(conv)
    return own.forward is kind.forward and own._conv_forward is kind._conv_forward


class _Uses(TorchFunctionMode):
    """Records the functions that take a weight as it is."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight, self.names = weight, list[str]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(value is self.weight for value in (*args, *kwargs.values())):
            self.names.append(getattr(func, "__name__", ""))
        return func(*args, **kwargs)


@torch.no_grad()
def _uses_weight_once(conv: Conv) -> bool:
    """Whether a forward of its own (dynamic padding, say) gives the weight, as it is, to one convolution."""
    side = 2 * max(d * n for d, n in zip(conv.dilation, conv.kernel_size, strict=True)) + 1
    image, uses = conv.weight.new_zeros(1, conv.in_channels, *[side] * len(conv.kernel_size)), _Uses(conv.weight)
    try:
        with uses:
            conv.forward(image)
    except Exception:  # code of others may raise any
        return False
    computed = [name for name in uses.names if name not in ("__get__", "size", "dim", "numel")]
    return len(computed) == 1 and computed[0] in ("conv1d", "conv2d", "conv3d")


def replace(model: nn.Module, chosen: Sequence[str], scale_padding: str) -> nn.Module:
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
    if conv.weight not in weights:
        both = torch.stack([conv.weight.detach(), torch.zeros_like(conv.weight)], 2)
        weights[conv.weight] = nn.Parameter(both, conv.weight.requires_grad)
    if not is_plain(conv):
        conv.__class__ = _deep(type(conv))
        conv.weight = weights[conv.weight]
        return conv
    shape = (conv.in_channels, conv.out_channels, (2, *conv.kernel_size), conv.stride, conv.padding, conv.dilation)
    options = (conv.groups, conv.bias is not None, conv.padding_mode, scale_padding)
    layer = _WITH_LEVELS[_kind(conv)](*shape, *options, device="meta")
    layer.weight, layer.bias, layer.training = weights[conv.weight], conv.bias, conv.training
    return layer


@cache
def _deep(kind: type[nn.Module]) -> type[nn.Module]:
    return type(kind.__name__, (_Deep, kind), {"__module__": kind.__module__})


class _Deep(nn.Module):
    """A convolution with a forward of its own and a weight of two levels, which torch's function finds on the space."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        return super()._apply(as_images(fn), recurse)


def explain(error: Exception, model: nn.Module, together: bool, norms: bool) -> str:
    """Where in the model an error came from, the reason, and what to do; ``norms`` are why it ran on a scale-space."""
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
        text += "\na size that differs between levels makes no tensor: use x.new_zeros(...), not torch.zeros(...)"
    if norms:
        text += "\nin training, batch norms take statistics over all levels; in evaluation mode they do not, and levels"
        text += " run one by one: call .eval() of the batch norms"
    if notes:
        text += "\nthe model must take images as small as that level, and pool space before layers of one size: "
        text += "try fewer levels, a larger image, or adaptive pooling"
    return f"cannot run on {'scale-spaces' if together else 'all levels'}: {text}"
