"""Batch normalisation and dropout over levels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn import functional as F

from scalespaces.functional.space import ScaleSpace, check_space
from scalespaces.theory import check_integer


def batch_moments(x: ScaleSpace, *, elements: int = 1, sync: bool = False) -> tuple[Tensor, Tensor, Tensor | int]:
    """Mean and variance of each channel over batch, levels and space, in float32 or better, and the number of values.

    Every level has the same weight, whatever its number of samples: on a pyramid these are the moments that dense
    sampling would have. Every ``elements`` consecutive channels, a field, share one mean and variance. With ``sync``
    they are those of the batches of all processes together.
    """
    moments = [torch.var_mean(_wide(level), [0, *range(2, level.ndim)], correction=0) for level in x.levels]
    variances, means = (
        torch.stack(parts).unflatten(1, (-1, elements)).transpose(1, 2).flatten(0, 1)
        for parts in zip(*moments, strict=True)
    )
    mean = means.mean(0)
    spread = (variances + (means - mean) ** 2).mean(0)
    count = sum(level.numel() // level.shape[1] * elements for level in x.levels)
    if not (sync and distributed.is_available() and distributed.is_initialized()):
        return mean, spread, count
    own = mean.new_tensor(x.levels[0].shape[0])
    share = own / _sum_over_processes(own)
    joint = _sum_over_processes(share * mean)
    return (
        joint,
        _sum_over_processes(share * (spread + (mean - joint) ** 2)),
        _sum_over_processes(mean.new_tensor(count)),
    )


def scale_batch_norm(
    x: ScaleSpace,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    elements: int = 1,
    sync: bool = False,
) -> ScaleSpace:
    """Batch normalisation with one set of statistics per channel for all levels; arguments as ``F.batch_norm``.

    With running statistics (in evaluation) it acts pointwise, so it commutes with scale. Every ``elements``
    consecutive channels, a field, share their statistics, weight and bias.
    """
    check_space(x)
    channels = x.levels[0].shape[1]
    if channels % check_integer("elements", elements, 1):
        raise ValueError(f"channels come in fields of {elements}, got levels of {channels}")
    for name, vector in (("running_mean", running_mean), ("weight", weight)):
        if vector is not None and len(vector) * elements != channels:
            raise ValueError(f"{name} is for {len(vector) * elements} channels, got levels of {channels}")

    def repeat(vector: Tensor) -> Tensor:
        return vector if elements == 1 else vector.unsqueeze(1).expand(-1, elements).flatten()

    if not training and running_mean is not None and running_var is not None:
        m, v, w, b = (
            None if vector is None else repeat(vector) for vector in (running_mean, running_var, weight, bias)
        )
        return x.map(lambda level: F.batch_norm(level, m, v, w, b, eps=eps))
    mean, var, count = batch_moments(x, elements=elements, sync=sync)
    if training and isinstance(count, int) and count <= 1:
        raise ValueError(f"statistics need more than one value per channel, got levels of shapes {x.shapes}")
    if training and running_mean is not None and running_var is not None:
        with torch.no_grad():
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_((var * (count / (count - 1))).to(running_var.dtype), momentum)
    scale = torch.rsqrt(var + eps)
    if weight is not None:
        scale = scale * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    scale, shift = repeat(scale), repeat(shift)

    def normalise(level: Tensor) -> Tensor:
        shape = [1, -1] + [1] * (level.ndim - 2)
        return (_wide(level) * scale.reshape(shape) + shift.reshape(shape)).to(level.dtype)

    return x.map(normalise)


def scale_dropout(x: ScaleSpace, p: float = 0.5, training: bool = True) -> ScaleSpace:
    """Drop whole levels of each sample with probability ``p``, and scale the others by ``1 / (1 - p)``."""
    check_space(x)
    if not 0 <= p <= 1:
        raise ValueError(f"p is a probability, got {p}")
    if not training or p == 0:
        return x

    def drop(level: Tensor) -> Tensor:
        keep = torch.rand([level.shape[0]] + [1] * (level.ndim - 1), device=level.device) >= p
        return level * keep.to(level.dtype) / max(1 - p, torch.finfo(level.dtype).tiny)

    return x.map(drop)


def _wide(tensor: Tensor) -> Tensor:
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
        gradient = gradients[0].clone()
        distributed.all_reduce(gradient)
        return gradient


def _sum_over_processes(tensor: Tensor) -> Tensor:
    return _SumOverProcesses.apply(tensor)
