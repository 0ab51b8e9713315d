"""The sets of a recipe: what is held out is not trained with, whatever the format; and their loaders."""

import csv
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from scalespaces.data import ArrayImages, ImageDataset
from scalespaces.data._keys import Indexed
from scalespaces.data._make import make_cityscapes, make_pcam, write_sets
from scalespaces.train._batches import KeyedBatches
from scalespaces.train._data import (
    DataOptions,
    Part,
    class_names,
    collate,
    evaluation_loader,
    num_classes,
    open_split,
    training_loader,
)

pillow = pytest.importorskip("PIL.Image")
NUMBER = 40
SHARES = (0.5, 0.3, 0.2)  # of the classes 0, 1 and 2
LABELS = np.repeat([0, 1, 2], [round(NUMBER * share) for share in SHARES])


def picture(number: int, side: int = 4) -> Any:
    """An image that knows which one it is."""
    return pillow.fromarray(np.full((side, side, 3), number, np.uint8))


def save(image: Any, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    image.save(file)


def write_idx(root: Path, split: str, numbers: range) -> None:
    pixels = np.broadcast_to(np.array(numbers, np.uint8)[:, None, None], (len(numbers), 4, 4))
    write_sets(root, {split: ArrayImages(pixels.copy(), LABELS[: len(numbers)])})


def write_class_folders(root: Path, split: str, numbers: range) -> None:
    for number, label in zip(numbers, LABELS, strict=False):
        save(picture(number), root / split / f"class_{label}" / f"{number}.png")


def write_table(root: Path, split: str, numbers: range, side: int = 4) -> None:
    for number in numbers:
        save(picture(number, side), root / split / f"{number}.png")
    with (root / f"{split or 'train'}.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "label"), *zip(numbers, LABELS, strict=False)])


def write_patches(root: Path, split: str, numbers: range) -> None:
    write_table(root, split, numbers, 96)
    table = root / f"{split or 'train'}.csv"
    table.write_text(table.read_text().replace(",2", ",1"))


def write_masks(root: Path, split: str, numbers: range) -> None:
    for number, label in zip(numbers, LABELS, strict=False):
        save(picture(number), root / split / "images" / f"{number}.png")
        save(pillow.fromarray(np.full((4, 4), label, np.uint8)), root / split / "masks" / f"{number}.png")


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


def label(target: Tensor) -> int:
    return int(target.max())


# --- what is held out ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def roots(tmp_path_factory) -> dict[str, Path]:
    """Data of each kind, the training set alone."""
    made = {kind: tmp_path_factory.mktemp(kind) for kind in WRITE}
    for kind, root in made.items():
        WRITE[kind](root, "train", range(NUMBER))
    return made


@pytest.mark.parametrize("kind", WRITE)
def test_what_is_held_out_is_not_trained_with(kind, roots):
    for holdout, seed in ((0.1, 0), (0.25, 0), (0.25, 3), (0.001, 1)):
        train, valid = (
            numbers(open_split(options(kind, roots[kind], holdout=holdout), split, seed=seed))
            for split in ("train", "valid")
        )
        assert set(train).isdisjoint(valid)
        assert sorted(train + valid) == list(range(NUMBER))
        assert len(valid) == max(1, round(holdout * NUMBER))


@pytest.mark.parametrize("kind", WRITE)
def test_what_is_held_out_is_a_function_of_the_seed(kind, roots):
    said = options(kind, roots[kind])
    sets = [numbers(open_split(said, "valid", seed=seed)) for seed in (0, 0, 1, 2)]
    assert sets[0] == sets[1]
    assert sets[0] != sets[2] != sets[3]


@pytest.mark.parametrize("kind", WRITE)
@pytest.mark.parametrize("name", ["valid", "val", "validation"])
def test_sets_of_their_own_are_taken_whole(kind, name, tmp_path):
    if kind == "idx" and name != "valid":
        pytest.skip("IDX sets are called by their own names")
    for split, there in (("train", range(20)), (name, range(20, 33)), ("test", range(33, 40))):
        WRITE[kind](tmp_path, split, there)
    said = options(kind, tmp_path)
    found = [sorted(numbers(open_split(said, split))) for split in ("train", "valid", "test")]
    assert found == [list(range(20)), list(range(20, 33)), list(range(33, 40))]


@pytest.mark.parametrize("kind", ["class_folders", "table", "pcam_folder", "masks"])
def test_a_folder_without_sets_is_split(kind, tmp_path):
    WRITE[kind](tmp_path, "", range(NUMBER))
    train, valid = (numbers(open_split(options(kind, tmp_path), split)) for split in ("train", "valid"))
    assert sorted(train + valid) == list(range(NUMBER))
    with pytest.raises(FileNotFoundError, match=r"there is no set 'test'"):
        open_split(options(kind, tmp_path), "test")


def test_a_table_may_be_anywhere(roots, tmp_path):
    table = tmp_path / "labels.csv"
    table.write_text((roots["table"] / "train.csv").read_text())
    elsewhere = options("table", roots["table"], table=str(table))
    found = [numbers(open_split(elsewhere, split)) for split in ("train", "valid")]
    assert found == [numbers(open_split(options("table", roots["table"]), split)) for split in ("train", "valid")]
    with pytest.raises(FileNotFoundError, match=r"data\.table: there is no file 'nowhere\.csv'"):
        open_split(options("table", roots["table"], table="nowhere.csv"))


def test_nothing_left_to_train_with(tmp_path):
    write_class_folders(tmp_path, "", range(1))
    with pytest.raises(ValueError, match=r"data\.holdout 0\.1 of 1 samples leaves none to train with"):
        open_split(options("class_folders", tmp_path))


def test_official_sets(tmp_path):
    make_pcam(tmp_path / "pcam", {"train": 3, "valid": 2, "test": 1})
    make_cityscapes(tmp_path / "cityscapes", {"train": 3, "val": 2, "test": 1}, size=(32, 64))
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
    for seed in range(3):
        whole = open_split(options(kind, root), "train", seed=seed)
        part = open_split(options(kind, root, limit=10), "train", seed=seed)
        assert len(set(numbers(part))) == 10
        assert set(numbers(part)) <= set(numbers(whole))
        assert numbers(part) == numbers(open_split(options(kind, root, limit=10), "train", seed=seed))
        assert numbers(open_split(options(kind, root, limit=10), "valid", seed=seed)) == numbers(
            open_split(options(kind, root), "valid", seed=seed)
        )
        if kind != "masks":  # whose pixels have classes, and not the images
            all_of_them = Counter(label(whole[n][1]) for n in range(len(whole)))
            for name, count in Counter(label(part[n][1]) for n in range(10)).items():
                assert abs(count - 10 * all_of_them[name] / len(whole)) < 1
    drawn = {tuple(numbers(open_split(options(kind, root, limit=10), "train", seed=seed))) for seed in range(3)}
    assert len(drawn) == 3


@pytest.mark.parametrize("limit", [0, NUMBER + 1])
def test_limits_that_cannot_be(limit, roots):
    with pytest.raises(ValueError, match=rf"data\.limit is from 1 to .* got {limit}"):
        open_split(options("idx", roots["idx"], limit=limit))


# --- what is done to them --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def streets(tmp_path_factory) -> DataOptions:
    root = tmp_path_factory.mktemp("streets")
    make_cityscapes(root, {"train": 5, "val": 3}, size=(40, 64))
    return DataOptions("cityscapes", str(root), batch_size=2, crop=(24, 32), flip=True)


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
        save(picture(number, side), tmp_path / f"class_{number}" / f"{number}.png")
    images = open_split(options("class_folders", tmp_path, size=(5, 7)))
    assert {images[n][0].shape for n in range(2)} == {(3, 5, 7)}
    unsized = open_split(options("class_folders", tmp_path, holdout=0.01), "train")
    with pytest.raises(ValueError, match=r"same size, got 3 x \d x \d, .*; set data\.size, or data\.crop for masks"):
        collate([unsized[0], unsized[1]])


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


# --- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"kind": "imagenet"}, r"data\.kind is one of pcam, .*, got 'imagenet'"),
        ({"mean": [0.5]}, r"data\.mean and data\.std are given together"),
        ({"batch_size": 0}, r"data\.batch_size is at least 1 .* got 0, 2"),
        ({"workers": -1}, r"data\.workers 0, got 128, -1"),
        ({"holdout": 1.0}, r"data\.holdout is a part between 0 and 1, got 1\.0"),
        ({"holdout": 0}, r"data\.holdout"),
        ({"jitter": (0, 2)}, r"data\.jitter is two factors above 0, .* got \(0, 2\)"),
        ({"jitter": (2, 1)}, r"data\.jitter"),
        ({"kind": "masks", "augment": "pcam"}, r"data\.augment pcam is for classification, got the kind masks"),
        ({"kind": "pcam", "size": (9, 9)}, r"data\.size is for class_folders and tables, got the kind pcam"),
        ({"kind": "table", "crop": (9, 9)}, r"data\.crop is for segmentation, got the kind table; use data\.size"),
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


# --- loaders ---------------------------------------------------------------------------------------------------------


def enumerated(number: int) -> ArrayImages:
    return ArrayImages(torch.arange(number, dtype=torch.uint8).reshape(-1, 1, 1), torch.arange(number))


@given(more=st.integers(0, 25), processes=st.integers(1, 5), batch=st.integers(1, 7))
def test_processes_share_an_evaluation(more, processes, batch):
    number = processes + more
    dataset = enumerated(number)
    parts = [
        torch.cat([labels for _, labels in evaluation_loader(dataset, batch, rank=rank, processes=processes)]).tolist()
        for rank in range(processes)
    ]
    assert sorted(chain(*parts)) == list(range(number)), "each sample once"
    assert all(part == sorted(part) for part in parts)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_no_process_goes_without():
    with pytest.raises(ValueError, match=r"4 processes share .* got 3; use fewer processes"):
        evaluation_loader(enumerated(3), 2, rank=0, processes=4)


def epochs(streets: DataOptions, workers: int, number: int, **place: int) -> list[list[Tensor]]:
    dataset = open_split(streets, "train", seed=4)
    batches = KeyedBatches(Indexed(dataset), streets.batch_size, 4, **place)
    loader = training_loader(batches, workers)
    found = []
    for epoch in range(number):
        batches.set_epoch(epoch)
        found += list(loader)
    return found


def test_training_batches_are_the_samples_and_their_indices(streets):
    dataset = open_split(streets, "train", seed=4)
    batches = KeyedBatches(dataset, 2, 4)
    loaded = epochs(streets, 0, 3)
    assert len(loaded) == 6
    for n, (images, targets, indices) in enumerate(loaded):
        batches.set_epoch(n // 2)
        expected = list(batches)[n % 2]
        assert indices.tolist() == expected
        for row, index in enumerate(expected):
            image, target = dataset[index]
            assert torch.equal(images[row], image)
            assert torch.equal(targets[row], target)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more than there are cores
@pytest.mark.parametrize("workers", [1, 3])
def test_workers_change_nothing(streets, workers):
    """Persistent ones, too, learn the epoch."""
    alone, shared = epochs(streets, 0, 4), epochs(streets, workers, 4)
    for one, other in zip(alone, shared, strict=True):
        assert all(map(torch.equal, one, other))


def test_what_is_held_out_needs_the_seed_of_the_training(tmp_path):
    made = ArrayImages(np.zeros((20, 8, 8), np.uint8), np.arange(20) % 10)
    write_sets(tmp_path, {"train": made, "test": made})
    options = DataOptions("idx", str(tmp_path))
    assert len(open_split(options, "test", seed=None)) == 20
    with pytest.raises(ValueError, match="depends on the seed that a network was trained with"):
        open_split(options, "valid", seed=None)


def test_classes_of_a_folder_that_only_has_a_test_set(tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    for name in ("cat", "dog"):
        (tmp_path / "test" / name).mkdir(parents=True)
        pillow.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "test" / name / "1.png")
    options = DataOptions("class_folders", str(tmp_path))
    assert class_names(options) == ("cat", "dog")
    assert len(open_split(options, "test")) == 2
