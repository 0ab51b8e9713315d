"""torch's convolutions and poolings on scale-spaces: level by level, with taps c^k apart at level k.

Where taps are one sample apart (a pyramid, and level 0 of any sampling) the torch function itself runs.
"""

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from scalespaces.foreign._register import as_tuple, dims_of, each, instead_of, name_of, on_grid
from scalespaces.functional import scale_conv
from scalespaces.functional._correlate import correlate
from scalespaces.functional._sampling import pad
from scalespaces.space._grid import Window
from scalespaces.space._levelwise import select
from scalespaces.space._numbers import as_integer
from scalespaces.space._per_level import PerLevel
from scalespaces.space._space import ScaleSpace, check_space


@instead_of("conv1d", "conv2d", "conv3d")
def _conv(
    func: Callable,
    input: Any,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> ScaleSpace:
    dims = dims_of(func)
    if not isinstance(weight, Tensor):
        raise TypeError(f"{name_of(func)} needs one filter for all levels, got a {type(weight).__name__} as the weight")
    stride, dilation = as_tuple(stride, dims), as_tuple(dilation, dims)
    padding = padding if isinstance(padding, str) else as_tuple(padding, dims)
    lost = isinstance(input, ScaleSpace) and not input.dims and input.ndim == dims + 2
    if lost and dims == 1 and input.levels[0].shape[1] == 1:  # along the channels of pooled levels: channel attention
        return input.on(each(func, input, weight, bias, stride, padding, dilation, groups))
    x = input if lost else on_grid(input, func, dims)
    if padding == "same" and any(s != 1 for s in stride):
        raise ValueError(f'padding="same" takes no strides, got {stride}')
    return scale_conv(x, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)


def _pool(
    func: Callable, input: Any, spread: Callable[[Tensor, Window, Any], Tensor], given: tuple, **options: Any
) -> ScaleSpace:
    """Pool by ``func`` where taps are neighbors or the window is all of space, otherwise by ``spread``."""
    dims = dims_of(func)
    x, stride = on_grid(input, func, dims), given[1]
    size, _, padding, *dilation = [as_tuple(value, dims) for value in given]
    stride = size if stride is None or stride in ((), []) else as_tuple(stride, dims)
    arguments = (size, stride, padding, *dilation)
    apart = dilation[0] if dilation else (1,) * dims
    whole = not any(padding) and all(d == 1 for d in apart)
    if whole and all(select(s, k) == n for k in range(x.num_levels) for s, n in zip(size, x.sizes(k), strict=True)):
        return x.on(each(func, x, *arguments, **options), x.grid.average([True] * dims))
    if any(isinstance(n, PerLevel) for n in (*size, *stride, *padding)):
        came = f"{size} of {x.shapes}, stride {stride}, padding {padding}; use adaptive pooling"
        raise ValueError(f"a window has one size for all levels unless it is all of space, got {came}")
    window, levels = Window(size, stride, tuple((p, p) for p in padding), apart), []
    for k, level in enumerate(x.levels):
        spacing = x.spacing(k)
        if not options["ceil_mode"]:
            window.check(level.shape[2:], spacing, k + x.first_level)
        plain = as_integer(spacing) == 1
        levels.append(func(level, *arguments, **options) if plain else spread(level, window, spacing))
    return x.on(levels, x.grid.slide(window))


def _pad_for(window: Window, level: Tensor, spacing: Any, ceil_mode: bool) -> list[tuple[int, int]]:
    """The samples that padding, and windows that reach past the end, need on each side."""
    whole = as_integer(spacing)
    if whole is None:
        raise ValueError(f"this pooling needs taps on samples, got {spacing} samples between them; use a pyramid")
    amounts = []
    for n, size, stride, (before, after), d in zip(
        level.shape[2:], window.size, window.stride, window.padding, window.dilation, strict=True
    ):
        span, length = d * whole * (size - 1) + 1, n + (before + after) * whole
        extra = 0
        if ceil_mode:
            last = -((span - length) // stride) * stride  # where the last window begins
            last -= stride if last >= n + before * whole else 0
            extra = max(last + span - length, 0)
        amounts.append((before * whole, after * whole + extra))
    return amounts


@instead_of("max_pool1d", "max_pool2d", "max_pool3d")
def _max_pool(
    func: Callable,
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> ScaleSpace:
    def spread(level: Tensor, window: Window, spacing: Any) -> Tensor:
        amounts = _pad_for(window, level, spacing, ceil_mode)
        apart = tuple(d * (as_integer(spacing) or 1) for d in window.dilation)
        return func(pad(level, amounts, value=-math.inf), window.size, window.stride, 0, apart)

    return _pool(func, input, spread, (kernel_size, stride, padding, dilation), ceil_mode=ceil_mode)


@instead_of("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _avg_pool(
    func: Callable,
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> ScaleSpace:
    options = {} if divisor_override is None else {"divisor_override": divisor_override}

    def total(f: Tensor, spacing: Any, window: Window) -> Tensor:
        ones = f.new_ones(f.shape[1], 1, *window.size)
        return correlate(f, ones, window=window, spacing=spacing, groups=f.shape[1])

    def spread(level: Tensor, window: Window, spacing: Any) -> Tensor:
        if not ceil_mode and (count_include_pad or not any(map(any, window.padding))):
            return total(level, spacing, window) / (divisor_override or math.prod(window.size))
        amounts = _pad_for(window, level, spacing, ceil_mode)
        unpadded = Window(window.size, window.stride, ((0, 0),) * len(amounts), window.dilation)
        sums = total(pad(level, amounts), spacing, unpadded)
        if divisor_override is not None:
            return sums / divisor_override
        counted = level.new_ones(1, 1, *level.shape[2:])
        if count_include_pad:  # but not what reaches past the end
            whole = as_integer(spacing) or 1
            inner = [(before * whole, after * whole) for before, after in window.padding]
            counted = pad(counted, inner, value=1.0)
            amounts = [(0, all_after - after) for (_, all_after), (_, after) in zip(amounts, inner, strict=True)]
        return sums / total(pad(counted, amounts), spacing, unpadded)

    options |= {"ceil_mode": ceil_mode, "count_include_pad": count_include_pad}
    return _pool(func, input, spread, (kernel_size, stride, padding), **options)


@instead_of(*(f"adaptive_{kind}_pool{d}d" for kind in ("avg", "max") for d in (1, 2, 3)))
def _adaptive_pool(func: Callable, input: Any, output_size: Any, return_indices: bool = False) -> ScaleSpace:
    dims = dims_of(func)
    x, size = check_space(input), as_tuple(output_size, dims)
    if x.dims:
        on_grid(x, func, dims)
    levels = each(func, x, size)
    if x.dims and all(n is None or (isinstance(n, int) and n == 1) for n in size):
        return x.on(levels, x.grid.average([n == 1 for n in size]))
    unchanged = x.dims and all(new.shape == old.shape for new, old in zip(levels, x.levels, strict=True))
    return x.on(levels) if unchanged else x.on(levels, x.grid.flatten())  # windows are parts of the image
