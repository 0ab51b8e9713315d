r"""torch's padding, interpolation, transposed convolutions and pixel shuffles on scale-spaces.

A level whose taps are :math:`q` samples apart is made of :math:`q` lattices, and a filter sees only one of them. When
it is made :math:`f` times finer, sample :math:`q u + r` of the result is sample :math:`u` of a plain operation on the
lattice that begins :math:`r / f` samples later. Between samples it is interpolated, from neighbors :math:`c^v` apart,
the largest power that divides :math:`r`: in a downscaled image the same sample has no closer ones.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from scalespaces._torch import hint
from scalespaces.foreign._register import as_tuple, dims_of, each, instead_of, name_of, on_grid
from scalespaces.functional._sampling import take, within
from scalespaces.space._grid import window_of
from scalespaces.space._levelwise import apply, select
from scalespaces.space._numbers import as_integer, count
from scalespaces.space._per_level import PerLevel
from scalespaces.space._space import ScaleSpace, check_space

_MODES = ("linear", "bilinear", "trilinear", "nearest", "nearest-exact")
Run = Callable[[Tensor], Tensor]


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
            spacing, _ = lattices = _lattices_of(x, k, F.interpolate)
            if antialias or mode not in _MODES:
                came = f"interpolation by mode={mode!r}, antialias={antialias} with taps {spacing} samples apart"
                raise ValueError(f'{came} is not supported; use sampling="pyramid", or mode "nearest" or "bilinear"')
            ends = [count(n, x.steps[k]) for n in zero.shape[2:]] if size is None else select(size, k)
            ratios = factor if exact else [None] * x.dims
            run = partial(_resize, [count(n, spacing) for n in ends], mode, bool(align_corners), ratios)
            levels.append(_on_lattices(run, level, lattices, factor, ends, mode.startswith("nearest")))
    return x.on(levels, x.grid.refine(tuple(factor), _half_pixel(factor)))


def _factors(x: ScaleSpace, size: tuple | None, scale_factor: Any) -> list[float] | None:
    if size is None:
        return [float(f) for f in as_tuple(scale_factor, x.dims)]
    spacings = [as_integer(x.spacing(k)) or 1 for k in range(x.num_levels)]
    factors = []
    for axis, n in enumerate(size):
        old = [hint(x.sizes(k)[axis]) for k in range(x.num_levels)]
        new = [hint(select(n, k)) for k in range(x.num_levels)]
        factors.append(_nominal_factor(old, new, x.unit[axis], spacings))
    return None if None in factors else factors


def _nominal_factor(old: Sequence[int], new: Sequence[int], unit: float, spacings: Sequence[float]) -> float | None:
    """By how much an axis of these sizes, one per level, was made finer; None if not by one factor for all."""
    # Sizes that a stride of f divided come back up to what it left over, so f n may be up to f taps away from the new
    # size. Of several factors, one that divides the strides so far is taken.
    up, ratio = new[0] >= old[0], new[0] / old[0]
    small, large = (old, new) if up else (new, old)
    sizes = list(zip(small, large, spacings, strict=True))
    most = max(math.ceil(m / max(n - 1, 1)) for n, m, _ in sizes)
    fitting = [r for r in range(1, most + 1) if all(abs(n * r - m) < r * q for n, m, q in sizes)]
    if not fitting:
        return ratio if all(m * old[0] == n * new[0] for m, n in zip(new, old, strict=True)) else None
    nearest = large[0] / small[0]
    best = min(fitting, key=lambda r: (not (up and (unit / r).is_integer()), abs(r - nearest)))
    return float(best) if up else 1 / best


def _resize(size: Sequence[int], mode: str, aligned: bool, factor: Sequence[float | None], f: Tensor) -> Tensor:
    """As F.interpolate to a size; by the factors, if there are any, whatever the size."""
    kind = "_upsample_nearest_exact" if mode == "nearest-exact" else f"upsample_{mode}"
    corners = () if mode.startswith("nearest") else (aligned,)
    return getattr(torch.ops.aten, f"{kind}{f.ndim - 2}d")(f, size, *corners, *factor)


@instead_of("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
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
    dims = dims_of(func)
    x = on_grid(input, func, dims)
    stride, padding, dilation = as_tuple(stride, dims), as_tuple(padding, dims), as_tuple(dilation, dims)
    output_padding = as_tuple(output_padding, dims)

    def plain(level: Tensor, k: int = -x.first_level) -> Tensor:
        extra = select(output_padding, k)
        return func(level, weight, bias, stride, padding, extra, groups, dilation)

    zero = plain(x.level(0))
    levels = []
    for k, level in enumerate(x.levels):
        if as_integer(x.spacing(k)) == 1:
            levels.append(zero if k == -x.first_level else plain(level, k))
        else:
            size = [count(n, x.steps[k]) for n in zero.shape[2:]]
            levels.append(_on_lattices(plain, level, _lattices_of(x, k, func), stride, size))
    axes = zip(weight.shape[2:], dilation, padding, stride, strict=True)
    shift = tuple(-(d * (n - 1) / 2 - p) / s for n, d, p, s in axes)
    return x.on(levels, x.grid.refine(tuple(map(float, stride)), shift))


def _lattices_of(x: ScaleSpace, index: int, func: Callable) -> tuple[int, int]:
    """How many lattices the level has, and the base."""
    spacing = as_integer(x.spacing(index))
    if not spacing:
        raise ValueError(f'{name_of(func)} needs taps on samples, got {x.spacing(index)} apart; use sampling="pyramid"')
    return spacing, (as_integer(x.base) or spacing)


def _on_lattices(
    run: Run, f: Tensor, lattices: tuple[int, int], factor: Sequence[float], size: Sequence[int], nearest: bool = False
) -> Tensor:
    """Run what makes maps ``factor`` times finer on each of the lattices of a level, and interleave the results.

    There are ``size`` samples at most. Lattices between samples are interpolated, or take the ``nearest`` before them.
    """
    spacing, base = lattices
    for axis, finer in enumerate(factor, 2):
        n = f.shape[axis]
        start, near, apart = _phases(torch.arange(spacing, device=f.device), spacing, base, finer)
        index = start[:, None] + torch.arange((n - 1) // spacing + 1, device=f.device) * spacing
        low, high = (take(f, axis, within(i.flatten(), n, spacing)) for i in (index, index + apart[:, None]))
        weight = near.to(f.dtype).repeat_interleave(index.shape[1]).reshape([-1] + [1] * (f.ndim - axis - 1))
        phases = low if nearest else torch.lerp(low, high, weight)
        f = phases.unflatten(axis, (spacing, -1)).movedim(axis, 0).flatten(0, 1)
    out = run(f)
    for axis in reversed(range(2, f.ndim)):
        out = out.unflatten(0, (spacing, -1)).movedim(0, axis + 1).flatten(axis, axis + 1)
        if size[axis - 2] < out.shape[axis]:
            out = out.narrow(axis, 0, size[axis - 2])
    return out


def _phases(r: Tensor, spacing: int, base: int, factor: float) -> tuple[Tensor, Tensor, Tensor]:
    """Where lattices that begin ``r / factor`` samples later are read: a neighbor, weight of the next, distance."""
    apart = torch.ones_like(r)
    power = base
    while power < spacing:
        apart = torch.where(r % power == 0, power, apart)
        power *= base
    steps = r.to(torch.float64 if r.device.type != "mps" else torch.float32) / apart / factor
    whole = (steps + 1e-9).floor()
    return whole.long() * apart, (steps - whole).clip(min=0), apart


@instead_of("pixel_shuffle", "pixel_unshuffle")
def _pixel_shuffle(func: Callable, input: Any, *args: int, **kwargs: int) -> ScaleSpace:
    (f,), x = (*args, *kwargs.values()), on_grid(input, func, 2)
    if any(as_integer(x.spacing(k)) != 1 for k in range(x.num_levels)):
        raise ValueError(f'{name_of(func)} takes neighboring samples, which suits pyramids; use sampling="pyramid"')
    finer, factor = name_of(func) == "pixel_shuffle", (float(f), float(f))
    grid = x.grid.refine(factor, _half_pixel(factor)) if finer else x.grid.slide(window_of((f, f), f))
    return x.on(each(func, x, f), grid)


def _half_pixel(factor: Sequence[float]) -> tuple[float, ...]:
    """Where sample 0 of a finer grid lies if both grids divide the same pixels."""
    return tuple(1 / (2 * f) - 1 / 2 for f in factor)
