"""Batch normalization and dropout over levels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn import Parameter
from torch.nn import functional as F

from scalespaces._torch import is_transformed
from scalespaces.space._space import ScaleSpace, check_space
from scalespaces.theory._arguments import check_integer


def batch_moments(x: ScaleSpace, *, elements: int = 1, sync: bool = False) -> tuple[Tensor, Tensor, Tensor | int]:
    """Mean and variance of each channel over batch, levels and space, in float32 or better, and the number of values.

    Every level has the same weight, whatever its number of samples: on a pyramid these are the moments that dense
    sampling would have. Every ``elements`` consecutive channels, a field, share one mean and variance. With ``sync``
    they are those of the batches of all processes together.
    """
    moments = [torch.var_mean(_wide(level), [0, *range(2, level.ndim)], correction=0) for level in x.levels]
    mean, var = _average([(mean, var) for var, mean in moments], elements)
    count = sum(level.numel() // level.shape[1] * elements for level in x.levels)
    if not (sync and distributed.is_available() and distributed.is_initialized()):
        return mean, var, count
    own = mean.new_full((), x.levels[0].shape[0])
    share = own / _sum_over_processes(own)
    joint = _sum_over_processes(share * mean)
    var = _sum_over_processes(share * (var + (mean - joint) ** 2))
    return joint, var, _sum_over_processes(mean.new_full((), count))


def _average(moments: Sequence[tuple[Tensor, Tensor]], elements: int = 1) -> tuple[Tensor, Tensor]:
    """The mean and variance of levels together, from those of each, and of fields from those of their channels."""
    means, variances = (torch.stack(parts) for parts in zip(*moments, strict=True))
    if elements > 1:
        means, variances = (t.unflatten(1, (-1, elements)).transpose(1, 2).flatten(0, 1) for t in (means, variances))
    between, mean = torch.var_mean(means, 0, correction=0)
    return mean, variances.mean(0) + between


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

    With running statistics (in evaluation) it acts pointwise, so it commutes with scale. Every ``elements``
    consecutive channels, a field, share their statistics, weight and bias. An empty batch leaves the running statistics
    as they are.
    """
    check_space(x)
    channels = x.levels[0].shape[1]
    if channels % check_integer("elements", elements, 1):
        raise ValueError(f"channels come in fields of {elements}, got levels of {channels}")
    for name, vector in (("running_mean", running_mean), ("weight", weight)):
        if vector is not None and len(vector) * elements != channels:
            raise ValueError(f"{name} is for {len(vector) * elements} channels, got levels of {channels}")

    if not training and running_mean is not None and running_var is not None:
        return _evaluate(x, running_mean, running_var, weight, bias, eps, elements)
    sync = sync and distributed.is_available() and distributed.is_initialized()
    if not sync:
        values = sum(level.numel() // channels for level in x.levels) * elements
        if values == 0:  # there is nothing to normalize, but there are gradients: zeros
            ones = _wide(x.levels[0].new_ones(channels // elements))
            return _evaluate(x, ones - 1, ones, weight, bias, eps, elements)
        if training and values == 1:
            raise ValueError(f"statistics need more than one value per channel, got levels of shapes {x.shapes}")
    if x.num_levels == elements == 1 and training and not sync:
        return x.replace((F.batch_norm(x.levels[0], running_mean, running_var, weight, bias, True, momentum, eps),))
    native = x.device.type in ("cpu", "cuda", "meta") and len({level.dtype for level in x.levels}) == 1
    if native and not is_transformed():
        *levels, mean, var, count = _BatchNorm.apply(weight, bias, eps, elements, sync, *x.levels)
        out = x.replace(tuple(levels))
    else:
        mean, var, count = batch_moments(x, elements=elements, sync=sync)
        out = x.replace(_normalize(x.levels, mean, var, weight, bias, eps, elements))
    if training and running_mean is not None and running_var is not None:
        with torch.no_grad():
            share: Any = momentum
            if isinstance(count, Tensor):  # of all processes; their batches may all be empty
                share = momentum * (count > 0).to(running_mean.dtype)
            running_mean.lerp_(mean.to(running_mean.dtype), share)
            running_var.lerp_((var * (count / (count - 1))).to(running_var.dtype), share)
    return out


def _evaluate(
    x: ScaleSpace, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, elements: int
) -> ScaleSpace:
    m, v, w, b = (None if vector is None else _repeat(vector, elements) for vector in (mean, var, weight, bias))
    return x.map(lambda level: F.batch_norm(level, m, v, w, b, eps=eps))


def _normalize(
    levels: Sequence[Tensor],
    mean: Tensor,
    var: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    elements: int,
) -> tuple[Tensor, ...]:
    scale = torch.rsqrt(var + eps)
    scale = scale if weight is None else scale * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    scale, shift = _repeat(scale, elements), _repeat(shift, elements)

    def normalize(level: Tensor) -> Tensor:
        return (_wide(level) * _along(scale, level) + _along(shift, level)).to(level.dtype)

    return tuple(map(normalize, levels))


def _repeat(vector: Tensor, elements: int) -> Tensor:
    return vector if elements == 1 else vector.repeat_interleave(elements)


def _along(vector: Tensor, level: Tensor) -> Tensor:
    return vector.reshape([1, -1] + [1] * (level.ndim - 2))


class _BatchNorm(torch.autograd.Function):
    r"""The formula above in the kernels of PyTorch's own batch normalization: no copy of a level, in any precision.

    Of :math:`y = w \hat x + b`, with :math:`\hat x = (x - \mu) / \sigma` and moments that are averages over S levels
    of n_k samples, the gradient at level k is

    .. math:: \frac{w}{\sigma} \Big(g - \frac{1}{S n_k} \sum g - \hat x \frac{1}{S n_k} \sum g \hat x\Big),

    where sums run over all levels, and over processes.
    """

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor | None, bias: Tensor | None, eps: float, elements: int, sync: bool, *levels: Tensor
    ) -> tuple[Any, ...]:
        mean, var = _average([_moments(level) for level in levels], elements)
        count = sum(level.numel() // level.shape[1] * elements for level in levels)
        if sync:
            mean, var, count = _gather(mean, var, levels[0].shape[0], count)
        m, v, w, b = (
            None if vector is None else _repeat(vector.to(mean.dtype), elements) for vector in (mean, var, weight, bias)
        )
        ctx.eps, ctx.elements, ctx.sync = eps, elements, sync
        ctx.mark_non_differentiable(mean, var, *([count] if isinstance(count, Tensor) else []))
        ctx.save_for_backward(weight, bias, mean, var, *levels)
        return *(F.batch_norm(level, m, v, w, b, eps=eps) for level in levels), mean, var, count

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        weight, bias, mean, var, *levels = ctx.saved_tensors
        gradients = gradients[: len(levels)]
        if torch.is_grad_enabled():
            return _differentiable_gradients(ctx, weight, bias, levels, gradients)
        m, v = _repeat(mean, ctx.elements), _repeat(var, ctx.elements)
        sums = [_sums(g, level, m, v, ctx.eps) for g, level in zip(gradients, levels, strict=True)]
        joint = torch.stack(sums).sum(0)
        if ctx.elements > 1:
            joint = joint.reshape(2, -1, ctx.elements).sum(2)
        found: list[Any] = [
            None if weight is None else joint[0].to(weight.dtype),
            None if bias is None else joint[1].to(bias.dtype),
        ]
        if not any(ctx.needs_input_grad[5:]):
            return found[0], found[1], None, None, None, *(None for _ in levels)
        if ctx.sync:
            batch = joint.new_full((2, 1), levels[0].shape[0])
            everyone = torch.cat([joint, batch], 1)
            distributed.all_reduce(everyone)
            joint = everyone[:, :-1] * (batch / everyone[:, -1:])
        scale = torch.rsqrt(var + ctx.eps)
        scale = scale if weight is None else scale * weight.to(scale.dtype)
        joint = joint * scale
        if ctx.elements > 1:
            scale, joint = _repeat(scale, ctx.elements), joint.repeat_interleave(ctx.elements, 1)
        for g, level in zip(gradients, levels, strict=True):
            part = len(levels) * ctx.elements * max(level.numel() // level.shape[1], 1)
            dots, plain = (joint / -part).unbind()
            out = F.batch_norm(level, m, v, dots, plain, eps=ctx.eps)
            found.append(out.addcmul_(g, _along(scale, level)))
        return found[0], found[1], None, None, None, *found[2:]


def _moments(level: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each channel, by the kernel of PyTorch's batch normalization; zeros of an empty batch."""
    if level.numel() == 0:
        mean, var = _wide(level.new_zeros(2, level.shape[1])).unbind()
        return mean, var
    if level.is_meta or type(level) not in (Tensor, Parameter):  # where there are no numbers, there is no such kernel
        var, mean = torch.var_mean(_wide(level), [0, *range(2, level.ndim)], correction=0)
        return mean, var
    unused = (None, None)
    if level.dtype in (torch.float16, torch.bfloat16):  # running statistics in float32 make it return such moments
        unused = tuple(level.new_zeros(2, level.shape[1], dtype=torch.float32))
    return torch.ops.aten.batch_norm_update_stats(level, *unused, 0.0)


def _sums(g: Tensor, level: Tensor, mean: Tensor, var: Tensor, eps: float) -> Tensor:
    r"""The sums of :math:`g \hat x` and of g: what weight and bias have as gradients in evaluation."""
    if level.numel() == 0:  # which crashes PyTorch's kernel
        return mean.new_zeros(2, len(mean))
    kernel = torch.ops.aten.native_batch_norm_backward
    return torch.stack(
        kernel(g, level, torch.ones_like(mean), mean, var, None, None, False, eps, [False, True, True])[1:]
    )


def _gather(mean: Tensor, var: Tensor, batch: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The moments of all processes together, weighted by their batches, and the number of all values."""
    own = torch.cat([mean, var, mean.new_full((1,), batch), mean.new_full((1,), count)])
    parts = [torch.empty_like(own) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, own)
    means, variances, batches, counts = torch.stack(parts).split([len(mean), len(var), 1, 1], 1)
    share = batches / batches.sum().clamp_min(1)
    mean = (share * means).sum(0)
    return mean, (share * (variances + (means - mean) ** 2)).sum(0), counts.sum()


def _differentiable_gradients(
    ctx: Any, weight: Tensor | None, bias: Tensor | None, levels: Sequence[Tensor], gradients: Sequence[Tensor]
) -> tuple[Any, ...]:
    """The gradients by way of the formula, so that they have gradients themselves."""
    mean, var, _ = batch_moments(
        ScaleSpace(tuple(levels), steps=(1.0,) * len(levels)), elements=ctx.elements, sync=ctx.sync
    )
    out = _normalize(levels, mean, var, weight, bias, ctx.eps, ctx.elements)
    inputs = [weight, bias, *levels]
    wanted = [
        t for t, needed in zip(inputs, (*ctx.needs_input_grad[:2], *ctx.needs_input_grad[5:]), strict=True) if needed
    ]
    found = iter(torch.autograd.grad(out, wanted, gradients, create_graph=True))
    return tuple(next(found) if needed else None for needed in ctx.needs_input_grad)


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
