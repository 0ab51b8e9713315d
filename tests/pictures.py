"""Image files for tests, whole and damaged."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

VALUES = np.arange(6 * 5 * 3, dtype=np.uint8).reshape(6, 5, 3)


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def save_picture(path: Path, pixels: Any = VALUES, **options: Any) -> Path:
    """Write pixels as an image file, in folders that need not be there."""
    pillow = pytest.importorskip("PIL.Image")
    path.parent.mkdir(parents=True, exist_ok=True)
    pillow.fromarray(np.asarray(pixels)).save(path, **options)
    return path


def flat(number: int, shape: tuple[int, ...] = (4, 4, 3)) -> np.ndarray:
    """Pixels that all have the same value."""
    return np.full(shape, number, np.uint8)


def truncate(path: Path) -> Path:
    """Cut off the end of a file."""
    path.write_bytes(path.read_bytes()[:-30])
    return path


def damage_patch(file: Path, index: int) -> bytes:
    """Overwrite a compressed patch in an HDF5 file, and return the damaged file."""
    import h5py

    with h5py.File(file) as handle:
        patches: Any = handle["x"]
        offset = patches.id.get_chunk_info(index).byte_offset
    data = bytearray(file.read_bytes())
    data[offset + 10 : offset + 200] = bytes(190)
    file.write_bytes(data)
    return bytes(data)
