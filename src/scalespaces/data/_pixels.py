"""Pixels of image files: pictures as bytes, masks as class numbers, and batches as floats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from scalespaces._extras import require

T = TypeVar("T")
SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp", ".ppm", ".pgm")
"""The files in a folder that are taken for images."""


def to_unit(images: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Bytes from 0 to 255 as floats from 0 to 1, on the device they are on; floats as they are.

    Args:
        images: of any shape.
        dtype: of the result; float32 for bytes when left out.

    Example:
        >>> to_unit(torch.tensor([0, 51, 255], dtype=torch.uint8))
        tensor([0.0000, 0.2000, 1.0000])
    """
    if images.is_floating_point():
        return images if dtype is None else images.to(dtype)
    if images.dtype != torch.uint8:
        raise ValueError(f"images are uint8 or floating point, got {images.dtype}")
    return images.to(dtype or torch.float32) / 255


def decode_file(file: str | Path, decode: Callable[[Any], T], extra: str = "train") -> T:
    """Open a file with Pillow and decode it; whatever is wrong with it is a ValueError that names the file."""
    pillow = require("PIL.Image", extra)
    try:
        with Path(file).open("rb") as stream, pillow.open(stream) as picture:
            return decode(picture)
    except OSError as error:
        if error.strerror:  # of the file; without, what Pillow says of its contents
            raise ValueError(f"cannot read {str(file)!r}: {error.strerror}") from error
        raise ValueError(f"{str(file)!r} is not an image that Pillow reads: {error}") from error
    except Refused as error:
        raise ValueError(f"{str(file)!r} {error}") from None
    except Exception as error:  # broken files make Pillow raise errors of every kind
        raise ValueError(f"{str(file)!r} is not an image that Pillow reads: {error}") from error


class Refused(ValueError):
    """What a file must not be; the file's name goes before it."""


def read_pixels(file: str | Path, *, deep: bool = False, size: tuple[int, int] | None = None) -> Tensor:
    """Read an image as three channels: greys are repeated, palettes looked up, transparency is dropped.

    Args:
        file: the image; of several frames, the first.
        deep: read images of 16 bits per pixel, too, as float32 from 0 to 1 (the largest number of 16 bits), and
            of floating point as they are; then those of 8 bits become float32 as well. Otherwise they are refused.
            Of color images with 16 bits per channel, Pillow reads the upper 8.
        size: ``(height, width)`` to bring the image to, by bicubic resampling and a cut around the center.

    Shape:
        - Output: :math:`(3, H, W)`, uint8; float32 with ``deep``
    """
    return decode_file(file, lambda picture: _pixels(picture, deep, size))


def _pixels(picture: Any, deep: bool, size: tuple[int, int] | None) -> Tensor:
    has_more = picture.mode.startswith(("I", "F"))
    if has_more and not deep:
        raise Refused(
            f"has more than 8 bits per pixel (mode {picture.mode}); read it with deep=True, as float32, or convert it"
        )
    picture = _float_picture(picture) if has_more else picture.convert("RGB")
    if size is not None:
        fit, bicubic = require("PIL.ImageOps", "train").fit, require("PIL.Image", "train").Resampling.BICUBIC
        picture = fit(picture, size[::-1], bicubic)
    pixels = torch.from_numpy(np.array(picture))
    pixels = pixels.expand(3, *pixels.shape) if pixels.ndim == 2 else pixels.permute(2, 0, 1)
    return to_unit(pixels).contiguous() if deep else pixels.contiguous()


def _float_picture(picture: Any) -> Any:
    values = np.array(picture).astype(np.float32)
    if picture.mode.startswith("I"):
        if values.min() < 0 or values.max() > 65535:
            raise Refused("has numbers beyond 16 bits, whose range is unknown; convert it to 16 bits or floating point")
        values = values / np.float32(65535)
    return require("PIL.Image", "train").fromarray(values)


def read_mask(file: str | Path) -> Tensor:
    """Read a mask as class numbers: greys of 1, 8 or 16 bits as they are, palette images by their indices.

    Shape:
        - Output: :math:`(H, W)`, int64
    """
    return decode_file(file, _class_numbers)


def _class_numbers(picture: Any) -> Tensor:
    if picture.mode not in ("1", "L", "P") and not picture.mode.startswith("I"):
        raise Refused(
            f"is no mask: it has mode {picture.mode}, where one class number per pixel is expected (gray or palette)"
        )
    return torch.from_numpy(np.array(picture).astype(np.int64))


def random_crop(
    image: Tensor, mask: Tensor, size: tuple[int, int] | None, flip: bool, generator: np.random.Generator, where: str
) -> tuple[Tensor, Tensor]:
    """Cut the same random window from an image and its mask, and mirror both left to right in half the cases."""
    if size is not None:
        room = [n - m for n, m in zip(mask.shape, size, strict=True)]
        if min(room) < 0:
            raise ValueError(
                f"{where!r} is {mask.shape[1]} x {mask.shape[0]} pixels, smaller than the crop, "
                f"{size[1]} x {size[0]}; use a smaller crop"
            )
        top, left = (int(generator.integers(n + 1)) for n in room)
        window = (..., slice(top, top + size[0]), slice(left, left + size[1]))
        image, mask = image[window], mask[window]
    if flip and generator.integers(2):
        image, mask = image.flip(-1), mask.flip(-1)
    return image.contiguous(), mask.contiguous()


def sides(size: int | tuple[int, int] | None, name: str) -> tuple[int, int] | None:
    """``(height, width)`` of a size given as one number or two."""
    if size is None:
        return None
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or not all(isinstance(n, int) and n >= 1 for n in pair):
        raise ValueError(f"{name} is one number of pixels or (height, width), at least 1, got {size!r}")
    return pair[0], pair[1]
