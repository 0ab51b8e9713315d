"""The sets of a recipe: what is held out is not trained with, whatever the format."""

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import flat, save_picture, write_cityscapes, write_pcam
from torch import Tensor

from scalespaces.data import ArrayImages, ImageDataset
from scalespaces.data._idx import write_sets
from scalespaces.data._keys import Part
from scalespaces.train._data import DataOptions, class_names, num_classes, open_split

NUMBER = 40
SHARES = (0.5, 0.3, 0.2)  # of the classes 0, 1 and 2
LABELS = np.repeat([0, 1, 2], [round(NUMBER * share) for share in SHARES])


def write_idx(root: Path, split: str, numbers: range) -> None:
    pixels = np.stack([flat(number, (4, 4)) for number in numbers])
    write_sets(root, {split: ArrayImages(pixels, LABELS[: len(numbers)])})


def write_class_folders(root: Path, split: str, numbers: range) -> None:
    for number, label in zip(numbers, LABELS, strict=False):
        save_picture(root / split / f"class_{label}" / f"{number}.png", flat(number))


def write_table(root: Path, split: str, numbers: range) -> None:
    for number in numbers:
        save_picture(root / split / f"{number}.png", flat(number))
    with (root / f"{split}.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "label"), *zip(numbers, LABELS, strict=False)])


def write_masks(root: Path, split: str, numbers: range) -> None:
    for number, label in zip(numbers, LABELS, strict=False):
        save_picture(root / split / "images" / f"{number}.png", flat(number))
        save_picture(root / split / "masks" / f"{number}.png", flat(label, (4, 4)))


WRITE = {"idx": write_idx, "class_folders": write_class_folders, "table": write_table, "masks": write_masks}


def options(kind: Any, root: Path, **more: Any) -> DataOptions:
    return DataOptions(kind, str(root), num_classes=None if kind == "class_folders" else 3, **more)


def numbers(dataset: ImageDataset) -> list[int]:
    """Which images a set has, in its order."""
    return [int(dataset[n][0].max()) for n in range(len(dataset))]


def opened(said: DataOptions, *splits: str, seed: int = 0) -> list[list[int]]:
    """Which images these sets have."""
    return [numbers(open_split(said, split, seed=seed)) for split in splits or ("train", "valid")]


@pytest.fixture(scope="module")
def roots(tmp_path_factory) -> dict[str, Path]:
    """Data of each kind: a training set alone, or a folder without sets."""
    made = {kind: tmp_path_factory.mktemp(kind) for kind in WRITE}
    for kind, root in made.items():
        WRITE[kind](root, "" if kind == "masks" else "train", range(NUMBER))
    return made


@pytest.mark.parametrize("kind", WRITE)
def test_what_is_held_out_is_not_trained_with(kind, roots):
    found = []
    for holdout, seed in ((0.1, 0), (0.25, 0), (0.25, 3), (0.001, 1), (0.25, 3)):
        train, valid = opened(options(kind, roots[kind], holdout=holdout), seed=seed)
        assert set(train).isdisjoint(valid)
        assert sorted(train + valid) == list(range(NUMBER))
        assert len(valid) == max(1, round(holdout * NUMBER))
        found.append(valid)
    assert found[1] != found[2] == found[4], "a function of the seed"


@pytest.mark.parametrize("kind", WRITE)
@pytest.mark.parametrize("name", ["valid", "val", "validation"])
def test_sets_of_their_own_are_taken_whole(kind, name, tmp_path):
    if kind == "idx" and name != "valid":
        pytest.skip("IDX sets are called by their own names")
    for split, there in (("train", range(20)), (name, range(20, 33)), ("test", range(33, 40))):
        WRITE[kind](tmp_path, split, there)
    found = opened(options(kind, tmp_path), "train", "valid", "test")
    assert list(map(sorted, found)) == [list(range(20)), list(range(20, 33)), list(range(33, 40))]


def test_a_table_may_be_anywhere_and_sizes_are_brought_to_one(roots, tmp_path):
    table = tmp_path / "labels.csv"
    table.write_text((roots["table"] / "train.csv").read_text())
    elsewhere = options("table", roots["table"], table=str(table), size=(5, 7))
    assert opened(elsewhere) == opened(options("table", roots["table"]))
    assert open_split(elsewhere)[0][0].shape == (3, 5, 7)


def test_official_sets(tmp_path):
    write_pcam(tmp_path / "pcam", {"train": 3, "valid": 2, "test": 1})
    write_cityscapes(tmp_path / "cityscapes", {"train": 3, "val": 2, "test": 1}, size=(32, 64))
    for kind in ("pcam", "cityscapes"):
        said = DataOptions(kind, str(tmp_path / kind))
        assert [len(open_split(said, split)) for split in ("train", "valid", "test")] == [3, 2, 1]
        assert num_classes(said) == len(class_names(said)) == {"pcam": 2, "cityscapes": 19}[kind]


@pytest.mark.parametrize("kind", WRITE)
def test_a_limit_keeps_the_proportions_of_the_classes(kind, roots):
    limited, unlimited = (options(kind, roots[kind], limit=limit) for limit in (10, None))
    drawn = set()
    for seed in range(3):
        whole, part = (open_split(said, "train", seed=seed) for said in (unlimited, limited))
        assert len(set(numbers(part))) == 10
        assert set(numbers(part)) <= set(numbers(whole))
        assert [numbers(part)] == opened(limited, "train", seed=seed)
        assert opened(limited, "valid", seed=seed) == opened(unlimited, "valid", seed=seed)
        if kind != "masks":  # whose pixels have classes, and not the images
            all_of_them = Counter(int(whole[n][1]) for n in range(len(whole)))
            for name, count in Counter(int(part[n][1]) for n in range(10)).items():
                assert abs(count - 10 * all_of_them[name] / len(whole)) < 1
        drawn.add(tuple(numbers(part)))
    assert len(drawn) == 3


def test_crops_are_of_training_images_alone_and_keyed(tmp_path):
    write_cityscapes(tmp_path, {"train": 5, "val": 3}, size=(40, 64))
    said = DataOptions("cityscapes", str(tmp_path), crop=(24, 32), flip=True)

    def samples(split: str, seed: int, epoch: int) -> list[Tensor]:
        dataset = open_split(said, split, seed=seed)
        dataset.set_epoch(epoch)
        return [pixels for n in range(len(dataset)) for pixels in dataset[n]]

    first, *others = (samples("train", *key) for key in ((1, 2), (1, 2), (1, 3), (2, 2)))
    assert [first[0].shape, first[1].shape] == [(3, 24, 32), (24, 32)]
    assert [all(map(torch.equal, first, other)) for other in others] == [True, False, False]
    whole = samples("valid", 1, 2)
    assert [whole[0].shape, whole[1].shape] == [(3, 40, 64), (40, 64)]
    assert all(map(torch.equal, whole, samples("valid", 2, 3)))
    train = open_split(said)
    part = Part(train, [4, 1])
    part.set_epoch(3)
    assert train.epoch == part.epoch == 3, "parts hand the epoch on"
    assert all(map(torch.equal, [*part[0], *part[1]], [*train[4], *train[1]]))


def test_names_and_numbers_of_classes(roots, tmp_path):
    said = {kind: options(kind, root) for kind, root in roots.items()}
    assert class_names(said["class_folders"]) == ("class_0", "class_1", "class_2")
    assert num_classes(said["class_folders"]) == 3
    assert class_names(DataOptions("pcam", "")) == ("normal", "tumor")
    assert num_classes(DataOptions("idx", "")) == 10
    for kind in ("table", "masks"):
        assert (class_names(said[kind]), num_classes(said[kind])) == ((), 3)
        with pytest.raises(ValueError, match=rf"data\.num_classes is needed for data of the kind {kind}"):
            num_classes(DataOptions(kind, ""))
    write_class_folders(tmp_path, "test", range(25))  # and no other set
    assert class_names(options("class_folders", tmp_path)) == ("class_0", "class_1")
    assert len(open_split(options("class_folders", tmp_path), "test", seed=None)) == 25


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"kind": "imagenet"}, r"data\.kind is one of pcam, .*, got 'imagenet'"),
        ({"mean": [0.5]}, r"data\.mean and data\.std must be given together"),
        ({"batch_size": 0}, r"data\.batch_size is at least 1 .* got 0, 2"),
        ({"workers": -1}, r"data\.workers 0, got 128, -1"),
        ({"num_classes": 0}, r"data\.num_classes is at least 1, got 0"),
        ({"holdout": 1.0}, r"data\.holdout is a share between 0 and 1, got 1\.0"),
        ({"jitter": (0, 2)}, r"data\.jitter is two factors above 0, .* got \(0, 2\)"),
        ({"kind": "masks", "augment": "pcam"}, r"data\.augment pcam is for classification, got the kind masks"),
        ({"kind": "pcam", "size": (9, 9)}, r"data\.size is for class_folders and tables, got the kind pcam"),
        ({"kind": "idx", "crop": (9, 9)}, r"data\.flip and data\.crop are for class_folders, .* got the kind idx"),
        ({"kind": "masks", "balanced": True}, r"data\.balanced is for classification, got the kind masks"),
        ({"color": (0.1, 2, 0, 0)}, r"data\.color is four changes, at least 0: .* got \(0\.1, 2, 0, 0\)"),
        ({"kind": "pcam", "flip": True}, r"data\.flip and data\.crop are for class_folders, .* got the kind pcam"),
        ({"classes": ["a"]}, r"data\.classes are for masks, table and idx; data of the kind class_folders have"),
    ],
)
def test_wrong_options_are_refused(said, message):
    with pytest.raises(ValueError, match=message):
        DataOptions(**({"kind": "class_folders", "root": ""} | said))


@pytest.mark.parametrize(
    ("kind", "sizes", "opened", "message"),
    [
        ("class_folders", {"": 1}, {}, r"data\.holdout 0\.1 of 1 samples leaves none to train with"),
        ("idx", {"train": 9}, {"split": "valid", "seed": None}, "depends on the seed that a network was trained with"),
        ("idx", {"train": 9}, {"limit": 9}, r"data\.limit is from 1 to the size of the training set, 8, got 9"),
        ("class_folders", {"train": 40, "valid": 25}, {"split": "valid"}, r"valid' has different classes .*: class_2$"),
        ("table", {"train": 9}, {"table": "nowhere.csv"}, r"data\.table: there is no file 'nowhere\.csv'"),
        ("masks", {"": 9}, {"split": "test"}, r"data\.root: there is no set 'test'"),
        ("idx", {"valid": 9}, {}, "no file train-images-idx3-ubyte"),
        ("idx", {}, {}, r"data\.root: there is no folder"),
    ],
)
def test_data_that_cannot_be_opened(kind, sizes, opened, message, tmp_path):
    for split, size in sizes.items():
        WRITE[kind](tmp_path / "data", split, range(size))
    said = options(kind, tmp_path / "data", **{name: opened[name] for name in opened if name in ("limit", "table")})
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        open_split(said, opened.get("split", "train"), seed=opened.get("seed", 0))
