"""Average pooling of windows that do not overlap, with a gradient that keeps no input."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

AVG_POOL = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


class AverageOfBlocks(torch.autograd.Function):
    """The average over blocks of ``size``, as ``F.avg_pool2d(f, size)``; its gradient needs only the input's size."""

    @staticmethod
    def forward(ctx: Any, f: Tensor, size: tuple[int, ...]) -> Tensor:
        ctx.size, ctx.shape = size, f.shape[2:]
        return AVG_POOL[len(size)](f, size)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        g = gradients[0] / math.prod(ctx.size)
        if all(n & (n - 1) == 0 for n in ctx.size):  # or else its float32 picks neighbors
            g = F.interpolate(g, scale_factor=[float(n) for n in ctx.size], mode="nearest")
        else:
            for axis, n in enumerate(ctx.size, 2):
                g = g.repeat_interleave(n, axis)
        spare = [amount for n, m in zip(g.shape[:1:-1], ctx.shape[::-1], strict=True) for amount in (0, m - n)]
        return F.pad(g, spare) if any(spare) else g, None
