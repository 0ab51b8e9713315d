"""Levels as pictures: those of a scale-space, and which of their samples a correlation sees."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scalespaces._extras import require
from scalespaces.plotting._figure import OKABE_ITO, finish, new_figure
from scalespaces.space._space import ScaleSpace, check_space
from scalespaces.theory import blur_variance
from scalespaces.theory._arguments import check_choice, check_integer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SHEAR, _DEPTH, _STOREY = 0.36, 0.5, 0.74  # of a level seen from the front and above, and from level to level


def plot_scale_space(
    x: ScaleSpace | Mapping[str, ScaleSpace],
    path: str | os.PathLike[str] | None = None,
    *,
    into: Figure | None = None,
    size: str = "grid",
    channel: int | None = None,
    zero_scale: float | None = None,
    title: str | None = None,
) -> Figure:
    r"""Draw the levels of a scale-space side by side.

    Above each level are its number, the size and step of its grid, and its blur :math:`\sigma_k = \sqrt{t_k}` if
    ``zero_scale`` is given. All levels share one range of gray or color values.

    Args:
        x: the scale-space, of two spatial axes, whose first sample is drawn; a mapping draws a row for each name.
        path, into, title: see :mod:`scalespaces.plotting`.
        size: ``"grid"`` draws all samples equally large, so that a pyramid shrinks; ``"physical"`` draws every level
            where it lies in the image, so that the pixels of a pyramid grow.
        channel: the one to draw. Default: three channels as RGB, otherwise the first.
        zero_scale: :math:`s_0` of the lift, a variance.

    Example:
        >>> x = scalespaces.lift(torch.rand(1, 3, 32, 32), num_levels=3)
        >>> print(plot_scale_space(x, zero_scale=0.25).axes[1].get_title(loc="left"))
        level 1
        16 × 16, step 2
        σ = 0.866 px
    """
    check_choice("size", size, ("grid", "physical"))
    rows = dict(x) if isinstance(x, Mapping) else {"": x}
    if not rows:
        raise ValueError("there is nothing to draw: x contains no scale-space; lift an image with scalespaces.lift")
    pictures = [_pictures(_check_axes(space), channel) for space in rows.values()]
    boxes = [[_box(space, k, size) for k in range(space.num_levels)] for space in rows.values()]

    # A cell is as wide as the widest level of its column, but has room for the words above it.
    left, top = (min(box[side] for row in boxes for box in row) for side in (0, 2))
    widest = max(box[1] for row in boxes for box in row) - left
    count = max(len(row) for row in boxes)
    widths = [max([0.66 * widest, *(row[k][1] - left for row in boxes if k < len(row))]) for k in range(count)]
    heights = [max(box[3] for box in row) - top for row in boxes]
    across, down = 2.1 / widest * sum(widths), 2.1 / widest * sum(heights)
    figure = new_figure(across + 0.12 * count + 0.4, down + 0.85 * len(rows) + (0.4 if title else 0.1), into)
    ratios = {"width_ratios": widths, "height_ratios": heights}
    panels = figure.subplots(len(rows), count, squeeze=False, gridspec_kw=ratios)
    for r, (name, space) in enumerate(rows.items()):
        for k, ax in enumerate(panels[r]):
            ax.set(xticks=[], yticks=[], frame_on=False, anchor="NW")
            if k >= space.num_levels:
                ax.set_axis_off()
                continue
            begin, end, first, last = boxes[r][k]
            values = {"cmap": "gray", "vmin": 0, "vmax": 1, "interpolation": "antialiased"}
            ax.imshow(pictures[r][k], extent=(begin, end, last, first), **values)
            ax.set(xlim=(left, left + widths[k]), ylim=(top + heights[r], top))
            number, (height, width) = k + space.first_level, space.sizes(k)
            text = f"level {number}\n{width} × {height}, step {space.steps[k]:g}"
            if zero_scale is not None and isinstance(space.base, float) and number >= 0:
                text += f"\nσ = {math.sqrt(blur_variance(space.expansion(k), zero_scale)):.3g} px"
            ax.set_title(text, loc="left", fontsize=10.5)
        if name:
            panels[r, 0].set_ylabel(name, fontsize=12)
    return finish(figure, path, title)


def plot_correlation(
    layer: Callable[[ScaleSpace], ScaleSpace],
    x: ScaleSpace,
    path: str | os.PathLike[str] | None = None,
    *,
    into: Figure | None = None,
    levels: int | None = None,
    title: str | None = None,
) -> Figure:
    r"""Draw the paper's figure "Scale correlation schematic": the samples of each level that an output depends on.

    Each stack except the last shows the levels of ``x`` where they lie in the image, finest at the bottom. The samples
    that the output at one level depends on are colored: where its gradient is not 0, the paler the smaller it is
    compared with the largest of that level. The stack on the right is the output :math:`g`, with these outputs.

    Args:
        layer: from scale-spaces to scale-spaces; filters of ones show where taps lie, others what they weigh.
        x: of two spatial axes; only its grids matter, if the layer is linear.
        path, into, title: see :mod:`scalespaces.plotting`.
        levels: how many of the output's levels to show, from the finest on. Default: all.

    Example:
        >>> x = scalespaces.lift(torch.rand(1, 1, 17, 17), num_levels=3)
        >>> layer = scalespaces.nn.ScaleConv2d(1, 1, (2, 3, 3), bias=False)
        >>> [ax.get_title() for ax in plot_correlation(layer, x, levels=2).axes]
        ['makes $g_{0}$', 'makes $g_{1}$', 'output $g$']
    """
    x = _check_axes(x).replace(tuple(level[:1].detach().clone().requires_grad_() for level in x.levels))
    with torch.enable_grad():
        out = check_space(layer(x))
    count = out.num_levels if levels is None else min(check_integer("levels", levels, 1), out.num_levels)
    colors = [OKABE_ITO[k % len(OKABE_ITO)] for k in range(out.num_levels)]
    spots = []  # the samples nearest to the middle of level 0
    for k in range(count):
        axes = zip(out.sizes(0), out.origins[k], out.sizes(k), strict=True)
        spots.append(tuple(min(max(round(((n - 1) / 2 - o) / out.steps[k]), 0), size - 1) for n, o, size in axes))
    figure = new_figure(2.0 * (count + 1), 5.0, into)
    *panels, last = figure.subplots(1, count + 1, squeeze=False, sharex=True, sharey=True)[0]
    for k, (ax, (row, column)) in enumerate(zip(panels, spots, strict=True)):
        output = out.levels[k][0, :, row, column].sum()
        weights = torch.autograd.grad(output, x.levels, retain_graph=True, materialize_grads=True)
        _draw_stack(ax, x, "f", [weight[0].abs().sum(0) for weight in weights], [colors[k]] * x.num_levels)
        ax.set_title(f"makes $g_{{{k + out.first_level}}}$", fontsize=11, color=colors[k])
    marks = [torch.zeros(out.sizes(k)) for k in range(out.num_levels)]
    for mark, spot in zip(marks, spots, strict=False):
        mark[spot] = 1
    _draw_stack(last, out, "g", marks, colors)
    last.set_title("output $g$", fontsize=11)
    figure.set_figheight(1.8 * last.viewLim.height / last.viewLim.width + (0.7 if title else 0.4))
    return finish(figure, path, title)


def _check_axes(space: ScaleSpace) -> ScaleSpace:
    if check_space(space).dims != 2:
        raise ValueError(f"only levels of two spatial axes can be drawn, got shapes {space.shapes}")
    return space


def _pictures(space: ScaleSpace, channel: int | None) -> list[NDArray]:
    """The levels of the first sample as arrays from 0 to 1, (H, W) or (H, W, 3)."""
    channels = space.levels[0].shape[1]
    if channel is not None and not -channels <= channel < channels:
        raise ValueError(f"channel must be an index into {channels} channels, got {channel}")
    in_color = channel is None and channels == 3
    levels = [level[0].detach().cpu().double().numpy() for level in space.levels]
    levels = [level.transpose(1, 2, 0) if in_color else level[channel or 0] for level in levels]
    low, high = min(level.min() for level in levels), max(level.max() for level in levels)
    if low >= 0 and high <= 1 + 1e-6 and in_color:  # an image: colors as they are
        low, high = 0.0, 1.0
    return [np.clip((level - low) / (high - low or 1.0), 0, 1) for level in levels]


def _box(space: ScaleSpace, k: int, size: str = "physical") -> tuple[float, ...]:
    """Left, right, top and bottom of a level: each sample is a square around its position, or of side 1."""
    step, axes = space.steps[k], zip(space.origins[k], space.sizes(k), space.unit, strict=True)
    down, across = [((first - step / 2) * unit, (first + step * (n - 0.5)) * unit) for first, n, unit in axes]
    if size == "grid":
        down, across = [(0.0, float(n)) for n in space.sizes(k)]
    return *across, *down


def _draw_stack(ax: Axes, space: ScaleSpace, name: str, weights: Sequence[Tensor], colors: Sequence[str]) -> None:
    """The levels as sheets above each other. Each sample is a tile; those with a weight are colored."""
    tiles = require("matplotlib.collections", "plot").PolyCollection
    to_rgb = require("matplotlib.colors", "plot").to_rgb
    left, right, top, bottom = _box(space, 0)
    for k, (weight, color) in enumerate(zip(weights, colors, strict=True)):
        begin, end, first, last = _box(space, k)
        rows, columns = space.sizes(k)
        across = (np.linspace(begin, end, columns + 1) - left) / (right - left)
        down = (bottom - np.linspace(first, last, rows + 1)) / (bottom - top)
        x, y = across + _SHEAR * down[:, None], k * _STOREY + _DEPTH * down[:, None] + 0 * across
        corners = [(slice(i, i + rows), slice(j, j + columns)) for i, j in ((0, 0), (0, 1), (1, 1), (1, 0))]
        squares = np.stack([np.stack([x[c], y[c]], -1) for c in corners], -2).reshape(-1, 4, 2)
        share = (weight / (weight.max() or 1)).detach().cpu().double().numpy().reshape(-1, 1)
        opacity = np.where(share > 0, 0.25 + 0.75 * share, 0.0)
        faces = opacity * np.array(to_rgb(color)) + (1 - opacity) * 0.97
        ax.add_collection(tiles(squares, facecolors=faces, edgecolors="0.78", linewidths=0.35))
        ax.text(x.min() - 0.04, y[-1, 0], f"${name}_{{{k + space.first_level}}}$", ha="right", va="bottom", fontsize=9)
    ax.set(aspect="equal", xticks=[], yticks=[], frame_on=False)
    ax.autoscale_view()
