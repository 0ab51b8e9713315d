"""Tensors made from plain numbers: computed once, and sent to a device once."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from scalespaces._torch import is_transformed


def sent(make: Callable[..., tuple], arguments: tuple, like: Tensor) -> tuple:
    """The result of a function of plain numbers; its first item, a tensor, is sent to a device only once."""
    if lasts(like):
        return _sent(make, arguments, like.device, like.dtype)
    tensor, *others = make(*arguments)
    return tensor.to(like), *others


def lasts(like: Tensor) -> bool:
    """Whether tensors made for this one may be kept: transforms and compilers make kinds that do not last."""
    return type(like) in (Tensor, Parameter) and not is_transformed()


@functools.lru_cache(maxsize=256)
def _sent(make: Callable[..., tuple], arguments: tuple, device: torch.device, dtype: torch.dtype) -> tuple:
    with torch.inference_mode(False):
        tensor, *others = make(*arguments)
        return tensor.to(device, dtype), *others


def at_least(taps: Tensor, like: Tensor, make: Callable[..., tuple], *arguments: Any) -> Tensor:
    """Taps in the precision of a tensor, computed again if a module keeps them in a lower one."""
    if taps.dtype.itemsize < like.dtype.itemsize and not taps.is_meta:
        return sent(make, arguments, like)[0]
    return taps.to(like)
