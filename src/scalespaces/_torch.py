"""What is private in PyTorch and used here all the same, in one place."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter


def constant(function: Callable) -> Callable:
    """A function of plain numbers whose result torch.compile takes as it is, instead of tracing NumPy.

    This is ``torch.compiler.assume_constant_result`` without its price: that imports the compiler. Tensors among the
    results, alone or in a tuple, are marked as ``mark_static`` does, or else their sizes could become symbols.
    """

    @functools.wraps(function)
    def made(*arguments: Any) -> Any:
        result = function(*arguments)
        for part in result if isinstance(result, tuple) else (result,):
            if isinstance(part, Tensor):
                vars(part)["_dynamo_static_indices"] = set(range(part.ndim))
        return result

    vars(made)["_dynamo_marked_constant"] = True
    return made


def full_precision(x: Tensor) -> AbstractContextManager:
    """Keep autocast from coarsening what must stay exact: the lift and the poolings."""
    if x.is_meta or not torch.is_autocast_enabled(x.device.type):
        return nullcontext()
    return torch.autocast(x.device.type, enabled=False)


def sent(make: Callable[..., tuple], arguments: tuple, like: Tensor) -> tuple:
    """What a function of plain numbers makes, first of all a tensor, which is sent to a device only once."""
    if is_transformed() or type(like) not in (Tensor, Parameter):  # which may be of a kind that does not last
        tensor, *others = make(*arguments)
        return tensor.to(like), *others
    return _sent(make, arguments, like.device, like.dtype)


@functools.lru_cache(maxsize=256)
def _sent(make: Callable[..., tuple], arguments: tuple, device: torch.device, dtype: torch.dtype) -> tuple:
    with torch.inference_mode(False):
        tensor, *others = make(*arguments)
        return tensor.to(device, dtype), *others


def at_least(taps: Tensor, like: Tensor, make: Callable[..., tuple], *arguments: Any) -> Tensor:
    """Taps in the precision of a tensor: made anew where a module keeps them in a lower one."""
    if taps.dtype.itemsize < like.dtype.itemsize and not taps.is_meta:
        return sent(make, arguments, like)[0]
    return taps.to(like)


def is_channels_last(x: Tensor) -> bool:
    """Whether an image stores its channels next to each other, and not its columns; torch.vmap does not tell."""
    if x.ndim != 4 or (not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()):
        return False
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


def is_transformed() -> bool:
    """Whether operations are traced or transformed: compilers fuse formulas, and transforms take them apart."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


def static(value: float) -> float:
    """A number that torch.compile with ``dynamic=True`` must not make a symbol of."""
    if not torch.compiler.is_compiling():
        return value
    from torch.fx.experimental.symbolic_shapes import guard_scalar  # at hand while compiling, slow to import before

    return guard_scalar(value)


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether code of others runs before or after the module's own."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def uncompiled(model: torch.nn.Module) -> torch.nn.Module:
    """The model that torch.compile has wrapped, or the model itself."""
    return getattr(model, "_orig_mod", model)
