"""Images at another size: what a change of scale means when networks are measured and calibrated."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from scalespaces.theory._arguments import check_real


def rescale_batch(images: Tensor, scale: float) -> Tensor:
    """Resize images ``(B, C, H, W)`` by a factor: bicubic, antialiased, clamped to the range of each image."""
    check_scales([scale])
    size = tuple(max(1, round(n * scale)) for n in images.shape[2:])
    if size == images.shape[2:]:
        return images
    resized = F.interpolate(as_float(images), size, mode="bicubic", antialias=True)
    low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
    return resized.to(images.dtype).clamp(low, high)


def check_scales(scales: Sequence[float]) -> list[float]:
    """The scales, if there are any, and all are above 0."""
    if not scales:
        raise ValueError("scales has at least one scale, got none")
    return [check_real("scale", scale, "> 0", lambda s: s > 0) for scale in scales]


def as_float(x: Tensor) -> Tensor:
    """In float32 at least."""
    return x if x.dtype == torch.float64 else x.float()
