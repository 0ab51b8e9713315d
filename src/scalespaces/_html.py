"""HTML that the demo's report and the explorer share: elements, rows of tables, and pictures inside the page itself."""

import base64
import io
from collections.abc import Iterable
from html import escape
from typing import Any

from torch import Tensor

from scalespaces._extras import require


def element(tag: str, *content: str, **attributes: object) -> str:
    """An element. Attributes are escaped here; the content is HTML already.

    Example:
        >>> element("p", "1 &lt; 2", class_="note", aria_label='a "note"')
        '<p class="note" aria-label="a &quot;note&quot;">1 &lt; 2</p>'
    """
    written = (f' {name.rstrip("_").replace("_", "-")}="{escape(str(v))}"' for name, v in attributes.items())
    return f"<{tag}{''.join(written)}>{''.join(content)}</{tag}>"


def table_row(head: str, cells: Iterable[str], **attributes: object) -> str:
    """A row of a table: its head is escaped here, the cells are HTML already."""
    others = (element("td", cell) for cell in cells)
    return element("tr", element("th", escape(head), scope="row"), *others, **attributes)


def image(about: str, data: bytes, kind: str = "png", **attributes: object) -> str:
    """A picture embedded in the page, and what a screen reader says about it."""
    return element("img", src=data_url(data, kind), alt=about, **attributes).removesuffix("</img>")


def data_url(data: bytes, kind: str = "png") -> str:
    """An address that contains the whole picture."""
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def svg(figure: Any) -> bytes:
    """A matplotlib figure as SVG, without a background."""
    stream = io.BytesIO()
    figure.savefig(stream, format="svg", transparent=True, bbox_inches="tight")
    return stream.getvalue()


def encode(image: Tensor, kind: str, extra: str, *, side: int = 4096, **options: object) -> bytes:
    """An image ``(H, W)``, ``(1, H, W)`` or ``(3, H, W)`` from 0 to 1 in a Pillow format, reduced to ``side``."""
    pixels = image.detach().clamp(0, 1).mul(255).round().byte().cpu()
    pixels = pixels.permute(1, 2, 0) if pixels.ndim == 3 and len(pixels) == 3 else pixels.reshape(pixels.shape[-2:])
    picture, stream = require("PIL.Image", extra).fromarray(pixels.numpy()), io.BytesIO()
    picture.thumbnail((side, side))
    picture.save(stream, kind, **options)
    return stream.getvalue()
