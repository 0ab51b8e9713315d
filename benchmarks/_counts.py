"""How many kernels a module launches, how many of them only copy, and how often the host waits for the device."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

PADDINGS = {"constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d"}
MOVES = {"_to_copy", "cat", "clone", "copy", "copy_", "gather", "index", "index_select", "repeat", "roll", "stack"}
COPIES = PADDINGS | MOVES | {"take"}
DOWNLOADS = {"_local_scalar_dense", "_unique2", "equal", "is_nonzero", "item", "masked_select", "nonzero", "unique_dim"}
WAITS = DOWNLOADS | {"lift_fresh"}  # of a tensor made from the host's own numbers, which have to be sent to the device
NO_KERNEL = {"_unsafe_view", "empty", "empty_like", "empty_strided", "lift_fresh", "new_empty", "resize_"}


def counts(module: Callable[..., object], *inputs: object) -> dict[str, int]:
    """Count the operations of one forward pass as PyTorch hands them to a device: how ready a module is for a GPU.

    ``kernels`` are all operations except views and bare allocations. ``copies`` are those that only move numbers,
    padding and gathering included. ``synchronizations`` are those for which the host must wait: numbers that come from
    the device or are copied to it. The module is called once, without gradients, in the mode it is in.
    """
    with torch.no_grad(), _Recorder() as recorder:
        module(*inputs)
    seen = recorder.seen
    kernels = sum(number for name, number in seen.items() if name not in NO_KERNEL)
    copies, waits = (sum(seen[name] for name in names) for names in (COPIES, WAITS))
    return {"kernels": kernels, "copies": copies, "synchronizations": waits}


class _Recorder(TorchDispatchMode):
    """Count operations by name. It sees what a traced graph would hold, nothing decomposed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("index", "index_put", "index_put_"):
            masks = (index for index in args[1] if index is not None and index.dtype in (torch.bool, torch.uint8))
            self.seen["nonzero"] += any(True for _ in masks)  # only the device knows how many there are
        if name in WAITS or not func.is_view:
            self.seen[name] += 1
        return func(*args, **(kwargs or {}))
