"""Batch normalisation and dropout over levels."""

from __future__ import annotations

import torch
from torch import Tensor, distributed

from scalespaces.functional.space import ScaleSpace, check_space


def batch_moments(x: ScaleSpace, *, sync: bool = False) -> tuple[Tensor, Tensor]:
    """Mean and variance of each channel over batch, levels and space, in float32 or better.

    Every level has the same weight, whatever its number of samples: on a pyramid these are the moments that dense
    sampling would have. With ``sync`` they are those of the batches of all processes together.
    """
    moments = [torch.var_mean(_wide(level), [0, *range(2, level.ndim)], correction=0) for level in x.levels]
    variances, means = (torch.stack(parts) for parts in zip(*moments, strict=True))
    mean = means.mean(0)
    spread = (variances + (means - mean) ** 2).mean(0)
    if not (sync and distributed.is_available() and distributed.is_initialized()):
        return mean, spread
    share = _share_of_batch(x)
    joint = _sum_over_processes(share * mean)
    return joint, _sum_over_processes(share * (spread + (mean - joint) ** 2))


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
    sync: bool = False,
) -> ScaleSpace:
    """Batch normalisation with one set of statistics per channel for all levels; arguments as ``F.batch_norm``.

    With running statistics (in evaluation) it acts pointwise, so it commutes with scale.
    """
    check_space(x)
    channels = x.levels[0].shape[1]
    for name, vector in (("running_mean", running_mean), ("weight", weight)):
        if vector is not None and len(vector) != channels:
            raise ValueError(f"{name} is for {len(vector)} channels, got levels of {channels}")
    if training or running_mean is None or running_var is None:
        count = sum(level.numel() // channels for level in x.levels)
        if training and count <= 1:
            raise ValueError(f"statistics need more than one value per channel, got levels of shapes {x.shapes}")
        mean, var = batch_moments(x, sync=sync)
        if training and running_mean is not None and running_var is not None:
            with torch.no_grad():
                running_mean.lerp_(mean.to(running_mean.dtype), momentum)
                running_var.lerp_((var * (count / (count - 1))).to(running_var.dtype), momentum)
    else:
        mean, var = running_mean, running_var
    scale = torch.rsqrt(_wide(var) + eps)
    if weight is not None:
        scale = scale * weight
    shift = -mean * scale if bias is None else bias - mean * scale

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
        keep = torch.rand([len(level)] + [1] * (level.ndim - 1), device=level.device) >= p
        return level * keep.to(level.dtype) / max(1 - p, torch.finfo(level.dtype).tiny)

    return x.map(drop)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _share_of_batch(x: ScaleSpace) -> Tensor:
    own = torch.tensor(float(len(x.levels[0])), device=x.device)
    return own / _sum_over_processes(own)


def _sum_over_processes(tensor: Tensor) -> Tensor:
    from torch.distributed.nn.functional import all_reduce  # slow to import, rarely needed

    return all_reduce(tensor.clone())
