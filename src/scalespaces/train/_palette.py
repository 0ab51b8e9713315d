"""Colors of classes."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

from scalespaces.data._cityscapes import CLASSES

Color = tuple[int, int, int]

_HEX = (  # the benchmark's own, in the order of its classes
    "804080 f423e8 464646 66669c be9999 999999 faaa1e dcdc00 6b8e23 98fb98 "
    "4682b4 dc143c ff0000 00008e 000046 003c64 005064 0000e6 770b20"
)
CITYSCAPES: tuple[Color, ...] = tuple((r, g, b) for r, g, b in map(bytes.fromhex, _HEX.split()))


def palette(classes: Sequence[str]) -> tuple[Color, ...]:
    """A color for each class: Cityscapes' own for its classes; for others, evenly spread hues in three shades.

    Example:
        >>> palette(["background", "cell"])
        ((255, 51, 51), (36, 178, 178))
    """
    if tuple(classes) == tuple(CLASSES):
        return CITYSCAPES
    shades = ((0.8, 1.0), (0.8, 0.7), (0.5, 0.85))
    colors = (colorsys.hsv_to_rgb(n / len(classes), *shades[n % 3]) for n in range(len(classes)))
    return tuple((round(255 * r), round(255 * g), round(255 * b)) for r, g, b in colors)
