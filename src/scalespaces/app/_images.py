"""Images from any file: they come out small, upright and in color, or with a helpful error."""

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

SIDE = 1024  # pixels: the longer side that larger images are reduced to
MOST_BYTES = MOST_PIXELS = 2**26
_FORMATS = ("PNG", "JPEG", "MPO", "WEBP", "TIFF", "GIF", "BMP", "PPM", "AVIF", "JPEG2000", "TGA", "ICO")
_KNOWN = "PNG, JPEG, WebP, TIFF, GIF and BMP can be read"


@dataclass(frozen=True, eq=False)
class Picture:
    """An image ``(1, 3, H, W)``, float32 from 0 to 1, its name, and a note if it was reduced to ``SIDE``."""

    image: Tensor
    name: str
    note: str = ""


def first_picture() -> Picture:
    """The photograph that comes with the package."""
    return Picture(photograph(), "the photograph that comes with scalespaces")


def example_for(network: str | os.PathLike[str]) -> Picture | None:
    """The first image in the folder ``examples`` beside a network, if there is one, such as the demo writes."""
    found = sorted(Path(network).parent.glob("examples/*.png"))
    return read_picture(found[0]) if found else None


def read_picture(file: str | os.PathLike[str]) -> Picture:
    """Read a file that may be anything; if it cannot be read, a ValueError names it, without its folder.

    Only the first frame is read. Transparent parts become white, EXIF rotations are applied, grays of more than 8 bits
    are divided by their largest value, and larger images are reduced to sides of ``SIDE``. Formats that would start
    another program are refused, and so are files of more than 64 MiB or 67 million pixels (JPEGs that large are read at
    a fraction of their size).
    """
    path = Path(file)
    name, pillow = repr(path.name), require("PIL.Image", "app")
    if path.is_file() and path.stat().st_size > MOST_BYTES:
        size, most = path.stat().st_size / 2**20, MOST_BYTES // 2**20
        raise ValueError(f"{name} has {size:.0f} MiB, but images may have at most {most}; reduce it")
    try:
        pixels, note = decode_file(path, _decode, "app", formats=None)
    except ValueError as error:
        if isinstance(error.__cause__, pillow.DecompressionBombError):
            raise ValueError(f"{name} has far too many pixels, more than {MOST_PIXELS:,}; reduce it") from error
        if isinstance(error.__cause__, pillow.UnidentifiedImageError):
            raise ValueError(f"{name} is not an image, or of an unknown kind; {_KNOWN}") from error
        raise ValueError(str(error).replace(repr(str(file)), name)) from error
    image = torch.from_numpy(pixels).permute(2, 0, 1).unsqueeze(0).contiguous()
    return Picture(image, path.name, note)


def _decode(picture: Any) -> tuple[np.ndarray, str]:
    """Pixels ``(H, W, 3)`` from 0 to 1, and a note if they were reduced."""
    if picture.format not in _FORMATS:
        raise Refused(f"is a {picture.format} file; {_KNOWN}")
    whole, note = picture.size, ""
    picture.draft("RGB", (SIDE, SIDE))  # only JPEGs: decoded at half, a quarter or an eighth of their size
    if picture.size[0] * picture.size[1] > MOST_PIXELS:
        raise Refused(f"has {whole[0]} × {whole[1]} pixels, more than {MOST_PIXELS:,} in all; reduce it")
    upright = require("PIL.ImageOps", "app").exif_transpose(picture)
    whole = whole if upright.size == picture.size else whole[::-1]
    upright = _colors(upright)
    if max(whole) > SIDE:
        upright.thumbnail((SIDE, SIDE), require("PIL.Image", "app").Resampling.BICUBIC)
        note = f"reduced from {whole[0]} × {whole[1]} pixels"
    pixels = np.asarray(upright, dtype=np.float32)
    return (pixels / 255 if pixels.ndim == 3 else np.repeat(np.clip(pixels, 0, 1)[..., None], 3, 2)), note


def _colors(picture: Any) -> Any:
    """The picture in RGB; of more than 8 bits per pixel, in floating point from 0 to 1."""
    pillow = require("PIL.Image", "app")
    if picture.mode.startswith(("I", "F")):  # Pillow would clip these when it converts them to RGB
        values = np.array(picture, dtype=np.float32)
        if not np.isfinite(values).all():
            raise Refused("has pixels that are not finite numbers; replace them first")
        values = values - min(values.min(), 0)
        return pillow.fromarray(values / (values.max() or 1))
    if "A" in picture.getbands() or "transparency" in picture.info:
        layer = picture.convert("RGBA")
        return pillow.alpha_composite(pillow.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return picture.convert("RGB")
