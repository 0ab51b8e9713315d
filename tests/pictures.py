"""Image files for tests, whole and damaged, and small datasets in the formats of PCam and Cityscapes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalespaces.data._folders import CITY_CLASSES
from scalespaces.data._pcam import pcam_file

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


def write_patches(folder: Path, patches: np.ndarray, labels: np.ndarray, split: str = "train", **options: Any) -> Path:
    """Write PCam's HDF5 files of a split."""
    h5py: Any = pytest.importorskip("h5py")
    folder.mkdir(parents=True, exist_ok=True)
    for part, values, more in (("x", patches, options), ("y", labels, {})):
        with h5py.File(folder / pcam_file(split, part), "w") as file:
            file.create_dataset(part, data=values, **more)
    return folder


def write_pcam(folder: Path, counts: Mapping[str, int], **options: Any) -> None:
    """Write patches of noise for each split; every other one has label 1."""
    for seed, (split, count) in enumerate(counts.items()):
        patches = np.random.default_rng(seed).integers(0, 256, (count, 96, 96, 3), dtype=np.uint8)
        write_patches(folder, patches, np.arange(count, dtype=np.uint8).reshape(-1, 1, 1, 1) % 2, split, **options)


def write_cityscapes(folder: Path, counts: Mapping[str, int], size: tuple[int, int]) -> None:
    """Write scenes of squares, whose colors go with their classes; the last row has no class, nor have test scenes."""
    palette = np.random.default_rng(0).integers(40, 216, (34, 3))
    for seed, (split, count) in enumerate(counts.items()):
        for n in range(count):
            generator = np.random.default_rng((seed, n))
            squares = generator.choice(list(CITY_CLASSES.values()), [side // 8 + 1 for side in size])
            ids = np.kron(squares, np.ones((8, 8), np.uint8))[: size[0], : size[1]].astype(np.uint8)
            ids[-1] = 1  # "ego vehicle", which is not a class
            image = np.clip(palette[ids] + generator.normal(0, 10, (*size, 1)), 0, 255).astype(np.uint8)
            save_picture(city_file(folder, "leftImg8bit", split, n), image)
            save_picture(city_file(folder, "gtFine", split, n), ids * (split != "test"))


def city_file(folder: Path, kind: str, split: str, number: int) -> Path:
    """A file of :func:`write_cityscapes`: an image of the kind leftImg8bit, or an annotation, gtFine."""
    end = "gtFine_labelIds" if kind == "gtFine" else kind
    return folder / kind / split / "town" / f"town_{number:06d}_000019_{end}.png"


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
