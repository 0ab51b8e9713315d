"""Charts as SVG: strings for a page to hold, drawn in the page's own colors."""

from __future__ import annotations

import base64
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from scalespaces.demo._result import SIZES, TRAINED, Errors, Method, Series, per_cent

_SHAPES = {
    "cnn": "M-4-4h8v8h-8z",
    "tta": "M0-5.5L5 3.5H-5z",
    "select": "M-5-5L5 5M5-5L-5 5",
    "jitter": "M0-7.5L7.5 0L0 7.5L-7.5 0z",
    "ours": "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0",
}
_DOT = "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0"


@dataclass(frozen=True)
class Axis:
    """Where on a side of a chart values lie, evenly or by their logarithms.

    Example:
        >>> axis = Axis(0.5, 4, 0, 300, log=True)
        >>> axis(0.5), axis(1), axis(4)
        (0.0, 100.0, 300.0)
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The position of a value."""
        low, high, value = ((math.log(v) if self.log else v) for v in (self.low, self.high, value))
        return round(self.start + (value - low) / (high - low) * (self.end - self.start), 1)


def named(size: float) -> str:
    """How a size is written.

    Example:
        >>> named(0.5), named(1.0), named(1.41)
        ('1/2', '1', '1.41')
    """
    return "1/2" if size == 0.5 else f"{size:g}"


def picture(data: bytes, kind: str = "png") -> str:
    """The address of a picture that is all in the address."""
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def _element(tag: str, *content: str, **attributes: object) -> str:
    written = (f' {name.rstrip("_").replace("_", "-")}="{escape(str(v))}"' for name, v in attributes.items())
    return f"<{tag}{''.join(written)}>{''.join(content)}</{tag}>"


def _text(words: str, x: float, y: float, kind: str = "", **attributes: object) -> str:
    return _element("text", escape(words), x=round(x, 1), y=round(y, 1), class_=kind, **attributes)


def _line(points: Sequence[tuple[float, float]], kind: str = "line", **attributes: object) -> str:
    return _element("polyline", points=_points(points), class_=kind, **attributes)


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in points)


def _marker(shape: str, x: float, y: float, title: str, kind: str = "marker") -> str:
    return _element("path", _element("title", escape(title)), d=shape, transform=f"translate({x:g} {y:g})", class_=kind)


def _svg(width: float, height: float, label: str, *content: str, kind: str) -> str:
    box = f"0 0 {width:g} {height:g}"
    return _element("svg", *content, viewBox=box, role="img", aria_label=label, class_=f"chart {kind}")


def _rows(axis: Axis, ticks: Mapping[float, str], left: float, right: float) -> str:
    """Lines across the chart, named on the left."""
    return "".join(
        _line([(left, axis(at)), (right, axis(at))], "grid") + _text(name, left - 8, axis(at) + 4, "tick end")
        for at, name in ticks.items()
    )


def _columns(axis: Axis, ticks: Mapping[float, str], y: float) -> str:
    return "".join(_text(name, axis(at), y, "tick middle") for at, name in ticks.items())


def _sample(key: str) -> str:
    """A method's line and marker, 32 wide and 16 high."""
    return _line([(0, 8), (32, 8)]) + _element("path", d=_SHAPES[key], transform="translate(16 8)", class_="marker")


def swatch(key: str) -> str:
    """A method's line and marker, for a legend."""
    return _element("svg", _sample(key), viewBox="0 0 32 16", class_=f"swatch {key}", aria_hidden="true")


def _entry(method: Method, x: float, y: float) -> str:
    words = _text(method.name, 42, 13, "label")
    return _element("g", _sample(method.key), words, class_=f"entry {method.key}", transform=f"translate({x:g} {y:g})")


def accuracy(methods: Sequence[Method], pictures: Sequence[bytes], *, wide: bool) -> str:
    """Accuracy against the size of the digits; below, a digit at these sizes, one picture for each."""
    width, height = (760, 492) if wide else (360, 408)
    side, left, right = (76, 44, 140) if wide else (42, 34, 26)
    top, bottom = 16 if wide else 16 + 24 * math.ceil(len(methods) / 2), height - side - 64
    x = Axis(SIZES[0], SIZES[-1], left + side / 2 - 6, width - right - 6, log=True)
    y = Axis(0, 100, bottom, top)
    edge = x(SIZES[-1]) + 14
    drawn = [
        _rows(y, {n: f"{n} %" if wide else f"{n}" for n in range(0, 101, 20)}, left, edge),
        _line([(x(TRAINED), y(100)), (x(TRAINED), bottom)], "mark"),
        _text("trained here", x(TRAINED) + 8, bottom - 10, "note"),
        _line([(left, y(10)), (edge, y(10))], "chance"),
        _columns(x, {size: named(size) for size in SIZES}, bottom + 22),
        *(_image(data, x(size) - side / 2, bottom + 32, side) for size, data in zip(SIZES, pictures, strict=False)),
        _text("size of the digits, relative to training", (left + edge) / 2, height - 8, "tick middle"),
        *(_method(method, x, y) for method in sorted(methods, key=lambda m: m.key != "ours")),  # thin on thick
    ]
    if wide:
        places = apart([y(100 * method.mean(SIZES[-1])) for method in methods], 20)
        drawn += [_text(m.name, edge + 4, at + 5, f"label {m.key}") for m, at in zip(methods, places, strict=True)]
    else:
        drawn += [_entry(method, 180 * (n % 2), 24 * (n // 2)) for n, method in enumerate(methods)]
    numbers = "; ".join(f"{m.name}: {', '.join(per_cent([m.mean(size)]) for size in SIZES)}" for m in methods)
    label = f"Accuracy in per cent at sizes {', '.join(map(named, SIZES))}. {numbers}."
    return _svg(width, height, label, *drawn, kind="wide" if wide else "narrow")


def _method(method: Method, x: Axis, y: Axis) -> str:
    drawn = [_line([(x(size), y(100 * method.mean(size))) for size in SIZES])]
    if len(method.accuracy) > 1:
        drawn.insert(0, _band(method, x, y))
    for size in SIZES:
        title = f"{method.name}, size {named(size)}: {per_cent([method.mean(size), method.spread(size)])} %"
        drawn.append(_marker(_SHAPES[method.key], x(size), y(100 * method.mean(size)), title))
    return _element("g", *drawn, class_=method.key)


def _band(method: Method, x: Axis, y: Axis) -> str:
    """A standard deviation to either side, as far as there are such accuracies."""
    above, below = (
        [(x(size), y(100 * min(1, max(0, method.mean(size) + sign * (method.spread(size) or 0))))) for size in SIZES]
        for sign in (1, -1)
    )
    return _element("polygon", points=_points([*above, *reversed(below)]), class_="band")


def _image(data: bytes, x: float, y: float, side: float) -> str:
    return _element("image", href=picture(data), x=round(x, 1), y=round(y, 1), width=side, height=side)


def apart(places: Sequence[float], gap: float) -> list[float]:
    """The places, pushed apart until no two are nearer than the gap; their order and middle stay.

    Example:
        >>> apart([10, 50, 12], 20)
        [1.0, 50.0, 21.0]
    """
    groups: list[list[int]] = []
    centers: list[float] = []
    for n in sorted(range(len(places)), key=places.__getitem__):
        group, center = [n], float(places[n])
        while groups and center - centers[-1] < gap * (len(group) + len(groups[-1])) / 2:
            group, _ = groups.pop() + group, centers.pop()
            center = statistics.fmean(places[m] for m in group)
        groups.append(group)
        centers.append(center)
    at = {
        n: center + gap * (place - (len(group) - 1) / 2)
        for group, center in zip(groups, centers, strict=True)
        for place, n in enumerate(group)
    }
    return [at[n] for n in range(len(places))]


def mean_shares(series: Sequence[Series]) -> dict[float, list[float]]:
    """The levels' shares in the answer by size, averaged over the digits."""
    rows = zip(*(one.frames for one in series), strict=True)
    return {
        frames[0].size: [statistics.fmean(level) for level in zip(*(f.shares for f in frames), strict=True)]
        for frames in rows
    }


def shares(series: Sequence[Series], first_level: int = 0) -> str:
    """A heat map: the levels' shares in the answer against the size of the digits."""
    found = mean_shares(series)
    sizes, levels = list(found), len(series[0].frames[0].shares)
    width, cell, left, top = 560, 32, 76, 8
    bottom = top + cell * levels
    x = Axis(0, len(sizes), left, width - 8)
    drawn = []
    for k in range(levels):
        at = bottom - cell * (k + 1)
        drawn.append(_text(f"level {first_level + k}", left - 10, at + cell / 2 + 5, "tick end"))
        for n, size in enumerate(sizes):
            share = found[size][k]
            title = _element("title", f"size {size:g}, level {first_level + k}: {100 * share:.0f} %")
            box = {"x": x(n), "y": at, "width": round(x(n + 1) - x(n) - 1, 1), "height": cell - 1}
            drawn.append(_element("rect", title, **box, class_="cell", style=f"--share:{share:.3f}"))
    for wanted in (0.5, 1, 2, 4):
        nearest = min(range(len(sizes)), key=lambda n: abs(sizes[n] - wanted))
        drawn.append(_text(named(wanted), x(nearest + 0.5), bottom + 20, "tick middle"))
    drawn.append(_text("size of the digits, relative to training", (left + width) / 2, bottom + 44, "tick middle"))
    first, last = (max(range(levels), key=found[size].__getitem__) for size in (sizes[0], sizes[-1]))
    label = (
        f"Shares of the {levels} levels in the answer, from size {sizes[0]:g} to {sizes[-1]:g}: "
        f"the level with the largest share goes from {first_level + first} to {first_level + last}."
    )
    return _svg(width, bottom + 54, label, *drawn, kind="heat")


def lowest(found: Sequence[Errors]) -> int:
    """The decade that the axis of these errors begins with."""
    positive = [error for one in found for error in one.before() if error > 0]
    return min(-4, math.floor(math.log10(min(positive, default=1))))


def errors(found: Errors, lowest: int) -> str:
    """Equivariance errors against the level, from a decade on: a line for each downscaling; 0 is on the floor."""
    width, height, left = 360, 230, 44
    levels, step = len(found.errors[0]), max(1, -lowest // 4)
    floor = float(lowest - step)
    x, y = Axis(0, levels - 1, left + 12, width - 12), Axis(floor, step / 2, height - 48, 10)

    def place(level: int, error: float) -> tuple[float, float]:
        return x(level), y(max(floor, math.log10(error)) if error > 0 else floor)

    ticks = {float(n): f"1e{n}" if n else "1" for n in range(0, lowest - 1, -step)} | {floor: "0"}
    drawn = [
        _rows(y, ticks, left, width - 4),
        _columns(x, {k: f"{k}" for k in range(levels)}, height - 28),
        _text("level", (left + width) / 2, height - 8, "tick middle"),
    ]
    for row, line in zip(found.rows, found.errors, strict=True):
        known = [(level, error) for level, error in enumerate(line) if error is not None]
        inside = [place(*point) for point in known if row + point[0] < found.boundary]
        outside = [place(*point) for point in known if row + point[0] >= found.boundary]
        parts = [_line(inside), _line(outside, "line past")]
        for level, error in known:
            past = row + level >= found.boundary
            title = f"downscaled {2**row} times, level {level}: {error:.1e}{', past the boundary' * past}"
            parts.append(_marker(_DOT, *place(level, error), title, "marker past" if past else "marker"))
        part = (row - 1) / max(1, len(found.rows) - 1)
        drawn.append(_element("g", *parts, class_="shade", style=f"--part:{part:.2f}"))
    before = found.before()
    label = f"{found.lift}, layers: {found.layers}. "
    label += f"Before the boundary the errors are {span(before)}." if before else "No errors before the boundary."
    return _svg(width, height, label, *drawn, kind="errors")


def span(values: Sequence[float]) -> str:
    """The range of some errors in words.

    Example:
        >>> span([0.0, 0.0]), span([0.001, 0.02])
        ('all exactly 0', '1.0e-03 to 2.0e-02')
    """
    return f"{min(values):.1e} to {max(values):.1e}" if any(values) else "all exactly 0"
