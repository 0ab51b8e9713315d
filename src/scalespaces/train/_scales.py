"""What people do about scale with networks that know nothing of it: resize images, ask at several scales, jitter."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scalespaces._torch import full_precision
from scalespaces.functional._sampling import fold
from scalespaces.models._network import ImageTooSmallError
from scalespaces.theory._arguments import check_choice, check_real

How = Literal["mean", "select"]
Fill = Literal["zeros", "reflect"]


def rescale_batch(images: Tensor, scale: float) -> Tensor:
    """Resize whole images by a factor: bicubic, antialiased where they shrink, and kept in the range of each image.

    Sides of n pixels get ``round(n * scale)``, at least 1. If that changes neither, the images are given back.

    Shape:
        - images: :math:`(B, C, H, W)`, floating point
        - Output: :math:`(B, C, H', W')`

    Example:
        >>> rescale_batch(torch.rand(2, 3, 96, 64), 0.5).shape
        torch.Size([2, 3, 48, 32])
    """
    check_real("scale", scale, "> 0", lambda s: s > 0)
    size = tuple(max(1, round(n * scale)) for n in images.shape[2:])
    if size == images.shape[2:]:
        return images
    resized = F.interpolate(_float(images), size, mode="bicubic", antialias=True)
    low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
    return resized.to(images.dtype).clamp(low, high)


class TooSmallError(ValueError):
    """Images that a network cannot take at a scale."""


def at_scale(model: Callable[[Tensor], Tensor], images: Tensor, scale: float) -> Tensor:
    """Log-probabilities that a network gives for resized images; of pixels, at the images' own size.

    Args:
        model: from images to logits, ``(B, classes)`` or ``(B, classes, H, W)``.
        images: ``(B, C, H, W)``.
        scale: by which they are resized first, see :func:`rescale_batch`.

    Raises:
        TooSmallError: If the network takes images of this size and not of the smaller one.
    """
    size, resized = images.shape[2:], rescale_batch(images, scale)
    try:
        logits = _float(model(resized))
    except TooSmallError:
        raise
    except (ValueError, RuntimeError) as error:
        small = min(resized.shape[2:]) < min(size) or isinstance(error, ImageTooSmallError)
        if not small or isinstance(error, torch.OutOfMemoryError):
            raise
        sides = "{} x {} pixels are {} x {}".format(*size, *resized.shape[2:])
        raise TooSmallError(f"at scale {scale:g}, images of {sides}: {error}") from error
    if logits.ndim == 2 or logits.shape[2:] == size:
        return logits.log_softmax(1)
    # Antialiased, so that every pixel of the answer counts where it shrinks.
    probabilities = F.interpolate(logits.softmax(1), size, mode="bilinear", antialias=True)
    return probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny).log()


class MultiScale(nn.Module):
    r"""A network that is asked at several scales of the image.

    ``"mean"`` is test-time augmentation: the mean of the probabilities at all scales,
    :math:`\log \frac1n \sum_s p_s`. ``"select"`` selects a scale for every image: the one whose answer has the lowest
    entropy, :math:`-\sum_i p_s^i \log p_s^i`, on average over pixels if every pixel has an answer.

    Args:
        model: from images to logits, ``(B, classes)`` or ``(B, classes, H, W)``.
        scales: by which images are resized, see :func:`rescale_batch`.
        how: ``"mean"`` or ``"select"``.

    Shape:
        - Input: :math:`(B, C, H, W)`
        - Output: log-probabilities, :math:`(B, classes)` or :math:`(B, classes, H, W)`

    Example:
        >>> model = scalespaces.models.create_model("densenet").eval()
        >>> round(MultiScale(model, [0.5, 1, 2])(torch.rand(1, 3, 32, 32)).exp().sum().item(), 4)
        1.0
    """

    def __init__(self, model: Callable[[Tensor], Tensor], scales: Sequence[float], how: How = "mean") -> None:
        super().__init__()
        if not scales:
            raise ValueError("scales has at least one scale, got none")
        self.model, self.how = model, check_choice("how", how, get_args(How))
        self.scales = tuple(check_real("scale", scale, "> 0", lambda s: s > 0) for scale in scales)

    def forward(self, images: Tensor) -> Tensor:
        """Ask at every scale, one after another."""
        answer = at_scale(self.model, images, self.scales[0])
        lowest = _entropy(answer)
        for scale in self.scales[1:]:
            other = at_scale(self.model, images, scale)
            if self.how == "mean":
                answer = torch.logaddexp(answer, other)
            else:
                entropy = _entropy(other)
                better = (entropy < lowest).view(-1, *[1] * (other.ndim - 1))
                answer, lowest = torch.where(better, other, answer), torch.minimum(entropy, lowest)
        return answer - math.log(len(self.scales)) if self.how == "mean" else answer

    def extra_repr(self) -> str:
        """The scales, and what is done with them."""
        return f"scales={self.scales}, how={self.how!r}"


# --- jitter ----------------------------------------------------------------------------------------------------------


def jitter(
    images: Tensor,
    target: Tensor,
    indices: Tensor | Sequence[int],
    epoch: int,
    seed: int = 0,
    low: float = 0.5,
    high: float = 2.0,
    *,
    fill: Fill = "zeros",
    ignore_index: int = 255,
) -> tuple[Tensor, Tensor]:
    """Scale jitter: show every image of a batch larger or smaller, by a factor of its own, on the same canvas.

    Factors are functions of the seed, the epoch and the sample's index alone; see :func:`zoom`.

    Args:
        images: ``(B, C, H, W)``, floating point.
        target: classes ``(B,)``, which stay as they are, or masks ``(B, H, W)``, which follow the images.
        indices: of the samples in their dataset, best on the CPU, where the numbers are drawn.
        epoch: at least 0.
        seed: of the experiment.
        low: smallest factor.
        high: largest factor.
        fill: what lies outside of an image, ``"zeros"`` or ``"reflect"``.
        ignore_index: the number of pixels outside of a mask.

    Returns:
        The images and the target.

    Example:
        >>> images, target = torch.rand(2, 3, 96, 96), torch.tensor([0, 1])
        >>> jitter(images, target, indices=[17, 4], epoch=3, low=0.5, high=2.0)[0].shape
        torch.Size([2, 3, 96, 96])
    """
    if len(indices) != len(images):
        raise ValueError(f"one index for each of {len(images)} images is needed, got {len(indices)}")
    factors = draw_scales(indices, epoch, seed, low, high)
    return zoom(images, factors, fill), zoom_masks(target, factors, ignore_index) if target.ndim > 1 else target


def draw_scales(
    indices: Tensor | Sequence[int], epoch: int, seed: int = 0, low: float = 0.5, high: float = 2.0
) -> Tensor:
    """Factors between ``low`` and ``high``, uniform on a logarithmic axis, of samples in an epoch.

    The random numbers are others than those of ``keyed_generator`` for the same key.

    Shape:
        - Output: :math:`(B,)`, float64 on the CPU

    Example:
        >>> draw_scales([3, 14], epoch=0) == draw_scales([14, 3], epoch=0).flip(0)
        tensor([True, True])
    """
    check_real("low", low, "> 0", lambda s: s > 0)
    check_real("high", high, f">= low, which is {low:g}", lambda s: s >= low)
    keys = [(int(epoch), int(index), 1) for index in (indices.tolist() if isinstance(indices, Tensor) else indices)]
    draws = [np.random.default_rng(np.random.SeedSequence(int(seed), spawn_key=key)).uniform() for key in keys]
    return low * (high / low) ** torch.tensor(draws, dtype=torch.float64)


def zoom(images: Tensor, factors: Tensor, fill: Fill = "zeros") -> Tensor:
    r"""Resize each image of a batch about its center, by a factor of its own, on the same canvas.

    Pixel :math:`z` is the mean of the image around :math:`c + (z - c) / a`, weighted with a triangle two pixels wide:
    of the image, or of the result where they are larger. That is bilinear interpolation, antialiased, and two products
    with matrices, one for each axis.

    Args:
        images: ``(B, C, H, W)``, floating point.
        factors: ``(B,)``, on the CPU.
        fill: what lies outside of an image: ``"zeros"``, or ``"reflect"`` for its mirror image.

    Example:
        >>> zoom(torch.ones(1, 1, 8, 8), torch.tensor([0.5])).sum()
        tensor(16.)
    """
    check_choice("fill", fill, get_args(Fill))
    with full_precision(images):
        rows, columns = (_weights(n, factors.double(), fill, images).unsqueeze(1) for n in images.shape[2:])
        return (rows @ _float(images) @ columns.mT).to(images.dtype)


def zoom_masks(masks: Tensor, factors: Tensor, ignore_index: int = 255) -> Tensor:
    """Resize masks as :func:`zoom` resizes their images: the nearest pixel, and ``ignore_index`` outside.

    Example:
        >>> zoom_masks(torch.tensor([[[0, 1, 2, 3]]]), torch.tensor([0.5]))
        tensor([[[255,   1,   3, 255]]])
    """
    rows, columns = (_origins(n, factors.double()).add(0.5).floor().long().to(masks.device) for n in masks.shape[1:])
    (height, width), rows, columns = masks.shape[1:], rows.unsqueeze(2), columns.unsqueeze(1)
    nearest = masks.gather(1, rows.clamp(0, height - 1).expand_as(masks))
    nearest = nearest.gather(2, columns.clamp(0, width - 1).expand_as(masks))
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    return nearest.where(inside, ignore_index)


def _origins(n: int, factors: Tensor) -> Tensor:
    """Where each of n pixels comes from: ``(B, n)``."""
    center = (n - 1) / 2
    return center + (torch.arange(n, device=factors.device) - center) / factors.unsqueeze(1)


def _weights(n: int, factors: Tensor, fill: Fill, like: Tensor) -> Tensor:
    """The matrices of an axis, ``(B, n, n)``: from the image to the result."""
    shrunk = max(1.0, 1 / float(factors.min()))
    margin = math.ceil((n - 1) / 2 * (shrunk - 1) + shrunk)  # as far as any pixel looks beyond the image
    factors = factors.to(like.device, torch.float32 if like.device.type == "mps" else torch.float64)
    place = torch.arange(-margin, n + margin, device=like.device)
    width = (1 / factors).clamp(min=1)[:, None, None]
    weights = (1 - (place - _origins(n, factors).unsqueeze(2)).abs() / width).clamp(min=0)
    weights = weights / weights.sum(2, keepdim=True)
    if fill == "zeros":
        weights = weights[..., margin : margin + n]
    else:
        weights = weights @ F.one_hot(fold(place, n, "reflect"), n).to(weights)
    return weights.to(_float(like).dtype)


def _float(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _entropy(log_probabilities: Tensor) -> Tensor:
    """The entropy of each image's answer, on average over pixels: ``(B,)``."""
    pointwise = -(log_probabilities.exp() * log_probabilities).sum(1)
    return pointwise.flatten(1).mean(1) if pointwise.ndim > 1 else pointwise
