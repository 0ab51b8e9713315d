"""Image files for tests."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def save_picture(path: Path, pixels: Any, **options: Any) -> Path:
    pillow = pytest.importorskip("PIL.Image")
    path.parent.mkdir(parents=True, exist_ok=True)
    pillow.fromarray(pixels).save(path, **options)
    return path
