"""PCam's HDF5 files: read at random by any number of processes, and refused when they are not what they should be."""

import math
import os
import pickle
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import damage_patch, write_patches
from torch.utils.data import DataLoader

from scalespaces.data import PCam, check_dataset
from scalespaces.data._pcam import pcam_file, repack

h5py: Any = pytest.importorskip("h5py")

NUMBER = 24
PATCHES = np.random.default_rng(0).integers(0, 256, (NUMBER, 96, 96, 3), dtype=np.uint8)
LABELS = (np.arange(NUMBER) % 3 == 1).astype(np.uint8).reshape(-1, 1, 1, 1)
GZIP: Any = {"chunks": (1, 96, 96, 3), "compression": "gzip"}


def write(folder: Path, patches=PATCHES, labels=LABELS, **options: Any) -> Path:
    return write_patches(folder, patches, labels, **options)


def same(dataset: PCam, order=range(NUMBER)) -> bool:
    return all(
        np.array_equal(dataset[i][0].permute(1, 2, 0), PATCHES[i]) and int(dataset[i][1]) == LABELS[i] for i in order
    )


@pytest.mark.parametrize("options", [{}, GZIP, {"chunks": (5, 96, 96, 3)}, {"chunks": (1, 48, 96, 3)}], ids=str)
def test_patches_and_labels_are_the_files(options, tmp_path):
    dataset = PCam(write(tmp_path, **options))
    assert len(dataset) == NUMBER
    image, label = dataset[-1]
    assert (image.dtype, label.dtype, image.shape) == (torch.uint8, torch.int64, (3, 96, 96))
    assert same(dataset, np.random.default_rng(1).permutation(NUMBER).tolist())
    assert torch.equal(image, dataset[NUMBER - 1][0])
    assert same(pickle.loads(pickle.dumps(dataset)))
    with pytest.raises(IndexError):
        dataset[NUMBER]


def test_patches_compressed_together_are_read_and_warned_of(tmp_path):
    write(tmp_path, chunks=(5, 96, 96, 3), compression="gzip")
    with pytest.warns(UserWarning, match=r"compresses 5 patches together.*repack"):
        dataset = PCam(tmp_path)
    assert same(dataset)
    repack(dataset.file, dataset.file, force=True)
    assert same(PCam(tmp_path))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_open_the_file_for_themselves(context, tmp_path):
    dataset = PCam(write(tmp_path, **GZIP))
    dataset[0]  # the parent has the file open
    loader = DataLoader(dataset, batch_size=5, num_workers=2, multiprocessing_context=context)
    images, labels = zip(*loader, strict=True)
    assert np.array_equal(torch.cat(images).permute(0, 2, 3, 1), PATCHES)
    assert torch.equal(torch.cat(labels), torch.from_numpy(LABELS.reshape(-1)).long())
    assert same(dataset)  # the parent's file is still open


@pytest.mark.parametrize(
    ("patches", "labels", "message"),
    [
        (PATCHES, LABELS[:-1], r"train_x.h5' has 24 patches, .*train_y.h5' 23 labels"),
        (PATCHES, LABELS * 2, r"labels in .*train_y.h5' must be from 0 to 1, got 2 at 1 and 7 more"),
        (PATCHES, LABELS[..., 0], r"train_y.h5' must be integer, N x 1 x 1 x 1, got uint8, 24 x 1 x 1"),
        (PATCHES, LABELS / 2, r"must be integer, .* got float64"),
        (PATCHES[:, :95], LABELS, r"x in .*train_x.h5' must be uint8, N x 96 x 96 x 3, got uint8, 24 x 95 x 96 x 3"),
        (PATCHES.astype(np.int16), LABELS, "must be uint8"),
    ],
)
def test_files_that_do_not_fit_are_refused(patches, labels, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        PCam(write(tmp_path, patches, labels))


def test_missing_and_damaged_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"split is one of train, valid, test, got 'val'"):
        PCam(tmp_path, "val")
    with pytest.raises(FileNotFoundError, match=r"no file .*train_x.h5'; `scalespaces data fetch pcam`"):
        PCam(tmp_path)
    (tmp_path / (pcam_file("train", "x") + ".gz")).touch()
    with pytest.raises(FileNotFoundError, match=r"train_x.h5.gz' must be unpacked"):
        PCam(tmp_path)
    file = write(tmp_path) / pcam_file("train", "x")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"train_x.h5' is not an HDF5 file that can be read: .*truncated"):
        PCam(tmp_path)
    with h5py.File(file, "w") as out:
        out.create_group("x")
    with pytest.raises(ValueError, match=r"must have a dataset 'x', has x"):
        PCam(tmp_path)
    write(tmp_path, **GZIP)
    damage_patch(file, 3)
    dataset = PCam(tmp_path)
    dataset[2]
    with pytest.raises(ValueError, match=r"cannot read patch 3 of .*train_x.h5'"):
        dataset[3]


def test_data_in_other_files_are_refused(tmp_path):
    file, other = write(tmp_path) / pcam_file("train", "y"), tmp_path / "other.h5"
    file.rename(other)
    layout = h5py.VirtualLayout(LABELS.shape, np.uint8)
    layout[:] = h5py.VirtualSource(str(tmp_path / "gone.h5"), "y", LABELS.shape)
    (tmp_path / "raw").write_bytes(LABELS.tobytes())
    for write_labels, message in (
        (lambda out: out.create_virtual_dataset("y", layout), "keeps the data of 'y' in other files"),
        (lambda out: out.create_dataset("y", LABELS.shape, "u1", external=str(tmp_path / "raw")), "in other files"),
        (lambda out: out.update(y=h5py.ExternalLink(str(other), "y")), "has only a link for 'y'; copy the data"),
        (lambda out: out.update(far=h5py.ExternalLink(str(other), "/"), y=h5py.SoftLink("/far/y")), "has only a link"),
        (lambda out: out.create_dataset("y", LABELS.shape, "u1"), "'y' was never written"),
        (lambda out: out.create_dataset("y", LABELS.shape, "u1", chunks=(5, 1, 1, 1)), "'y' was never written"),
        (lambda out: out.create_dataset("y", (4 * 10**9, 1, 1, 1), "u1"), "more than .*SCALESPACES_MAX_BYTES"),
        (lambda out: out.create_dataset("y", data=h5py.Empty("u1")), "must be integer, N x 1 x 1 x 1"),
    ):
        with h5py.File(file, "w") as out:
            write_labels(out)
        with pytest.raises(ValueError, match=f"train_y.h5'.* {message}"):
            PCam(tmp_path)
        assert message.partition(" ")[2].partition(",")[0] in check_dataset(file).problems[0] or "*" in message


def test_chunks_of_any_size_are_not_unpacked(tmp_path):
    file = write(tmp_path) / pcam_file("train", "x")
    for chunks in ((10**5, 1, 1, 1), (1, 96, 96, 3 * 10**5)):
        with h5py.File(file, "w") as out:
            out.create_dataset("x", (0, 96, 96, 3), "u1", chunks=chunks, maxshape=(None, 96, 96, None))
        with pytest.raises(ValueError, match=r"train_x.h5' declares .* bytes, more than .* \(in 'x'\)"):
            PCam(tmp_path)


def test_chunks_that_unpack_to_more_than_they_declare_are_not_unpacked(tmp_path, monkeypatch):
    """A compressed byte can stand for a thousand, so a small file could fill the memory."""
    file = write(tmp_path, **GZIP) / pcam_file("train", "x")
    declared = math.prod(PATCHES.shape[1:])
    monkeypatch.setenv("SCALESPACES_MAX_BYTES", str(declared))
    for length in (10**8, 2 * declared):
        with h5py.File(file, "r+") as out:
            out["x"].id.write_direct_chunk((0, 0, 0, 0), zlib.compress(bytes(length)))
        with pytest.raises(ValueError, match=r"cannot read patch 0 of .*unpacks to more than it declares"):
            PCam(tmp_path)[0]
    assert PCam(tmp_path)[1][0].shape == (3, 96, 96)
    with h5py.File(file, "r+") as out:
        del out["x"]
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((1, 96, 96, 3))
        plist.set_deflate(9)
        plist.set_deflate(9)
        space = h5py.h5s.create_simple(PATCHES.shape)
        h5py.Dataset(h5py.h5d.create(out.id, b"x", h5py.h5t.STD_U8LE, space, plist))[...] = PATCHES
    with pytest.raises(ValueError, match=r"train_x.h5' compresses 'x' more than once"):
        PCam(tmp_path)


def test_a_compression_whose_level_is_lost_is_damage(tmp_path):
    file = write(tmp_path, **GZIP) / pcam_file("train", "x")
    content = file.read_bytes()
    filters = content.index(b"deflate") - 8  # number, length of the name, flags, number of values; then the name
    assert content[filters : filters + 8] == bytes([1, 0, 8, 0, 1, 0, 1, 0])
    file.write_bytes(content[: filters + 6] + bytes([0]) + content[filters + 7 :])
    with pytest.raises(ValueError, match=r"train_x.h5' is damaged"):
        PCam(tmp_path)


def test_a_pipe_is_refused(tmp_path):
    os.mkfifo(write(tmp_path / "new") / "pipe.h5")
    with pytest.raises(ValueError, match=r"pipe.h5' is not a regular file"):
        repack(tmp_path / "new" / "pipe.h5", tmp_path / "out.h5")


def test_chunks_that_the_index_does_not_have_are_refused(tmp_path):
    patches = np.ones((3, 96, 96, 3), np.uint8)
    root = write_patches(tmp_path, patches, LABELS[:3], chunks=(1, 96, 96, 3), compression="gzip")
    file = root / pcam_file("train", "x")
    with h5py.File(file) as handle:
        chunk = handle["x"].id.get_chunk_info(1)
    key = struct.pack("<IIQQQQQ", chunk.size, 0, 1, 0, 0, 0, 0)
    data = file.read_bytes()
    assert data.count(key) == 1
    file.write_bytes(data.replace(key, struct.pack("<IIQQQQQ", chunk.size, 0, 1 << 40, 0, 0, 0, 0)))
    dataset = PCam(root)
    assert dataset[0][0].all()
    with pytest.raises(ValueError, match=r"cannot read patch 1 of .*a part of it was never written"):
        dataset[1]
