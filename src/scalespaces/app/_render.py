"""What was computed, as HTML that follows the page's colors and width; every word of a user's is escaped."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from torch import Tensor

from scalespaces._extras import require
from scalespaces.app._errors import Errors
from scalespaces.app._explore import Cost, Level
from scalespaces.app._images import SIDE, Picture
from scalespaces.app._predictions import Loaded, Prediction
from scalespaces.plotting import plot_equivariance, plot_over_scales

EQUAL, TO_SCALE = "equally large", "sample by sample"
VIEWS = (EQUAL, TO_SCALE)
_LOSSLESS = 256  # pixels; smaller levels are drawn enlarged, where JPEG would show


def status(message: str, *, good: bool = True) -> str:
    """A line that says what happened, read out by screen readers."""
    kind, role = ("good", "status") if good else ("bad", "alert")
    return f'<p class="ss-status ss-{kind}" role="{role}">{escape(message)}</p>' if message else ""


def preview(picture: Picture) -> str:
    """The image, what it is called, how large it is, and what was done to it."""
    notes = "".join(f"<br>{escape(note)}" for note in picture.notes)
    return (
        f'<img class="ss-preview" alt="the image" src="{_image(picture.image[0])}">'
        f'<p class="ss-note"><b>{escape(picture.name)}</b><br>{picture.size}{notes}</p>'
    )


def as_pixels(image: Tensor) -> np.ndarray:
    """An image ``(C, H, W)`` from 0 to 1 as bytes ``(H, W, 3)``."""
    pixels = image.detach().clamp(0, 1).mul(255).round().byte().permute(1, 2, 0).numpy()
    return np.repeat(pixels, 3, 2) if pixels.shape[2] == 1 else pixels


# --- the scale-space -------------------------------------------------------------------------------------------------


def levels(found: Sequence[Level]) -> dict[str, str]:
    """Every level as a picture, with its number, size, step and blur, for every view."""
    pictures = [_image(level.pixels) for level in found]
    return {view: _levels(found, pictures, view) for view in VIEWS}


def _levels(found: Sequence[Level], pictures: Sequence[str], view: str) -> str:
    widest = max(level.size[0] for level in found)
    figures = []
    for level, picture in zip(found, pictures, strict=True):
        width = 100 if view == EQUAL else 100 * level.size[0] / widest
        coarse = " ss-coarse" if max(level.size) <= _LOSSLESS else ""
        blur = "finer than the image" if level.blur is None else f"blur {level.blur:.3g} px"
        figures.append(
            f'<figure><div><img class="ss-level{coarse}" style="width:{width:.4g}%" src="{picture}" '
            f'alt="level {level.number}"></div><figcaption><b>level {level.number}</b>'
            f"<span>{level.size[0]} × {level.size[1]}</span><span>step {level.step:.4g}</span><span>{blur}</span>"
            "</figcaption></figure>"
        )
    return f'<div class="ss-levels">{"".join(figures)}</div>'


def cost(found: Cost, levels: Sequence[Level]) -> str:
    """What the lift costs, and the lengths of its kernels."""
    lengths = [level.taps for level in levels if level.taps is not None]
    same = f"{len(lengths)} × {lengths[0]} taps" if lengths else "none"
    kernels = same if len(set(lengths)) < 2 else f"{', '.join(map(str, lengths))} taps"
    facts = {
        "samples per channel": f"{found.samples:,}",
        "times the image": f"{found.ratio:.2f}",
        "multiply-adds": _count(found.multiply_adds),
        "kernels": kernels,
        "lift, measured": f"{_milliseconds(found.milliseconds)}",
        "3 × 3 convolution to 16 channels": f"{_milliseconds(found.convolution)}",
    }
    items = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts.items())
    return f'<dl class="ss-facts">{items}</dl>'


def _count(number: int) -> str:
    power = max(0, min(3, int(math.log10(max(number, 1)) // 3)))
    return f"{number / 1000**power:.3g} {('', 'thousand', 'million', 'billion')[power]}".strip()


def _milliseconds(number: float) -> str:
    return f"{number:.3g} ms" if number < 1000 else f"{number / 1000:.3g} s"


# --- equivariance ----------------------------------------------------------------------------------------------------


def errors(found: Errors) -> str:
    """The sentence, the table and the figure."""
    table, past = found.table, found.table.past()
    shown = [j for j in range(len(table.levels)) if not np.isnan(table.errors[:, j]).all()]
    head = "".join(f"<th>k = {table.levels[j]}</th>" for j in shown)
    rows = []
    for i, shift in enumerate(table.rows):
        cells = "".join(_error_cell(table.errors[i, j], past[i, j]) for j in shown)
        rows.append(f"<tr><th>l = {shift}</th>{cells}</tr>")
    figure = plot_equivariance([table], columns=[_literal(found.network)])
    width, height = found.size
    return (
        f'<p class="ss-verdict">{escape(found.sentence)}</p>'
        f'<p class="ss-note">{escape(found.network)}, on {width} × {height} pixels from the middle of the image, in '
        "float64. Entry (l, k): level k of the image downscaled l times, compared with level k + l of the image.</p>"
        f'<div class="ss-beside"><div class="ss-scroll"><table class="ss-table"><tr><th></th>{head}</tr>{"".join(rows)}'
        f"</table></div>{_figure(figure, f'equivariance errors of {found.network} over levels')}</div>"
    )


def _error_cell(error: float, past: bool) -> str:
    if math.isnan(error):
        return "<td></td>"
    # From rounding to 1, on a logarithmic axis.
    shade = 0 if error <= 0 else min(1.0, max(0.0, (math.log10(error) + 16) / 16))
    text = "0" if error == 0 else f"{error:.1e}"
    return f'<td class="{"ss-past" if past else ""}" style="--shade:{shade:.2f}">{text}</td>'


# --- predictions -----------------------------------------------------------------------------------------------------


def network(loaded: Loaded | None) -> str:
    """What is known of the network."""
    if loaded is None:
        return '<p class="ss-note">No network is loaded.</p>'
    items = "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in loaded.facts.items())
    return f'<dl class="ss-list">{items}</dl>'


def seen(found: Prediction) -> str:
    """The picture that the network saw."""
    height, width = found.seen.shape[1:]
    about = f"what the network sees: {width} × {height} pixels"
    return f'<img class="ss-seen" alt="{about}" src="{_image(found.seen)}"><p class="ss-note">{about}</p>'


def prediction(found: Prediction, pixels: bool = False) -> str:
    """The classes with their probabilities, and what each level says."""
    classes = "".join(_bar(name, probability) for name, probability in found.top)
    best, answering = found.top[0][0], found.answering
    levels = "".join(
        _bar(
            f"level {level.number}",
            level.probability,
            "ss-chosen" if level is answering else "",
            f"downscaled by {level.dilation:.3g}; by itself it says {level.own}",
        )
        for level in found.levels
    )
    mean = " (mean over pixels)" if pixels else ""
    return (
        f'<h4>Classes{mean}</h4><div class="ss-bars">{classes}</div>'
        f"<h4>Each level's probability of {escape(best)}</h4>"
        f'<div class="ss-bars">{levels}</div>'
        f'<p class="ss-note">Level {answering.number} answers: its score for {escape(best)} is the highest.</p>'
    )


def _bar(name: str, probability: float, kind: str = "", about: str = "") -> str:
    small = f"<small>{escape(about)}</small>" if about else ""
    return (
        f'<div class="ss-bar {kind}"><span>{escape(name)}{small}</span><b>{100 * probability:.1f} %</b>'
        f'<i style="width:{100 * probability:.2f}%"></i></div>'
    )


def curve(lines: Mapping[str, Sequence[tuple[float, float | None]]]) -> str:
    """The probabilities of some classes over zoom; that there are none, if they took too long."""
    if not lines:
        return '<p class="ss-note">A curve over all zooms would take this network long; a smaller side brings it.</p>'
    lines = {_literal(name): points for name, points in lines.items()}
    figure = plot_over_scales(lines, ylabel="probability", title=None)
    ax = figure.axes[0]
    ax.set(xlabel="zoom", ylim=(-0.03, 1.03))
    ax.set_xticks([0.25, 0.5, 1, 2, 4], ["0.25", "0.5", "1", "2", "4"])
    return _figure(figure, "probabilities of classes over zoom")


def _literal(name: str) -> str:
    """A name as matplotlib draws it: dollars would begin a formula, an underscore in front would hide it, and files of
    SVG may not hold control characters.
    """
    shown = "".join(filter(str.isprintable, name))
    short = shown if len(shown) <= 24 else f"{shown[:23]}…"
    return short.replace("$", r"\$") if not short.startswith("_") else f"\u200b{short}".replace("$", r"\$")


# --- pictures --------------------------------------------------------------------------------------------------------


def _figure(figure: Any, about: str) -> str:
    stream = io.BytesIO()
    figure.savefig(stream, format="svg", transparent=True, bbox_inches="tight")
    source = _data_url(stream, "svg+xml")
    return f'<div class="ss-scroll ss-drawn"><img class="ss-figure" alt="{escape(about)}" src="{source}"></div>'


def _image(pixels: Tensor) -> str:
    picture, stream = require("PIL.Image", "app").fromarray(as_pixels(pixels)), io.BytesIO()
    lossless = max(picture.size) <= _LOSSLESS
    picture.thumbnail((SIDE, SIDE))
    picture.save(stream, "PNG" if lossless else "JPEG", **({} if lossless else {"quality": 92}))
    return _data_url(stream, "png" if lossless else "jpeg")


def _data_url(stream: io.BytesIO, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode()}"
