"""What the networks have in common: the lift, and what can be had of their levels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from scalespaces.functional import ScaleSpace, feature_pyramid, resample
from scalespaces.functional._conv import check_scale_padding
from scalespaces.functional._lift import Sampling
from scalespaces.functional._pool import WINDOWS
from scalespaces.models._card import Card
from scalespaces.nn import Lift, checkpoint
from scalespaces.theory._checks import check_choice, check_integer
from scalespaces.theory._scale import Base


class ScaleNetwork(nn.Module):
    r"""An image is lifted, features of every level are computed, and levels are pooled into one answer.

    ``model(image)`` is the answer. With ``return_levels=True`` the class scores of every level, before they are
    pooled, come out beside it.

    Args:
        in_channels: channels of the image.
        layout: levels :math:`k` of the filters of each layer in turn, and None for each 2 x 2 pooling of stride 2.
        num_levels: levels that are pooled in the end. With ``scale_padding="valid"`` as many more are lifted as the
            filters use up, :math:`\sum (k - 1)`.
        base: dilation :math:`c` between levels.
        zero_scale: :math:`s_0`, the variance of the blur the image comes with.
        method: ``"direct"`` (the paper's lift) or ``"cascade"`` (the exact one).
        sampling: ``"dense"`` (the paper's), ``"pyramid"``, or a number of samples between them.
        scale_padding: ``"zeros"`` (the paper's), ``"replicate"`` or ``"valid"``.
        first_level: negative for levels finer than the image.
        window: windows of the poolings, ``"plain"`` (the paper's) or ``"dilated"``.

    The last level must still be pooled: images have at least ``smallest_side`` pixels along each side.
    """

    config: dict[str, Any]
    """Name and all arguments, set by :func:`~scalespaces.models.create_model`: ``create(**config)`` builds its like."""
    card: Card
    """What predictions need beside the network; may be set, and is saved with it."""
    recompute: bool = False
    """Keep only the inputs of the blocks while training, and compute the rest again for the gradient; may be set."""

    def __init__(
        self,
        in_channels: int,
        layout: Sequence[int | None],
        num_levels: int,
        base: Base,
        zero_scale: float,
        method: str,
        sampling: Sampling,
        scale_padding: str,
        first_level: int,
        window: str,
    ) -> None:
        super().__init__()
        deepest = max(k for k in layout if k is not None)
        check_integer("num_levels", num_levels, 1)
        check_scale_padding(scale_padding, deepest, deepest)
        check_choice("window", window, WINDOWS)
        if scale_padding == "zeros" and deepest > num_levels:
            raise ValueError(
                f"a filter of {deepest} levels never meets its last one in a space of {num_levels}; use filter_levels "
                f"of at most {num_levels}, more num_levels, or another scale_padding"
            )
        used_up = [k and k - 1 if scale_padding == "valid" else 0 for k in layout]
        lifted = num_levels + sum(k or 0 for k in used_up)
        self.in_channels, self.window = in_channels, window
        self.lift = Lift(lifted, base, zero_scale, method=method, sampling=sampling, first_level=first_level)
        self.levels_pooled = [lifted - sum(k or 0 for k in used_up[:n]) for n, k in enumerate(layout) if k is None]

    @property
    def smallest_side(self) -> int:
        """How many pixels an image needs along each side, so that every pooling finds a window at its last level."""
        plan, side, zero = self.lift.plan, 1, -self.lift.first_level
        if not isinstance(plan.base, float):
            return 1  # each window says itself when it does not fit
        for n, levels in enumerate(self.levels_pooled, 1):
            last, samples = levels - 1, 1
            spacing = plan.base ** (last - zero) / plan.steps[last] if self.window == "dilated" else 1.0
            for _ in range(n):
                samples = _whole(1 + spacing + 2 * (samples - 1))
            # Each level is read off the one before, and whole samples of it.
            ratios = [plan.steps[k] / plan.steps[k - 1] for k in range(last, zero, -1)]
            for ratio in ratios if last >= zero else [plan.steps[last]]:
                samples = _whole(1 + ratio * (samples - 1))
            side = max(side, samples)
        return side

    def rows(self) -> list[nn.Module]:
        """The modules that make up the rows of the paper's table, in their order."""
        raise NotImplementedError

    def body(self, levels: ScaleSpace) -> ScaleSpace:
        """The features of the lifted image."""
        raise NotImplementedError

    def scores(self, features: ScaleSpace) -> ScaleSpace:
        """The class scores of every sample of every level."""
        raise NotImplementedError

    def pool(self, features: ScaleSpace, size: Sequence[int]) -> Tensor:
        """The answer for an image of that size: the class scores, pooled over levels."""
        raise NotImplementedError

    def answers(self, features: ScaleSpace, size: Sequence[int]) -> Tensor:
        """The answer of each level for an image of that size: one more axis in front than what levels pool to."""
        raise NotImplementedError

    def through(self, block: nn.Module, *inputs: ScaleSpace) -> ScaleSpace:
        """Apply a block, the way ``recompute`` says."""
        return checkpoint(block, *inputs) if self.recompute else block(*inputs)

    def features(self, image: Tensor) -> ScaleSpace:
        """The features of every level, up to the pooling over levels: what is equivariant."""
        if image.ndim != 4 or image.shape[1] != self.in_channels:
            raise ValueError(
                f"images are (B, {self.in_channels}, height, width), got shape {tuple(image.shape)}; build the model "
                "with in_channels for others"
            )
        # A symbolic size (torch.export) is left to the poolings.
        if any(isinstance(n, int) and n < self.smallest_side for n in image.shape[2:]):
            raise ValueError(
                f"{self.lift.num_levels} levels and {len(self.levels_pooled)} poolings need images of at least "
                f"{self.smallest_side} pixels along each side, got {tuple(image.shape[2:])}; use fewer num_levels, a "
                "smaller base, or larger images"
            )
        levels = self.lift(image)
        if image.stride(1) == 1:  # channels last: levels that were cut or gathered may not be
            levels = levels.map(lambda level: level.contiguous(memory_format=torch.channels_last))
        return self.body(levels)

    def forward(self, image: Tensor, *, return_levels: bool = False) -> Any:
        """The class scores; with ``return_levels`` a pair, the second of which has the scores of every level."""
        features = self.features(image)
        answer = self.pool(features, image.shape[2:])
        return (answer, self.scores(features)) if return_levels else answer

    def level_answers(self, image: Tensor) -> Tensor:
        """Every level's own class scores, coarse levels last: ``(S, B, classes)``, or ``(S, B, classes, H, W)``.

        They can be pooled in other ways than the network does, or each be trained by itself.
        """
        return self.answers(self.features(image), image.shape[2:])

    def pyramid(self, image: Tensor) -> dict[str, Tensor]:
        """The features as a pyramid, for detection and segmentation heads: level k with step :math:`c^k`, by number."""
        return feature_pyramid(self.features(image))

    def scale_map(self, image: Tensor) -> Tensor:
        """At every pixel the number of the level with the highest score for the predicted class: ``(B, H, W)``."""
        features, size = self.features(image), image.shape[2:]
        predicted = _on_pixels(self.pool(features, size).argmax(1, keepdim=True), size)
        levels = [_on_pixels(level, size) for level in resample(self.scores(features), size).levels]
        return torch.cat([level.gather(1, predicted) for level in levels], 1).argmax(1) + self.lift.first_level


def _whole(samples: float) -> int:
    """The least number of samples that is enough, but for rounding."""
    return math.ceil(samples - 1e-9)


def _on_pixels(scores: Tensor, size: Sequence[int]) -> Tensor:
    """The scores of an image as a whole, at each of its pixels; scores of pixels as they are."""
    return scores if scores.ndim == 4 else scores[..., None, None].expand(-1, -1, *size)


def per_place(filter_levels: int | Sequence[int], places: Sequence[bool]) -> tuple[int, ...]:
    """One number of levels for each place: a single one goes where the paper has deep filters."""
    if isinstance(filter_levels, int):
        filter_levels = [filter_levels if deep else 1 for deep in places]
    if len(filter_levels) != len(places):
        raise ValueError(f"filter_levels is a number or one for each of {len(places)} places, got {filter_levels}")
    return tuple(check_integer("filter_levels", k, 1) for k in filter_levels)
