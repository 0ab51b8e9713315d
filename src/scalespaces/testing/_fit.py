"""Image sizes at which borders look the same at all scales.

Reflection at the last pixel is reflection at every level if every level has that pixel: if the side is 1 more than a
multiple of ``base ** (levels - 1)``, the *period*. For circular padding it is a multiple. At other sizes levels end at
different pixels, and borders add to the errors of dense sampling. Pyramids are exact at all sizes.
"""

from torch import Tensor

from scalespaces.functional._sampling import pad


def extended(image: Tensor, period: int, rest: int = 1) -> Tensor:
    """An image, extended by reflection until its sides leave ``rest`` when divided by the period."""
    return pad(image, [(0, (rest - n) % period) for n in image.shape[2:]], "reflect")


def cropped(image: Tensor, period: int, side: int) -> Tensor:
    """The middle of an image, with sides of at most ``side`` that leave 1 when divided by the period."""
    for axis, n in enumerate(image.shape[2:], 2):
        new = min(n, side) - (min(n, side) - 1) % period
        image = image.narrow(axis, (n - new) // 2, new)
    return image
