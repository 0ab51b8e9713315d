"""The input normalization and the class names of a network."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Card:
    r"""The input normalization and the class names of a network, kept as its attribute ``card``.

    .. math:: \hat f_i = (f_i - \mu_i) / \sigma_i

    Args:
        classes: names of the classes, in the order of the scores; empty when unknown.
        mean: :math:`\mu_i`, one number per channel; empty without a normalization.
        std: :math:`\sigma_i`, likewise.

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
            raise ValueError(f"classes are different strings, got {classes!r:.80}")
        numbers = all(isinstance(n, float | int) and not isinstance(n, bool) and math.isfinite(n) for n in mean + std)
        if not numbers or len(mean) != len(std) or any(value <= 0 for value in std):
            rule = "mean and std have one finite number per channel each, and std is above zero"
            raise ValueError(f"{rule}, got {mean!r:.80} and {std!r:.80}")
        vars(self).update(classes=classes, mean=tuple(map(float, mean)), std=tuple(map(float, std)))

    @classmethod
    def of(cls, model: nn.Module) -> Card:
        """The card of a network; an empty one when it has none."""
        card = getattr(model, "card", None)
        if card is not None and not isinstance(card, cls):
            raise TypeError(f"model.card is a Card, got {type(card).__name__}")
        return card or cls()

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """The card that :meth:`to_json` wrote."""
        if not isinstance(value, dict) or not value.keys() <= {"classes", "mean", "std"}:
            raise ValueError(f"a card has classes, mean and std, got {value!r:.80}")
        return cls(**value)

    def to_json(self) -> dict[str, list[Any]]:
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

    def check(self, config: dict[str, Any]) -> None:
        """Raise an error unless the network with this config has as many classes and channels as the card."""
        for name, key in (("classes", "num_classes"), ("mean", "in_channels")):
            given, expected = len(getattr(self, name)), config.get(key)
            if given and expected is not None and given != expected:
                raise ValueError(f"the card has {given} {name}, and the network {key}={expected}; they must agree")
