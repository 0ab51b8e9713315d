"""PatchCamelyon: the official HDF5 files."""

import math
import os
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scalespaces._extras import require
from scalespaces._files import excess, most, open_hdf5, refuse_existing, replacing
from scalespaces._progress import progress
from scalespaces.data._keys import ImageDataset, check_labels
from scalespaces.data._pixels import Refused

SPLITS = ("train", "valid", "test")
SIDE = 96
_PLAIN = (2, 3)  # filters of HDF5 that do not compress: shuffle, fletcher32
_DEFLATE = 1032  # bytes that one compressed byte may stand for
_PIECE = 2**20


def pcam_file(split: str, part: str) -> str:
    """The official name of a split's patches, part ``"x"``, or labels, ``"y"``."""
    return f"camelyonpatch_level_2_split_{split}_{part}.h5"


class PCam(ImageDataset):
    """A split of PatchCamelyon in the official HDF5 files. Each patch is read when it is needed.

    Each process opens the file for itself, so data loaders may fork or spawn workers. Patches that are stored plain, or
    compressed one by one, are fast to read at random; ``scalespaces data repack`` rewrites other files.

    Args:
        root: the folder with ``camelyonpatch_level_2_split_{split}_{x,y}.h5``.
        split: ``"train"``, ``"valid"`` or ``"test"``.

    Shape:
        - Samples: patch :math:`(3, 96, 96)` uint8, label 0 or 1, int64
    """

    def __init__(self, root: str | Path, split: str = "train") -> None:
        super().__init__()
        if split not in SPLITS:
            raise ValueError(f"split is one of {', '.join(SPLITS)}, got {split!r}")
        self.file, labels = (Path(root) / pcam_file(split, part) for part in ("x", "y"))
        for file in (self.file, labels):
            if not file.exists() and file.with_name(file.name + ".gz").exists():
                raise FileNotFoundError(f"'{file}.gz' must be unpacked before it can be read at random: gunzip it")
            if not file.exists():
                raise FileNotFoundError(f"no file {str(file)!r}; `scalespaces data fetch pcam` downloads it")
        self._handle: tuple[int, Any, Any] | None = None
        with open_part(self.file, "x") as patches:
            number, together = len(patches), patches_per_read(patches)
        if together > 1:
            text = f"{str(self.file)!r} compresses {together} patches together, and reading one unpacks them all"
            warnings.warn(f"{text}; rewrite it with `scalespaces data repack`", stacklevel=2)
        self.labels = torch.from_numpy(read_labels(labels))
        if len(self.labels) != number:
            raise ValueError(f"{str(self.file)!r} has {number} patches, {str(labels)!r} {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        index = range(len(self))[index]
        if self._handle is None or self._handle[0] != os.getpid():
            if self._handle is not None:  # of the process that forked this one, whose own stays open
                self._handle[1].close()
            file = open_h5(self.file)
            self._handle = (os.getpid(), file, _checked(file, self.file, "x"))
        patch = read_part(self._handle[2], index, f"cannot read patch {index} of {str(self.file)!r}")
        return torch.from_numpy(patch).permute(2, 0, 1), self.labels[index]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_handle": None}


def repack(source: str | Path, target: str | Path, *, force: bool = False) -> None:
    """Write the patches of an HDF5 file plain, in one piece, so that they are fast to read at random."""
    refuse_existing([Path(target)], force)
    with open_part(source, "x") as patches:
        chunk = (patches.chunks or (1,))[0]
        step = chunk * max(1, 512 // chunk)
        with replacing(target) as draft, require("h5py", "train").File(draft, "w") as out:
            plain = out.create_dataset("x", patches.shape, np.uint8)
            for start in progress(range(0, len(patches), step), f"writing {target}"):
                failure = f"cannot read patches from {start} of {str(source)!r}"
                plain[start : start + step] = read_part(patches, slice(start, start + step), failure)


def open_h5(file: str | Path) -> Any:
    """Open an HDF5 file for reading. Every failure is a ValueError that names the file."""
    try:
        return open_hdf5(file)
    except (OSError, RuntimeError, KeyError, TypeError, AttributeError) as error:  # damaged files raise any of these
        raise ValueError(f"{str(file)!r} is not an HDF5 file that can be read: {error}") from error


@contextmanager
def open_part(file: str | Path, part: str) -> Iterator[Any]:
    """The dataset of patches (part x) or labels (y) in an HDF5 file, after a check of its type and shape."""
    with open_h5(file) as handle:
        yield _checked(handle, file, part)


@contextmanager
def _naming(file: str | Path) -> Iterator[None]:
    """Turn what h5py raises about damaged files, errors of every kind, into ValueErrors that name the file."""
    try:
        yield
    except Refused as error:
        raise ValueError(f"{str(file)!r} {error}") from None
    except Exception as error:
        raise ValueError(f"{str(file)!r} is damaged: {error}") from error


def parts_in(file: str | Path) -> list[str]:
    """Which of the parts x and y an HDF5 file has."""
    with open_h5(file) as handle, _naming(file):
        return [part for part in "xy" if handle.get(part, getlink=True) is not None]


def _checked(handle: Any, file: str | Path, part: str) -> Any:
    dtype, shape = ("uint8", (SIDE, SIDE, 3)) if part == "x" else ("integer", (1, 1, 1))
    h5py = require("h5py", "train")
    with _naming(file):
        link = handle.get(part, getlink=True)
        if isinstance(link, (h5py.SoftLink, h5py.ExternalLink)):
            raise Refused(f"has only a link for {part!r}; copy the data into the file")
        if link is None or not isinstance(handle[part], h5py.Dataset):
            raise Refused(f"must have a dataset {part!r}, has {', '.join(handle) or 'none'}")
        stored = handle[part]
        if stored.is_virtual or stored.external:
            raise Refused(f"keeps the data of {part!r} in other files; copy them into the file")
        sizes: tuple[int, ...] = stored.shape or ()
        chunks, kind = stored.chunks, stored.dtype
    if sizes[1:] != shape or not np.issubdtype(kind, getattr(np, dtype)):
        rule, got = (" x ".join(map(str, found)) for found in (("N", *shape), sizes))
        raise ValueError(f"{part} in {str(file)!r} must be {dtype}, {rule}, got {kind}, {got}")
    with _naming(file):
        # Read at once: a chunk, all patches that have a part in it, and all labels, which become int64.
        together = [8 * stored.size] if part == "y" else []
        together += [math.prod(chunks) * kind.itemsize, chunks[0] * math.prod(shape)] if chunks else []
        if reason := excess(max(together, default=0), "bytes"):
            raise Refused(f"{reason} (in {part!r})")
        _ = stored.compression  # which h5py reads once, and fails to if its settings are lost
        filters = stored.id.get_create_plist()
        if sum(filters.get_filter(n)[0] not in _PLAIN for n in range(filters.get_nfilters())) > 1:
            raise Refused(f"compresses {part!r} more than once; write it again")
        # HDF5 returns zeros for what was never written.
        needed = math.prod(-(-n // m) for n, m in zip(sizes, chunks, strict=True)) if chunks else stored.nbytes
        if (stored.id.get_num_chunks() if chunks else stored.id.get_storage_size()) < needed:
            raise Refused(f"is incomplete: a part of {part!r} was never written; write it again")
    return stored


def read_part(stored: Any, where: int | slice, failure: str) -> np.ndarray:
    """Read a part of a dataset. Whatever goes wrong is a ValueError that begins with ``failure``."""
    try:
        for place in _chunks_of(stored, where):
            _check_chunk(stored, place)
        return stored[where]
    except Exception as error:  # h5py raises errors of every kind
        raise ValueError(f"{failure}: {error}") from error


def _chunks_of(stored: Any, where: int | slice) -> Iterator[tuple[int, ...]]:
    """Where the chunks begin that hold these samples."""
    if stored.chunks:
        samples = range(len(stored))[where] if isinstance(where, slice) else [where]
        others = [range(0, n, m) for n, m in zip(stored.shape[1:], stored.chunks[1:], strict=True)]
        yield from product(sorted({n // stored.chunks[0] * stored.chunks[0] for n in samples}), *others)


def _check_chunk(stored: Any, place: tuple[int, ...]) -> None:
    """Refuse a chunk that is not there, for which HDF5 returns zeros, or that unpacks to more than it should."""
    try:
        skipped, data = stored.id.read_direct_chunk(place)  # what lists chunks may know one that is not found
    except Exception as error:
        raise Refused("a part of it was never written") from error
    size = math.prod(stored.chunks) * stored.dtype.itemsize
    longest = size + size // 100 + 1024  # what cannot be compressed grows a little
    packed = stored.compression == "gzip" and not skipped and _DEFLATE * len(data) > most("bytes")
    if len(data) > longest or (packed and _unpacks_to_more(data, longest)):
        raise Refused("a part of it unpacks to more than it declares")


def _unpacks_to_more(data: bytes, size: int) -> bool:
    unpacker = zlib.decompressobj()
    while data and size >= 0 and not unpacker.eof:
        size -= len(unpacker.decompress(data, _PIECE))
        data = unpacker.unconsumed_tail
    return size < 0


def patches_per_read(patches: Any) -> int:
    """How many patches are unpacked to read one."""
    return patches.chunks[0] if patches.compression and patches.chunks else 1


def read_labels(file: str | Path) -> np.ndarray:
    """The labels in an HDF5 file, checked."""
    with open_part(file, "y") as stored:
        labels = read_part(stored, slice(None), f"cannot read y of {str(file)!r}").reshape(-1)
    check_labels(labels, 2, f"labels in {str(file)!r}")
    return labels.astype(np.int64)
