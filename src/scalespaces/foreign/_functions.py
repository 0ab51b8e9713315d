"""torch's own functions on scale-spaces: convolutions, poolings, normalizations, interpolation.

Each runs level by level, with taps :math:`c^k` apart at level k as those of
:func:`~scalespaces.functional.scale_conv`, and keeps track of the grids. Where taps are one sample apart (every level
of a pyramid, and level 0 of any sampling) it is the torch function itself that runs. So ``nn.Conv2d``,
``nn.BatchNorm2d``, ``nn.MaxPool2d`` and code that calls ``torch.nn.functional`` work on a ScaleSpace as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from scalespaces.foreign._upsample import (
    LINEAR,
    NEAREST,
    finer,
    half_pixel,
    interpolate_spread,
    nominal_factor,
    transpose_spread,
)
from scalespaces.functional._conv import scale_conv
from scalespaces.functional._correlate import correlate
from scalespaces.functional._norm import scale_batch_norm
from scalespaces.functional._sampling import pad
from scalespaces.functional._windows import Window
from scalespaces.space._numbers import as_integer, count
from scalespaces.space._per_level import PerLevel, at_level
from scalespaces.space._space import (
    TORCH_FUNCTIONS,
    ScaleSpace,
    apply,
    averaged,
    check_grid,
    check_space,
    level_by_level,
    select,
)


def _instead_of(*names: str) -> Callable[[Callable], Callable]:
    def register(function: Callable) -> Callable:
        TORCH_FUNCTIONS.update(dict.fromkeys(names, function))
        return function

    return register


def _dims(func: Callable) -> int:
    return int(func.__name__[-2])  # conv2d


def _name(func: Callable) -> str:
    return func.__name__.lstrip("_")


def _tuple(value: Any, dims: int) -> tuple:
    """One value per axis, as torch reads its arguments."""
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    return values * dims if len(values) == 1 else values


def _on_grid(x: Any, func: Callable, dims: int) -> ScaleSpace:
    """The space if windows can slide over it; one sample per level is on any grid."""
    layers = "ScaleConv1d, ScaleAvgPool and the like of scalespaces.nn"
    if check_space(x).causal:
        raise TypeError(f"torch's {_name(func)} would look ahead in a causal space; use {layers}")
    if x.dims:
        check_grid(x)
    if x.ndim != dims + 2:
        raise ValueError(f"{_name(func)} slides over {dims} axes of space, got levels of shapes {x.shapes}")
    if x.dims == dims:
        return x
    if x.dims == 0 and all(n == 1 for shape in x.shapes for n in shape[2:]):
        return x.replace(x.levels, axes=tuple(range(2, x.ndim)), origins=(), unit=())
    raise ValueError(
        f"{_name(func)} needs neighbors on a grid, which adaptive pooling or interpolation of the image as a whole "
        f"has left: levels of shapes {x.shapes}; only pointwise layers, flatten and linear layers can follow"
    )


def _gridless(x: ScaleSpace, levels: Sequence[Tensor]) -> ScaleSpace:
    return x.replace(tuple(levels), axes=(), origins=(), unit=())


def _each(func: Callable, x: ScaleSpace, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
    return tuple(level_by_level(func, (x, *args), kwargs, x))


# --- convolution -----------------------------------------------------------------------------------------------------


@_instead_of("conv1d", "conv2d", "conv3d")
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
    dims = _dims(func)
    if not isinstance(weight, Tensor):
        raise TypeError(f"{_name(func)} needs one filter for all levels, got a {type(weight).__name__} as the weight")
    stride, dilation = _tuple(stride, dims), _tuple(dilation, dims)
    padding = padding if isinstance(padding, str) else _tuple(padding, dims)
    lost = isinstance(input, ScaleSpace) and not input.dims and input.ndim == dims + 2
    x = input if lost else _on_grid(input, func, dims)
    if padding == "same" and any(s != 1 for s in stride):
        raise ValueError(f'padding="same" takes no strides, got {stride}')
    return scale_conv(x, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)


@_instead_of("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _conv_transpose(
    func: Callable,
    input: Any,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> ScaleSpace:
    dims = _dims(func)
    x = _on_grid(input, func, dims)
    stride, padding, dilation = _tuple(stride, dims), _tuple(padding, dims), _tuple(dilation, dims)
    output_padding = _tuple(output_padding, dims)
    _check_upsampling(x, func)

    def plain(level: Tensor, k: int = -x.first_level) -> Tensor:
        extra = tuple(at_level(p, k) for p in output_padding)
        return func(level, weight, bias, stride, padding, extra, groups, dilation)

    zero = plain(x.level(0))
    levels = []
    for k, level in enumerate(x.levels):
        if as_integer(x.spacing(k)) == 1:
            levels.append(zero if k == -x.first_level else plain(level, k))
        else:
            size = [count(n, x.steps[k]) for n in zero.shape[2:]]
            levels.append(transpose_spread(level, *_lattice(x, k), stride, plain, size))
    shift = [-(d * (n - 1) / 2 - p) / s for n, d, p, s in zip(weight.shape[2:], dilation, padding, stride, strict=True)]
    return finer(x, tuple(levels), [float(s) for s in stride], shift)


def _check_upsampling(x: ScaleSpace, func: Callable) -> None:
    spacings = [x.spacing(k) for k in range(x.num_levels)]
    if not all(as_integer(spacing) for spacing in spacings):
        raise ValueError(
            f'{_name(func)} needs taps on samples, got spacings {spacings}; use sampling="pyramid" or an integer base'
        )


def _lattice(x: ScaleSpace, index: int) -> tuple[int, int]:
    """How many lattices the level has, and the base."""
    spacing = as_integer(x.spacing(index)) or 1
    return spacing, (as_integer(x.base) or spacing)


# --- pooling over windows --------------------------------------------------------------------------------------------


def _covers(x: ScaleSpace, size: tuple, padding: tuple, dilation: tuple) -> bool:
    """Whether the window is all of space at every level."""
    if any(padding) or any(d != 1 for d in dilation):
        return False
    return all(at_level(s, k) == n for k in range(x.num_levels) for s, n in zip(size, x.sizes(k), strict=True))


def _slide(
    x: ScaleSpace,
    window: Window,
    plain: Callable[[Tensor], Tensor],
    spread: Callable[[Tensor, Any], Tensor],
    ceil_mode: bool,
) -> ScaleSpace:
    levels = []
    for k, level in enumerate(x.levels):
        spacing = x.spacing(k)
        if not ceil_mode:
            window.check(level, spacing, k + x.first_level)
        levels.append(plain(level) if as_integer(spacing) == 1 else spread(level, spacing))
    return window.move(x, tuple(levels))


def _pad_for(window: Window, level: Tensor, spacing: Any, ceil_mode: bool) -> list[tuple[int, int]]:
    """The samples that padding, and windows that hang out at the end, need on each side."""
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
            out = -((span - length) // stride) + 1
            if (out - 1) * stride >= n + before * whole:
                out -= 1
            extra = max((out - 1) * stride + span - length, 0)
        amounts.append((before * whole, after * whole + extra))
    return amounts


def _pool_window(func: Callable, kernel_size: Any, stride: Any, padding: Any, dilation: Any) -> tuple:
    dims = _dims(func)
    size = _tuple(kernel_size, dims)
    stride = size if stride is None or stride in ((), []) else _tuple(stride, dims)
    return size, stride, _tuple(padding, dims), _tuple(dilation, dims)


def _window(x: ScaleSpace, size: tuple, stride: tuple, padding: tuple, dilation: tuple) -> Window:
    if any(isinstance(n, PerLevel) for n in (*size, *stride, *padding)):
        raise ValueError(
            f"a window has one size for all levels unless it is all of space, got {size} of {x.shapes}, stride "
            f"{stride}, padding {padding}; use adaptive pooling"
        )
    return Window(size, stride, tuple((p, p) for p in padding), dilation)


@_instead_of("max_pool1d", "max_pool2d", "max_pool3d")
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
    x = _on_grid(input, func, _dims(func))
    if return_indices:
        raise TypeError(f"{_name(func)} with return_indices=True has no place for grids; use F.interpolate to unpool")
    arguments = _pool_window(func, kernel_size, stride, padding, dilation)
    if _covers(x, arguments[0], *arguments[2:]):
        return averaged(x, _each(func, x, arguments[0]), [True] * x.dims)
    window = _window(x, *arguments)

    def plain(level: Tensor) -> Tensor:
        return func(level, *arguments, ceil_mode=ceil_mode)

    def spread(level: Tensor, spacing: Any) -> Tensor:
        amounts = _pad_for(window, level, spacing, ceil_mode)
        apart = tuple(d * (as_integer(spacing) or 1) for d in window.dilation)
        return func(pad(level, amounts, value=-math.inf), window.size, window.stride, 0, apart)

    return _slide(x, window, plain, spread, ceil_mode)


@_instead_of("avg_pool1d", "avg_pool2d", "avg_pool3d")
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
    x = _on_grid(input, func, _dims(func))
    arguments = _pool_window(func, kernel_size, stride, padding, 1)
    more = {} if divisor_override is None else {"divisor_override": divisor_override}
    if _covers(x, arguments[0], *arguments[2:]):
        return averaged(x, _each(func, x, arguments[0], **more), [True] * x.dims)
    window = _window(x, *arguments)

    def plain(level: Tensor) -> Tensor:
        return func(level, *arguments[:3], ceil_mode=ceil_mode, count_include_pad=count_include_pad, **more)

    def total(f: Tensor, spacing: Any, padding: Sequence[tuple[int, int]]) -> Tensor:
        return correlate(
            f,
            f.new_ones(f.shape[1], 1, *window.size),
            spacing=spacing,
            stride=window.stride,
            padding=padding,
            dilation=window.dilation,
            groups=f.shape[1],
        )

    def spread(level: Tensor, spacing: Any) -> Tensor:
        if not ceil_mode and (count_include_pad or not any(arguments[2])):
            return total(level, spacing, window.padding) / (divisor_override or math.prod(window.size))
        amounts = _pad_for(window, level, spacing, ceil_mode)
        sums = total(pad(level, amounts), spacing, [(0, 0)] * x.dims)
        if divisor_override is not None:
            return sums / divisor_override
        counted = level.new_ones(1, 1, *level.shape[2:])
        if count_include_pad:  # but not what hangs out
            whole = as_integer(spacing) or 1
            inner = [(before * whole, after * whole) for before, after in window.padding]
            counted = pad(counted, inner, value=1.0)
            amounts = [(0, all_after - after) for (_, all_after), (_, after) in zip(amounts, inner, strict=True)]
        return sums / total(pad(counted, amounts), spacing, [(0, 0)] * x.dims)

    return _slide(x, window, plain, spread, ceil_mode)


@_instead_of(*(f"adaptive_{kind}_pool{d}d" for kind in ("avg", "max") for d in (1, 2, 3)))
def _adaptive_pool(func: Callable, input: Any, output_size: Any, return_indices: bool = False) -> ScaleSpace:
    dims = _dims(func)
    if return_indices:
        raise TypeError(f"{_name(func)} with return_indices=True has no place for grids")
    x = check_space(input)
    size = _tuple(output_size, dims)
    if x.dims:
        _on_grid(x, func, dims)
    levels = _each(func, x, size)
    if x.dims and all(n is None or (isinstance(n, int) and n == 1) for n in size):
        return averaged(x, levels, [n == 1 for n in size])
    unchanged = x.dims and all(new.shape == old.shape for new, old in zip(levels, x.levels, strict=True))
    return x.replace(levels) if unchanged else _gridless(x, levels)  # windows are parts of the image


# --- padding and interpolation ---------------------------------------------------------------------------------------


@_instead_of("pad")
def _pad(func: Callable, input: Any, pad: Any, mode: str = "constant", value: float | None = None) -> ScaleSpace:
    x = check_space(input)
    pairs = {x.ndim - 1 - i: tuple(pad[2 * i : 2 * i + 2]) for i in range(len(pad) // 2)}
    spatial = [pairs.get(a, (0, 0)) for a in x.axes]
    if not any(isinstance(amount, PerLevel) or amount for pair in spatial for amount in pair):
        return apply(func, (x, pad), {"mode": mode, "value": value})
    if x.causal:
        raise TypeError("torch's pad would put samples after the newest of a causal space; use ScaleConv1d's padding")
    levels, origins = [], []
    for k, level in enumerate(x.levels):
        spacing = as_integer(x.spacing(k))
        if spacing is None:
            raise ValueError(f"padding needs taps on samples, got {x.spacing(k)} samples between them; use a pyramid")
        # A number counts taps; one of each level was computed from sizes, and counts samples.
        amounts = {
            a: tuple(at_level(p, k) if isinstance(p, PerLevel) or a not in x.axes else p * spacing for p in pair)
            for a, pair in pairs.items()
        }
        flat = [amount for a in sorted(amounts, reverse=True) for amount in amounts[a]]
        levels.append(func(level, flat, mode=mode, value=value))
        origins.append(
            tuple(o - amounts.get(a, (0, 0))[0] * x.steps[k] for a, o in zip(x.axes, x.origins[k], strict=True))
        )
    return x.replace(tuple(levels), origins=tuple(origins))


@_instead_of("interpolate", "upsample", "upsample_bilinear", "upsample_nearest")
def _interpolate(
    func: Callable,
    input: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str | None = None,
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> ScaleSpace:
    """As F.interpolate; of a space without grids, or with one sample per level, the result has no grid yet."""
    x = check_space(input)
    if mode is None:
        mode, align_corners = ("bilinear", True) if func.__name__ == "upsample_bilinear" else ("nearest", align_corners)
    options: dict[str, Any] = {"mode": mode, "align_corners": align_corners, "antialias": antialias}
    dims = x.ndim - 2

    def plain(level: Tensor, k: int, target: Any = size) -> Tensor:
        if target is not None:
            return F.interpolate(level, select(target, k), **options)
        return F.interpolate(level, scale_factor=scale_factor, recompute_scale_factor=recompute_scale_factor, **options)

    size = None if size is None else tuple(_tuple(size, dims))
    if not x.dims or (size is not None and all(n == 1 for k in range(x.num_levels) for n in x.sizes(k))):
        return _gridless(x, [plain(level, k, size) for k, level in enumerate(x.levels)])
    _on_grid(x, F.interpolate, dims)
    factor = _factors(x, size, scale_factor)
    if factor is None:  # the same size at all levels: that of the image as a whole
        if any(isinstance(n, PerLevel) for n in size or ()):
            raise ValueError(f"interpolation of levels {x.shapes} to {size} is not by one factor for all levels")
        return _gridless(x, [plain(level, k, size) for k, level in enumerate(x.levels)])
    levels: list[Tensor] = []
    exact = scale_factor is not None and not recompute_scale_factor
    zero = plain(x.level(0), -x.first_level, size)
    for k, level in enumerate(x.levels):
        if k == -x.first_level:
            levels.append(zero)
        elif as_integer(x.spacing(k)) == 1:
            levels.append(plain(level, k, size))
        else:
            _check_upsampling(x, F.interpolate)
            if antialias or mode not in LINEAR + NEAREST:
                raise ValueError(
                    f"interpolation by mode={mode!r}, antialias={antialias} with taps {x.spacing(k):g} samples apart "
                    'is not there; use sampling="pyramid", or mode "nearest" or "bilinear"'
                )
            lattices, base = _lattice(x, k)
            for axis, f in enumerate(factor, 2):
                n = level.shape[axis]
                old = count(n, lattices)
                end = count(zero.shape[axis], x.steps[k]) if size is None else at_level(size[axis - 2], k)
                new = count(end, lattices)
                ratio = 1 / f if exact else old / new
                if align_corners:
                    ratio = (old - 1) / (new - 1) if new > 1 else 0.0
                level = interpolate_spread(level, axis, lattices, base, f, end, mode, bool(align_corners), ratio)
            levels.append(level)
    return finer(x, tuple(levels), factor, half_pixel(factor))


def _factors(x: ScaleSpace, size: tuple | None, scale_factor: Any) -> list[float] | None:
    if size is None:
        return [float(f) for f in _tuple(scale_factor, x.dims)]
    spacings = [as_integer(x.spacing(k)) or 1 for k in range(x.num_levels)]
    factors = []
    for axis, n in enumerate(size):
        old = [_number(x.sizes(k)[axis]) for k in range(x.num_levels)]
        new = [_number(at_level(n, k)) for k in range(x.num_levels)]
        factors.append(nominal_factor(old, new, x.unit[axis], spacings))
    return None if None in factors else factors


def _number(size: Any) -> int:
    """A size, or what it is at present if it is symbolic."""
    return size if isinstance(size, int) else size.node.hint


@_instead_of("pixel_shuffle")
def _pixel_shuffle(func: Callable, input: Any, upscale_factor: int) -> ScaleSpace:
    x = _on_plain_grid(input, func)
    factor = [float(upscale_factor)] * 2
    return finer(x, _each(func, x, upscale_factor), factor, half_pixel(factor))


@_instead_of("pixel_unshuffle")
def _pixel_unshuffle(func: Callable, input: Any, downscale_factor: int) -> ScaleSpace:
    x, f = _on_plain_grid(input, func), downscale_factor
    return Window((f, f), (f, f), ((0, 0),) * 2, (1, 1)).move(x, _each(func, x, f))


def _on_plain_grid(x: Any, func: Callable) -> ScaleSpace:
    x = _on_grid(x, func, 2)
    if any(as_integer(x.spacing(k)) != 1 for k in range(x.num_levels)):
        raise ValueError(
            f'{_name(func)} takes neighboring samples, which is right on a pyramid; use sampling="pyramid"'
        )
    return x


# --- normalization and linear layers ---------------------------------------------------------------------------------


@_instead_of("batch_norm")
def _batch_norm(
    func: Callable,
    input: Any,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> ScaleSpace:
    _check_channels(input, func, [0, 1])
    return scale_batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


@_instead_of("instance_norm")
def _instance_norm(
    func: Callable,
    input: Any,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> ScaleSpace:
    _check_channels(input, func, [0, 1])
    if use_input_stats and running_mean is not None:
        raise ValueError(
            "instance_norm would update its running statistics at every level; turn track_running_stats off"
        )
    return apply(func, (input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps), {})


@_instead_of("group_norm")
def _group_norm(func: Callable, input: Any, *args: Any, **kwargs: Any) -> ScaleSpace:
    _check_channels(input, func, [0, 1])
    return apply(func, (input, *args), kwargs)


@_instead_of("layer_norm", "rms_norm")
def _layer_norm(func: Callable, input: Any, normalized_shape: Any, *args: Any, **kwargs: Any) -> ScaleSpace:
    _check_channels(input, func, range(-len(normalized_shape), 0))
    return apply(func, (input, normalized_shape, *args), kwargs)


@_instead_of("linear")
def _linear(func: Callable, input: Any, *args: Any, **kwargs: Any) -> ScaleSpace:
    _check_channels(input, func, [-1])
    return apply(func, (input, *args), kwargs)


@_instead_of("matmul", "mm", "bmm", "__matmul__")
def _matmul(func: Callable, input: Any, other: Any, **kwargs: Any) -> ScaleSpace:
    if isinstance(input, ScaleSpace):
        _check_channels(input, func, [-1])
    if isinstance(other, ScaleSpace):
        _check_channels(other, func, [-2] if other.ndim > 1 else [-1])
    return apply(func, (input, other), kwargs)


def _check_channels(x: Any, func: Callable, axes: Sequence[int]) -> None:
    """Refuse functions whose parameters belong to axes that are those of space."""
    taken = [a for a in x.axes if a in [b % x.ndim for b in axes]] if isinstance(x, ScaleSpace) else []
    if any(shape[a] != 1 for shape in x.shapes for a in taken):
        raise ValueError(
            f"{_name(func)} takes axes {[a % x.ndim for a in axes]} of levels of shapes {x.shapes} for channels, but "
            f"space is at {x.axes}: its weights would belong to positions of one size; permute the channels there first"
        )


@_instead_of("expand", "new_zeros", "new_ones", "new_full", "new_empty")
def _fresh(func: Callable, input: Any, *args: Any, **kwargs: Any) -> ScaleSpace:
    """Sizes that are given need be those of no grid."""
    x = check_space(input)
    levels = _each(func, x, *args, **kwargs)
    same = x.dims and x.ndim == levels[0].ndim
    if same and all(tuple(new.shape[a] for a in x.axes) == x.sizes(k) for k, new in enumerate(levels)):
        return x.replace(levels)
    return _gridless(x, levels)
