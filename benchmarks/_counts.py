"""How many kernels a module launches, how many of them only copy, and how often the host waits for the device."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_PADDINGS = frozenset(
    {"constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d"}
)
COPIES = _PADDINGS | frozenset(
    {"_to_copy", "cat", "clone", "copy", "copy_", "gather", "index", "index_select", "repeat", "roll", "stack", "take"}
)
SYNCHRONIZATIONS = frozenset(
    ("_local_scalar_dense", "_unique2", "equal", "is_nonzero", "item", "masked_select", "nonzero", "unique_dim")
)
UPLOADS = frozenset({"tensor", "as_tensor", "from_numpy", "new_tensor"})
_NO_KERNEL = frozenset({"_unsafe_view", "empty", "empty_like", "empty_strided", "lift_fresh", "new_empty", "resize_"})
_INDEXINGS = frozenset({"index", "index_put", "index_put_"})


def counts(module: Any, *inputs: Any) -> dict[str, int]:
    """The operations of one forward pass, as PyTorch hands them to a device: how ready it is for a GPU.

    ``kernels`` are all operations but views and bare allocations, ``copies`` those of them that only move numbers,
    padding and gathering among them, and ``synchronizations`` those for which the host must wait: numbers that
    come from the device, or are copied to it.

    Args:
        module: a module or function; it is called once, without gradients, in the mode that it is in.
        *inputs: what it is called with.

    Example:
        >>> counts(torch.nn.Conv2d(3, 8, 3), torch.rand(1, 3, 8, 8))
        {'kernels': 1, 'copies': 0, 'synchronizations': 0}
        >>> counts(lambda x: x.T.contiguous().sum().item(), torch.rand(2, 3))
        {'kernels': 3, 'copies': 1, 'synchronizations': 1}
    """
    with torch.no_grad(), _Recorder() as recorder, _Uploads() as uploads:
        module(*inputs)
    seen = recorder.seen
    return {
        "kernels": sum(seen.values()),
        "copies": sum(seen[name] for name in COPIES),
        "synchronizations": sum(seen[name] for name in SYNCHRONIZATIONS) + uploads.number,
    }


class _Recorder(TorchDispatchMode):
    """Count operations by name; it sees what a traced graph would hold, nothing decomposed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in _INDEXINGS and any(map(_is_mask, args[1])):
            self.seen["nonzero"] += 1  # how many there are, only the device knows
        if not func.is_view and name not in _NO_KERNEL:
            self.seen[name] += 1
        return func(*args, **(kwargs or {}))


class _Uploads(TorchFunctionMode):
    """Count tensors made of the host's own numbers, which a device has to be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += getattr(func, "__name__", "") in UPLOADS
        return func(*args, **(kwargs or {}))


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)
