"""Bars of ratios with their limits marked, and curves of growth."""

import math
from collections.abc import Sequence
from typing import Any

from benchmarks._case import Case, number
from benchmarks._growth import Growth
from scalespaces.plotting._figure import finish, new_figure

# Of Okabe and Ito, distinct for the color-blind; paler for the forward pass.
COLORS = {"pyramid": "#0072B2", "dense": "#009E73", "paper": "#D55E00", "ours": "#0072B2"}


def plot(cases: Sequence[Case], growths: Sequence[Growth], title: str, path: str) -> Any:
    """Draw a panel of bars for each case, and two of curves, time and memory, for each axis of growth."""
    rows = math.ceil(len(cases) / 2) + len(growths)
    figure = new_figure(13, 3.1 * rows + 0.4)
    axes = figure.subplots(rows, 2, squeeze=False)
    for ax in axes.flat:
        ax.set_axis_off()
    for ax, case in zip(axes.flat, cases, strict=False):
        _draw_ratios(ax, case)
    for row, growth in zip(axes[rows - len(growths) :], growths, strict=True):
        for ax, unit in zip(row, ("ms", "MiB"), strict=True):
            _draw_curves(ax, growth, unit)
    figure.suptitle(title, fontsize=10)
    return finish(figure, path, None)


def _draw_ratios(ax: Any, case: Case) -> None:
    """A bar from 0 to the ratio for each phase of each row, its quartiles as a whisker, and a mark at its limit."""
    rows = [c for c in case.contenders if c is not case.baseline(c)]
    phases = case.phases()
    height = 0.8 / len(phases)
    for place, c in enumerate(rows):
        for n, phase in enumerate(phases):
            ratio = case.ratio(c, phase)
            y = place + (n - (len(phases) - 1) / 2) * height
            whisker = [[ratio.median - ratio.low], [ratio.high - ratio.median]]
            paint = {"color": _color(c.name), "alpha": 0.45 if phase != phases[-1] else 1.0}
            ax.barh(y, ratio.median, 0.92 * height, xerr=whisker, error_kw={"linewidth": 0.8}, **paint)
            ax.annotate(number(ratio.median), (ratio.high, y), (4, 0), textcoords="offset points", va="center", size=7)
        for limit, style in ((c.limit, "-"), (c.folded, ":")):
            if limit is not None:
                ax.plot([limit, limit], [place - 0.46, place + 0.46], color="black", linewidth=1.6, linestyle=style)
    ax.axvline(1, color="0.35", linestyle=":", linewidth=1.2)
    ax.set_yticks(range(len(rows)), [c.name + f"\n(times {c.baseline})" * bool(c.baseline) for c in rows])
    ax.invert_yaxis()
    ax.margins(x=0.1)
    pale = ", pale: forward" if len(phases) > 1 else ""
    _finish_panel(
        ax, f"{case.suite}: {case.title}", f"times {case.contenders[0].name}{pale}; mark: limit by arithmetic"
    )


def _draw_curves(ax: Any, growth: Growth, unit: str) -> None:
    for curve, marker in zip((c for c in growth.curves() if c.unit == unit), "osD^vP", strict=False):
        paint = {"color": _color(curve.name), "marker": marker, "markersize": 4.5, "linewidth": 1.5}
        ax.plot(list(growth.cases), curve.values, label=f"{curve.name}: exponent {curve.exponent:.2f}", **paint)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(list(growth.cases), [str(value) for value in growth.cases])
    ax.xaxis.minorticks_off()
    ax.set_ylabel(f"{unit} of a training step", fontsize=8)
    ax.legend(frameon=False, fontsize=8)
    _finish_panel(ax, growth.title, growth.axis)


def _color(name: str) -> str:
    return next((color for word, color in COLORS.items() if name.startswith(word)), "0.55")


def _finish_panel(ax: Any, title: str, xlabel: str) -> None:
    ax.set_axis_on()
    ax.set_title(title, fontsize=9, loc="left")
    ax.set_xlabel(xlabel, fontsize=8)
    ax.tick_params(labelsize=8)
    ax.grid(axis="both", color="0.92", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
