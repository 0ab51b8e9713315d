"""Accuracy against the size of the digits, as a picture for documents; it needs matplotlib (extra ``demo``)."""

from __future__ import annotations

import io
import math
import os
from typing import Any

from scalespaces._extras import require
from scalespaces._files import replacing
from scalespaces.demo._charts import apart
from scalespaces.demo._result import SIZES, TRAINED, Result
from scalespaces.plotting import check_writable

# The colors, markers and dashes of the report's light theme.
_STYLES = {
    "cnn": {"color": "#b8460b", "marker": "s", "linestyle": "-", "linewidth": 1.6},
    "tta": {"color": "#8d3f86", "marker": "^", "linestyle": ":", "linewidth": 1.6},
    "select": {"color": "#7a5c00", "marker": "x", "linestyle": "-.", "linewidth": 1.6},
    "jitter": {"color": "#1a7358", "marker": "D", "linestyle": "--", "linewidth": 1.6, "markerfacecolor": "white"},
    "ours": {"color": "#0a62a8", "marker": "o", "linestyle": "-", "linewidth": 3.0},
}


def plot(result: Result, path: str | os.PathLike[str] | None = None, *, digit: int = 5) -> Any:
    """Draw a line for each method, a band for the spread over seeds, and a digit at each size below the axis.

    Args:
        result: what was found.
        path: where to write the figure, in any format of matplotlib's; not written when left out.
        digit: the one below the axis.
    """
    make = require("matplotlib.figure", "demo").Figure
    figure = make(figsize=(8.6, 5.0), dpi=130, layout="constrained")
    ax = figure.subplots()
    at = [math.log2(size) for size in SIZES]
    ends = apart([100 * method.mean(SIZES[-1]) for method in result.methods], 6)
    for method, end in zip(result.methods, ends, strict=True):
        style = _STYLES[method.key]
        means = [100 * method.mean(size) for size in SIZES]
        spreads = [100 * (method.spread(size) or 0) for size in SIZES]
        edges = [[m + sign * s for m, s in zip(means, spreads, strict=True)] for sign in (-1, 1)]
        ax.fill_between(at, *edges, color=style["color"], alpha=0.09, linewidth=0)
        ax.plot(at, means, markersize=6, label=method.name, **style)
        ax.annotate(method.name, (at[-1], end), (10, 0), textcoords="offset points", va="center", weight="bold")
        ax.texts[-1].set_color(style["color"])
    ax.axvline(math.log2(TRAINED), color="0.5", linewidth=1, zorder=0)
    ax.annotate("trained here", (math.log2(TRAINED), 2), (5, 0), textcoords="offset points", color="0.3")
    ax.set(ylim=(0, 103), ylabel="accuracy, per cent")
    ax.grid(axis="y", color="0.9")
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_xticks(at, [f"{size:g}" for size in SIZES])
    ax.set_xlabel("size of the digits, relative to training", labelpad=64)
    _draw_digits(ax, result, digit)
    if path is not None:
        path = check_writable(path)
        with replacing(path) as draft:
            figure.savefig(draft, format=path.suffix.lower().removeprefix("."), bbox_inches="tight")
    return figure


def _draw_digits(ax: Any, result: Result, digit: int) -> None:
    """The digit below the tick of every size."""
    frames = next(one.frames for one in result.series if one.label == digit)
    boxes, open_image = require("matplotlib.offsetbox", "demo"), require("PIL.Image", "demo").open
    for size in SIZES:
        picture = open_image(io.BytesIO(min(frames, key=lambda frame: abs(frame.size - size)).picture))
        image = boxes.OffsetImage(picture, zoom=52 / picture.width, cmap="gray")
        place = {"xybox": (0, -50), "boxcoords": "offset points", "frameon": False, "pad": 0}
        ax.add_artist(boxes.AnnotationBbox(image, (math.log2(size), 0), xycoords=("data", "axes fraction"), **place))
