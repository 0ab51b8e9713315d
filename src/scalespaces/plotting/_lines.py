"""Numbers as lines: equivariance errors over levels, and any quantity over scales."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from scalespaces._extras import require
from scalespaces.plotting._figure import OKABE_ITO, finish, new_figure
from scalespaces.testing import EquivarianceTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DASHES, _MARKERS, _FLOOR = ("-", "--", ":", "-."), "osD^vP*Xph", 1e-17
_GRAY: dict[str, Any] = {"color": "0.35"}


def plot_equivariance(
    tables: Mapping[str, Sequence[EquivarianceTable]] | Sequence[EquivarianceTable],
    path: str | os.PathLike[str] | None = None,
    *,
    into: Figure | None = None,
    columns: Sequence[str] | None = None,
    title: str | None = None,
    reference: float | None = 0.01,
) -> Figure:
    r"""Draw the paper's figure "Equivariance quality": a panel per network, a line per :math:`\ell`.

    Each panel shows the errors of one table over the level :math:`k`, on a logarithmic axis. Errors below 1e-17, such
    as 0, are drawn at 1e-17; a note below the panel counts them. Entries past the table's truncation boundary are drawn
    hollow and dashed. The lines are slightly offset along :math:`k`, so that equal errors do not hide each other.

    Args:
        tables: of the networks from left to right; a mapping draws a row for each of its names.
        path, into, title: see :mod:`scalespaces.plotting`.
        columns: titles of the panels. Default: "1 layer", "2 layers" ...
        reference: a horizontal line; the paper's figure is 0.01.

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
        raise ValueError("there is nothing to draw: tables contains no table; measure one with equivariance_error")
    columns = [f"{n} layer{'s' * (n > 1)}" for n in range(1, width + 1)] if columns is None else columns
    if len(columns) < width:
        raise ValueError(f"columns needs one entry for each of {width} panels, got {len(columns)}")

    # Plasma is ordered, as the shifts are, and safe for the color-blind; its pale end would not stand out from white.
    shifts = sorted({shift for row in rows.values() for table in row for shift in table.rows})
    colors = require("matplotlib", "plot").colormaps["plasma"](np.linspace(0, 0.62, len(shifts)))
    paints = [{"color": c, "marker": _MARKERS[i % len(_MARKERS)], "markersize": 5} for i, c in enumerate(colors)]
    styles = dict(zip(shifts, paints, strict=True))
    figure, has_boundary = new_figure(3.05 * width + 1.7, 2.8 * len(rows) + (0.5 if title else 0.2), into), False
    panels = figure.subplots(len(rows), width, squeeze=False, sharey="row")
    for (name, row), axes in zip(rows.items(), panels, strict=True):
        for ax in axes[len(row) :]:
            ax.set_axis_off()
        for label, ax, table in zip(columns, axes, row, strict=False):
            cut = table.what == "l" and table.boundary <= table.levels[-1]
            has_boundary |= cut
            ax.set_title(label + rf", truncation at $k + \ell$ = {table.boundary}" * cut, fontsize=11)
            if reference is not None:
                ax.axhline(reference, linestyle=":", linewidth=1.3, zorder=1, **_GRAY)
            _draw_table(ax, table, styles, cut)
        # One range for the row, with room below for lines on the floor.
        errors = [reference or 1.0, *(e for table in row for e in table.errors.flat if not math.isnan(e))]
        low, high = max(min(errors), _FLOOR), max(*errors, _FLOOR)
        margin = 10 ** (0.06 * math.log10(high / low) + 0.25)
        axes[0].set_ylim(low / margin, high * margin)
        axes[0].set_ylabel(f"{name}\nrelative $L_2$ error" if name else "relative $L_2$ error")

    line = require("matplotlib.lines", "plot").Line2D
    handles = [line([], [], label=rf"$\ell$ = {shift}", **style) for shift, style in styles.items()]
    if has_boundary:
        hollow = {"marker": "o", "markerfacecolor": "white", "markersize": 5, "linestyle": (0, (3, 2))}
        handles.append(line([], [], label="past the\ntruncation\nboundary", linewidth=0.9, **hollow, **_GRAY))
    if reference is not None:
        handles.append(line([], [], linestyle=":", label=f"{reference:g} (the paper)", **_GRAY))
    figure.legend(handles=handles, loc="outside right center", frameon=False, fontsize=9)
    return finish(figure, path, title)


def _draw_table(ax: Axes, table: EquivarianceTable, styles: dict[int, Any], cut: bool) -> None:
    ax.set_yscale("log")
    levels, there, past, shifts = np.array(table.levels), ~np.isnan(table.errors), table.past() & cut, list(styles)
    for i, shift in enumerate(table.rows):
        offset = (shifts.index(shift) - (len(shifts) - 1) / 2) * min(0.09, 0.6 / len(shifts))
        x, y, full, paint = levels + offset, np.maximum(table.errors[i], _FLOOR), there[i] & ~past[i], styles[shift]
        ax.plot(x[there[i]], y[there[i]], color=paint["color"], linestyle=(0, (3, 2)), linewidth=0.9)
        ax.plot(x[full], y[full], linewidth=1.4, **paint)
        ax.plot(x[past[i]], y[past[i]], linestyle="", markerfacecolor="white", **paint)
    ax.set_xticks(levels[there.any(0)])
    _rule(ax)
    label, small = "level $k$", table.errors[table.errors < _FLOOR]
    if small.size:
        which = f"of 0 {'is' if small.size == 1 else 'are'}" if not small.any() else f"below {_FLOOR:g}"
        label += f"\n({small.size} error{'s' * (small.size > 1)} {which} drawn at {_FLOOR:g})"
    ax.set_xlabel(label)


def _rule(ax: Axes) -> None:
    """Pale horizontal lines behind the data, no frame above and on the right."""
    ax.grid(axis="y", color="0.9", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def plot_over_scales(
    lines: Mapping[str, Sequence[tuple[float, float | None]]],
    path: str | os.PathLike[str] | None = None,
    *,
    into: Figure | None = None,
    ylabel: str = "accuracy",
    title: str | None = None,
) -> Figure:
    """Draw a quantity against scale: a line for each name, with its own color, marker and dashes.

    Args:
        lines: pairs of a scale and a value by name; values of None leave gaps.
        path, into, title: see :mod:`scalespaces.plotting`.
        ylabel: the quantity.

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
    figure = new_figure(6.8, 4.0, into)
    ax = figure.subplots()
    for n, (name, points) in enumerate(lines.items()):
        points = sorted(points, key=lambda point: point[0])
        values = [math.nan if value is None else value for _, value in points]
        paint = {"color": OKABE_ITO[n % len(OKABE_ITO)], "marker": _MARKERS[n % len(_MARKERS)], "markersize": 5}
        dashes = _DASHES[n // len(OKABE_ITO) % len(_DASHES)]
        ax.plot([scale for scale, _ in points], values, label=name, linestyle=dashes, linewidth=1.6, **paint)
    ax.set_xscale("log", base=2)
    ax.set_xticks(scales, [f"{scale:g}" for scale in scales])
    ax.minorticks_off()
    ax.set(xlabel="scale", ylabel=ylabel.replace("_", " "))
    _rule(ax)
    figure.legend(loc="outside right center", frameon=False, fontsize=9)
    return finish(figure, path, title)
