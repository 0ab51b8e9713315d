"""Accuracy against the size of the digits: an SVG in the colors of the report, and a figure for documents."""

import io
import math
import os
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression

from scalespaces._extras import require
from scalespaces._html import data_url, element
from scalespaces.demo._result import SIZES, TRAINED, Method, Result, per_cent
from scalespaces.plotting import plot_over_scales
from scalespaces.plotting._figure import finish

Axis = Callable[[float], float]
_SHAPES = {
    "cnn": "M-4-4h8v8h-8z",
    "tta": "M0-5.5L5 3.5H-5z",
    "select": "M-5-5L5 5M5-5L-5 5",
    "jitter": "M0-7.5L7.5 0L0 7.5L-7.5 0z",
    "ours": "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0",
}


def named(size: float) -> str:
    """A size as text: 1/2, 1, 1.41."""
    return "1/2" if size == 0.5 else f"{size:g}"


def swatch(key: str) -> str:
    """A method's line and marker, for a legend."""
    drawn = _line([(0, 8), (32, 8)]) + _marker(key, 16, 8)
    return element("svg", drawn, viewBox="0 0 32 16", class_=f"swatch {key}", aria_hidden="true")


def accuracy(methods: Sequence[Method], pictures: Sequence[bytes], *, wide: bool) -> str:
    """The chart, for wide screens or for phones; below, a picture of a digit at each size."""
    width, height = (760, 492) if wide else (360, 336)
    side, left, right = (76, 44, 140) if wide else (42, 34, 26)
    top, bottom = 16, height - side - 64
    start, end = left + side / 2 - 6, width - right - 6

    def x(size: float) -> float:
        return round(start + math.log(size / SIZES[0]) / math.log(SIZES[-1] / SIZES[0]) * (end - start), 1)

    def y(percentage: float) -> float:
        return round(bottom + percentage / 100 * (top - bottom), 1)

    edge = x(SIZES[-1]) + 14
    drawn = []
    for tick in range(0, 101, 20):
        drawn.append(_line([(left, y(tick)), (edge, y(tick))], "grid"))
        drawn.append(_text(f"{tick} %" if wide else f"{tick}", left - 8, y(tick) + 4, "tick end"))
    drawn += [
        _line([(x(TRAINED), y(100)), (x(TRAINED), bottom)], "mark"),
        _text("trained here", x(TRAINED) + 8, bottom - 10, "note"),
        _line([(left, y(10)), (edge, y(10))], "chance"),
        *(_text(named(size), x(size), bottom + 22, "tick middle") for size in SIZES),
        _text("size of the digits, relative to training", (left + edge) / 2, height - 8, "tick middle"),
    ]
    for size, data in zip(SIZES, pictures, strict=False):
        place = {"x": round(x(size) - side / 2, 1), "y": bottom + 32, "width": side, "height": side}
        drawn.append(element("image", href=data_url(data), **place))
    drawn += [_method(method, x, y) for method in sorted(methods, key=lambda m: m.key != "ours")]  # thin on thick
    if wide:  # names at the ends of the lines; phones show the legend alone
        ends = apart([y(100 * method.mean(SIZES[-1])) for method in methods], 20)
        drawn += [_text(m.name, edge + 4, at + 5, f"label {m.key}") for m, at in zip(methods, ends, strict=True)]
    numbers = "; ".join(f"{m.name}: {', '.join(per_cent(m.mean(size)) for size in SIZES)}" for m in methods)
    label = f"Accuracy in percent at sizes {', '.join(map(named, SIZES))}. {numbers}."
    kind = f"chart {'wide' if wide else 'narrow'}"
    box = f"0 0 {width} {height}"
    return element("svg", *drawn, viewBox=box, role="img", aria_label=label, class_=kind, tabindex=0)


def plot(result: Result, path: str | os.PathLike[str]) -> Any:
    """Draw a line for each method, a band for the spread over seeds, and a digit at each size below the axis."""
    methods = result.methods[::-1]  # ours first: thin lines are drawn over the thick one
    lines = {method.name: [(size, 100 * method.mean(size)) for size in SIZES] for method in methods}
    figure = plot_over_scales(lines, ylabel="accuracy, percent")
    ax = figure.axes[0]
    for method, line in zip(methods, ax.lines, strict=True):
        low, high = ([100 * (method.mean(s) + sign * (method.spread(s) or 0)) for s in SIZES] for sign in (-1, 1))
        ax.fill_between(SIZES, low, high, color=line.get_color(), alpha=0.09, linewidth=0)
    ax.lines[0].set_linewidth(3)
    ax.axvline(TRAINED, color="0.5", linewidth=1, zorder=0)
    ax.annotate("trained here", (TRAINED, 2), (5, 0), textcoords="offset points", color="0.3")
    ax.set_ylim(0, 103)
    ax.set_xlabel("size of the digits, relative to training", labelpad=56)
    boxes, open_image = require("matplotlib.offsetbox", "demo"), require("PIL.Image", "demo").open
    for size in SIZES:
        picture = open_image(io.BytesIO(result.shown(size).picture))
        image = boxes.OffsetImage(picture, zoom=42 / picture.width, cmap="gray")
        place = {"xybox": (0, -46), "boxcoords": "offset points", "frameon": False, "pad": 0}
        ax.add_artist(boxes.AnnotationBbox(image, (size, 0), xycoords=("data", "axes fraction"), **place))
    return finish(figure, path, None)


def _method(method: Method, x: Axis, y: Axis) -> str:
    """A line with markers; with several seeds, also a band of one standard deviation to either side."""
    points = [(x(size), y(100 * method.mean(size))) for size in SIZES]
    drawn = [_line(points)]
    if len(method.accuracy) > 1:
        above, below = (
            [(x(s), y(100 * min(1, max(0, method.mean(s) + sign * (method.spread(s) or 0))))) for s in SIZES]
            for sign in (1, -1)
        )
        drawn.insert(0, _line([*above, *reversed(below)], "band", "polygon"))
    for size, (at, height) in zip(SIZES, points, strict=True):
        value = f"{method.per_cent(size)} %"
        title = element("title", escape(f"{method.name}, size {named(size)}: {value}"))  # where there are no scripts
        drawn.append(_marker(method.key, at, height, title, data_size=named(size), data_value=value))
    return element("g", *drawn, class_=method.key, data_name=method.name)


def apart(places: Sequence[float], gap: float) -> list[float]:
    """The places, pushed apart as little as possible until no two are closer than the gap; their order stays."""
    order, room, found = np.argsort(places, kind="stable"), gap * np.arange(len(places)), np.empty(len(places))
    found[order] = isotonic_regression(np.asarray(places)[order] - room).x + room
    return found.tolist()


def _marker(key: str, x: float, y: float, title: str = "", **data: str) -> str:
    return element("path", title, d=_SHAPES[key], transform=f"translate({x:g} {y:g})", class_="marker", **data)


def _line(points: Sequence[tuple[float, float]], kind: str = "line", tag: str = "polyline") -> str:
    return element(tag, points=" ".join(f"{x:g},{y:g}" for x, y in points), class_=kind)


def _text(words: str, x: float, y: float, kind: str) -> str:
    return element("text", escape(words), x=round(x, 1), y=round(y, 1), class_=kind)
