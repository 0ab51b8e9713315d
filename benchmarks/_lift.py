"""The lift, compared with OpenCV's filters, on one image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scalespaces._extras import require
from scalespaces.bench._case import Case, Contender, Settings
from scalespaces.nn import Lift

LEVELS = 4


def cases(settings: Settings) -> Iterator[Case]:
    """All cases of the suite; OpenCV gets as many threads as PyTorch has."""
    cv2 = require("cv2", "bench")
    before = cv2.getNumThreads()
    cv2.setNumThreads(torch.get_num_threads())
    try:
        height, width = (48, 64) if settings.quick else (1024, 2048)
        image = settings.tensor(1, 3, height, width)
        pixels = as_pixels(image)
        shape = f"{LEVELS} levels of 3 x {height} x {width}"
        yield dense(settings, image, pixels, f"dense, direct, {shape}")
        yield pyramid(settings, image, pixels, f"pyramid, cascade, {shape}")
    finally:
        cv2.setNumThreads(before)


def dense(settings: Settings, image: Tensor, pixels: NDArray, title: str) -> Case:
    """One blur of the image for each level, with the same taps."""
    ours = Lift.paper(LEVELS)
    kernels = taps(ours, pixels)
    contenders = (
        Contender("OpenCV sepFilter2D", lambda: [blur(pixels, kernel) for kernel in kernels]),
        Contender("ours", settings.module(ours), (image,), 1.0),
    )
    return Case("lift", title, contenders, training=False)


def pyramid(settings: Settings, image: Tensor, pixels: NDArray, title: str) -> Case:
    """Each level from the one before. OpenCV's own pyramid has 5 taps, and its filters no stride."""
    cv2 = require("cv2", "bench")
    ours = Lift(LEVELS)
    kernels = taps(ours, pixels)

    def pyr_down() -> list[NDArray]:
        levels = [pixels]
        for _ in kernels:
            levels.append(cv2.pyrDown(levels[-1]))
        return levels

    def filter_down() -> list[NDArray]:
        levels = [pixels]
        for kernel in kernels:
            levels.append(np.ascontiguousarray(blur(levels[-1], kernel)[::2, ::2]))
        return levels

    n = len(kernels[0])
    module = settings.module(ours)
    # Every second row of n taps, then every second column of n taps; sepFilter2D computes all of both.
    strided = (n / 2 + n / 4) / (2 * n)
    contenders = (
        Contender("OpenCV pyrDown", pyr_down),
        Contender("ours", module, (image,), n / 5),
        Contender("OpenCV sepFilter2D, every 2nd", filter_down),
        Contender("ours beside sepFilter2D", module, (image,), strided, baseline="OpenCV sepFilter2D, every 2nd"),
    )
    return Case("lift", title, contenders, training=False)


def as_pixels(image: Tensor) -> NDArray:
    """The image as OpenCV has it, (height, width, channels)."""
    return np.ascontiguousarray(image[0].movedim(0, -1).numpy())


def taps(lift: Lift, pixels: NDArray) -> Sequence[NDArray]:
    """The kernels of a lift."""
    found: list[Any] = [stage.taps for stage in lift.plan.stages]
    return [np.asarray(kernel, pixels.dtype) for kernel in found]


def blur(pixels: NDArray, kernel: NDArray) -> NDArray:
    """OpenCV's separable filter, reflecting as the lift does."""
    cv2 = require("cv2", "bench")
    return cv2.sepFilter2D(pixels, -1, kernel, kernel, borderType=cv2.BORDER_REFLECT_101)
