"""Batch normalization and dropout over levels."""

from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn import functional as F

from scalespaces.functional._fast._batch_norm import NativeBatchNorm
from scalespaces.functional._fast._choice import normalizes_natively
from scalespaces.functional._moments import Vector, batch_moments, normalize, repeat, wide
from scalespaces.space._space import ScaleSpace, check_space
from scalespaces.theory._arguments import check_integer


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
    """Batch normalization with one set of statistics per channel for all levels; arguments as ``F.batch_norm``.

    With running statistics (in evaluation) it acts pointwise, so it commutes with scale. Every ``elements`` consecutive
    channels, a field, share their statistics, weight and bias. An empty batch leaves running statistics unchanged.
    """
    check_space(x)
    channels = x.levels[0].shape[1]
    if elements != 1 and channels % check_integer("elements", elements, 1):
        raise ValueError(f"channels come in fields of {elements}, got levels of {channels}")
    for name, vector in (("running_mean", running_mean), ("weight", weight)):
        if vector is not None and vector.shape[0] * elements != channels:
            raise ValueError(f"{name} is for {vector.shape[0] * elements} channels, got levels of {channels}")

    if not training and running_mean is not None and running_var is not None:
        return _evaluate(x, running_mean, running_var, weight, bias, eps, elements)
    sync = sync and distributed.is_available() and distributed.is_initialized()
    if not sync:
        values = sum(level.numel() // channels for level in x.levels) * elements
        if values == 0:  # there is nothing to normalize, but there are gradients: zeros
            ones = wide(x.levels[0].new_ones(channels // elements))
            return _evaluate(x, ones - 1, ones, weight, bias, eps, elements)
        if training and values == 1:
            raise ValueError(f"statistics need more than one value per channel, got levels of shapes {x.shapes}")
    if x.num_levels == elements == 1 and training and not sync:
        return x.on([F.batch_norm(x.levels[0], running_mean, running_var, weight, bias, True, momentum, eps)])
    if normalizes_natively(x.levels):
        *levels, mean, var, count = NativeBatchNorm.apply(weight, bias, eps, elements, sync, *x.levels)
    else:
        mean, var, count = batch_moments(x.levels, elements=elements, sync=sync)
        levels = normalize(x.levels, mean, var, weight, bias, eps, elements)
    if training and running_mean is not None and running_var is not None:
        with torch.no_grad():
            share: Any = momentum
            if isinstance(count, Tensor):  # of all processes; their batches may all be empty
                share = momentum * (count > 0).to(running_mean.dtype)
            running_mean.lerp_(mean.to(running_mean.dtype), share)
            running_var.lerp_((var * (count / (count - 1))).to(running_var.dtype), share)
    return x.on(levels)


def _evaluate(
    x: ScaleSpace, mean: Tensor, var: Tensor, weight: Vector, bias: Vector, eps: float, elements: int
) -> ScaleSpace:
    if elements > 1:
        mean, var = repeat(mean, elements), repeat(var, elements)
        weight, bias = (v if v is None else repeat(v, elements) for v in (weight, bias))
    # PyTorch's function without the checks of F.batch_norm, which are most of the time for small levels.
    cudnn = x.levels[0].is_cuda and torch.backends.cudnn.enabled
    return x.on([torch.batch_norm(level, weight, bias, mean, var, False, 0.0, eps, cudnn) for level in x.levels])


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
