"""Ways to handle scale: resize images, evaluate a network at several scales, and scale jitter for training."""

import math
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scalespaces._choices import Fill
from scalespaces._torch import full_precision
from scalespaces.functional._sampling import fold
from scalespaces.models._calibrate import as_float, check_scales, rescale_batch
from scalespaces.models._network import ImageTooSmallError
from scalespaces.theory._arguments import check_choice, check_real

How = Literal["mean", "select"]


def at_scale(model: Callable[[Tensor], Tensor], images: Tensor, scale: float) -> Tensor:
    """The log-probabilities of a network for resized images; those of pixels are resized back."""
    size, resized = images.shape[2:], rescale_batch(images, scale)
    try:
        logits = as_float(model(resized))
    except (ValueError, RuntimeError) as error:
        small = min(resized.shape[2:]) < min(size) or isinstance(error, ImageTooSmallError)
        if not small or isinstance(error, torch.OutOfMemoryError):
            raise
        sides = "{} x {} pixels are {} x {}".format(*size, *resized.shape[2:])
        raise ImageTooSmallError(f"at scale {scale:g}, images of {sides}: {error}") from error
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


def _entropy(log_probabilities: Tensor) -> Tensor:
    """The entropy of each image's answer, averaged over pixels: ``(B,)``."""
    pointwise = -(log_probabilities.exp() * log_probabilities).sum(1)
    return pointwise.flatten(1).mean(1) if pointwise.ndim > 1 else pointwise


def draw_scales(
    indices: Tensor | Sequence[int], epoch: int, seed: int = 0, low: float = 0.5, high: float = 2.0
) -> Tensor:
    """A factor between ``low`` and ``high``, log-uniform, for each sample: a function of seed, epoch and index only."""
    # The random numbers differ from those of keyed_generator for the same key. They are float64, on the CPU.
    check_real("low", low, "> 0", lambda s: s > 0)
    check_real("high", high, f">= low, which is {low:g}", lambda s: s >= low)
    keys = [(int(epoch), int(index), 1) for index in (indices.tolist() if isinstance(indices, Tensor) else indices)]
    draws = [np.random.default_rng(np.random.SeedSequence(int(seed), spawn_key=key)).uniform() for key in keys]
    return low * (high / low) ** torch.tensor(draws, dtype=torch.float64)


def zoom(images: Tensor, factors: Tensor, fill: Fill = "zeros") -> Tensor:
    r"""Resize each image of a batch about its center, by a factor of its own, on the same canvas.

    Pixel :math:`z` is the mean of the image around :math:`c + (z - c) / a`, weighted with a triangle two pixels wide:
    pixels of the image or of the result, whichever are larger. That is antialiased bilinear interpolation, as one
    matrix for each axis. Outside of an image there are ``"zeros"``, or its mirror image (``"reflect"``).
    """
    check_choice("fill", fill, get_args(Fill))
    with full_precision(images):
        rows, columns = (_weights(n, factors.double(), fill, images).unsqueeze(1) for n in images.shape[2:])
        return (rows @ as_float(images) @ columns.mT).to(images.dtype)


def zoom_masks(masks: Tensor, factors: Tensor, ignore_index: int = 255) -> Tensor:
    """Resize masks as :func:`zoom` resizes their images: the nearest pixel, and ``ignore_index`` outside."""
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
    margin = math.ceil((n - 1) / 2 * (shrunk - 1) + shrunk)  # how far any pixel looks beyond the image
    factors = factors.to(like.device, torch.float32 if like.device.type == "mps" else torch.float64)
    place = torch.arange(-margin, n + margin, device=like.device)
    width = (1 / factors).clamp(min=1)[:, None, None]
    weights = (1 - (place - _origins(n, factors).unsqueeze(2)).abs() / width).clamp(min=0)
    weights = weights / weights.sum(2, keepdim=True)
    mirrored = F.one_hot(fold(place, n, "reflect"), n).to(weights)
    weights = weights[..., margin : margin + n] if fill == "zeros" else weights @ mirrored
    return weights.to(as_float(like).dtype)
