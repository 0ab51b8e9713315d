"""Batch normalization over levels in the kernels of PyTorch's own, with the gradient of the formula."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn import Parameter
from torch.nn import functional as F

from scalespaces.functional._moments import Vector, along, average, batch_moments, normalize, repeat, wide


class NativeBatchNorm(torch.autograd.Function):
    r"""The normalized levels, their mean, variance and number of values, without a copy of a level in any precision.

    Of :math:`y = w \hat x + b`, with :math:`\hat x = (x - \mu) / \sigma` and moments that are averages over S levels
    of n_k samples, the gradient at level k is

    .. math:: \frac{w}{\sigma} \Big(g - \frac{1}{S n_k} \sum g - \hat x \frac{1}{S n_k} \sum g \hat x\Big),

    where sums run over all levels, and over processes.
    """

    @staticmethod
    def forward(
        ctx: Any, weight: Vector, bias: Vector, eps: float, elements: int, sync: bool, *levels: Tensor
    ) -> tuple[Any, ...]:
        mean, var = average([_moments(level) for level in levels], elements)
        count = sum(level.numel() // level.shape[1] * elements for level in levels)
        if sync:
            mean, var, count = _gather(mean, var, levels[0].shape[0], count)
        m, v, w, b = (v if v is None else repeat(v.to(mean.dtype), elements) for v in (mean, var, weight, bias))
        ctx.eps, ctx.elements, ctx.sync = eps, elements, sync
        ctx.mark_non_differentiable(mean, var, *([count] if isinstance(count, Tensor) else []))
        ctx.save_for_backward(weight, bias, mean, var, *levels)
        return *(F.batch_norm(level, m, v, w, b, eps=eps) for level in levels), mean, var, count

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        weight, bias, mean, var, *levels = ctx.saved_tensors
        gradients = gradients[: len(levels)]
        if torch.is_grad_enabled():
            return _differentiable_gradients(ctx, weight, bias, levels, gradients)
        m, v = repeat(mean, ctx.elements), repeat(var, ctx.elements)
        sums = [_sums(g, level, m, v, ctx.eps) for g, level in zip(gradients, levels, strict=True)]
        joint = torch.stack(sums).sum(0)
        if ctx.elements > 1:
            joint = joint.reshape(2, -1, ctx.elements).sum(2)
        found: list[Any] = [v if v is None else s.to(v.dtype) for v, s in zip((weight, bias), joint, strict=True)]
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
            scale, joint = repeat(scale, ctx.elements), joint.repeat_interleave(ctx.elements, 1)
        for g, level in zip(gradients, levels, strict=True):
            part = len(levels) * ctx.elements * max(level.numel() // level.shape[1], 1)
            dots, plain = (joint / -part).unbind()
            out = F.batch_norm(level, m, v, dots, plain, eps=ctx.eps)
            found.append(out.addcmul_(g, along(scale, level)))
        return found[0], found[1], None, None, None, *found[2:]


def _moments(level: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each channel, by the kernel of PyTorch's batch normalization; zeros of an empty batch."""
    if level.numel() == 0:
        mean, var = wide(level.new_zeros(2, level.shape[1])).unbind()
        return mean, var
    if level.is_meta or type(level) not in (Tensor, Parameter):  # where there are no numbers, there is no such kernel
        var, mean = torch.var_mean(wide(level), [0, *range(2, level.ndim)], correction=0)
        return mean, var
    unused = (None, None)
    if level.dtype in (torch.float16, torch.bfloat16):  # running statistics in float32 make it return such moments
        unused = tuple(level.new_zeros(2, level.shape[1], dtype=torch.float32))
    return torch.ops.aten.batch_norm_update_stats(level, *unused, 0.0)


def _sums(g: Tensor, level: Tensor, mean: Tensor, var: Tensor, eps: float) -> Tensor:
    r"""The sums of :math:`g \hat x` and of g: what weight and bias have as gradients in evaluation."""
    if level.numel() == 0:  # which crashes PyTorch's kernel
        return mean.new_zeros(2, len(mean))
    kernel, ones = torch.ops.aten.native_batch_norm_backward, torch.ones_like(mean)
    return torch.stack(kernel(g, level, ones, mean, var, None, None, False, eps, [False, True, True])[1:])


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
    ctx: Any, weight: Vector, bias: Vector, levels: Sequence[Tensor], gradients: Sequence[Tensor]
) -> tuple[Any, ...]:
    """The gradients by way of the formula, so that they have gradients themselves."""
    mean, var, _ = batch_moments(levels, elements=ctx.elements, sync=ctx.sync)
    out = normalize(levels, mean, var, weight, bias, ctx.eps, ctx.elements)
    needs = (*ctx.needs_input_grad[:2], *ctx.needs_input_grad[5:])
    wanted: Any = [t for t, needed in zip((weight, bias, *levels), needs, strict=True) if needed]
    found = iter(torch.autograd.grad(out, wanted, gradients, create_graph=True))
    return tuple(next(found) if needed else None for needed in ctx.needs_input_grad)
