"""Figures: created outside pyplot, and written completely or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from scalespaces._extras import require
from scalespaces._files import prepare, replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's, for the color-blind; the pale ones are darker: lines stand out from white, and inverted from black.
OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#BF6498", "#2B8CC4", "#B07800", "#000000")


def new_figure(width: float, height: float, into: Figure | None = None) -> Figure:
    """A new figure, outside pyplot so that nothing global is touched; or the given one, at this size."""
    if into is None:
        return require("matplotlib.figure", "plot").Figure(figsize=(width, height), dpi=130, layout="constrained")
    into.set_size_inches(width, height)
    into.set_layout_engine("constrained")
    return into


def finish(figure: Figure, path: str | os.PathLike[str] | None, title: str | None) -> Figure:
    """Add the title and write the file, if there are any."""
    if title:
        figure.suptitle(title)
    if path is not None:
        path = check_writable(path)
        with replacing(path) as draft:
            figure.savefig(draft, format=path.suffix.lower()[1:], bbox_inches="tight")
    return figure


def check_writable(path: str | os.PathLike[str]) -> Path:
    """Return the path if matplotlib can write its suffix; the parent folders are created."""
    suffix, formats = Path(path).suffix, sorted(new_figure(1, 1).canvas.get_supported_filetypes())
    if suffix.lower()[1:] not in formats:
        raise ValueError(f"matplotlib writes {', '.join(formats)}, got the path {str(path)!r}; use .png or .pdf")
    return prepare(path)
