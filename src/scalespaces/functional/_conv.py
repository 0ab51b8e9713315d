"""The scale-space correlation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from scalespaces._torch import is_channels_last, is_transformed
from scalespaces.functional._correlate import correlate
from scalespaces.functional._fast._fold import Fold, fold_axis, upsampled_conv
from scalespaces.functional._resample import on_grid_of
from scalespaces.functional._windows import Window
from scalespaces.space._numbers import as_integer, per_axis
from scalespaces.space._space import ScaleSpace, check_grid
from scalespaces.theory._arguments import check_choice
from scalespaces.theory._causal import check_causal_padding
from scalespaces.theory._padding import PaddingMode, check_padding_mode

SCALE_PADDINGS = ("zeros", "replicate", "valid")
WORTH_FOLDING = 2**27  # multiplications that folding must save, or else its many small calls cost more


def scale_conv(
    x: ScaleSpace,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = "same",
    dilation: int | Sequence[int] = 1,
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
            or ``"valid"``: nothing, so ``k - 1`` fewer levels come out, each of them exact.

    Example:
        >>> x = scalespaces.lift(torch.rand(1, 3, 32, 32), num_levels=4)
        >>> scale_conv(x, torch.rand(8, 3, 2, 3, 3), scale_padding="valid").shapes
        ((1, 8, 32, 32), (1, 8, 16, 16), (1, 8, 8, 8))
    """
    check_grid(x)
    dims = x.dims or max(x.ndim - 2, 0)
    if weight.ndim == dims + 2:
        weight = weight.unsqueeze(2)
    if dims == 0 or weight.ndim != dims + 3:
        raise ValueError(
            f"{dims}-dimensional levels need a weight (C_out, C_in / groups, k, *kernel) of {dims + 3} axes, got "
            f"shape {tuple(weight.shape)}"
        )
    channels = x.levels[0].shape[1]
    if channels != weight.shape[1] * groups:
        raise ValueError(f"the filter takes {weight.shape[1] * groups} channels, got {channels}")
    check_causal_padding(padding_mode) if x.causal else check_padding_mode(padding_mode)
    depth, num_levels = weight.shape[2], check_scale_padding(scale_padding, x.num_levels, weight.shape[2])
    window = Window.of(weight.shape[3:], stride, padding, per_axis(dilation, dims, "dilation"), x.causal)
    if not x.dims:
        _check_whole(x, window)
    filters = weight.unbind(2)
    if dims == 2 and is_channels_last(x.levels[0]):  # once for all levels, instead of once for each
        filters = [part.contiguous(memory_format=torch.channels_last) for part in filters]
    channels = math.prod(weight.shape[:2])
    levels = []
    for k in range(num_levels):
        # Filter levels that still meet a level; the others meet zeros, unless the last level is repeated.
        met = depth if scale_padding == "replicate" else min(depth, x.num_levels - k)
        out, spacing = None, x.spacing(k) if x.dims else 1.0
        for el in range(met):
            source = min(k + el, x.num_levels - 1)
            folds = _folds(x, k, source, window, padding_mode, groups, channels) if source > k else None
            if out is not None and folds is not None:
                out += upsampled_conv(x.levels[source], filters[el], folds)
                continue
            f = on_grid_of(x, k, source) if x.dims else x.levels[source]
            window.check(f, spacing, k + x.first_level)
            f, view = window.lead(f, spacing, padding_mode)
            term = correlate(
                f,
                filters[el],
                bias if el == 0 else None,
                spacing=spacing,
                stride=view.stride,
                padding=view.padding,
                dilation=view.dilation,
                groups=groups,
                padding_mode=padding_mode,
            )
            out = term if out is None else out.add_(term)
        levels.append(out)
    return window.move(x.keep(num_levels), tuple(levels)) if x.dims else x.keep(num_levels).replace(tuple(levels))


def _folds(
    x: ScaleSpace, k: int, source: int, window: Window, padding_mode: str, groups: int, channels: int
) -> list[Fold] | None:
    """How interpolation of a coarser level and the filter fold into one; None if they do not, or it does not pay."""
    plain = (
        x.dims
        and not x.causal
        and groups == 1
        and padding_mode == "zeros"
        and set(window.stride + window.dilation) == {1}
    )
    if not (plain and isinstance(x.base, float) and as_integer(x.spacing(k)) == 1) or is_transformed():
        return None
    step = x.steps[source]
    folds = [
        fold_axis(x.steps[k] / step, (here - there) / step, size, samples, taps, padding)
        for here, there, size, samples, taps, padding in zip(
            x.origins[k], x.origins[source], x.sizes(k), x.sizes(source), window.size, window.padding, strict=True
        )
    ]
    found = [fold for fold in folds if fold is not None]
    if len(found) < len(folds):
        return None
    coarse = x.levels[source].numel() // x.levels[source].shape[1] * channels
    saved = math.prod([f.finer * f.taps for f in found]) - math.prod([f.length for f in found])
    return found if saved * coarse >= WORTH_FOLDING else None


def _check_whole(x: ScaleSpace, window: Window) -> None:
    """Without grids, samples are parts of the image: a filter takes one of them, or all."""
    padded = any(before or after for before, after in window.padding)
    sizes = [tuple(level.shape[2:]) for level in x.levels]
    if set(window.size) | set(window.stride) == {1} and not padded:
        return
    if all(n == 1 for size in sizes for n in size):
        return
    if all(size == window.size for size in sizes) and not padded and set(window.dilation) == {1}:
        return
    raise ValueError(
        "a filter needs neighbors on a grid, which adaptive pooling or interpolation of the image as a whole has "
        f"left: levels of shapes {x.shapes}; only pointwise layers, flatten, linear layers and filters as large as the "
        "whole map can follow"
    )


def check_scale_padding(scale_padding: str, num_levels: int, depth: int) -> int:
    """The number of levels that come out."""
    check_choice("scale_padding", scale_padding, SCALE_PADDINGS)
    if scale_padding != "valid":
        return num_levels
    if depth > num_levels:
        raise ValueError(
            f'scale_padding="valid" needs at least as many levels as the filter has, got {num_levels} levels and a '
            f"filter of {depth}; lift to more levels"
        )
    return num_levels - depth + 1
