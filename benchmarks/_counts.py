"""What is counted of a module: the operations that a device would see, and multiplications."""

import copy
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._python_dispatch import TorchDispatchMode

from scalespaces.functional._fast._choice import acting_as
from scalespaces.nn import ScaleConv2d
from scalespaces.space import ScaleSpace

COPIES = {"_to_copy", "cat", "clone", "copy", "copy_", "gather", "index", "index_select", "repeat", "roll", "stack"}
COPIES |= {"constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d", "take"}
DOWNLOADS = {"_local_scalar_dense", "_unique2", "equal", "is_nonzero", "item", "masked_select", "nonzero", "unique_dim"}
WAITS = DOWNLOADS | {"lift_fresh"}  # of a tensor made from the host's own numbers, which have to be sent to the device
NO_KERNEL = {"_unsafe_view", "empty", "empty_like", "empty_strided", "lift_fresh", "new_empty", "resize_"}


def counts(module: Callable[..., object], *inputs: object) -> dict[str, int]:
    """Count the operations of one forward pass, in the module's mode, as PyTorch would hand them to a GPU.

    Kernels are all but views and bare allocations, copies those that only move numbers, padding and gathering included,
    and synchronizations those that the host waits for, as numbers come from the device or are sent to it.
    """
    with torch.no_grad(), acting_as("cuda"):
        module(*inputs)  # indices and matrices are made once
        with _Recorder() as recorder:
            module(*inputs)
    seen = recorder.seen
    kernels = sum(number for name, number in seen.items() if name not in NO_KERNEL)
    copies, waits = (sum(seen[name] for name in names) for names in (COPIES, WAITS))
    return {"kernels": kernels, "copies": copies, "synchronizations": waits}


def emitted(compiled: Callable[..., object], *inputs: object) -> dict[str, int]:
    """Count the kernels that the compiler emits for one forward pass, calls of PyTorch's own included."""
    from torch._inductor import metrics  # which takes a second to import

    torch.compiler.reset()
    metrics.reset()
    with torch.no_grad():
        compiled(*inputs)
    return {"kernels": metrics.generated_kernel_count}


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


def limits(module: nn.Module, x: ScaleSpace | Tensor) -> tuple[float, float]:
    """What a ratio would be if time were multiplications, without and with folded filters.

    Those of correlations and linear layers count, divided by those on level 0 alone; if there are none, samples do.
    """
    total = np.zeros(3)

    def note(layer: Any, inputs: tuple[Any, ...], output: Any) -> None:
        if isinstance(layer, ScaleConv2d | nn.Linear):
            total[:] += _multiplications(layer.weight, inputs[0])

    with torch.no_grad(), register_module_forward_hook(note):
        copy.deepcopy(module).eval()(x)
    plain, ours, folded = total if total.any() else _multiplications(torch.ones(1, 1, 1, 1), x)
    return ours / plain, folded / plain


def _multiplications(weight: Tensor, x: ScaleSpace | Tensor) -> tuple[float, float, float]:
    """For one image: on level 0 alone, on all levels, and on all levels with folded filters."""
    levels, steps = (x.levels, x.steps) if isinstance(x, ScaleSpace) else ((x,), (1.0,))
    depth, size = weight.shape[2] if weight.ndim == 5 else 1, weight.shape[2:][-2:]
    taps, ours, folded = weight.numel() / depth, 0.0, 0.0
    for k, level in enumerate(levels):  # each meets filter levels on its own grid, coarser levels upsampled to it
        for ell in range(min(depth, len(levels) - k)):
            number = taps * math.prod(level.shape[2:])
            ours += number
            folded += number * folded_share(size, round(steps[k + ell] / steps[k]))
    return taps * math.prod(levels[0].shape[2:]), ours, folded


def folded_share(size: Sequence[int], factor: int) -> float:
    """Taps of a filter folded with linear upsampling, in those of the filter on the fine grid; 1 if there are more."""
    # A filter on a level upsampled by r is one filter on the coarse grid for each of the r^2 phases: 25 taps in place
    # of 36 for 3 x 3 and r = 2.
    share = 1.0
    for n in size:
        reach = n // 2
        phases = [math.ceil((p + reach) / factor) - math.floor((p - reach) / factor) + 1 for p in range(factor)]
        share *= sum(phases) / (n * factor)
    return min(share, 1.0)
