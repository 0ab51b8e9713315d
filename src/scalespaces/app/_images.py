"""Images from files that may be anything: they come out small, upright and in color, or with a helpful error."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scalespaces._extras import require
from scalespaces.data import photograph
from scalespaces.data._pixels import Refused, decode_file

SIDE = 1024
"""The longer side that larger images are reduced to, in pixels."""
MOST_BYTES = 2**26
MOST_PIXELS = 2**26
_FORMATS = ("PNG", "JPEG", "MPO", "WEBP", "TIFF", "GIF", "BMP", "PPM", "AVIF", "JPEG2000", "TGA", "ICO")
_KNOWN = "PNG, JPEG, WebP, TIFF, GIF and BMP can be read"


@dataclass(frozen=True, eq=False)
class Picture:
    """An image, its name, and notes on how it was changed when it was read.

    Shape:
        - image: :math:`(1, 3, H, W)`, float32 from 0 to 1, with sides of at most ``SIDE``
    """

    image: Tensor
    name: str
    notes: tuple[str, ...] = ()


def first_picture() -> Picture:
    """The photograph that comes with the package."""
    return Picture(photograph(), "the photograph that comes with scalespaces")


def read_picture(file: str | os.PathLike[str]) -> Picture:
    """Read a file that may be anything; if it cannot be read, a ValueError names it, without its folder.

    Of several frames the first is read. Transparent parts become white, EXIF turns are made, grays of more than 8 bits
    are divided by their largest value, and larger images are reduced to sides of ``SIDE``. Formats that would start
    another program are refused, and so are files of more than 64 MiB or 67 million pixels (JPEGs that large are read at
    a fraction of their size).
    """
    path = Path(file)
    name, pillow = repr(path.name), require("PIL.Image", "app")
    if path.is_file() and path.stat().st_size > MOST_BYTES:
        size, most = path.stat().st_size / 2**20, MOST_BYTES // 2**20
        raise ValueError(f"{name} has {size:.0f} MiB, and images may have {most}; reduce it")
    try:
        pixels, notes = decode_file(path, _decode, "app")
    except ValueError as error:
        if isinstance(error.__cause__, pillow.DecompressionBombError):
            raise ValueError(f"{name} has far too many pixels, more than {MOST_PIXELS:,}; reduce it") from error
        if isinstance(error.__cause__, pillow.UnidentifiedImageError):
            raise ValueError(f"{name} is not an image, or of no known kind; {_KNOWN}") from error
        raise ValueError(str(error).replace(repr(str(file)), name)) from error
    image = torch.from_numpy(pixels).permute(2, 0, 1).unsqueeze(0).contiguous()
    return Picture(image, path.name, tuple(notes))


def _decode(picture: Any) -> tuple[np.ndarray, list[str]]:
    """Pixels ``(H, W, 3)`` from 0 to 1, and notes."""
    if picture.format not in _FORMATS:
        raise Refused(f"is a {picture.format} file; {_KNOWN}")
    whole, notes = picture.size, list[str]()
    picture.draft("RGB", (SIDE, SIDE))  # only JPEGs: decoded at half, a quarter or an eighth of their size
    if picture.size[0] * picture.size[1] > MOST_PIXELS:
        raise Refused(f"has {whole[0]} × {whole[1]} pixels, more than {MOST_PIXELS:,} in all; reduce it")
    if getattr(picture, "is_animated", False) and picture.format != "MPO":
        notes.append("the first of several frames")
    upright = require("PIL.ImageOps", "app").exif_transpose(picture)
    if picture.getexif().get(0x0112, 1) > 1:  # the orientation
        notes.append("turned as its EXIF data says")
        whole = whole if upright.size == picture.size else whole[::-1]
    upright = _colors(upright, notes)
    if max(whole) > SIDE:
        upright.thumbnail((SIDE, SIDE), require("PIL.Image", "app").Resampling.BICUBIC)
        notes.append(f"reduced from {whole[0]} × {whole[1]} pixels")
    pixels = np.asarray(upright, dtype=np.float32)
    return (pixels / 255 if pixels.ndim == 3 else np.repeat(np.clip(pixels, 0, 1)[..., None], 3, 2)), notes


def _colors(picture: Any, notes: list[str]) -> Any:
    """The picture in RGB; of more than 8 bits per pixel, in floating point from 0 to 1."""
    pillow = require("PIL.Image", "app")
    if picture.mode.startswith(("I", "F")):  # Pillow would clip these when it converts them to RGB
        values = np.array(picture, dtype=np.float32)
        if not np.isfinite(values).all():
            raise Refused("has pixels that are not finite numbers; replace them first")
        values = values - min(values.min(), 0)
        notes.append("its values divided by the largest")
        return pillow.fromarray(values / (values.max() or 1))
    if "A" in picture.getbands() or "transparency" in picture.info:
        notes.append("transparent parts laid on white")
        layer = picture.convert("RGBA")
        return pillow.alpha_composite(pillow.new("RGBA", layer.size, "white"), layer).convert("RGB")
    if picture.mode == "CMYK":
        notes.append("CMYK turned into RGB without its color profile")
    return picture.convert("RGB")
