"""Why a model cannot run on levels: what is refused at once, where an error came from, and which sizes it takes."""

import bisect
import linecache
from collections.abc import Callable, Mapping
from traceback import walk_tb

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from scalespaces.nn import Lift

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


def smallest_side(fits: Callable[[int], bool], side: int, model: nn.Module) -> int | None:
    """The least side of square images that a model takes, found by trying; None if it does not take ``side`` either."""
    # A model that takes some larger sizes and not others has no such side, and is refused.
    if not fits(side):
        return None
    least = 1 + bisect.bisect_left(range(1, side), True, key=fits)
    wrong = next((n for n in (least + 1, least + 2, 2 * least + 1) if not fits(n)), None)
    if wrong is None:
        return least
    ways = "use images whose levels have sizes that it takes, or a model for any size"
    if any(type(module).__module__.startswith("timm.") for module in model.modules()):
        ways += ": timm's ViT, DeiT and the like with dynamic_img_size=True, dynamic_img_pad=True, its Swin with "
        ways += "strict_img_size=False"
    takes = f"the model takes images of {least} x {least}, but not of {wrong} x {wrong}"
    raise ConversionError(f"{takes}, and levels have many sizes; {ways}")


def _called(name: str, module: nn.Module) -> str:
    return f"{name or 'the model'} ({type(module).__name__})"
