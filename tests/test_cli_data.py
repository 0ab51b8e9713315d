"""scalespaces data: what it writes is what the readers read, and its errors are one line."""

from typing import Any

import numpy as np
import pytest
import torch
from command import fails
from pictures import write_pcam

from scalespaces.cli import main
from scalespaces.data import digits, mnist_scale
from scalespaces.data._fetch import BY_HAND, REMOTES
from scalespaces.data._idx import read_idx_images, write_idx
from scalespaces.data._pcam import pcam_file

h5py: Any = pytest.importorskip("h5py")


def test_fetch_lists_what_there_is(capsys):
    assert main(["data", "fetch"]) == 0
    out = capsys.readouterr().out
    assert [name for name in [*REMOTES, *BY_HAND] if name not in out] == []


def test_check(tmp_path, capsys):
    folder = str(tmp_path)
    write_pcam(tmp_path, {"train": 6})
    assert main(["data", "check", folder]) == 0
    assert capsys.readouterr().out.endswith("no problems\n")
    (tmp_path / pcam_file("train", "y")).unlink()
    assert main(["data", "check", folder]) == 2
    out, err = capsys.readouterr()
    assert "train_y.h5: is missing" in out
    assert err == f"scalespaces data: error: 1 problem in {folder}\n"


def test_make_mnist_scale_of_a_folder(tmp_path, capsys):
    images, labels = digits()
    for split, part in (("train", slice(1500)), ("t10k", slice(1500, None))):
        write_idx(tmp_path / f"mnist/{split}-images-idx3-ubyte.gz", images[part])
        write_idx(tmp_path / f"mnist/{split}-labels-idx1-ubyte.gz", labels[part].astype(np.uint8))
    make = ["data", "make", "mnist-scale", str(tmp_path / "out"), "--source", str(tmp_path / "mnist")]
    assert main([*make, "--seeds", "0", "4", "--counts", "20", "10", "30"]) == 0
    for split, made in mnist_scale(images, labels, seed=4, counts=(20, 10, 30)).items():
        got = read_idx_images(tmp_path / "out/seed_4", split)
        assert torch.equal(got.images, made.images)
        assert torch.equal(got.labels, made.labels)
    assert main(["data", "check", str(tmp_path / "out/seed_0")]) == 0
    assert main([*make, "--seeds", "0", "--counts", "5", "5", "5", "--size", "12", "--force"]) == 0
    assert read_idx_images(tmp_path / "out/seed_0", "test").images.shape == (5, 1, 12, 12)
    capsys.readouterr()
    assert "exist" in fails(capsys, *make)


def test_make_unseen_scales(tmp_path, capsys):
    make = ["data", "make", "unseen-scale", str(tmp_path), "--counts", "20", "10", "10", "--place", "random"]
    assert main([*make, "--train", "1-2", "--tests", "0.5", "2.5-3", "--canvas", "24"]) == 0
    scales = read_idx_images(tmp_path, "test_2.5-3").scales
    assert scales is not None
    assert 2.5 <= scales.min() <= scales.max() <= 3
    assert read_idx_images(tmp_path, "train")[0][0].shape == (1, 24, 24)
    capsys.readouterr()
    assert "exist" in fails(capsys, *make)
    before = read_idx_images(tmp_path, "test_2.5-3").images
    make[3] = str(tmp_path / "tests")
    assert main([*make, "--tests-only", "--tests", "2.5-3", "--canvas", "24"]) == 0
    assert torch.equal(read_idx_images(tmp_path / "tests", "test_2.5-3").images, before)
    assert not list((tmp_path / "tests").glob("train*"))


def test_repack(tmp_path, capsys):
    write_pcam(tmp_path, {"train": 7}, chunks=(3, 96, 96, 3), compression="gzip")
    packed, plain = str(tmp_path / pcam_file("train", "x")), str(tmp_path / "plain.h5")
    for command, fact in ((["check", packed], "slow to read at random"), (["repack", packed, plain], f"wrote {plain}")):
        assert main(["data", *command]) == 0
        assert fact in capsys.readouterr().out
    with h5py.File(packed) as before, h5py.File(plain) as after:
        assert after["x"].chunks is None
        assert np.array_equal(after["x"], before["x"])
    assert "use --force" in fails(capsys, "data", "repack", packed, plain)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fetch", "cityscapes"], "register at"),
        (["fetch", "imagenet"], "no dataset is called 'imagenet'"),
        (["check", "no/such/folder"], "no file or folder"),
        (["make", "unseen-scale", "out", "--canvas", "0"], "at least 1"),
        (["make", "unseen-scale", "out", "--train", "a-b"], "expected a number, or two with a dash between"),
        (["make", "unseen-scale", "out", "--source", "no/such/folder"], "no file train-images-idx3-ubyte"),
        (["repack", "no.h5", "out.h5"], "'no.h5' is not an HDF5 file"),
    ],
    ids=str,
)
def test_errors(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in fails(capsys, "data", *arguments)
    assert list(tmp_path.iterdir()) == []
