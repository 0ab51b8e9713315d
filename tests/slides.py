"""Tiled TIFF files for tests, most of whose tiles are left out."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def write_slide(path: Path, pixels: np.ndarray, tile: int = 64, **options: Any) -> Path:
    """Write pixels as a tiled TIFF."""
    tifffile = pytest.importorskip("tifffile")
    color = "rgb" if pixels.ndim == 3 else "minisblack"
    options = {"compression": "zlib", "photometric": color, "metadata": None} | options
    tifffile.imwrite(path, pixels, tile=(tile, tile), **options)
    return path


def write_sparse(path: Path, side: int, tile: int, full: Collection[int]) -> Path:
    """Write a square RGB image that holds only these tiles, squares of random colors, and a plain first one."""
    tifffile = pytest.importorskip("tifffile")
    generator = np.random.default_rng(0)

    def noise() -> np.ndarray:
        return np.kron(generator.integers(0, 256, (tile // 8, tile // 8, 3)), np.ones((8, 8, 1))).astype(np.uint8)

    plain: Callable[[int], Any] = lambda n: None if n else np.full((tile, tile, 3), 240, np.uint8)  # noqa: E731
    tiles = (noise() if n in full else plain(n) for n in range((-(-side // tile)) ** 2))
    options = {"photometric": "rgb", "compression": "zlib", "metadata": None, "maxworkers": 1}
    with tifffile.TiffWriter(path, bigtiff=True) as writer:
        resolution = {"resolution": (40000, 20000), "resolutionunit": "CENTIMETER"}
        writer.write(tiles, shape=(side, side, 3), dtype=np.uint8, tile=(tile, tile), **options, **resolution)
    return path
