"""IDX files, the format of MNIST: arrays after a header with their type and sizes."""

import gzip
import math
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from scalespaces._files import excess, open_packed, refuse_existing, replacing
from scalespaces._progress import progress
from scalespaces.data._keys import ArrayImages

TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
IMAGES, LABELS, SCALES = "-images-idx3-ubyte", "-labels-idx1-ubyte", "-scales-idx1-float"


def read_idx(file: str | Path) -> np.ndarray:
    """Read an IDX file, plain or compressed with gzip."""
    try:
        with open_packed(file) as stream:
            data = stream.read(4 + 4 * 255)  # the longest header
            start = 4 + 4 * int.from_bytes(data[3:4])
            if len(data) < start or data[:2] != b"\0\0" or data[2] not in TYPES or data[3] > 64:  # NumPy's most axes
                raise ValueError(f"{str(file)!r} is not an IDX file: it begins with {data[:4]!r}")
            shape, dtype = struct.unpack_from(f">{data[3]}I", data, 4), np.dtype(TYPES[data[2]])
            if reason := excess(math.prod(n or 1 for n in shape) * dtype.itemsize, "bytes"):
                raise ValueError(f"{str(file)!r} {reason}")
            expected = math.prod(shape) * dtype.itemsize
            data += stream.read(max(0, start + expected + 1 - len(data)))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{str(file)!r} is damaged: {error}") from error
    if len(data) - start != expected:
        sizes, has = " x ".join(map(str, shape)), f"{len(data) - start}{' or more' * (len(data) - start > expected)}"
        raise ValueError(f"{str(file)!r} should have {expected} bytes of data, for {sizes}, has {has}")
    return np.frombuffer(data, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="))


def write_idx(file: str | Path, array: np.ndarray) -> None:
    """Write an IDX file; compressed if its name ends in ``.gz``, and then always to the same bytes."""
    codes = {np.dtype(dtype).newbyteorder("="): code for code, dtype in TYPES.items()}
    if array.dtype not in codes:
        raise ValueError(f"an IDX file contains one of {', '.join(map(str, codes))}, got {array.dtype}")
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, codes[array.dtype], array.ndim, *array.shape)
    data = header + array.astype(array.dtype.newbyteorder(">")).tobytes()
    with replacing(file) as draft:
        draft.write_bytes(gzip.compress(data, 6, mtime=0) if str(file).endswith(".gz") else data)


def read_idx_images(folder: str | Path, split: str = "train", num_classes: int = 10) -> ArrayImages:
    """Read a set of MNIST, Fashion-MNIST or ``scalespaces data make``; ``"test"`` also finds MNIST's ``t10k``."""

    def find(part: str) -> Path | None:
        names = [split, "t10k"] if split == "test" else [split]
        files = (Path(folder, f"{name}{part}{suffix}") for name in names for suffix in ("", ".gz"))
        return next(filter(Path.is_file, files), None)

    images, labels, scales = map(find, (IMAGES, LABELS, SCALES))
    if images is None or labels is None:
        name = f"{split}{IMAGES if images is None else LABELS}"
        raise FileNotFoundError(f"no file {name} or {name}.gz in {str(folder)!r}; see `scalespaces data fetch`")
    try:
        sizes = None if scales is None else read_idx(scales)
        return ArrayImages(read_idx(images), read_idx(labels), num_classes, sizes)
    except ValueError as error:
        raise ValueError(f"{split} in {str(folder)!r}: {error}") from error


def write_sets(folder: str | Path, sets: Mapping[str, ArrayImages], *, force: bool = False) -> list[Path]:
    """Write sets of images, labels and scales as IDX files; with ``force``, instead of sets written there before."""
    folder, plan = Path(folder), {}
    for name, images in sets.items():
        plan[folder / f"{name}{IMAGES}.gz"] = images.images[:, 0].numpy()
        plan[folder / f"{name}{LABELS}.gz"] = images.labels.numpy().astype(np.uint8)
        if images.scales is not None:
            plan[folder / f"{name}{SCALES}.gz"] = images.scales.numpy()
    refuse_existing(plan, force)
    for old in folder.glob(f"*{SCALES}.gz"):  # of sets written here before, which may have other names
        for file in folder.glob(old.name.replace(f"{SCALES}.gz", "-*-idx?-*.gz")):
            file.unlink()
    for path in progress(plan, f"writing {folder}"):
        write_idx(path, plan[path])
    return list(plan)
