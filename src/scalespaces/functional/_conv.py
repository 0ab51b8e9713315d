"""The scale-space correlation."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from scalespaces._choices import SCALE_PADDINGS
from scalespaces._torch import is_channels_last
from scalespaces.functional._correlate import correlate, spread_window
from scalespaces.functional._fast._choice import can_fold, folding_pays, runs_channels_last
from scalespaces.functional._fast._fold import Fold, fold_axis, upsampled_conv
from scalespaces.functional._resample import on_grid_of
from scalespaces.functional._sampling import lead
from scalespaces.space._grid import Grid, Window, window_of
from scalespaces.space._numbers import Ints, remembered
from scalespaces.space._space import ScaleSpace, check_grid
from scalespaces.space._strict import is_strict
from scalespaces.theory._arguments import PaddingMode, check_choice, check_padding_mode
from scalespaces.theory._kernels import check_causal_padding


def scale_conv(
    x: ScaleSpace,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: Ints = 1,
    padding: Ints | str = "same",
    dilation: Ints = 1,
    groups: int = 1,
    padding_mode: PaddingMode = "zeros",
    scale_padding: str = "zeros",
) -> ScaleSpace:
    r"""Scale-space correlation, the paper's equation "dss-correlation" with channels.

    .. math:: [\psi \star f]^o_k(z) = \sum_i \sum_{\ell \ge 0} \sum_y \psi^{i,o}_\ell(y)\, f^i_{k+\ell}(c^k y + z)

    :math:`f_{k+\ell}` is brought to the grid of level :math:`k`, then correlated with taps :math:`c^k` apart. In a
    causal space :math:`y \le 0`: the last tap meets the present, and strides count back from the newest sample.

    Args:
        x: levels of ``(B, C_in, *spatial_k)``.
        weight: ``(C_out, C_in / groups, k, *kernel)``, or without the ``k`` for filters of one level.
        bias: ``(C_out,)``.
        stride: thins the grid of every level.
        padding: in taps on each side, ``"same"`` or ``"valid"``; it grows with the spacing of the taps. In a causal
            space a number counts taps before the record; ``"valid"`` drops the first outputs.
        dilation: multiplies the spacing of the taps.
        groups: as in PyTorch's convolutions.
        padding_mode: what lies outside the image: ``"zeros"``, ``"reflect"``, ``"replicate"`` or ``"circular"``;
            before a causal record only zeros or replicate.
        scale_padding: what lies past the last level: ``"zeros"`` (the paper), ``"replicate"`` (the last level again),
            or ``"valid"``: nothing, so ``k - 1`` fewer levels are returned, each of them exact.

    Example:
        >>> x = scalespaces.lift(torch.rand(1, 3, 32, 32), num_levels=4)
        >>> scale_conv(x, torch.rand(8, 3, 2, 3, 3), scale_padding="valid").shapes
        ((1, 8, 32, 32), (1, 8, 16, 16), (1, 8, 8, 8))
    """
    grid, count = check_grid(x).grid, len(x.levels)
    dims = grid.dims or max(x.ndim - 2, 0)
    plain = weight.ndim == dims + 2  # a filter of torch's own layers: their bits stay as they are
    if plain:
        weight = weight.unsqueeze(2)
    if dims == 0 or weight.ndim != dims + 3:
        rule = f"{dims}-dimensional levels need a weight (C_out, C_in / groups, k, *kernel) of {dims + 3} axes"
        raise ValueError(f"{rule}, got shape {tuple(weight.shape)}")
    if x.levels[0].shape[1] != weight.shape[1] * groups:
        raise ValueError(f"the filter takes {weight.shape[1] * groups} channels, got {x.levels[0].shape[1]}")
    check_causal_padding(padding_mode) if grid.causal else check_padding_mode(padding_mode)
    depth, num_levels = weight.shape[2], check_scale_padding(scale_padding, count, weight.shape[2])
    window = window_of(weight.shape[3:], stride, padding, dilation, grid.causal)
    if not grid.dims:
        _check_whole(x, window)
    filters, last = weight.unbind(2), [is_channels_last(x.levels[0])] * num_levels
    if not (plain or last[0] or is_strict()):
        last = [runs_channels_last(level, groups) for level in x.levels]
    # Laid out once for all levels, instead of once for each.
    laid = [part.contiguous(memory_format=torch.channels_last) for part in filters] if any(last) else filters
    spacings, spreads, slid, fits = _slide(grid, window, num_levels)
    foldable, levels = depth > 1 and groups == 1 and padding_mode == "zeros" and can_fold(), []
    settings: Any = {"groups": groups, "padding_mode": padding_mode}
    for k, (spacing, spread) in enumerate(zip(spacings, spreads, strict=True)):
        # Filter levels that still meet a level; the others meet zeros, unless the last level is repeated.
        met = depth if scale_padding == "replicate" else min(depth, count - k)
        out = None
        for el in range(met):
            source = min(k + el, count - 1)
            if out is not None and foldable and source > k:
                folds = _fold_plan(grid, k, source, window, x.sizes(k), x.sizes(source))
                if folds is not None and folding_pays(_saved(folds, x.levels[source], weight), x.device):
                    out += upsampled_conv(x.levels[source], laid[el] if last[k] else filters[el], folds)
                    continue
            f = x.levels[source] if source == k or not grid.dims else on_grid_of(x, k, source)
            if not fits:
                window.check(f.shape[2:], spacing, k + grid.first_level)
            if last[k]:
                f = f.contiguous(memory_format=torch.channels_last)
            f, view = lead(window, f, spacing, padding_mode) if grid.causal else (f, window)
            part, shift = laid[el] if last[k] else filters[el], bias if el == 0 else None
            term = correlate(f, part, shift, window=view, spacing=spacing, spread=spread, **settings)
            out = term if out is None else out.add_(term)
        levels.append(out)
    return x.on(levels, slid)


@remembered
def _slide(grid: Grid, window: Window, num_levels: int) -> tuple[tuple, tuple, Grid, bool]:
    """The spacing of taps at each level, how they spread its window, the grid that is left, and whether sizes stay."""
    spacings, slid = grid.spacings() if grid.dims else (1.0,) * grid.num_levels, grid.keep(num_levels)
    spreads = [None if grid.causal else spread_window(window, spacing) for spacing in spacings[:num_levels]]
    return spacings[:num_levels], tuple(spreads), slid.slide(window) if grid.dims else slid, window.keeps_size


@remembered
def _fold_plan(
    grid: Grid, k: int, source: int, window: Window, sizes: tuple[int, ...], samples: tuple[int, ...]
) -> tuple[Fold, ...] | None:
    """How interpolation of a coarser level and the filter fold into one; None if they do not."""
    plain = grid.dims and not grid.causal and isinstance(grid.base, float) and grid.is_plain(k)
    if not plain or set(window.stride + window.dilation) != {1}:
        return None
    step = grid.steps[source]
    folds = [
        fold_axis(grid.steps[k] / step, (here - there) / step, *axis)
        for here, there, *axis in zip(
            grid.origins[k], grid.origins[source], sizes, samples, window.size, window.padding, strict=True
        )
    ]
    found = tuple(fold for fold in folds if fold is not None)
    return found if len(found) == len(folds) else None


def _saved(folds: Sequence[Fold], coarse: Tensor, weight: Tensor) -> int:
    """Multiplications that folding saves."""
    taps = math.prod([f.finer * f.taps for f in folds]) - math.prod([f.length for f in folds])
    return taps * (coarse.numel() // coarse.shape[1]) * math.prod(weight.shape[:2])


def _check_whole(x: ScaleSpace, window: Window) -> None:
    """Without grids, samples are parts of the image: a filter takes one of them, or all."""
    padded = any(before or after for before, after in window.padding)
    sizes = [tuple(level.shape[2:]) for level in x.levels]
    single = set(window.size) | set(window.stride) == {1}
    whole = all(size == window.size for size in sizes) and set(window.dilation) == {1}
    if all(n == 1 for size in sizes for n in size) or ((single or whole) and not padded):
        return
    lost = "on a grid, which adaptive pooling or interpolation of the image as a whole has left"
    ways = "only pointwise layers, flatten, linear layers and filters as large as the whole map can follow"
    raise ValueError(f"a filter needs neighbors {lost}: levels of shapes {x.shapes}; {ways}")


def check_scale_padding(scale_padding: str, num_levels: int, depth: int) -> int:
    """The number of levels that are returned."""
    check_choice("scale_padding", scale_padding, SCALE_PADDINGS)
    if scale_padding != "valid":
        return num_levels
    if depth > num_levels:
        rule = 'scale_padding="valid" needs at least as many levels as the filter has'
        raise ValueError(f"{rule}, got {num_levels} levels and a filter of {depth}; lift to more levels")
    return num_levels - depth + 1
