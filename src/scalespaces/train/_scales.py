"""Evaluation at other scales: resize images, and combine what a network answers at several scales."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scalespaces.models._network import ImageTooSmallError
from scalespaces.theory._arguments import check_choice, check_real

How = Literal["mean", "select"]


def rescale_batch(images: Tensor, scale: float) -> Tensor:
    """Resize images ``(B, C, H, W)`` by a factor: bicubic, antialiased, clamped to the range of each image.

    Sides of n pixels get ``round(n * scale)``, at least 1. If neither changes, the images are returned as they are.

    Example:
        >>> rescale_batch(torch.rand(2, 3, 96, 64), 0.5).shape
        torch.Size([2, 3, 48, 32])
    """
    check_scales([scale])
    size = tuple(max(1, round(n * scale)) for n in images.shape[2:])
    if size == images.shape[2:]:
        return images
    resized = F.interpolate(as_float(images), size, mode="bicubic", antialias=True)
    low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
    return resized.to(images.dtype).clamp(low, high)


class TooSmallError(ValueError):
    """Images that a network cannot take at a scale."""


def at_scale(model: Callable[[Tensor], Tensor], images: Tensor, scale: float) -> Tensor:
    """The log-probabilities of a network for resized images; those of pixels are resized back."""
    size, resized = images.shape[2:], rescale_batch(images, scale)
    try:
        logits = as_float(model(resized))
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
    # Antialiased, so that every pixel counts where the answer shrinks.
    probabilities = F.interpolate(logits.softmax(1), size, mode="bilinear", antialias=True)
    return probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny).log()


class MultiScale(nn.Module):
    r"""A network that is evaluated at several scales of the image.

    ``"mean"`` is test-time augmentation: the mean of the probabilities at all scales,
    :math:`\log \frac1n \sum_s p_s`. ``"select"`` selects a scale for every image: the one whose answer has the lowest
    entropy, :math:`-\sum_i p_s^i \log p_s^i`, averaged over pixels if every pixel has an answer.

    Answers are log-probabilities, ``(B, classes)`` or ``(B, classes, H, W)``.

    Example:
        >>> model = scalespaces.models.create_model("densenet").eval()
        >>> round(MultiScale(model, [0.5, 1, 2])(torch.rand(1, 3, 32, 32)).exp().sum().item(), 4)
        1.0
    """

    def __init__(self, model: Callable[[Tensor], Tensor], scales: Sequence[float], how: How = "mean") -> None:
        super().__init__()
        self.model, self.how = model, check_choice("how", how, get_args(How))
        self.scales = check_scales(scales)

    def forward(self, images: Tensor) -> Tensor:
        """Evaluate at one scale after another."""
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


def check_scales(scales: Sequence[float]) -> list[float]:
    """The scales, if there are any, and all are above 0."""
    if not scales:
        raise ValueError("scales has at least one scale, got none")
    return [check_real("scale", scale, "> 0", lambda s: s > 0) for scale in scales]


def as_float(x: Tensor) -> Tensor:
    """In float32 at least."""
    return x if x.dtype == torch.float64 else x.float()


def _entropy(log_probabilities: Tensor) -> Tensor:
    """The entropy of each image's answer, averaged over pixels: ``(B,)``."""
    pointwise = -(log_probabilities.exp() * log_probabilities).sum(1)
    return pointwise.flatten(1).mean(1) if pointwise.ndim > 1 else pointwise
