"""Image files: pictures as bytes or floats, masks as class numbers."""

import math
import os
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from scalespaces._extras import require
from scalespaces._files import excess, open_file, open_image
from scalespaces.data._complete import lacks_rows

T = TypeVar("T")
_FAX = (2, 3, 4)  # compressions of TIFF that are for one bit per pixel
SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp", ".ppm", ".pgm")
FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "WEBP", "PPM")  # of these suffixes; others, such as EPS, start programs


def to_unit(images: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Convert bytes from 0 to 255 to floats from 0 to 1, float32 by default; floats stay as they are.

    Example:
        >>> to_unit(torch.tensor([0, 51, 255], dtype=torch.uint8))
        tensor([0.0000, 0.2000, 1.0000])
    """
    if images.is_floating_point():
        return images if dtype is None else images.to(dtype)
    if images.dtype != torch.uint8:
        raise ValueError(f"images are uint8 or floating point, got {images.dtype}")
    return images.to(dtype or torch.float32) / 255


class Refused(ValueError):
    """What is wrong with the contents of a file, as a phrase that follows the file's name."""


def decode_file(
    file: str | Path, decode: Callable[[Any], T], extra: str = "train", formats: Sequence[str] | None = FORMATS
) -> T:
    """Open a file with Pillow and decode it. Every failure is a ValueError that names the file.

    Other formats, too many pixels and missing strips are refused before anything is decoded; with ``formats=None``,
    ``decode`` has to do that.
    """
    pillow: Any = require("PIL.Image", extra)
    try:
        with open_file(file) as stream, open_image(stream, formats, extra) as picture:
            if formats and (reason := _wrong_size(picture, os.fstat(stream.fileno()).st_size)):
                raise Refused(reason)
            if picture.format == "TIFF" and _hides_bits(picture):
                raise Refused("does not say how many bits its pixels have (tag 258), or too few; write it again")
            decoded = decode(picture)
            if lacks_rows(picture, stream):
                rows = f"it does not hold the {picture.size[1]} rows it declares"
                raise Refused(f"is cut off or damaged: {rows}; write it again")
            return decoded
    except Refused as error:
        raise ValueError(f"{str(file)!r} {error}") from None
    except Exception as error:  # broken files make Pillow raise errors of every kind
        if isinstance(error, OSError) and error.strerror:  # the file system's; those about contents have no strerror
            raise ValueError(f"cannot read {str(file)!r}: {error.strerror}") from error
        reason = str(error)
        if formats and isinstance(error, pillow.UnidentifiedImageError):
            reason = f"it is none of {', '.join(formats)}, or damaged; convert it"
        elif isinstance(error, (pillow.DecompressionBombError, pillow.DecompressionBombWarning)):
            reason += "; if you trust it, set SCALESPACES_MAX_PIXELS in the environment to allow more"
        raise ValueError(f"{str(file)!r} is not an image that Pillow reads: {reason}") from error


def _wrong_size(picture: Any, file_size: int) -> str:
    """What is wrong with the sizes that an image declares, before it is decoded, as a phrase; or ""."""
    if reason := excess(math.prod(picture.size), "pixels"):
        return reason
    if picture.format == "PNG" and math.prod(picture.size) // 8 > 1032 * file_size:  # the most that deflate packs
        return f"is cut off: {file_size:,} bytes cannot hold {picture.size[0]} x {picture.size[1]} pixels"
    if picture.format != "TIFF":
        return ""
    tags = picture.tag_v2
    if tags.get(259, 1) == 1:  # not compressed: Pillow leaves pixels black that no strip or tile covers
        width, height, planes = tags[256], tags[257], tags.get(277, 1) if tags.get(284) == 2 else 1
        across, down = (width, min(tags.get(278, height), height)) if 273 in tags else (tags[322], tags[323])
        needed, there = -(-width // across) * -(-height // down) * planes, len(tags[273 if 273 in tags else 324])
        least = width * height * sum(tags.get(258, (1,))) // 8
        held = min(file_size, sum(tags.get(279 if 273 in tags else 325, ())))
        if there < needed or held < least:
            need = f"its pixels need {needed} strips or tiles and {least:,} bytes"
            return f"is cut off or damaged: {need}, it has {there} and {held:,}; write it again"
    return excess(tags.get(322, 1) * tags.get(323, 1), "pixels")  # tiles, which may be larger than the image


def _hides_bits(picture: Any) -> bool:
    """Whether a TIFF has no number of bits, which stands for one bit per pixel, or a wrong one, and may hold more."""
    tags = picture.tag_v2
    if (packed := tags.get(259, 1)) != 1:  # its size says nothing
        return 258 not in tags and packed not in _FAX
    across, down = (tags.get(322, 1), tags.get(323, 1)) if 324 in tags else picture.size
    most_bytes = -(-across * sum(tags.get(258, (1,))) // 8) * down * len(tags.get(324, (1,)))
    return sum(tags.get(325 if 324 in tags else 279, ())) > 2 * most_bytes


def _is_deep(picture: Any) -> bool:
    return picture.mode.startswith(("I", "F"))  # more than 8 bits, which Pillow would clip on the way to RGB


def read_image(file: str | Path, size: int | None = None) -> Tensor:
    """Read an image in one of Pillow's ``FORMATS`` (extra ``plot``), or a center crop with sides of this ``size``.

    Shape:
        - Output: :math:`(1, C, H, W)`, float32. Images of 8 bits become RGB, from 0 to 1. Images of 16 bits or floating
          point have one channel, divided by its largest value
    """

    def decode(picture: Any) -> Tensor:
        deep = _is_deep(picture)
        pixels = np.array(picture if deep else picture.convert("RGB"), dtype=np.float32)
        pixels = pixels[..., None] / (np.abs(pixels).max() or 1) if deep else pixels / 255
        return torch.from_numpy(pixels).permute(2, 0, 1).unsqueeze(0)

    image = decode_file(file, decode, "plot")
    height, width = image.shape[-2:]
    if size is None:
        return image.contiguous()
    if not 1 <= size <= min(height, width):
        raise ValueError(f"size must be from 1 to {min(height, width)}, the image's smaller side, got {size}")
    top, left = (height - size) // 2, (width - size) // 2
    return image[..., top : top + size, left : left + size].contiguous()


def photograph(size: int | None = None) -> Tensor:
    """Return a real color photograph, 512 x 512 pixels, bundled with the package.

    It is NASA's portrait of the astronaut Eileen Collins, in the public domain; ``data/README.md`` names the source.
    Reading it needs Pillow (extra ``plot``); ``size`` is the side of a center crop.

    Shape:
        - Output: :math:`(1, 3, H, W)`, float32 in [0, 1], sRGB; ``H = W = size``

    Example:
        >>> photograph(size=256).shape
        torch.Size([1, 3, 256, 256])
    """
    with resources.as_file(resources.files("scalespaces.data") / "astronaut.jpg") as file:
        return read_image(file, size)


def read_pixels(
    file: str | Path, *, deep: bool = False, raw: bool = False, size: tuple[int, int] | None = None
) -> Tensor:
    """Read an image as ``(3, H, W)`` bytes. Grays are repeated, palettes looked up, transparency is dropped.

    Images of more than 8 bits per pixel are refused, unless ``deep``: then 8 and 16 bits become float32 from 0 to 1,
    and floating point stays as it is. With ``raw`` as well, 8 bits stay bytes. Pillow reads only the upper 8 bits of
    color images with 16 bits per channel. The image is brought to ``size``, (height, width), by bicubic resampling and
    a center crop.
    """
    pillow = require("PIL.Image", "train")

    def decode(picture: Any) -> Tensor:
        if not _is_deep(picture):
            picture = picture.convert("RGB")
        elif not deep:
            way = "convert it, or read it with deep=True in Python"
            raise Refused(f"has more than 8 bits per pixel (mode {picture.mode}); {way}")
        else:
            values = np.array(picture).astype(np.float32)
            if picture.mode.startswith("I"):
                if values.min() < 0 or values.max() > 65535:
                    raise Refused("has numbers beyond 16 bits; convert it to 16 bits or floating point")
                values = values / np.float32(65535)
            picture = pillow.fromarray(values)
        if size is not None:
            picture = require("PIL.ImageOps", "train").fit(picture, size[::-1], pillow.Resampling.BICUBIC)
        pixels = torch.from_numpy(np.array(picture))
        pixels = pixels.expand(3, *pixels.shape) if pixels.ndim == 2 else pixels.permute(2, 0, 1)
        return to_unit(pixels).contiguous() if deep and not raw else pixels.contiguous()

    return decode_file(file, decode)


def read_mask(file: str | Path) -> Tensor:
    """Read a mask as class numbers, int64: grays of 1, 8 or 16 bits as they are, palette images by their indices."""

    def decode(picture: Any) -> Tensor:
        if picture.mode not in ("1", "L", "P") and not picture.mode.startswith("I"):
            raise Refused(f"is not a mask: it has mode {picture.mode}; masks are gray or palette images of classes")
        return torch.from_numpy(np.array(picture).astype(np.int64))

    return decode_file(file, decode)


def sides(size: int | tuple[int, int] | None, name: str) -> tuple[int, int] | None:
    """``(height, width)`` of a size given as one number or two."""
    if size is None:
        return None
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or not all(isinstance(n, int) and n >= 1 for n in pair):
        raise ValueError(f"{name} is one number of pixels or (height, width), at least 1, got {size!r}")
    return pair[0], pair[1]
