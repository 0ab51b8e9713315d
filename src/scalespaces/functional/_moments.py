"""Mean and variance of levels together, and normalization by them, as formulas."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, distributed

Vector = Tensor | None
"""One number per channel or field, or none."""


def batch_moments(
    levels: Sequence[Tensor], *, elements: int = 1, sync: bool = False
) -> tuple[Tensor, Tensor, Tensor | int]:
    """Mean and variance of each channel over batch, levels and space, in float32 at least, and the number of values."""
    # Every level has the same weight, whatever its number of samples: on a pyramid these are the moments that dense
    # sampling would have. So many consecutive channels, the elements of a field, share one mean and variance; with sync
    # they are those of the batches of all processes together.
    moments = [torch.var_mean(wide(level), [0, *range(2, level.ndim)], correction=0) for level in levels]
    mean, var = average([(mean, var) for var, mean in moments], elements)
    count = sum(level.numel() // level.shape[1] * elements for level in levels)
    if not sync:
        return mean, var, count
    own = mean.new_full((), levels[0].shape[0])
    share = own / _sum_over_processes(own)
    joint = _sum_over_processes(share * mean)
    var = _sum_over_processes(share * (var + (mean - joint) ** 2))
    return joint, var, _sum_over_processes(mean.new_full((), count))


def average(moments: Sequence[tuple[Tensor, Tensor]], elements: int = 1) -> tuple[Tensor, Tensor]:
    """The mean and variance of levels together, from those of each, and of fields from those of their channels."""
    means, variances = (torch.stack(parts) for parts in zip(*moments, strict=True))
    if elements > 1:
        means, variances = (t.unflatten(1, (-1, elements)).transpose(1, 2).flatten(0, 1) for t in (means, variances))
    between, mean = torch.var_mean(means, 0, correction=0)
    return mean, variances.mean(0) + between


def normalize(
    levels: Sequence[Tensor], mean: Tensor, var: Tensor, weight: Vector, bias: Vector, eps: float, elements: int
) -> tuple[Tensor, ...]:
    scale = torch.rsqrt(var + eps)
    scale = scale if weight is None else scale * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    scale, shift = repeat(scale, elements), repeat(shift, elements)
    return tuple((wide(level) * along(scale, level) + along(shift, level)).to(level.dtype) for level in levels)


def repeat(vector: Tensor, elements: int) -> Tensor:
    return vector if elements == 1 else vector.repeat_interleave(elements)


def along(vector: Tensor, level: Tensor) -> Tensor:
    return vector.reshape([1, -1] + [1] * (level.ndim - 2))


def wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


class _SumOverProcesses(torch.autograd.Function):
    """The sum over processes; its gradient is the sum of their gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        out = tensor.clone()
        distributed.all_reduce(out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _sum_over_processes(gradients[0])


_sum_over_processes: Callable[[Tensor], Tensor] = _SumOverProcesses.apply
