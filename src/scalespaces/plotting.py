"""Pictures of scale-spaces, correlations, equivariance errors and of what scale changes (matplotlib, extra ``plot``).

Figures are made outside pyplot; ``into=plt.figure()`` draws into one of pyplot's, for ``plt.show``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scalespaces._extras import require
from scalespaces._files import prepare, replacing
from scalespaces.space import ScaleSpace
from scalespaces.space._space import check_space
from scalespaces.testing import EquivarianceTable
from scalespaces.theory import blur_variance
from scalespaces.theory._arguments import check_integer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_correlation", "plot_equivariance", "plot_over_scales", "plot_scale_space"]

_MARKERS = "osD^vP*Xph"
_OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_DASHES = ("-", "--", ":", "-.")


def plot_equivariance(
    tables: Mapping[str, Sequence[EquivarianceTable]] | Sequence[EquivarianceTable],
    path: str | os.PathLike[str] | None = None,
    *,
    into: Figure | None = None,
    columns: Sequence[str] | None = None,
    boundaries: Sequence[int] | None = None,
    title: str | None = None,
    reference: float | None = 0.01,
    floor: float = 1e-17,
) -> Figure:
    r"""Draw the paper's figure "Equivariance quality": a panel per network, a line per :math:`\ell`.

    Each panel shows the error of one table over the level :math:`k`, on a logarithmic axis. Errors below ``floor``, and
    those of 0, are drawn at ``floor``; the panel then says so. Lines of one panel are set apart by a little along
    :math:`k`, so that equal errors do not hide each other.

    Args:
        tables: of the networks from left to right; a mapping draws a row for each of its names.
        path: where to write the figure, in any format of matplotlib's; not written when left out.
        into: a figure to draw into, such as ``plt.figure()``, whose size is set; a new one when left out.
        columns: titles of the panels; "1 layer", "2 layers" ... when left out.
        boundaries: truncation boundary of each column: entries of :math:`k + \ell` from there on are drawn hollow and
            dashed, because the network saw past the last level there. When left out, each table's own.
        title: of the figure.
        reference: a horizontal line; the paper's figure is 0.01.
        floor: the smallest error drawn.

    Example:
        >>> image = torch.rand(1, 1, 32, 32)
        >>> table = scalespaces.equivariance_error(scalespaces.nn.Lift(num_levels=3), image)
        >>> figure = plot_equivariance([table], columns=["the lift"])
        >>> figure.axes[0].get_title()
        'the lift'
    """
    rows = dict(tables) if isinstance(tables, Mapping) else {"": tables}
    width = max((len(row) for row in rows.values()), default=0)
    if width == 0:
        raise ValueError("there is nothing to draw: tables holds no table; measure one with equivariance_error")
    if columns is None:
        columns = [f"{n} layer{'s' if n > 1 else ''}" for n in range(1, width + 1)]
    for name, value in (("columns", columns), ("boundaries", boundaries)):
        if value is not None and len(value) < width:
            raise ValueError(f"{name} has one entry for each of {width} panels, got {len(value)}")
    if not floor > 0:
        raise ValueError(f"floor is positive, because the axis is logarithmic, got {floor}")

    shifts = sorted({shift for row in rows.values() for table in row for shift in table.rows})
    styles, has_boundary = _styles(shifts), False
    figure = _new_figure(3.05 * width + 1.7, 2.8 * len(rows) + (0.5 if title else 0.2), into)
    panels = figure.subplots(len(rows), width, squeeze=False, sharey="row")
    for (name, row), axes in zip(rows.items(), panels, strict=True):
        for column, ax in enumerate(axes):
            if column >= len(row):
                ax.set_axis_off()
                continue
            boundary = _boundary(row[column]) if boundaries is None else boundaries[column]
            has_boundary |= boundary is not None
            _draw_table(ax, row[column], styles, boundary, reference, floor)
            cut = "" if boundary is None else rf", truncation at $k + \ell$ = {boundary}"
            ax.set_title(columns[column] + cut, fontsize=11)
        _set_limits(axes[0], row, reference, floor)
        axes[0].set_ylabel(f"{name}\nrelative $L_2$ error" if name else "relative $L_2$ error")
    _draw_legend(figure, styles, has_boundary, reference)
    if title:
        figure.suptitle(title)
    return _finish(figure, path)


def plot_scale_space(
    x: ScaleSpace | Mapping[str, ScaleSpace],
    path: str | os.PathLike[str] | None = None,
    *,
    into: Figure | None = None,
    size: str = "grid",
    channel: int | None = None,
    sample: int = 0,
    zero_scale: float | None = None,
    title: str | None = None,
) -> Figure:
    r"""Draw the levels of a scale-space side by side.

    Above each level stand its number, the size and step of its grid, and its blur :math:`\sigma_k = \sqrt{t_k}` where
    ``zero_scale`` is given. All levels share one range of gray or color values.

    Args:
        x: the scale-space, of two spatial axes; a mapping draws a row for each of its names.
        path: where to write the figure, in any format of matplotlib's; not written when left out.
        into: a figure to draw into, such as ``plt.figure()``, whose size is set; a new one when left out.
        size: ``"grid"`` draws one sample of every level equally large, so that a pyramid shrinks; ``"physical"`` draws
            every level where it lies in the image, so that the pixels of a pyramid grow.
        channel: the one to draw; when left out, three channels are drawn as RGB, and of other numbers the first.
        sample: index into the batch.
        zero_scale: :math:`s_0` of the lift, the variance from which the blur of the levels follows.
        title: of the figure.

    Example:
        >>> x = scalespaces.lift(torch.rand(1, 3, 32, 32), num_levels=3)
        >>> print(plot_scale_space(x, zero_scale=0.25).axes[1].get_title(loc="left"))
        level 1
        16 × 16, step 2
        σ = 0.866 px
    """
    if size not in ("grid", "physical"):
        raise ValueError(f'size is "grid" or "physical", got {size!r}')
    rows = dict(x) if isinstance(x, Mapping) else {"": x}
    if not rows:
        raise ValueError("there is nothing to draw: x holds no scale-space; lift an image with scalespaces.lift")
    for space in rows.values():
        if check_space(space).dims != 2:
            raise ValueError(f"only levels of two spatial axes can be drawn, got shapes {space.shapes}")
    pictures = [_pictures(space, channel, sample) for space in rows.values()]
    boxes = [[_box(space, k, size) for k in range(space.num_levels)] for space in rows.values()]

    # A cell is as wide as the widest level of its column, but has room for the words above it.
    left, top = (min(box[side] for row in boxes for box in row) for side in (0, 2))
    widest = max(box[1] for row in boxes for box in row) - left
    count = max(len(row) for row in boxes)
    widths = [max([0.66 * widest, *(row[k][1] - left for row in boxes if k < len(row))]) for k in range(count)]
    heights = [max(box[3] for box in row) - top for row in boxes]
    figure = _new_figure(
        2.1 / widest * sum(widths) + 0.12 * count + 0.4,
        2.1 / widest * sum(heights) + 0.85 * len(rows) + (0.4 if title else 0.1),
        into,
    )
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
            ax.set_title(_describe(space, k, zero_scale), loc="left", fontsize=10.5)
        if name:
            panels[r, 0].set_ylabel(name, fontsize=12)
    if title:
        figure.suptitle(title)
    return _finish(figure, path)


def plot_over_scales(
    lines: Mapping[str, Sequence[tuple[float, float | None]]],
    path: str | os.PathLike[str] | None = None,
    *,
    into: Figure | None = None,
    ylabel: str = "accuracy",
    title: str | None = None,
) -> Figure:
    """Draw a quantity against scale, a line for each name.

    Lines differ in color (of Okabe and Ito, told apart by the color-blind), in marker and in dashes.

    Args:
        lines: pairs of a scale and a value by name; values of None leave gaps.
        path: where to write the figure, in any format of matplotlib's; not written when left out.
        into: a figure to draw into, such as ``plt.figure()``, whose size is set; a new one when left out.
        ylabel: the quantity.
        title: of the figure.

    Example:
        >>> lines = {"CNN": [(0.5, 0.7), (1, 0.99), (2, 0.6)], "scale-space": [(0.5, 0.97), (1, 0.98), (2, None)]}
        >>> [line.get_label() for line in plot_over_scales(lines).axes[0].lines]
        ['CNN', 'scale-space']
    """
    scales = sorted({scale for points in lines.values() for scale, _ in points})
    if not scales:
        raise ValueError("there is nothing to draw: lines holds no pair of a scale and a value")
    if not scales[0] > 0:
        raise ValueError(f"scales are above 0, because the axis is logarithmic, got {scales[0]}")
    figure = _new_figure(6.8, 4.0, into)
    ax = figure.subplots()
    for n, (name, points) in enumerate(lines.items()):
        points = sorted(points, key=lambda point: point[0])
        values = [math.nan if value is None else value for _, value in points]
        paint = {"color": _OKABE_ITO[n % len(_OKABE_ITO)], "marker": _MARKERS[n % len(_MARKERS)], "markersize": 5}
        dashes = _DASHES[n // len(_OKABE_ITO) % len(_DASHES)]
        ax.plot([scale for scale, _ in points], values, label=name, linestyle=dashes, linewidth=1.6, **paint)
    ax.set_xscale("log", base=2)
    ax.set_xticks(scales, [f"{scale:g}" for scale in scales])
    ax.minorticks_off()
    ax.set(xlabel="scale", ylabel=ylabel.replace("_", " "))
    ax.grid(axis="y", color="0.9", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right center", frameon=False, fontsize=9)
    if title:
        figure.suptitle(title)
    return _finish(figure, path)


def plot_correlation(
    layer: Callable[[ScaleSpace], ScaleSpace],
    x: ScaleSpace,
    path: str | os.PathLike[str] | None = None,
    *,
    into: Figure | None = None,
    levels: int | None = None,
    title: str | None = None,
) -> Figure:
    r"""Draw the paper's figure "Scale correlation schematic": which samples of which level an output is made of.

    Each stack but the last shows the levels of ``x`` where they lie in the image, finest at the bottom, and in color
    the samples that the output at one level depends on: those where its gradient is not 0, the paler the smaller it is
    beside the largest of that level. The stack on the right is the output :math:`g`, with these samples in the same
    colors, all at the middle of the image.

    Args:
        layer: from scale-spaces to scale-spaces; filters of ones show where taps lie, others what they weigh.
        x: of two spatial axes; only its grids matter, if the layer is linear.
        path: where to write the figure, in any format of matplotlib's; not written when left out.
        into: a figure to draw into, such as ``plt.figure()``, whose size is set; a new one when left out.
        levels: how many of the output's levels to show, from the finest on; all when left out.
        title: of the figure.

    Example:
        >>> x = scalespaces.lift(torch.rand(1, 1, 17, 17), num_levels=3)
        >>> layer = scalespaces.nn.ScaleConv2d(1, 1, (2, 3, 3), bias=False)
        >>> [ax.get_title() for ax in plot_correlation(layer, x, levels=2).axes]
        ['makes $g_{0}$', 'makes $g_{1}$', 'output $g$']
    """
    if check_space(x).dims != 2:
        raise ValueError(f"only levels of two spatial axes can be drawn, got shapes {x.shapes}")
    x = x.replace(tuple(level[:1].detach().clone().requires_grad_() for level in x.levels))
    with torch.enable_grad():
        out = check_space(layer(x))
    count = out.num_levels if levels is None else min(check_integer("levels", levels, 1), out.num_levels)
    colors = [_OKABE_ITO[k % len(_OKABE_ITO)] for k in range(out.num_levels)]
    spots = [_nearest(out, k, [(n - 1) / 2 for n in out.sizes(0)]) for k in range(count)]
    figure = _new_figure(2.0 * (count + 1), 5.0, into)
    *panels, last = figure.subplots(1, count + 1, squeeze=False, sharex=True, sharey=True)[0]
    for k, (ax, (row, column)) in enumerate(zip(panels, spots, strict=True)):
        weights = torch.autograd.grad(
            out.levels[k][0, :, row, column].sum(), x.levels, retain_graph=True, materialize_grads=True
        )
        _draw_stack(ax, x, "f", [weight[0].abs().sum(0) for weight in weights], [colors[k]] * x.num_levels)
        ax.set_title(f"makes $g_{{{k + out.first_level}}}$", fontsize=11, color=colors[k])
    marks = [torch.zeros(out.sizes(k)) for k in range(out.num_levels)]
    for mark, spot in zip(marks, spots, strict=False):
        mark[spot] = 1
    _draw_stack(last, out, "g", marks, colors)
    last.set_title("output $g$", fontsize=11)
    figure.set_figheight(1.8 * last.viewLim.height / last.viewLim.width + (0.7 if title else 0.4))
    if title:
        figure.suptitle(title)
    return _finish(figure, path)


def check_writable(path: str | os.PathLike[str]) -> Path:
    """Return the path if matplotlib can write a figure there; the parent folders are created.

    Raises:
        ValueError: If matplotlib has no format of that suffix.
        OSError: If the path is a folder, or its folder cannot be made.
    """
    path = Path(path)
    formats = sorted(_new_figure(1, 1).canvas.get_supported_filetypes())
    if path.suffix.lower().removeprefix(".") not in formats:
        raise ValueError(
            f"matplotlib writes {', '.join(formats)}, got the suffix {path.suffix!r} in {str(path)!r}; use .png or .pdf"
        )
    return prepare(path)


# --- equivariance ----------------------------------------------------------------------------------------------------


def _styles(shifts: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Color, marker and offset of each line: viridis is ordered, as the shifts are, and safe for the color-blind."""
    colors = require("matplotlib", "plot").colormaps["viridis"](np.linspace(0, 0.88, len(shifts)))
    offsets = (np.arange(len(shifts)) - (len(shifts) - 1) / 2) * min(0.09, 0.6 / len(shifts))
    return {
        shift: {"color": colors[i], "marker": _MARKERS[i % len(_MARKERS)], "offset": float(offsets[i])}
        for i, shift in enumerate(shifts)
    }


def _boundary(table: EquivarianceTable) -> int | None:
    """The first k + l that sees past the last level, if any does."""
    return table.boundary if table.what == "l" and table.boundary <= table.levels[-1] else None


def _draw_table(
    ax: Any,
    table: EquivarianceTable,
    styles: dict[int, dict[str, Any]],
    boundary: int | None,
    reference: float | None,
    floor: float,
) -> None:
    ax.set_yscale("log")
    if reference is not None:
        ax.axhline(reference, color="0.35", linestyle=":", linewidth=1.3, zorder=1)
    ks = np.array(table.levels)
    for shift, errors in zip(table.rows, table.errors, strict=True):
        style, there = styles[shift], ~np.isnan(errors)
        behind = there & (ks + shift >= (math.inf if boundary is None else boundary))
        x, y = ks + style["offset"], np.maximum(errors, floor)
        paint = {"color": style["color"], "marker": style["marker"], "markersize": 5, "linewidth": 1.4}
        ax.plot(x[there], y[there], **paint | {"marker": "", "linestyle": (0, (3, 2)), "linewidth": 0.9})
        ax.plot(x[there & ~behind], y[there & ~behind], **paint)
        ax.plot(x[behind], y[behind], **paint | {"linestyle": "", "markerfacecolor": "white"})
    ax.set_xticks(ks[~np.isnan(table.errors).all(0)])
    ax.grid(axis="y", color="0.9", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    label, small = "level $k$", table.errors[table.errors < floor]
    if small.size:
        which = f"of 0 {'is' if small.size == 1 else 'are'}" if not small.any() else f"below {floor:g}"
        label += f"\n({small.size} error{'' if small.size == 1 else 's'} {which} drawn at {floor:g})"
    ax.set_xlabel(label)


def _set_limits(ax: Any, row: Sequence[EquivarianceTable], reference: float | None, floor: float) -> None:
    """One range for the row, with room below for lines on the floor."""
    errors = np.concatenate([table.errors[~np.isnan(table.errors)] for table in row] + [np.array([reference or 1.0])])
    low, high = max(errors.min(), floor), max(errors.max(), floor)
    margin = 0.06 * math.log10(high / low) + 0.25
    ax.set_ylim(low * 10**-margin, high * 10**margin)


def _draw_legend(figure: Any, styles: dict[int, dict[str, Any]], has_boundary: bool, reference: float | None) -> None:
    line = require("matplotlib.lines", "plot").Line2D
    handles = [
        line([], [], color=style["color"], marker=style["marker"], markersize=5, label=rf"$\ell$ = {shift}")
        for shift, style in styles.items()
    ]
    if has_boundary:
        hollow = {"marker": "o", "markerfacecolor": "white", "markersize": 5, "linestyle": (0, (3, 2))}
        handles.append(line([], [], color="0.35", label="past the\ntruncation\nboundary", linewidth=0.9, **hollow))
    if reference is not None:
        handles.append(line([], [], color="0.35", linestyle=":", label=f"{reference:g} (the paper)"))
    figure.legend(handles=handles, loc="outside right center", frameon=False, fontsize=9)


# --- scale-spaces ----------------------------------------------------------------------------------------------------


def _pictures(space: ScaleSpace, channel: int | None, sample: int) -> list[NDArray]:
    """The levels as arrays from 0 to 1, (H, W) or (H, W, 3)."""
    batch, channels = space.levels[0].shape[:2]
    if not -batch <= sample < batch:
        raise ValueError(f"sample is an index into a batch of {batch}, got {sample}")
    if channel is not None and not -channels <= channel < channels:
        raise ValueError(f"channel is an index into {channels} channels, got {channel}")
    levels = [level[sample].detach().cpu().double().numpy() for level in space.levels]
    if channel is None and channels == 3:
        levels = [level.transpose(1, 2, 0) for level in levels]
    else:
        levels = [level[channel or 0] for level in levels]
    low, high = min(level.min() for level in levels), max(level.max() for level in levels)
    if low >= 0 and high <= 1 + 1e-6 and channel is None and channels == 3:  # an image: colors as they are
        low, high = 0.0, 1.0
    return [np.clip((level - low) / (high - low or 1.0), 0, 1) for level in levels]


def _box(space: ScaleSpace, k: int, size: str) -> tuple[float, float, float, float]:
    """Left, right, top and bottom of a level: each sample is a square around its position."""
    height, width = space.levels[k].shape[2:]
    if size == "grid":
        return 0.0, float(width), 0.0, float(height)
    (top, left), step, (down, across) = space.origins[k], space.steps[k], space.unit
    return (
        (left - step / 2) * across,
        (left + step * (width - 0.5)) * across,
        (top - step / 2) * down,
        (top + step * (height - 0.5)) * down,
    )


def _describe(space: ScaleSpace, k: int, zero_scale: float | None) -> str:
    number = k + space.first_level
    height, width = space.levels[k].shape[2:]
    text = f"level {number}\n{width} × {height}, step {space.steps[k]:g}"
    if zero_scale is not None and isinstance(space.base, float) and number >= 0:
        text += f"\nσ = {math.sqrt(blur_variance(space.expansion(k), zero_scale)):.3g} px"
    return text


# --- correlations ----------------------------------------------------------------------------------------------------

_SHEAR, _DEPTH, _STOREY = 0.36, 0.5, 0.74  # of a level seen from the front and above, and from level to level


def _nearest(space: ScaleSpace, k: int, place: Sequence[float]) -> tuple[int, int]:
    """The sample of a level that is nearest to a place, in samples of level 0."""
    step, sizes = space.steps[k], space.sizes(k)
    row, column = (round((p - o) / step) for p, o in zip(place, space.origins[k], strict=True))
    return min(max(row, 0), sizes[0] - 1), min(max(column, 0), sizes[1] - 1)


def _draw_stack(ax: Any, space: ScaleSpace, name: str, weights: Sequence[Tensor], colors: Sequence[str]) -> None:
    """The levels as sheets above each other, each sample a tile of which those with a weight are colored."""
    tiles = require("matplotlib.collections", "plot").PolyCollection
    to_rgb = require("matplotlib.colors", "plot").to_rgb
    left, right, top, bottom = _box(space, 0, "physical")
    for k, (weight, color) in enumerate(zip(weights, colors, strict=True)):
        begin, end, first, last = _box(space, k, "physical")
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


# --- figures ---------------------------------------------------------------------------------------------------------


def _new_figure(width: float, height: float, figure: Any = None) -> Any:
    """A figure of its own, outside pyplot, so that nothing global is touched; or the given one, at this size."""
    if figure is None:
        return require("matplotlib.figure", "plot").Figure(figsize=(width, height), dpi=130, layout="constrained")
    figure.set_size_inches(width, height)
    figure.set_layout_engine("constrained")
    return figure


def _finish(figure: Any, path: str | os.PathLike[str] | None) -> Any:
    if path is not None:
        path = check_writable(path)
        with replacing(path) as draft:
            figure.savefig(draft, format=path.suffix.lower().removeprefix("."), bbox_inches="tight")
    return figure
