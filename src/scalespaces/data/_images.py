"""Images as tensors: from a file, and one that is always there."""

from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scalespaces._extras import require
from scalespaces.data._pixels import decode_file


def read_image(file: str | Path, size: int | None = None) -> torch.Tensor:
    """Read any image that Pillow reads (extra ``plot``).

    Args:
        file: Path of the image.
        size: Side of the center crop; the whole image by default.

    Shape:
        - Output: :math:`(1, C, H, W)`, float32. Images of 8 bits become RGB, from 0 to 1; of 16 bits or floating point
          one channel, divided by its largest value
    """
    return _center(decode_file(file, _decode, "plot"), size)


def photograph(size: int | None = None) -> torch.Tensor:
    """Return a real color photograph, 512 x 512 pixels, bundled with the package.

    It is NASA's portrait of the astronaut Eileen Collins, in the public domain; ``data/README.md`` tells where it
    comes from. Reading it needs Pillow (extra ``plot``).

    Args:
        size: Side of the center crop; the whole photograph by default.

    Shape:
        - Output: :math:`(1, 3, H, W)`, float32 in [0, 1], sRGB; ``H = W = size``

    Example:
        >>> photograph(size=256).shape
        torch.Size([1, 3, 256, 256])
    """
    pillow, file = require("PIL.Image", "plot"), resources.files("scalespaces.data").joinpath("astronaut.jpg")
    with file.open("rb") as stream, pillow.open(stream) as picture:
        return _center(_decode(picture), size)


def _decode(picture: Any) -> torch.Tensor:
    deep = picture.mode.startswith(("I", "F"))  # Pillow would clip these on their way to RGB
    pixels = np.array(picture if deep else picture.convert("RGB"), dtype=np.float32)
    pixels = pixels[..., None] / (np.abs(pixels).max() or 1) if deep else pixels / 255
    return torch.from_numpy(pixels).permute(2, 0, 1).unsqueeze(0)


def _center(image: torch.Tensor, size: int | None) -> torch.Tensor:
    if size is None:
        return image.contiguous()
    height, width = image.shape[-2:]
    if not 1 <= size <= min(height, width):
        raise ValueError(f"size must be from 1 to {min(height, width)}, the image's smaller side, got {size}")
    top, left = (height - size) // 2, (width - size) // 2
    return image[..., top : top + size, left : left + size].contiguous()
