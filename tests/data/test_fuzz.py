"""Damaged files of every format: a reader names what is wrong, or what it returns is valid."""

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import flat, save_picture, write_patches

from scalespaces.data import LabeledFolder, MaskFolders, PCam, check_dataset, read_image
from scalespaces.data._idx import read_idx_images, write_idx
from scalespaces.data._pcam import pcam_file
from scalespaces.data._pixels import read_mask, read_pixels

pytest.importorskip("PIL.Image")
pytest.importorskip("h5py")
pytestmark = pytest.mark.filterwarnings("ignore")  # Pillow's, about what it could repair

CLASSES = 3


def damaged(data: bytes, seed: object, number: int) -> Iterator[bytes]:
    """Copies of a file with bytes changed, cut off or out, and inserted; half of them near the beginning."""
    generator = np.random.default_rng((zlib.crc32(repr(seed).encode()), number))
    for n in range(number):
        copy, reach = bytearray(data), min(len(data), 128) if n % 2 else len(data)
        start = int(generator.integers(reach))
        length = int(generator.integers(1, 9))
        noise = generator.integers(256, size=length, dtype=np.uint8).tobytes()
        if n % 7 == 0:
            del copy[start:]
        elif n % 7 == 1:
            del copy[start : start + length]
        elif n % 7 == 2:
            copy[start:start] = noise
        elif n % 7 == 3:
            copy[start : start + length] = b"\xff" * length
        else:
            copy[start] ^= 1 << int(generator.integers(8))
        yield bytes(copy)


def refusals(file: Path, read: Callable[[], Any], number: int) -> list[str]:
    """Damage a file in many ways, and return the errors of those that were refused; all name it or its folder."""
    whole, errors = file.read_bytes(), []
    read()
    for data in damaged(whole, file.name, number):
        file.write_bytes(data)
        try:
            read()
        except (ValueError, OSError) as error:
            errors.append(str(error))
    assert [error for error in errors if str(file.parent) not in error] == []
    return errors


IMAGES = {"a.png": {}, "a.jpg": {}, "a.bmp": {}, "a.webp": {}, "a.ppm": {}, "a.tif": {}}
IMAGES |= {
    f"{method}.tif": {"compression": method} for method in ("tiff_lzw", "tiff_adobe_deflate", "jpeg", "packbits")
}


@pytest.mark.parametrize("name", IMAGES)
def test_images(name, tmp_path):
    file = save_picture(tmp_path / name, np.arange(16 * 12 * 3, dtype=np.uint8).reshape(16, 12, 3), **IMAGES[name])

    def read() -> None:
        assert 0 <= read_image(file).min() <= read_image(file).max() <= 1
        assert read_pixels(file).shape[0] == 3
        assert read_pixels(file, deep=True, size=(4, 4)).shape == (3, 4, 4)

    assert refusals(file, read, 40)


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.bmp", "deep.png", "deep.tif", "wide.tif"])
def test_masks(name, tmp_path):
    save_picture(tmp_path / "images" / Path(name).with_suffix(".png"), flat(0, (16, 12, 3)))
    dtype = {"deep": np.uint16, "wide": np.int32}.get(Path(name).stem, np.uint8)
    file = save_picture(tmp_path / "masks" / name, (np.arange(16 * 12).reshape(16, 12) % CLASSES).astype(dtype))

    def read() -> None:
        read_mask(file)
        _, mask = MaskFolders(tmp_path / "images", tmp_path / "masks", CLASSES)[0]
        assert set(mask.unique().tolist()) <= {*range(CLASSES), 255}

    assert refusals(file, read, 40)


@pytest.mark.parametrize("part", ["x", "y"])
@pytest.mark.parametrize("options", [{}, {"chunks": (1, 96, 96, 3), "compression": "gzip"}], ids=["plain", "gzip"])
def test_hdf5(part, options, tmp_path):
    labels = np.array([0, 1, 1], np.uint8).reshape(-1, 1, 1, 1)
    write_patches(tmp_path, np.zeros((3, 96, 96, 3), np.uint8), labels, **options)
    file = tmp_path / pcam_file("train", part)

    def read() -> None:
        dataset = PCam(tmp_path)
        assert all(int(label) in (0, 1) and patch.shape == (3, 96, 96) for patch, label in dataset)
        assert check_dataset(tmp_path).problems == []

    assert refusals(file, read, 100)


@pytest.mark.parametrize("part", ["images-idx3-ubyte", "labels-idx1-ubyte", "scales-idx1-float"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx(part, suffix, tmp_path):
    arrays = (np.zeros((4, 3, 3), np.uint8), np.arange(4, dtype=np.uint8) % CLASSES, np.ones(4, np.float32))
    for name, array in zip(("images-idx3-ubyte", "labels-idx1-ubyte", "scales-idx1-float"), arrays, strict=True):
        write_idx(tmp_path / f"train-{name}{suffix}", array)

    def read() -> None:
        dataset = read_idx_images(tmp_path, "train", CLASSES)
        assert set(dataset.labels.tolist()) <= set(range(CLASSES))
        assert dataset.scales is not None
        assert len(dataset.scales) == len(dataset.labels) == len(dataset.images)

    assert refusals(tmp_path / f"train-{part}{suffix}", read, 100)


def test_tables(tmp_path):
    for n in range(4):
        save_picture(tmp_path / "images" / f"{n}.png")
    table = tmp_path / "labels.csv"
    table.write_text("id,label\n" + "".join(f'"{n}",{n % CLASSES}\n' for n in range(4)))

    def read() -> None:
        assert set(LabeledFolder(tmp_path / "images", table, CLASSES).labels.tolist()) <= set(range(CLASSES))

    assert refusals(table, read, 200)
