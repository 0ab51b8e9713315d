"""Windows over images too large to be seen at once, and the blend of what was seen in them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Place = tuple[int, int]


def window_places(size: tuple[int, int], window: tuple[int, int], stride: tuple[int, int]) -> list[Place]:
    """Top left corners of windows that cover an image, evenly spread and no further apart than ``stride``.

    Args:
        size: height and width of the image.
        window: of the windows; if it is larger than the image, that is the window.
        stride: largest distance between windows, at most their size.

    Example:
        >>> window_places((96, 200), (96, 96), (96, 64))
        [(0, 0), (0, 52), (0, 104)]
    """
    axes = []
    for n, m, step in zip(size, window, stride, strict=True):
        if not 1 <= step <= m:
            raise ValueError(f"stride must be from 1 to the window's side, {m}, or windows leave gaps; got {step}")
        room = max(n - m, 0)
        steps = -(-room // step)
        axes.append([room * i // steps for i in range(steps + 1)] if steps else [0])
    return [(top, left) for top in axes[0] for left in axes[1]]


def cut_windows(image: Tensor, places: Sequence[Place], window: tuple[int, int]) -> Tensor:
    """The windows of an image, one after another.

    Shape:
        - image: :math:`(C, H, W)`
        - Output: :math:`(N, C, h, w)`
    """
    h, w = window
    return torch.stack([image[..., top : top + h, left : left + w] for top, left in places])


def blend_windows(windows: Tensor, places: Sequence[Place], size: tuple[int, int]) -> Tensor:
    r"""Put together what was computed in windows, with weights that fall off linearly from each window's center.

    .. math:: f(z) = \frac{\sum_i w(z - z_i) f_i(z - z_i)}{\sum_i w(z - z_i)}

    The inverse of :func:`cut_windows`, for windows that cover the image.

    Shape:
        - windows: :math:`(N, C, h, w)`, floating point
        - Output: :math:`(C, H, W)`

    Example:
        >>> image = torch.rand(3, 50, 70)
        >>> places = window_places((50, 70), (32, 32), (16, 16))
        >>> torch.allclose(blend_windows(cut_windows(image, places, (32, 32)), places, (50, 70)), image)
        True
    """
    if len(windows) != len(places):
        raise ValueError(f"one place for each window is needed, got {len(places)} for {len(windows)}")
    h, w = windows.shape[-2:]
    tent = [1 - (torch.arange(n, device=windows.device) - (n - 1) / 2).abs() / ((n + 1) / 2) for n in (h, w)]
    weight = (tent[0][:, None] * tent[1]).to(windows.dtype)
    total = windows.new_zeros(size)
    blended = windows.new_zeros(windows.shape[1], *size)
    for window, (top, left) in zip(windows, places, strict=True):
        here = (..., slice(top, top + h), slice(left, left + w))
        blended[here] += weight * window
        total[here] += weight
    return blended / total
