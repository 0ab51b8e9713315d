"""The interface of every network with levels, its card, and the base class of networks built by name."""

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from scalespaces._choices import SCALE_PADDINGS, WINDOWS
from scalespaces._files import most
from scalespaces.functional import feature_pyramid, resample
from scalespaces.functional._resample import on_image
from scalespaces.nn import Lift, P4Conv2d, ScalePool, checkpoint
from scalespaces.nn._conv import ScaleConv
from scalespaces.nn._lift import as_lift
from scalespaces.nn.init import paper_
from scalespaces.space import ScaleSpace
from scalespaces.theory._arguments import check_choice, check_integer

Layout = Sequence[int | None]
Size = Sequence[int]  # of a filter: levels, height and width
LiftLike = Lift | Mapping[str, Any] | None  # a lift, or arguments that differ from a network's own
_LARGEST = sys.float_info.max


class ImageTooSmallError(ValueError):
    """An image is smaller than a network's ``smallest_side``, which the error has, if it is known."""

    smallest_side: int
    way = "use a lift with fewer num_levels or a smaller base, or larger images"


@dataclass(frozen=True)
class Card:
    r"""The input normalization and the class names of a network, kept as its attribute ``card``.

    .. math:: \hat f_i = (f_i - \mu_i) / \sigma_i

    Args:
        classes: names of the classes, in the order of the scores; empty when unknown.
        mean: :math:`\mu_i`, one number per channel; empty without a normalization.
        std: :math:`\sigma_i`, the same.

    Example:
        >>> model = scalespaces.models.create_model("densenet")
        >>> model.card = Card(classes=["normal", "tumor"], mean=[0.7, 0.5, 0.7], std=[0.2, 0.3, 0.2])
        >>> Card.of(model).classes
        ('normal', 'tumor')
    """

    classes: Sequence[str] = ()
    mean: Sequence[float] = ()
    std: Sequence[float] = ()

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, str | bytes | dict) or not isinstance(value, Iterable):
                raise ValueError(f"{name} is a list, got {value!r:.80}")
        classes, mean, std = tuple(self.classes), tuple(self.mean), tuple(self.std)
        if not all(isinstance(name, str) for name in classes) or len(set(classes)) < len(classes):
            raise ValueError(f"classes must be different strings, got {classes!r:.80}")
        numbers = all(isinstance(n, float | int) and not isinstance(n, bool) and abs(n) <= _LARGEST for n in mean + std)
        if not numbers or len(mean) != len(std) or any(value <= 0 for value in std):
            rule = "mean and std need one finite number per channel, and std must be above zero"
            raise ValueError(f"{rule}, got {mean!r:.80} and {std!r:.80}")
        vars(self).update(classes=classes, mean=tuple(map(float, mean)), std=tuple(map(float, std)))

    @classmethod
    def of(cls, model: nn.Module) -> Self:
        """The card of a network; an empty one when it has none."""
        card = getattr(model, "card", None)
        if card is not None and not isinstance(card, cls):
            raise TypeError(f"model.card must be a Card, got {type(card).__name__}")
        return card or cls()

    @classmethod
    def from_json(cls, value: object) -> Self:
        """The card that :meth:`to_json` wrote."""
        if not isinstance(value, dict) or not value.keys() <= {"classes", "mean", "std"}:
            raise ValueError(f"a card has classes, mean and std, got {value!r:.80}")
        return cls(**value)

    def to_json(self) -> dict[str, list[str] | list[float]]:
        """Plain lists."""
        return {name: list(value) for name, value in vars(self).items()}

    def normalize(self, image: Tensor) -> Tensor:
        """The normalized image, of shape ``(..., C, H, W)``; the image itself without a mean."""
        if not self.mean:
            return image
        if image.ndim < 3 or image.shape[-3] != len(self.mean):
            raise ValueError(f"images are (..., {len(self.mean)}, height, width), got shape {tuple(image.shape)}")
        mean, std = (torch.tensor(v, dtype=image.dtype, device=image.device) for v in (self.mean, self.std))
        return (image - mean[:, None, None]) / std[:, None, None]

    def check(self, config: Mapping[str, object]) -> None:
        """Raise an error unless the network with this config has as many classes and channels as the card."""
        for name, key in (("classes", "num_classes"), ("mean", "in_channels")):
            given, expected = len(getattr(self, name)), config.get(key)
            if given and expected is not None and given != expected:
                raise ValueError(f"the card has {given} {name}, but the network has {key}={expected}; they must agree")


class ScaleNetwork(nn.Module):
    """A network with levels: the same interface for networks built by name and for converted ones.

    An image is lifted, every level gets its own scores, and the scores of all levels are combined into one answer:

    =============================  =====================================================================
    ``network(image)``             the answer, as for any network
    ``network.scores(image)``      each level's own answer, a :class:`~scalespaces.space.ScaleSpace`
    ``network.features(image)``    what the scores are computed from, a ScaleSpace
    ``network.weights(image)``     how far each level is trusted, if levels are combined by ``"trust"``
    ``network.lift``               how an image becomes levels, a :class:`~scalespaces.nn.Lift`
    ``network.scale_pool``         how levels are combined, a :class:`~scalespaces.nn.ScalePool`
    ``network.in_channels``        the channels an image must have
    ``network.smallest_side``      the pixels an image must have along each side
    ``network.card``               normalization and class names, a :class:`~scalespaces.models.Card`
    ``network.config``             the arguments that build the same network, as plain values
    =============================  =====================================================================

    The levels of scores have shape ``(B, classes)`` if the network classifies images, and ``(B, classes, H_k, W_k)`` if
    it classifies pixels. Features and scores are what is equivariant: ``assert_equivariant(network, image)``.
    """

    lift: Lift
    scale_pool: ScalePool
    config: dict[str, Any]
    card: Card
    in_channels: int
    prepared: bool = False
    """Whether it is a copy made by :func:`prepare`, for inference only."""

    def __init__(self) -> None:
        super().__init__()
        self.config, self.card = {}, Card()

    def train(self, mode: bool = True) -> Self:
        """Choose between training and evaluation, as in PyTorch; a prepared network can only be evaluated."""
        if mode and self.prepared:
            raise ValueError("a prepared network is for inference; train the network it was made from")
        return super().train(mode)

    @property
    def smallest_side(self) -> int:
        """How many pixels an image needs along each side."""
        return 1

    def scores_and_features(self, image: Tensor) -> tuple[ScaleSpace, ScaleSpace]:
        """Each level's own answer and what it is computed from, together."""
        raise NotImplementedError

    def features(self, image: Tensor) -> ScaleSpace:
        """The features of every level."""
        return self.scores_and_features(image)[1]

    def scores(self, image: Tensor) -> ScaleSpace:
        """Each level's own answer."""
        return self.scores_and_features(image)[0]

    def answer_and_scores(self, image: Tensor) -> tuple[Any, ScaleSpace]:
        """The answer and each level's own, computed together."""
        raise NotImplementedError

    def weights(self, image: Tensor) -> Tensor:
        """How far each level is trusted, by image or by pixel: ``(B, S)`` or ``(B, S, H, W)``."""
        if self.scale_pool.trust is None:
            way = "combine them by trust: scalespaces.calibrate(network, images)"
            raise ValueError(f"levels have weights if they are combined by trust, got {self.scale_pool.mode!r}; {way}")
        return self.scale_pool.trust.weights(*self.scores_and_features(image), image.shape[2:])

    def pyramid(self, image: Tensor) -> dict[str, Tensor]:
        """The features as a pyramid, for detection and segmentation heads: level k with step :math:`c^k`, by number."""
        return feature_pyramid(self.features(image))

    def scale_map(self, image: Tensor) -> Tensor:
        """At every pixel, the number of the level that says most for the predicted class: ``(B, H, W)``.

        That is the one with the highest score, times its weight if levels are combined by trust.
        """
        size = image.shape[2:]
        if self.scale_pool.trust is None:
            return strongest_level(*self.answer_and_scores(image), size)
        answer, level = self.scale_pool.trust(*self.scores_and_features(image), size, return_scale=True)
        chosen = level.gather(1, answer.argmax(1, keepdim=True))[:, 0]
        return chosen if chosen.ndim > 1 else chosen.view(-1, 1, 1).expand(-1, *size)


class NamedNetwork(ScaleNetwork):
    r"""The base of networks built by name. Subclasses define ``blocks`` and :meth:`head`, and some :meth:`pool`.

    ``layout`` has the number of levels :math:`k` of each layer's filters, in order, and None for each 2 x 2 pooling.
    The lift's ``num_levels`` are the levels that come *out*: with ``scale_padding="valid"`` the network lifts to
    :math:`\sum (k - 1)` more, which its filters use up. Other arguments are as in :class:`ResNet`.
    """

    blocks: nn.ModuleList
    recompute: bool = False
    """Whether training keeps only the inputs of blocks, and recomputes the rest in the backward pass; may be set."""

    def __init__(
        self, in_channels: int, layout: Layout, lift: LiftLike, scale_padding: str, window: str, scale_pool: str
    ) -> None:
        super().__init__()
        asked = as_lift(lift, {"num_levels": 1})
        deepest = max(k for k in layout if k is not None)
        check_choice("scale_padding", scale_padding, SCALE_PADDINGS)
        check_choice("window", window, WINDOWS)
        if asked.dims != 2:
            raise ValueError(f"the network is for images, which have 2 spatial axes, got a lift with dims={asked.dims}")
        if scale_padding == "zeros" and deepest > asked.num_levels:
            ways = f"filter_levels of at most {asked.num_levels}, a lift with more num_levels, or another scale_padding"
            rule = f"a filter of {deepest} levels never meets its last one in a space of {asked.num_levels}"
            raise ValueError(f"{rule}; use {ways}")
        if window == "dilated" and None in layout and not isinstance(asked.base, float):
            raise ValueError(f'a matrix base needs plain poolings, got the base {asked.base}; use window="plain"')
        lost = [k - 1 if k and scale_padding == "valid" else 0 for k in layout]
        lifted = asked.num_levels + sum(lost)
        self.in_channels, self.window = check_integer("in_channels", in_channels, 1), window
        self.lift, self.scale_pool = Lift(**dict(asked.config, num_levels=lifted)), ScalePool(scale_pool)
        self.levels_pooled = [lifted - sum(lost[:n]) for n, k in enumerate(layout) if k is None]

    @property
    def smallest_side(self) -> int:
        """Enough pixels for every pooling to find a window at its last level."""
        plan, side, zero = self.lift.plan, 1, -self.lift.first_level
        if not isinstance(plan.base, float):
            return 1  # the poolings raise their own errors
        for n, levels in enumerate(self.levels_pooled, 1):
            last, samples = levels - 1, 1
            spacing = plan.base ** (last - zero) / plan.steps[last] if self.window == "dilated" else 1.0
            for _ in range(n):
                samples = math.ceil(1 + spacing + 2 * (samples - 1) - 1e-9)  # enough samples, up to rounding
            # Each level is computed from the one before, in whole samples.
            ratios = [plan.steps[k] / plan.steps[k - 1] for k in range(last, zero, -1)]
            for ratio in ratios if last >= zero else [plan.steps[last]]:
                samples = math.ceil(1 + ratio * (samples - 1) - 1e-9)
            side = max(side, samples)
        return side

    def body(self, levels: ScaleSpace) -> ScaleSpace:
        """From the lifted image to features: here one block after the other."""
        for block in self.blocks:
            levels = self.through(block, levels)
        return levels

    def head(self, features: ScaleSpace) -> ScaleSpace:
        """From features to each level's scores."""
        raise NotImplementedError

    def pool(self, features: ScaleSpace, size: Sequence[int]) -> Tensor:
        """From features to the answer for an image of that size: here the levels' scores are combined."""
        return self.scale_pool(on_image(self.head(features), size))

    def through(self, block: nn.Module, *inputs: ScaleSpace) -> ScaleSpace:
        """Apply a block, with or without ``recompute``."""
        return checkpoint(block, *inputs) if self.recompute else block(*inputs)

    def features(self, image: Tensor) -> ScaleSpace:
        if image.ndim != 4 or image.shape[1] != self.in_channels:
            expected, shape = f"(B, {self.in_channels}, height, width)", tuple(image.shape)
            remedy = "add a batch axis with image[None]" if image.ndim == 3 else "build it with in_channels for others"
            raise ValueError(f"the network takes images {expected}, got shape {shape}; {remedy}")
        weights = next((p.dtype for p in self.parameters()), image.dtype)
        if image.is_floating_point() and torch.float64 in {image.dtype, weights} and image.dtype != weights:
            way = f"use image.to({weights}), or another precision for the network"
            raise ValueError(f"images have the network's data type, {weights}, got {image.dtype}; {way}")
        # A symbolic size (torch.export) is left to the poolings.
        if any(isinstance(n, int) and n < self.smallest_side for n in image.shape[2:]):
            cause = f"{self.lift.num_levels} levels and {len(self.levels_pooled)} poolings"
            rule = f"{cause} need images of at least {self.smallest_side} pixels along each side"
            error = ImageTooSmallError(f"{rule}, got {tuple(image.shape[2:])}; {ImageTooSmallError.way}")
            error.smallest_side = self.smallest_side
            raise error
        levels = self.lift(image)
        if image.stride(1) == 1:  # channels last: levels that were cut or gathered may not be
            levels = levels.map(lambda level: level.contiguous(memory_format=torch.channels_last))
        return self.body(levels)

    def scores_and_features(self, image: Tensor) -> tuple[ScaleSpace, ScaleSpace]:
        features = self.features(image)
        return self.head(features), features

    def forward(self, image: Tensor) -> Tensor:
        return self.combine(self.features(image), image.shape[2:])

    def answer_and_scores(self, image: Tensor) -> tuple[Tensor, ScaleSpace]:
        features = self.features(image)
        return self.combine(features, image.shape[2:]), self.head(features)

    def combine(self, features: ScaleSpace, size: Sequence[int]) -> Tensor:
        """From features to the answer for an image of that size, where the paper combines levels."""
        if self.scale_pool.trust is not None:
            return self.scale_pool.trust(self.head(features), features, size)
        if self.scale_pool.mode == "probabilities":  # features have none
            return NamedNetwork.pool(self, features, size)
        return self.pool(features, size)


def check_classes(name: str, number: object) -> None:
    """Refuse more classes than fit into memory, before it is taken."""
    if isinstance(number, int | float) and number > most("classes"):
        got = f"{number:,}" if number < 2**63 else "far more"
        rule = f"{name} is at most {most('classes'):,}, got {got}"
        raise ValueError(f"{rule}; to raise the limit, set SCALESPACES_MAX_CLASSES")


def first_channels(model: nn.Module) -> int:
    """The channels of the images a model takes: ``in_channels`` of the first module that has them, or 3."""
    found = (getattr(module, "in_channels", None) for module in model.modules())
    return next((channels for channels in found if isinstance(channels, int)), 3)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and then what was before."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def strongest_level(answer: Tensor, scores: ScaleSpace, size: Sequence[int]) -> Tensor:
    """At every pixel, the number of the level with the highest score for the predicted class."""

    def on_pixels(values: Tensor) -> Tensor:
        return values if values.ndim > 2 else values[(..., *[None] * len(size))].expand(-1, -1, *size)

    if answer.ndim > 2 and answer.shape[2:] != size:  # a converted network's answer is on the grid of level 0
        answer = resample(resample(scores).map(lambda _: answer), size).levels[0]
    predicted = on_pixels(answer.argmax(1, keepdim=True))
    levels = [on_pixels(level).gather(1, predicted) for level in resample(scores, size).levels]
    return torch.cat(levels, 1).argmax(1) + scores.first_level


def per_place(filter_levels: int | Sequence[int], deep: Sequence[bool]) -> tuple[int, ...]:
    """The levels of the filters at each place: a single number goes where the paper has deep filters."""
    levels = [filter_levels if place else 1 for place in deep] if isinstance(filter_levels, int) else filter_levels
    if len(levels) != len(deep):
        raise ValueError(f"filter_levels must be a number, or one for each of {len(deep)} places, got {levels}")
    return tuple(check_integer("filter_levels", k, 1) for k in levels)


def initialize(module: nn.Module, how: str) -> None:
    """Initialize every correlation inside: ``"paper"`` (identity and noise) or ``"he"``."""
    check_choice("init", how, ("paper", "he"))
    for layer in (layer for layer in module.modules() if isinstance(layer, ScaleConv)):
        if how == "he":
            layer.reset_parameters()
        elif not layer.weight.is_meta:
            nn.init.normal_(layer.weight, std=1e-2)
            # The identity on fields has its one at the group's identity, element 0.
            fields = isinstance(layer, P4Conv2d) and not layer.lifting
            paper_(layer.weight.detach()[:, :, 0] if fields else layer.weight, dims=2)


def size_label(size: Size) -> str:
    """The size of a filter as the paper's tables write it: [k,h,w]."""
    return f"[{','.join(map(str, size))}]"


def plain(value: Any) -> Any:
    """The value as JSON would give it back, for a ``config``: NumPy's numbers become Python's."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value
