"""Results as HTML that follows the page's colors and width. Every text that comes from a user is escaped."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scalespaces._extras import require
from scalespaces._html import element, encode, image, svg
from scalespaces.app._errors import Errors
from scalespaces.app._explore import Level
from scalespaces.app._images import SIDE, Picture
from scalespaces.app._predictions import Loaded, Prediction
from scalespaces.plotting import plot_equivariance, plot_over_scales

_LOSSLESS = 256  # pixels; smaller levels are drawn enlarged, where JPEG would show


def problem(message: str) -> str:
    """A line about what went wrong, read out by screen readers."""
    return element("p", escape(message), class_="ss-status ss-bad", role="alert")


def note(words: str) -> str:
    """Words in small print, HTML already."""
    return element("p", words, class_="ss-note")


def facts(found: Mapping[str, str], kind: str) -> str:
    """Facts by name, in boxes or as a list."""
    items = (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in found.items())
    return element("dl", *items, class_=kind)


def _encode(pixels: Tensor) -> tuple[bytes, str]:
    """An image ``(C, H, W)`` as a PNG if it is small, as a JPEG if it is large, and which of them."""
    if max(pixels.shape) <= _LOSSLESS:
        return encode(pixels, "PNG", "app"), "png"
    return encode(pixels, "JPEG", "app", side=SIDE, quality=92), "jpeg"


def _figure(about: str, figure: Any) -> str:
    drawn = image(about, svg(figure), "svg+xml", class_="ss-figure")
    return element("div", drawn, class_="ss-scroll ss-drawn")


# --- the image and its scale-space -----------------------------------------------------------------------------------


def preview(picture: Picture) -> str:
    """The image, its name and its size."""
    height, width = picture.image.shape[2:]
    words = [f"<b>{escape(picture.name)}</b>", f"{width} × {height} pixels", *filter(None, [picture.note])]
    return image("the image", *_encode(picture.image[0]), class_="ss-preview") + note("<br>".join(words))


def levels(found: Sequence[Level]) -> str:
    """Every level as a picture, with its number, size, step and blur."""
    figures = []
    for level in found:
        name, (height, width) = f"level {level.number}", level.pixels.shape[1:]
        blur = "finer than the image" if level.blur is None else f"blur {level.blur:.3g} px"
        words = "".join(f"<span>{fact}</span>" for fact in (f"{width} × {height}", f"step {level.step:.4g}", blur))
        kind = "ss-level ss-coarse" if max(height, width) <= _LOSSLESS else "ss-level"
        drawn = image(name, *_encode(level.pixels), class_=kind)
        figures.append(f"<figure><div>{drawn}</div><figcaption><b>{name}</b>{words}</figcaption></figure>")
    return element("div", *figures, class_="ss-levels")


# --- equivariance ----------------------------------------------------------------------------------------------------


def errors(found: Errors) -> str:
    """The sentence, the table and the figure."""
    table, past, (width, height) = found.table, found.table.past(), found.size
    columns = [j for j in range(len(table.levels)) if not np.isnan(table.errors[:, j]).all()]
    rows = [element("tr", "<th></th>", *(f"<th>k = {table.levels[j]}</th>" for j in columns))]
    for i, shift in enumerate(table.rows):
        cells = (_error_cell(table.errors[i, j], past[i, j]) for j in columns)
        rows.append(element("tr", f"<th>l = {shift}</th>", *cells))
    about = f"{escape(found.network)}, on {width} × {height} pixels from the middle of the image, in float64. "
    about += "Entry (l, k): level k of the image downscaled l times, compared with level k + l of the image."
    drawn = element("div", element("table", *rows, class_="ss-table"), class_="ss-scroll")
    figure = plot_equivariance([table], columns=[_literal(found.network)])
    drawn += _figure(f"equivariance errors of {found.network} over levels", figure)
    verdict = element("p", escape(found.sentence), class_="ss-verdict")
    return verdict + note(about) + element("div", drawn, class_="ss-beside")


def _error_cell(error: float, past: bool) -> str:
    if math.isnan(error):
        return "<td></td>"
    # From rounding to 1, on a logarithmic axis.
    shade = 0 if error <= 0 else min(1.0, max(0.0, (math.log10(error) + 16) / 16))
    text = "0" if error == 0 else f"{error:.1e}"
    return element("td", text, class_="ss-past" if past else "", style=f"--shade:{shade:.2f}")


# --- predictions -----------------------------------------------------------------------------------------------------


def network(loaded: Loaded | None) -> str:
    """What is known about the network."""
    return facts(loaded.facts, "ss-list") if loaded else note("No network is loaded.")


def seen(found: Prediction) -> str:
    """The picture that the network saw."""
    about = "what the network sees: {} × {} pixels".format(*found.seen.shape[:0:-1])
    return image(about, *_encode(found.seen), class_="ss-seen") + note(about.capitalize()) + level_map(found)


def level_map(found: Prediction) -> str:
    """Which level answers at each pixel: colors on the picture, and each level's share of the pixels."""
    if found.chosen is None:
        return ""
    numbers = [level.number for level in found.levels]
    colors = require("matplotlib", "app").colormaps["plasma"](np.linspace(0, 0.95, len(numbers)))[:, :3]
    painted = torch.from_numpy(colors).float()[found.chosen - numbers[0]].permute(2, 0, 1)
    about, legend = "which level answers at each pixel", []
    for n, color in zip(numbers, (255 * colors).round().astype(int), strict=True):
        share = (found.chosen == n).double().mean().item()
        swatch = element("i", style="background:rgb({},{},{})".format(*color))
        legend.append(f"<span>{swatch}level {n}: {100 * share:.0f} %</span>")
    drawn = image(about, *_encode(0.6 * painted + 0.4 * found.seen.mean(0)), class_="ss-seen")
    return drawn + note(about.capitalize()) + element("p", *legend, class_="ss-legend")


def prediction(found: Prediction, pixels: bool = False) -> str:
    """The classes with their probabilities, and each level's own answer."""
    best, answering = escape(found.top[0][0]), found.answering
    classes = [_bar(name, probability) for name, probability in found.top]
    levels = []
    for level in found.levels:
        weight = "" if level.weight is None else f"; trusted {100 * level.weight:.1f} %"
        about = f"downscaled by {level.dilation:.3g}; its own answer is {level.own}{weight}"
        kind = "ss-bar ss-chosen" if level is answering else "ss-bar"
        levels.append(_bar(f"level {level.number}", level.probability, kind, about))
    trusted = answering.weight is not None
    reason = "answers: it is trusted most" if trusted else f"answers: its score for {best} is the highest"
    reason = reason if found.chosen is None else "answers at the most pixels"
    return (
        f"<h4>Classes{' (mean over pixels)' if pixels else ''}</h4>{element('div', *classes, class_='ss-bars')}"
        f"<h4>Each level's probability of {best}</h4>{element('div', *levels, class_='ss-bars')}"
        + note(f"Level {answering.number} {reason}.")
    )


def _bar(name: str, probability: float, kind: str = "ss-bar", about: str = "") -> str:
    small = f"<small>{escape(about)}</small>" if about else ""
    words = f"<span>{escape(name)}{small}</span><b>{100 * probability:.1f} %</b>"
    return element("div", words, element("i", style=f"width:{100 * probability:.2f}%"), class_=kind)


def curve(lines: Mapping[str, Sequence[tuple[float, float | None]]]) -> str:
    """The probabilities of some classes over zoom, unless they would take too long."""
    if not lines:
        return note("A curve over all zooms would take too long for this network; choose a smaller side to see one.")
    figure = plot_over_scales({_literal(name): points for name, points in lines.items()}, ylabel="probability")
    ax = figure.axes[0]
    ax.set(xlabel="zoom", ylim=(-0.03, 1.03))
    ax.set_xticks([0.25, 0.5, 1, 2, 4], ["0.25", "0.5", "1", "2", "4"])
    return _figure("probabilities of classes over zoom", figure)


def _literal(name: str) -> str:
    """A name as matplotlib draws it literally."""
    # Dollars would start a formula, an underscore in front would hide it, and SVG may not contain control characters.
    shown = "".join(filter(str.isprintable, name))
    short = shown if len(shown) <= 24 else f"{shown[:23]}…"
    return ("\u200b" * short.startswith("_") + short).replace("$", r"\$")
