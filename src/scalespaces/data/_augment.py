"""The paper's augmentation for PCam: on batches, on their device, keyed by (seed, epoch, sample)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from scalespaces.data._keys import keyed_generator
from scalespaces.data._pixels import to_unit


@dataclass(frozen=True)
class PCamAugment:
    r"""The paper's augmentation of patches: flips, rotations, jitter and color, after Liu et al. (2017).

    Rotations are by quarter turns; with flips, these are the eight symmetries of the square. Jitter moves a patch by
    whole pixels, with reflection at its borders. Colors change as with TensorFlow's ``random_*`` functions, in the
    order of the fields, and are clipped to [0, 1] after each. The changes depend on seed, epoch and index alone.
    """

    seed: int = 0
    jitter: int = 8  # largest move along each axis, in pixels
    brightness: float = 64 / 255  # largest |b| in x + b
    saturation: float = 0.25  # largest |s| in x (1 + s), in HSV
    hue: float = 0.04  # largest turn of the colors, as a share of the circle
    contrast: float = 0.75  # largest |c| in m + (1 + c)(x - m), with each channel's mean m

    def __call__(self, images: Tensor, indices: Tensor | Sequence[int], epoch: int) -> Tensor:
        """Augment square images with these indices (best on the CPU) in their dataset; the result is in [0, 1]."""
        if len(indices) != len(images):
            raise ValueError(f"one index for each of {len(images)} images is needed, got {len(indices)}")
        places, colors = self.draw(indices, epoch)
        moved = to_unit(move(images, places.to(images.device, non_blocking=True)))
        return recolor(moved, *colors.to(moved, non_blocking=True).unbind(1))

    def draw(self, indices: Tensor | Sequence[int], epoch: int) -> tuple[Tensor, Tensor]:
        """Draw ``(B, 4)`` integers (turns, flip, rows, columns) and floats (brightness, saturation, hue, contrast)."""
        deltas = np.array([self.brightness, self.saturation, self.hue, self.contrast])
        places, colors = np.empty((len(indices), 4), np.int64), np.empty((len(indices), 4))
        for row, index in enumerate(indices.tolist() if isinstance(indices, Tensor) else indices):
            generator = keyed_generator(self.seed, epoch, index)
            places[row, :2] = generator.integers([4, 2])
            places[row, 2:] = generator.integers(-self.jitter, self.jitter + 1, 2)
            colors[row] = generator.uniform(-deltas, deltas)
        return torch.from_numpy(places), torch.from_numpy(colors)


def move(images: Tensor, places: Tensor) -> Tensor:
    """Move images ``(B, C, N, N)`` down and right, reflected at the borders, turn and flip them, in this order."""
    # A row of places has the counter-clockwise quarter turns, 1 to flip left to right, and the rows and columns.
    side = images.shape[-1]
    if images.shape[-2] != side:
        raise ValueError(f"quarter turns need square images, got {images.shape[-1]} x {images.shape[-2]}")
    turns, flip, down, right = (column[:, None] for column in places.unbind(1))
    row = torch.arange(side, device=images.device)[None]
    column = torch.where(flip == 1, side - 1 - row, row)

    def source(along: Tensor, mirrored: Tensor, shift: Tensor) -> Tensor:
        index, last = torch.where(mirrored, side - 1 - along, along) - shift, max(side - 1, 1)
        return (last - (last - index.remainder(2 * last)).abs()).clamp(max=side - 1)  # reflected at the borders

    # The pixel at (r, c) comes from (r, c), (c, -r), (-r, -c) or (-c, r), for 0 to 3 quarter turns. So the row it comes
    # from depends on one of the two, the column on the other, and the index in the plane is a sum.
    upside, sideways, turned = turns >= 2, (turns == 1) | (turns == 2), turns % 2 == 1
    of_row = torch.where(turned, source(row, sideways, right), side * source(row, upside, down))
    of_column = torch.where(turned, side * source(column, upside, down), source(column, sideways, right))
    index = (of_row[:, :, None] + of_column[:, None]).flatten(1)[:, None].expand(-1, images.shape[1], -1)
    return images.flatten(2).gather(2, index).view(images.shape)


def recolor(images: Tensor, brightness: Tensor, saturation: Tensor, hue: Tensor, contrast: Tensor) -> Tensor:
    r"""Change the colors of each image of a batch, as :class:`PCamAugment` says; zeros change nothing.

    Saturation and hue change in HSV, without an image in HSV: with the value :math:`V` (the largest channel), the
    chroma :math:`C` (largest minus smallest) and the hue :math:`h` in sixths of the circle, a channel is

    .. math:: V - C \, \big[2 - |(h + n) \bmod 6 - 2|\big]_0^1, \qquad n = 5, 3, 1 \text{ for red, green, blue}

    The saturation is :math:`C / V`, at most 1, so multiplying it means multiplying :math:`C`, up to :math:`V`.
    """
    brightness, saturation, hue, contrast = (
        column[:, None, None, None] for column in (brightness, saturation, hue, contrast)
    )
    images = (images + brightness).clamp_(0, 1)
    red, green, blue = images.split(1, 1)
    value = images.amax(1, keepdim=True)
    chroma = value - images.amin(1, keepdim=True)
    # The hue times the chroma, from the channel that is the largest.
    sixths = torch.where(value == green, (blue - red).add_(chroma, alpha=2), (red - green).add_(chroma, alpha=4))
    sixths = torch.where(value == red, green - blue, sixths)
    sixths = sixths.div_(chroma.clamp(min=torch.finfo(images.dtype).tiny)).add_(6 * hue)  # greys have no hue
    chroma = torch.minimum(chroma.mul_((1 + saturation).clamp(min=0)), value)
    shifts = torch.arange(5, 0, -2, device=images.device)[:, None, None]
    images = (sixths + shifts).remainder_(6).sub_(2).abs_().neg_().add_(2).clamp_(0, 1)
    images = images.mul_(chroma).neg_().add_(value)
    mean = images.mean((-2, -1), keepdim=True)  # each channel's, as TensorFlow does
    return images.sub_(mean).mul_(1 + contrast).add_(mean).clamp_(0, 1)
