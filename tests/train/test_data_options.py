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

pytest.importorskip("PIL.Image")
NUMBER = 40
SHARES = (0.5, 0.3, 0.2)  # of the classes 0, 1 and 2
LABELS = np.repeat([0, 1, 2], [round(NUMBER * share) for share in SHARES])


# --- data of each kind, whose images know which one they are ---------------------------------------------------------


def write_idx(root: Path, split: str, numbers: range) -> None:
    pixels = np.stack([flat(number, (4, 4)) for number in numbers])
    write_sets(root, {split: ArrayImages(pixels, LABELS[: len(numbers)])})


def write_class_folders(root: Path, split: str, numbers: range) -> None:
    for number, label in zip(numbers, LABELS, strict=False):
        save_picture(root / split / f"class_{label}" / f"{number}.png", flat(number))


def write_table(root: Path, split: str, numbers: range, side: int = 4, most: int = 2) -> None:
    for number in numbers:
        save_picture(root / split / f"{number}.png", flat(number, (side, side, 3)))
    with (root / f"{split or 'train'}.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "label"), *zip(numbers, LABELS.clip(max=most), strict=False)])


def write_patches(root: Path, split: str, numbers: range) -> None:
    write_table(root, split, numbers, 96, 1)


def write_masks(root: Path, split: str, numbers: range) -> None:
    for number, label in zip(numbers, LABELS, strict=False):
        save_picture(root / split / "images" / f"{number}.png", flat(number))
        save_picture(root / split / "masks" / f"{number}.png", flat(label, (4, 4)))


WRITE = {
    "idx": write_idx,
    "class_folders": write_class_folders,
    "table": write_table,
    "pcam_folder": write_patches,
    "masks": write_masks,
}


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
    """Data of each kind, the training set alone."""
    made = {kind: tmp_path_factory.mktemp(kind) for kind in WRITE}
    for kind, root in made.items():
        WRITE[kind](root, "train", range(NUMBER))
    return made


# --- what is held out ------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("kind", ["class_folders", "table", "pcam_folder", "masks"])
def test_a_folder_without_sets_is_split(kind, tmp_path):
    WRITE[kind](tmp_path, "", range(NUMBER))
    train, valid = opened(options(kind, tmp_path))
    assert sorted(train + valid) == list(range(NUMBER))
    with pytest.raises(FileNotFoundError, match=r"there is no set 'test'"):
        open_split(options(kind, tmp_path), "test")


def test_a_table_may_be_anywhere(roots, tmp_path):
    table = tmp_path / "labels.csv"
    table.write_text((roots["table"] / "train.csv").read_text())
    elsewhere = options("table", roots["table"], table=str(table))
    assert opened(elsewhere) == opened(options("table", roots["table"]))
    with pytest.raises(FileNotFoundError, match=r"data\.table: there is no file 'nowhere\.csv'"):
        open_split(options("table", roots["table"], table="nowhere.csv"))


def test_nothing_left_to_train_with(tmp_path):
    write_class_folders(tmp_path, "", range(1))
    with pytest.raises(ValueError, match=r"data\.holdout 0\.1 of 1 samples leaves none to train with"):
        open_split(options("class_folders", tmp_path))


def test_what_is_held_out_needs_the_seed_of_the_training(tmp_path):
    made = ArrayImages(np.zeros((20, 8, 8), np.uint8), np.arange(20) % 10)
    write_sets(tmp_path, {"train": made, "test": made})
    said = DataOptions("idx", str(tmp_path))
    assert len(open_split(said, "test", seed=None)) == 20
    with pytest.raises(ValueError, match="depends on the seed that a network was trained with"):
        open_split(said, "valid", seed=None)


def test_official_sets(tmp_path):
    write_pcam(tmp_path / "pcam", {"train": 3, "valid": 2, "test": 1})
    write_cityscapes(tmp_path / "cityscapes", {"train": 3, "val": 2, "test": 1}, size=(32, 64))
    for kind in ("pcam", "cityscapes"):
        said = DataOptions(kind, str(tmp_path / kind))
        assert [len(open_split(said, split)) for split in ("train", "valid", "test")] == [3, 2, 1]
        assert num_classes(said) == len(class_names(said)) == {"pcam": 2, "cityscapes": 19}[kind]


# --- fewer samples ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", WRITE)
@pytest.mark.parametrize("held_out", [True, False])
def test_a_limit_keeps_the_proportions_of_the_classes(kind, held_out, roots, tmp_path):
    root = roots[kind]
    if not held_out:
        root = tmp_path
        WRITE[kind](root, "train", range(NUMBER))
        WRITE[kind](root, "valid", range(NUMBER))
    drawn = set()
    for seed in range(3):
        whole, part = (open_split(options(kind, root, limit=limit), "train", seed=seed) for limit in (None, 10))
        assert len(set(numbers(part))) == 10
        assert set(numbers(part)) <= set(numbers(whole))
        assert [numbers(part)] == opened(options(kind, root, limit=10), "train", seed=seed)
        assert opened(options(kind, root, limit=10), "valid", seed=seed) == opened(
            options(kind, root), "valid", seed=seed
        )
        if kind != "masks":  # whose pixels have classes, and not the images
            all_of_them = Counter(int(whole[n][1]) for n in range(len(whole)))
            for name, count in Counter(int(part[n][1]) for n in range(10)).items():
                assert abs(count - 10 * all_of_them[name] / len(whole)) < 1
        drawn.add(tuple(numbers(part)))
    assert len(drawn) == 3


@pytest.mark.parametrize("limit", [0, NUMBER + 1])
def test_limits_that_cannot_be(limit, roots):
    with pytest.raises(ValueError, match=rf"data\.limit is from 1 to .* got {limit}"):
        open_split(options("idx", roots["idx"], limit=limit))


# --- crops and sizes -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def streets(tmp_path_factory) -> DataOptions:
    root = tmp_path_factory.mktemp("streets")
    write_cityscapes(root, {"train": 5, "val": 3}, size=(40, 64))
    return DataOptions("cityscapes", str(root), crop=(24, 32), flip=True)


def test_crops_are_of_training_images_alone(streets):
    train, valid = (open_split(streets, split) for split in ("train", "valid"))
    assert (train[0][0].shape, train[0][1].shape) == ((3, 24, 32), (24, 32))
    assert (valid[0][0].shape, valid[0][1].shape) == ((3, 40, 64), (40, 64))
    before = valid[0][0]
    valid.set_epoch(1)
    assert torch.equal(valid[0][0], before)


def test_crops_are_keyed_by_seed_epoch_and_sample(streets):
    def crops(seed: int, epoch: int) -> list[Tensor]:
        dataset = open_split(streets, "train", seed=seed)
        dataset.set_epoch(epoch)
        return [dataset[n][0] for n in range(len(dataset))]

    assert all(map(torch.equal, crops(1, 2), crops(1, 2)))
    assert not all(map(torch.equal, crops(1, 2), crops(1, 3)))
    assert not all(map(torch.equal, crops(1, 2), crops(2, 2)))


def test_parts_hand_the_epoch_on(streets):
    whole = open_split(streets)
    part = Part(whole, [4, 1])
    part.set_epoch(3)
    assert whole.epoch == part.epoch == 3
    for n, index in enumerate([4, 1]):
        assert all(map(torch.equal, part[n], whole[index]))


def test_sizes(tmp_path):
    for number, side in enumerate((4, 6, 9)):
        save_picture(tmp_path / f"class_{number}" / f"{number}.png", flat(number, (side, side, 3)))
    images = open_split(options("class_folders", tmp_path, size=(5, 7)))
    assert {images[n][0].shape for n in range(2)} == {(3, 5, 7)}


# --- classes ---------------------------------------------------------------------------------------------------------


def test_names_and_numbers_of_classes(roots):
    said = {kind: options(kind, root) for kind, root in roots.items()}
    assert class_names(said["class_folders"]) == ("class_0", "class_1", "class_2")
    assert num_classes(said["class_folders"]) == 3
    assert class_names(said["pcam_folder"]) == ("normal", "tumor")
    assert class_names(said["table"]) == class_names(said["masks"]) == class_names(said["idx"]) == ()
    assert num_classes(said["table"]) == num_classes(said["masks"]) == 3
    assert num_classes(DataOptions("idx", "")) == 10
    for kind in ("table", "masks"):
        with pytest.raises(ValueError, match=rf"data\.num_classes is needed for data of the kind {kind}"):
            num_classes(DataOptions(kind, ""))


def test_sets_with_other_classes_are_refused(tmp_path):
    write_class_folders(tmp_path, "train", range(NUMBER))
    write_class_folders(tmp_path, "valid", range(25))
    with pytest.raises(ValueError, match=r"valid' has other classes than the training set: class_2$"):
        open_split(options("class_folders", tmp_path), "valid")


def test_classes_of_a_folder_that_only_has_a_test_set(tmp_path):
    write_class_folders(tmp_path, "test", range(25))
    assert class_names(options("class_folders", tmp_path)) == ("class_0", "class_1")
    assert len(open_split(options("class_folders", tmp_path), "test")) == 25


# --- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"kind": "imagenet"}, r"data\.kind is one of pcam, .*, got 'imagenet'"),
        ({"mean": [0.5]}, r"data\.mean and data\.std are given together"),
        ({"batch_size": 0}, r"data\.batch_size is at least 1 .* got 0, 2"),
        ({"workers": -1}, r"data\.workers 0, got 128, -1"),
        ({"holdout": 1.0}, r"data\.holdout is a share between 0 and 1, got 1\.0"),
        ({"holdout": 0}, r"data\.holdout"),
        ({"jitter": (0, 2)}, r"data\.jitter is two factors above 0, .* got \(0, 2\)"),
        ({"jitter": (2, 1)}, r"data\.jitter"),
        ({"kind": "masks", "augment": "pcam"}, r"data\.augment pcam is for classification, got the kind masks"),
        ({"kind": "pcam", "size": (9, 9)}, r"data\.size is for class_folders and tables, got the kind pcam"),
        ({"kind": "table", "crop": (9, 9)}, r"data\.crop is for segmentation, got the kind table; use data\.size"),
        ({"kind": "table", "flip": True}, r"data\.flip is for segmentation, got the kind table"),
        ({"classes": ["a"]}, r"data\.classes are for masks, table and idx; data of the kind class_folders have"),
    ],
)
def test_wrong_options_are_refused(said, message):
    with pytest.raises(ValueError, match=message):
        DataOptions(**({"kind": "class_folders", "root": ""} | said))


def test_missing_data_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"data\.root: there is no folder 'nowhere'"):
        open_split(DataOptions("idx", "nowhere"))
    with pytest.raises(FileNotFoundError, match=r"train-images-idx3-ubyte"):
        open_split(DataOptions("idx", str(tmp_path)))
