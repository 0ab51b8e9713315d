"""An image that is always there, for demos, figures and tests."""

from importlib import resources

import numpy as np
import torch

from scalespaces._extras import require


def photograph(size: int | None = None) -> torch.Tensor:
    """Return a real colour photograph, 512 x 512 pixels, bundled with the package.

    It is NASA's portrait of the astronaut Eileen Collins, in the public domain; ``data/README.md`` tells where it
    comes from. Reading it needs Pillow (extra ``plot``).

    Args:
        size: Side of the centre crop; the whole photograph by default.

    Shape:
        - Output: :math:`(1, 3, H, W)`, float32 in [0, 1], sRGB; ``H = W = size``

    Example:
        >>> photograph(size=256).shape
        torch.Size([1, 3, 256, 256])
    """
    image_module = require("PIL.Image", "plot")
    with resources.files("scalespaces.data").joinpath("astronaut.jpg").open("rb") as file:
        pixels = np.array(image_module.open(file).convert("RGB"))
    image = torch.from_numpy(pixels).permute(2, 0, 1).unsqueeze(0).float() / 255
    if size is None:
        return image.contiguous()
    height, width = image.shape[-2:]
    if not 1 <= size <= min(height, width):
        raise ValueError(f"size must be from 1 to {min(height, width)}, the photograph's side, got {size}")
    top, left = (height - size) // 2, (width - size) // 2
    return image[..., top : top + size, left : left + size].contiguous()
