"""torch's padding, interpolation and pixel shuffles on scale-spaces."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from scalespaces._torch import hint
from scalespaces.foreign._register import as_tuple, each, instead_of, name_of, on_grid
from scalespaces.foreign._upsample import MODES, half_pixel, interpolate, lattices_of, nominal_factor, on_lattices
from scalespaces.space._levelwise import apply, select
from scalespaces.space._numbers import as_integer, count
from scalespaces.space._per_level import PerLevel
from scalespaces.space._space import ScaleSpace, check_space
from scalespaces.space._window import window_of


@instead_of("pad")
def _pad(func: Callable, input: Any, pad: Any, mode: str = "constant", value: float | None = None) -> ScaleSpace:
    x = check_space(input)
    pairs = {x.ndim - 1 - i: tuple(pad[2 * i : 2 * i + 2]) for i in range(len(pad) // 2)}
    spatial = [pairs.get(a, (0, 0)) for a in x.axes]
    if not any(isinstance(amount, PerLevel) or amount for pair in spatial for amount in pair):
        return apply(func, (x, pad), {"mode": mode, "value": value})
    if x.causal:
        raise TypeError("torch's pad would put samples after the newest of a causal space; use ScaleConv1d's padding")
    levels, offsets = [], []
    for k, level in enumerate(x.levels):
        spacing = as_integer(x.spacing(k))
        if spacing is None:
            raise ValueError(f"padding needs taps on samples, got {x.spacing(k)} samples between them; use a pyramid")
        # One number counts taps; one number per level was computed from sizes, and counts samples.
        amounts = {
            a: tuple(select(p, k) if isinstance(p, PerLevel) or a not in x.axes else p * spacing for p in pair)
            for a, pair in pairs.items()
        }
        flat = [amount for a in sorted(amounts, reverse=True) for amount in amounts[a]]
        levels.append(func(level, flat, mode=mode, value=value))
        offsets.append([-amounts.get(a, (0, 0))[0] for a in x.axes])
    return x.on(levels, x.grid.shift(offsets))


@instead_of("interpolate", "upsample", "upsample_bilinear", "upsample_nearest")
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
    size = None if size is None else as_tuple(size, x.ndim - 2)

    def plain(level: Tensor, k: int) -> Tensor:
        if size is not None:
            return F.interpolate(level, select(size, k), **options)
        return F.interpolate(level, scale_factor=scale_factor, recompute_scale_factor=recompute_scale_factor, **options)

    factor = None
    if x.dims and (size is None or any(n != 1 for k in range(x.num_levels) for n in x.sizes(k))):
        on_grid(x, F.interpolate, x.ndim - 2)
        factor = _factors(x, size, scale_factor)
        if factor is None and any(isinstance(n, PerLevel) for n in size or ()):
            raise ValueError(f"interpolation of levels {x.shapes} to {size} does not use one factor for all levels")
    if factor is None:  # the same size at all levels: that of the image as a whole
        return x.on([plain(level, k) for k, level in enumerate(x.levels)], x.grid.flatten())
    levels: list[Tensor] = []
    exact = scale_factor is not None and not recompute_scale_factor
    zero = plain(x.level(0), -x.first_level)
    for k, level in enumerate(x.levels):
        if k == -x.first_level:
            levels.append(zero)
        elif as_integer(x.spacing(k)) == 1:
            levels.append(plain(level, k))
        else:
            spacing, _ = lattices = lattices_of(x, k, F.interpolate)
            if antialias or mode not in MODES:
                came = f"interpolation by mode={mode!r}, antialias={antialias} with taps {spacing} samples apart"
                raise ValueError(f'{came} is not supported; use sampling="pyramid", or mode "nearest" or "bilinear"')
            ends = [count(n, x.steps[k]) for n in zero.shape[2:]] if size is None else select(size, k)
            ratios = factor if exact else [None] * x.dims
            run = partial(interpolate, [count(n, spacing) for n in ends], mode, bool(align_corners), ratios)
            levels.append(on_lattices(run, level, lattices, factor, ends, mode.startswith("nearest")))
    return x.on(levels, x.grid.refine(tuple(factor), half_pixel(factor)))


def _factors(x: ScaleSpace, size: tuple | None, scale_factor: Any) -> list[float] | None:
    if size is None:
        return [float(f) for f in as_tuple(scale_factor, x.dims)]
    spacings = [as_integer(x.spacing(k)) or 1 for k in range(x.num_levels)]
    factors = []
    for axis, n in enumerate(size):
        old = [hint(x.sizes(k)[axis]) for k in range(x.num_levels)]
        new = [hint(select(n, k)) for k in range(x.num_levels)]
        factors.append(nominal_factor(old, new, x.unit[axis], spacings))
    return None if None in factors else factors


@instead_of("pixel_shuffle", "pixel_unshuffle")
def _pixel_shuffle(func: Callable, input: Any, *args: int, **kwargs: int) -> ScaleSpace:
    (f,), x = (*args, *kwargs.values()), on_grid(input, func, 2)
    if any(as_integer(x.spacing(k)) != 1 for k in range(x.num_levels)):
        raise ValueError(f'{name_of(func)} takes neighboring samples, which suits pyramids; use sampling="pyramid"')
    finer, factor = name_of(func) == "pixel_shuffle", (float(f), float(f))
    grid = x.grid.refine(factor, half_pixel(factor)) if finer else x.grid.slide(window_of((f, f), f))
    return x.on(each(func, x, f), grid)
