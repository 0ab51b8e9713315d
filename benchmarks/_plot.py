"""Bars of ratios with their limits marked, and curves of growth; they need matplotlib (extra ``bench``)."""

from __future__ import annotations

import math
import os
from typing import Any

from scalespaces._extras import require
from scalespaces._files import replacing
from scalespaces.bench._report import PHASES, Growth, Report, Result, Row, number
from scalespaces.plotting import check_writable

# Of Okabe and Ito, told apart by the color-blind; paler for the forward pass.
_COLORS = {"pyramid": "#0072B2", "dense": "#009E73", "paper": "#D55E00", "ours": "#0072B2"}
_PLAIN = "0.55"
_MARKERS = "osD^vP"


def plot(report: Report, path: str | os.PathLike[str] | None = None) -> Any:
    """Draw a report: a panel of bars for each case, and two of curves, time and memory, for each axis of growth.

    Args:
        report: what was measured.
        path: where to write the figure, in any format of matplotlib's; not written when left out.
    """
    panels = len(report.results) + 2 * len(report.growth)
    if panels == 0:
        raise ValueError("there is nothing to draw: the report has no result; measure a suite")
    rows = math.ceil(panels / 2)
    make = require("matplotlib.figure", "bench").Figure
    figure = make(figsize=(13, 3.1 * rows + 0.4), dpi=130, layout="constrained")
    axes = list(figure.subplots(rows, 2, squeeze=False).flat)
    for ax in axes[panels:]:
        ax.set_axis_off()
    for ax, result in zip(axes, report.results, strict=False):
        _draw_ratios(ax, result)
    rest = iter(axes[len(report.results) : panels])
    for growth in report.growth:
        _draw_curves(next(rest), growth, "ms of a training step", "seconds", 1e3, 0)
        _draw_curves(next(rest), growth, "MiB of a training step", "memory", 2**-20, 1)
    about = report.environment
    figure.suptitle(f"{about['cpu']}, {about['threads']} threads, torch {about['torch']}", fontsize=10)
    if path is not None:
        path = check_writable(path)
        with replacing(path) as draft:
            figure.savefig(draft, format=path.suffix.lower().removeprefix("."), bbox_inches="tight")
    return figure


def _draw_ratios(ax: Any, result: Result) -> None:
    """A bar from 0 to the ratio for each phase of each row, its quartiles as a whisker, and a mark at its limit."""
    rows = [row for row in result.rows if row.name != row.baseline]
    phases = [phase for phase in PHASES if any(phase in row.seconds for row in rows)]
    height = 0.8 / len(phases)
    for place, row in enumerate(rows):
        for n, phase in enumerate(phases):
            ratio = result.ratio(row, phase)
            if ratio is None:
                continue
            y = place + (n - (len(phases) - 1) / 2) * height
            whisker = [[ratio.median - ratio.low], [ratio.high - ratio.median]]
            paint = {"color": _color(row.name), "alpha": 0.45 if phase != phases[-1] else 1.0}
            ax.barh(y, ratio.median, 0.92 * height, xerr=whisker, error_kw={"linewidth": 0.8}, **paint)
            ax.annotate(number(ratio.median), (ratio.high, y), (4, 0), textcoords="offset points", va="center", size=7)
        _mark_limit(ax, row, place)
    ax.axvline(1, color="0.35", linestyle=":", linewidth=1.2)
    ax.set_yticks(range(len(rows)), [_label(row, result) for row in rows], fontsize=8)
    ax.invert_yaxis()
    ax.margins(x=0.1)
    pale = ", pale: forward" if len(phases) > 1 else ""
    ax.set_xlabel(f"times {result.rows[0].name}{pale}; mark: limit by arithmetic", fontsize=8)
    _finish(ax, f"{result.suite}: {result.title}")


def _mark_limit(ax: Any, row: Row, place: int) -> None:
    for limit, style in ((row.limit, "-"), (row.folded, ":")):
        if limit is not None:
            ax.plot([limit, limit], [place - 0.46, place + 0.46], color="black", linewidth=1.6, linestyle=style)


def _label(row: Row, result: Result) -> str:
    other = "" if row.baseline == result.rows[0].name else f"\n(times {row.baseline})"
    return row.name + other


def _draw_curves(ax: Any, growth: Growth, ylabel: str, quantity: str, factor: float, which: int) -> None:
    for n, curve in enumerate(growth.curves):
        values = [factor * value for value in getattr(curve, quantity)]
        name = f"{curve.name}: exponent {growth.exponents(curve)[which]:.2f}"
        paint = {"color": _color(curve.name), "marker": _MARKERS[n % len(_MARKERS)], "markersize": 4.5}
        ax.plot(growth.values, values, label=name, linewidth=1.5, **paint)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(list(growth.values), [str(value) for value in growth.values])
    ax.xaxis.minorticks_off()
    ax.set_xlabel(growth.axis, fontsize=8)
    ax.set_ylabel(ylabel, fontsize=8)
    ax.legend(frameon=False, fontsize=8)
    _finish(ax, f"{growth.suite}: {growth.title}")


def _color(name: str) -> str:
    return next((color for word, color in _COLORS.items() if name.startswith(word)), _PLAIN)


def _finish(ax: Any, title: str) -> None:
    ax.set_title(title, fontsize=9, loc="left")
    ax.tick_params(labelsize=8)
    ax.grid(axis="both", color="0.92", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
