"""Pooling over windows of space, over all of space, and over levels."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from scalespaces._choices import SCALE_MODES, WINDOWS
from scalespaces._torch import constant, full_precision
from scalespaces.functional._constants import sent
from scalespaces.functional._correlate import correlate
from scalespaces.functional._fast._blocks import AVG_POOL, AverageOfBlocks
from scalespaces.functional._fast._choice import averages_blocks
from scalespaces.functional._resample import resample
from scalespaces.functional._sampling import lead, pad
from scalespaces.space._grid import Window, window_of
from scalespaces.space._numbers import Ints, as_integer, per_axis
from scalespaces.space._space import ScaleSpace, check_grid, check_space
from scalespaces.theory._arguments import PaddingMode, check_choice

_MAX_POOL = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
GLOBAL_MODES = ("mean", "max")


def avg_pool(
    x: ScaleSpace, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, *, window: str = "dilated"
) -> ScaleSpace:
    r"""Average over a window.

    Args:
        x: levels on grids.
        kernel_size: taps of the window.
        stride: as large as the window when left out.
        padding: zeros on each side, in taps; in a causal space only before the record.
        window: ``"dilated"`` takes taps :math:`c^k` apart at level :math:`k`, as a filter does: that is what
            commutes with scale. ``"plain"`` takes neighboring samples, as the paper does; on densely sampled levels
            this is not equivariant. On a pyramid the two are the same.

    Example:
        >>> x = scalespaces.lift(torch.rand(1, 3, 16, 16), num_levels=2)
        >>> [tuple(level.shape[2:]) for level in avg_pool(x, 2).levels]
        [(8, 8), (4, 4)]
    """
    size = per_axis(kernel_size, check_grid(x).dims, "kernel_size")
    return _pool(x, size, stride, padding, window, _average)


def blur_pool(x: ScaleSpace, kernel_size: Ints = 3, stride: Ints = 2, *, window: str = "dilated") -> ScaleSpace:
    """Binomial blur, then keep every ``stride``-th sample; odd sizes only, borders repeated.

    It aliases less than plain averaging, so outputs change less when the image moves by a pixel. In a causal space
    the blur looks back, so it delays, and any size will do.
    """
    size = per_axis(kernel_size, check_grid(x).dims, "kernel_size")
    if not x.causal and not all(n % 2 for n in size):
        raise ValueError(f"a blur needs odd sizes, which leave samples where they are, got {size}")
    blur = functools.partial(_weigh, taps=sent(_binomial, size, x.levels[0])[0], padding_mode="replicate")
    return _pool(x, size, stride, "same", window, blur, "replicate")


@constant
def _binomial(*size: int) -> tuple[Tensor]:
    lines = [np.array([math.comb(n - 1, i) / 2 ** (n - 1) for i in range(n)]) for n in size]
    return (torch.as_tensor(functools.reduce(np.multiply.outer, lines)),)


def max_pool(
    x: ScaleSpace, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, *, window: str = "dilated"
) -> ScaleSpace:
    """Maximum over a window; arguments as in :func:`avg_pool`, the padding never wins."""
    dims = check_grid(x).dims
    size = per_axis(kernel_size, dims, "kernel_size")
    if not x.causal and any(2 * p > n for p, n in zip(per_axis(padding, dims, "padding"), size, strict=True)):
        raise ValueError(f"padding is at most half the window, got {padding} for a window of {size}")
    return _pool(x, size, stride, padding, window, _largest, value=-math.inf)


def _pool(
    x: ScaleSpace,
    size: tuple[int, ...],
    stride: Ints | None,
    padding: Ints | str,
    window: str,
    reduce: Callable[[Tensor, Window, Any], Tensor],
    mode: PaddingMode = "zeros",
    value: float = 0.0,
) -> ScaleSpace:
    dilated = check_choice("window", window, WINDOWS) == "dilated"
    if x.dims == 0:
        raise ValueError(f"windows need spatial axes, got levels of shapes {x.shapes}")
    view = window_of(size, size if stride is None else stride, padding, causal=x.causal)
    levels, spacings = [], x.grid.spacings() if dilated else (1.0,) * len(x.levels)
    for index, (level, apart) in enumerate(zip(x.levels, spacings, strict=True), x.grid.first_level):
        view.check(level.shape[2:], apart, index)
        with full_precision(level):
            levels.append(reduce(*lead(view, level, apart, mode, value), apart))
    return x.on(levels, x.grid.slide(view, dilated))


def _average(f: Tensor, window: Window, apart: Any) -> Tensor:
    if as_integer(apart) != 1:
        return _weigh(f, window, apart, f.new_full(window.size, 1 / math.prod(window.size)))
    if averages_blocks(window):
        return AverageOfBlocks.apply(f, window.size)
    return AVG_POOL[len(window.size)](f, window.size, window.stride, tuple(p for p, _ in window.padding))


def _weigh(f: Tensor, window: Window, apart: Any, taps: Tensor, padding_mode: PaddingMode = "zeros") -> Tensor:
    channels = f.shape[1]
    weight = taps.expand(channels, 1, *window.size)
    return correlate(f, weight, window=window, spacing=apart, groups=channels, padding_mode=padding_mode)


def _largest(f: Tensor, window: Window, apart: Any) -> Tensor:
    whole = as_integer(apart)
    if whole is not None:
        amounts = [(before * whole, after * whole) for before, after in window.padding]
        return _MAX_POOL[len(amounts)](pad(f, amounts, value=-math.inf), window.size, window.stride, 0, whole)
    if any(before or after for before, after in window.padding):
        raise ValueError(f"maximum pooling with taps {apart} samples apart takes no padding, got {window.padding}")
    # Taps between samples: read them one by one.
    taps = torch.eye(math.prod(window.size), dtype=f.dtype, device=f.device).unflatten(1, window.size)
    return torch.stack([_weigh(f, window, apart, tap) for tap in taps]).amax(0)


def global_pool(x: ScaleSpace, mode: str = "mean") -> ScaleSpace:
    """Mean or maximum over all of space, level by level: levels of ``(B, C)``."""
    check_space(x)
    check_choice("mode", mode, GLOBAL_MODES)
    if x.dims == 0:
        return x
    return x.map(lambda level: level.mean(x.axes) if mode == "mean" else level.amax(x.axes))


def scale_pool(x: ScaleSpace, mode: str = "mean", *, return_scale: bool = False) -> Tensor | tuple[Tensor, Tensor]:
    r"""Combine the levels :math:`f_k`, on the grid of level 0.

    Args:
        x: levels on grids; they are brought to one grid by their steps and origins first.
        mode: ``"image"``, the image's own level, number 0; ``"mean"``; ``"max"``; ``"logsumexp"``,
            :math:`\log \frac1S \sum_k e^{f_k}`, which lies between mean and maximum whatever the number of levels S; or
            ``"probabilities"``, the mean of what the levels' scores say,
            :math:`\log \frac1S \sum_k \mathrm{softmax}(f_k)`, over the channels (axis 1). The mode ``"trust"`` has
            parameters: see :class:`scalespaces.nn.Trust`.
        return_scale: also return the number of the level with the largest value (with ``"probabilities"``, the largest
            probability), per channel and pixel: a scale map.

    Example:
        >>> x = scalespaces.lift(torch.rand(1, 3, 16, 16), num_levels=3)
        >>> scale_pool(x, "max").shape
        torch.Size([1, 3, 16, 16])
        >>> scale_pool(x, "probabilities").exp().sum(1).allclose(torch.ones(1))
        True
    """
    check_space(x)
    if check_choice("mode", mode, SCALE_MODES) == "trust":
        raise ValueError('the mode "trust" has parameters; use scalespaces.nn.ScalePool("trust")(scores, features)')
    if mode == "image":
        if not 0 <= -x.first_level < x.num_levels:
            last = x.first_level + x.num_levels - 1
            raise ValueError(f"the image's own level is number 0, and levels are numbered {x.first_level} to {last}")
        level = x.level(0)
        return (level, torch.zeros_like(level, dtype=torch.long)) if return_scale else level
    if mode == "mean" and not return_scale and x.dtype in (torch.float32, torch.float64):
        first, *others = resample(x).levels
        for level in others:
            first = first + level
        return first / x.num_levels
    levels = torch.stack(resample(x).levels)
    if mode == "probabilities":
        check_channels(x)
        levels = levels.log_softmax(2)
    if mode in ("mean", "max"):
        out = levels.mean(0) if mode == "mean" else levels.amax(0)
    else:
        out = levels.logsumexp(0) - math.log(x.num_levels)
    return (out, levels.argmax(0) + x.first_level) if return_scale else out


def check_channels(x: ScaleSpace) -> None:
    """Refuse levels that do not have their classes at axis 1."""
    if x.ndim < 2 or 1 in x.axes:
        came = f"shapes {x.shapes} with space at {x.axes}"
        raise ValueError(f"probabilities are those of the channels, axis 1, got {came}; permute them there first")
