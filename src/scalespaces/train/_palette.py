"""Colors of classes."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

from scalespaces.data._cityscapes import CLASSES

Color = tuple[int, int, int]

CITYSCAPES: tuple[Color, ...] = (  # the benchmark's own, in the order of its classes
    (128, 64, 128),
    (244, 35, 232),
    (70, 70, 70),
    (102, 102, 156),
    (190, 153, 153),
    (153, 153, 153),
    (250, 170, 30),
    (220, 220, 0),
    (107, 142, 35),
    (152, 251, 152),
    (70, 130, 180),
    (220, 20, 60),
    (255, 0, 0),
    (0, 0, 142),
    (0, 0, 70),
    (0, 60, 100),
    (0, 80, 100),
    (0, 0, 230),
    (119, 11, 32),
)


def palette(classes: Sequence[str]) -> tuple[Color, ...]:
    """A color for each class: Cityscapes' for its classes, and hues evenly spread, in three brightnesses, for others.

    Example:
        >>> palette(["background", "cell"])
        ((255, 51, 51), (36, 178, 178))
    """
    if tuple(classes) == tuple(CLASSES):
        return CITYSCAPES
    shades = ((0.8, 1.0), (0.8, 0.7), (0.5, 0.85))
    colors = (colorsys.hsv_to_rgb(n / len(classes), *shades[n % 3]) for n in range(len(classes)))
    return tuple((round(255 * r), round(255 * g), round(255 * b)) for r, g, b in colors)
