"""The check finds every fault that was put into a dataset, and names its file."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import city_file, damage_patch, flat, noise, save_picture, truncate, write_cityscapes, write_pcam

from scalespaces.data import check_dataset, digits, unseen_scales
from scalespaces.data._idx import write_idx, write_sets
from scalespaces.data._pcam import pcam_file
from scalespaces.train._data import DataOptions, open_split

h5py: Any = pytest.importorskip("h5py")

GZIP = {"chunks": (1, 96, 96, 3), "compression": "gzip"}


@pytest.mark.parametrize("options", [{}, GZIP], ids=["plain", "gzip"])
def test_pcam(options, tmp_path):
    write_pcam(tmp_path, {"train": 6, "test": 4}, **options)
    report = check_dataset(tmp_path)
    assert {"camelyonpatch_level_2_split_train_y.h5: 6 labels, 3 of them 1", "valid: not there"} < set(report.facts)
    assert str(report).endswith("no problems")

    with h5py.File(tmp_path / pcam_file("train", "y"), "a") as file:
        file["y"][2] = 3
    (tmp_path / pcam_file("test", "y")).unlink()
    write_pcam(tmp_path, {"valid": 4})
    with h5py.File(tmp_path / pcam_file("valid", "y"), "w") as file:
        file["y"] = np.zeros((3, 1, 1, 1), np.uint8)
    labels, patches, missing = check_dataset(tmp_path).problems
    assert re.search("train_y.h5.* got 3 at 2", labels)
    assert patches.endswith("valid_x.h5: has 4 patches for 3 labels")
    assert missing.endswith("test_y.h5: is missing")


def test_pcam_patches_that_cannot_be_unpacked_are_named(tmp_path):
    write_pcam(tmp_path, {"train": 6}, **GZIP)
    file = tmp_path / pcam_file("train", "x")
    data = damage_patch(file, 4)
    assert ["train_x.h5: patches 4 to 4: " in problem for problem in check_dataset(tmp_path).problems] == [True]
    file.write_bytes(data[: len(data) // 2])
    for path in (tmp_path, file):
        (problem,) = check_dataset(path).problems
        assert "truncated" in problem


def test_cityscapes(tmp_path):
    write_cityscapes(tmp_path, {"train": 4, "val": 2}, size=(32, 64))
    report = check_dataset(tmp_path)
    assert report.problems == []
    assert report.facts[0].startswith("train: 4 images, 4 of 64 x 32 pixels; classes 0: ")
    city_file(tmp_path, "gtFine", "train", 0).unlink()
    city_file(tmp_path, "leftImg8bit", "train", 1).unlink()
    truncate(city_file(tmp_path, "leftImg8bit", "train", 2))
    save_picture(city_file(tmp_path, "gtFine", "train", 3), flat(77, (32, 64)))
    problems = check_dataset(tmp_path).problems
    expected = ["000000_000019_leftImg8bit.png: has no annotation", "000001_000019_gtFine_labelIds.png: has no image"]
    expected += ["000002_000019_leftImg8bit.png: is not an image", "got 77 at (0, 0)"]
    assert [sum(text in problem for problem in problems) for text in expected] == [1] * len(problems)


def write_folders(root: Path, split: str, numbers: range) -> None:
    for n in numbers:
        pixels = noise(6, 5, 10 * len(split) + n)
        save_picture(root / "classes" / split / "a" / f"{split}{n}.png", pixels)
        save_picture(root / "pairs" / split / "images" / f"{split}{n}.png", pixels)
        save_picture(root / "pairs" / split / "masks" / f"{split}{n}.png", flat(n, (6, 5)))
        save_picture(root / "table" / split / f"{split}{n}.png", pixels)
    table = "id,label\n" + "".join(f"{split}{n},{n}\n" for n in numbers)
    (root / "table" / f"{split or 'any'}.csv").write_text(table)


def test_classes_masks_and_tables(tmp_path):
    write_folders(tmp_path, "", range(7, 8))
    assert [check_dataset(tmp_path / kind).problems for kind in ("classes", "pairs", "table")] == [[], [], []]
    assert "must be from 0 to 4, got 7" in check_dataset(tmp_path / "pairs", num_classes=5).problems[0]
    assert "has the label '7'" in check_dataset(tmp_path / "table", num_classes=5).problems[0]
    save_picture(tmp_path / "classes" / "b" / "2.png", flat(0, (3, 3)))
    report = check_dataset(tmp_path / "classes")
    assert report.kind == "a folder for each class"
    assert report.facts == ["images: 2 images, 1 of 5 x 6, 1 of 3 x 3 pixels; classes a: 50 %, b: 50 %"]
    (tmp_path / "classes" / "c").mkdir()
    assert check_dataset(tmp_path / "classes").problems == [f"{tmp_path}/classes/c: is a class without images"]


def test_splits_are_checked_one_by_one(tmp_path):
    for split, size in (("train", 3), ("val", 2), ("test", 1)):
        write_folders(tmp_path, split, range(size))
    for kind in ("classes", "pairs", "table"):
        report = check_dataset(tmp_path / kind)
        assert report.problems == []
        facts = [fact.partition(",")[0] for fact in report.facts]
        assert facts == ["train: 3 images", "valid: 2 images", "test: 1 images"]
    (problem,) = check_dataset(tmp_path / "table", num_classes=2).problems
    assert "train.csv:4: has the label '2'" in problem
    report = check_dataset(tmp_path / "table" / "train", table=tmp_path / "table" / "train.csv")
    assert report.facts[0].startswith("images: 3 images")


def test_one_folder_of_images_with_a_table_for_each_split(tmp_path):
    for split, numbers in (("train", range(4)), ("valid", range(4, 6)), ("test", range(6, 8))):
        for n in numbers:
            save_picture(tmp_path / "pictures" / f"{n}.png", noise(6, 5, n))
        (tmp_path / f"{split}.csv").write_text("id,label\n" + "".join(f"{n},{n % 2}\n" for n in numbers))
    report = check_dataset(tmp_path)
    assert report.problems == []
    assert [fact.partition(",")[0] for fact in report.facts] == ["train: 4 images", "valid: 2 images", "test: 2 images"]
    save_picture(tmp_path / "pictures" / "lost.png", noise(6, 5, 9))
    assert ["has no label" in problem for problem in check_dataset(tmp_path).problems] == [True] * 3
    options = DataOptions("table", str(tmp_path), num_classes=2)
    with pytest.raises(ValueError, match=r"data.on_error to skip"):
        open_split(options, "train")
    (tmp_path / "pictures" / "lost.png").unlink()
    assert [len(open_split(options, split)) for split in ("train", "valid", "test")] == [4, 2, 2]


def test_leaks_between_splits(tmp_path):
    for split, seeds in (("train", (0, 1, 1)), ("test", (2, 1))):
        for n, seed in enumerate(seeds):
            save_picture(tmp_path / "folders" / split / "a" / f"{split}_{n}.png", noise(6, 5, seed))
    report = check_dataset(tmp_path / "folders")
    (leak,) = report.problems
    assert "test_1.png: is a leak: it is in test, and has the same content as" in leak
    assert "train_1.png in train" in leak
    assert str(report).count("\n1 problem:\n") == 1
    assert "copies of images within a set: 1" in report.facts
    save_picture(tmp_path / "folders" / "test" / "a" / "train_0.png", noise(6, 5, 3))  # not the same image
    report = check_dataset(tmp_path / "folders")
    assert len(report.problems) == 1
    assert "1 file name in more than one split, first 'train_0.png'; a leak, if" in report.facts[-1]
    save_picture(tmp_path / "tables" / "0.png")
    for split in ("train", "test"):
        (tmp_path / "tables" / f"{split}.csv").write_text("id,label\n0,1\n")
    (leak,) = check_dataset(tmp_path / "tables").problems
    assert "0.png: is a leak: it is in test, and is also in train" in leak


def test_links_are_followed_and_splits_have_the_same_classes(tmp_path):
    for n, name in enumerate("ab"):
        save_picture(tmp_path / "elsewhere" / name / "x" / f"{n}.png", noise(6, 5, n))
    (tmp_path / "photos" / "valid").mkdir(parents=True)
    (tmp_path / "photos" / "train").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "a" / "x" / "loop").symlink_to(tmp_path / "elsewhere" / "a")
    (tmp_path / "photos" / "valid" / "a").symlink_to(save_picture(tmp_path / "more" / "y" / "2.png").parent.parent)
    (tmp_path / "more" / "link").symlink_to(tmp_path / "more" / "y")
    report = check_dataset(tmp_path / "photos")
    assert report.problems == ["valid: has different classes from train: b"]
    assert [fact.partition(",")[0] for fact in report.facts[:2]] == ["train: 2 images", "valid: 2 images"]


def test_idx(tmp_path):
    write_sets(tmp_path, unseen_scales(*digits(), train=1.0, tests=[2.0], canvas=16, counts=(20, 10, 10)))
    report = check_dataset(tmp_path)
    assert report.problems == []
    assert re.fullmatch("test_2: 10 x 16 x 16 uint8, .* by class, scales 2 to 2", report.facts[0])
    write_idx(tmp_path / "train-labels-idx1-ubyte.gz", np.full(20, 12, np.uint8))
    (tmp_path / "valid-labels-idx1-ubyte.gz").unlink()
    labels, missing = check_dataset(tmp_path).problems
    assert "must be from 0 to 9, got 12 at 0 and 19 more" in labels
    assert "no file valid-labels-idx1-ubyte" in missing


def test_single_files(tmp_path):
    with pytest.raises(ValueError, match=r"holds nothing that is known"):
        check_dataset(tmp_path)
    assert check_dataset(save_picture(tmp_path / "a.png")).facts == ["5 x 6 pixels, 3 channels"]
    with pytest.raises(ValueError, match=r"holds 1 images but neither classes nor labels"):
        check_dataset(tmp_path)
    (tmp_path / "b.png").write_text("no image")
    assert "is not an image" in check_dataset(tmp_path / "b.png").problems[0]
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file["z"] = 1
    assert check_dataset(tmp_path / "c.h5").problems == [f"{tmp_path}/c.h5: has neither a dataset x nor y"]
    write_idx(tmp_path / "d-idx2-ubyte", np.zeros((2, 3), np.uint8))
    assert check_dataset(tmp_path / "d-idx2-ubyte").facts == ["2 x 3 uint8"]
