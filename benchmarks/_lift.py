"""The lift compared with OpenCV's filters, on one image."""

from collections.abc import Iterator
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks._case import Case, Contender, Settings
from scalespaces._extras import require
from scalespaces.nn import Lift


def cases(settings: Settings) -> Iterator[Case]:
    """OpenCV gets as many threads as PyTorch has."""
    cv2 = require("cv2", "bench")
    height, width = (48, 64) if settings.quick else (1024, 2048)
    image, shape = settings.tensor(1, 3, height, width), f"4 levels of 3 x {height} x {width}"
    pixels = np.ascontiguousarray(image[0].movedim(0, -1).numpy())  # as OpenCV has them

    def blur(level: NDArray, kernel: NDArray) -> NDArray:
        return cv2.sepFilter2D(level, -1, kernel, kernel, borderType=cv2.BORDER_REFLECT_101)  # which the lift does

    def downscale(level: NDArray, kernel: NDArray) -> NDArray:
        return np.ascontiguousarray(blur(level, kernel)[::2, ::2])

    direct, cascade = Lift.paper(4), Lift(4)
    wide, narrow = ([np.asarray(s.taps, pixels.dtype) for s in lift.plan.stages] for lift in (direct, cascade))
    before = cv2.getNumThreads()
    cv2.setNumThreads(torch.get_num_threads())
    try:
        contenders = [
            Contender("OpenCV sepFilter2D", lambda: [blur(pixels, kernel) for kernel in wide]),
            Contender("ours", settings.module(direct), (image,), 1.0),
        ]
        yield Case("lift", f"dense, direct, {shape}", contenders)
        contenders = [
            Contender("OpenCV pyrDown", lambda: [*accumulate(narrow, lambda x, _: cv2.pyrDown(x), initial=pixels)]),
            Contender("OpenCV sepFilter2D, every 2nd", lambda: [*accumulate(narrow, downscale, initial=pixels)]),
            Contender("ours", settings.module(cascade), (image,), len(narrow[0]) / 5),  # OpenCV's pyramid has 5 taps
        ]
        yield Case("lift", f"pyramid, cascade, {shape}", contenders)
    finally:
        cv2.setNumThreads(before)
