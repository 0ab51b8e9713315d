"""Open a dataset of any kind, given its folder, its kind and a split."""

from pathlib import Path
from typing import Any, Literal

import numpy as np

from scalespaces.data._cityscapes import Cityscapes
from scalespaces.data._folders import ClassFolders, LabeledFolder, MaskFolders, OnError, Size, folder_classes
from scalespaces.data._idx import IMAGES, read_idx_images
from scalespaces.data._keys import ImageDataset, Part
from scalespaces.data._pcam import PCam, PCamFolder
from scalespaces.data._scales import split_classes

Kind = Literal["pcam", "pcam_folder", "cityscapes", "idx", "class_folders", "table", "masks"]
ANY = 2**31  # so many classes that every label is valid
SPLITS = ("train", "valid", "test")
_NAMES = {"valid": ("valid", "val", "validation"), "val": ("val", "valid", "validation")}


def open_dataset(
    root: str | Path,
    kind: Kind,
    split: str = "train",
    *,
    num_classes: int = ANY,
    table: str | Path | None = None,
    size: Size = None,
    crop: Size = None,
    flip: bool = False,
    on_error: OnError = "raise",
    holdout: float = 0.1,
    limit: int | None = None,
    seed: int | None = 0,
) -> ImageDataset:
    """Open a split of a dataset, or hold it out of the training set if it has no files of its own.

    The options are those of a recipe's data. Layouts ignore options that they do not have, and ``crop``, ``flip`` and
    ``limit`` apply only to the training set. Without a ``seed``, nothing can be held out.
    """
    root = Path(root)
    if not root.exists():
        raise FileNotFoundError(f"data.root: there is no folder {str(root)!r}")
    folder, file, own = find_split(root, kind, split, table)
    if not own and split not in ("train", "valid"):
        raise FileNotFoundError(f"data.root: there is no set {split!r} in {str(root)!r}")
    options: dict[str, Any] = {"size": size} if kind in ("class_folders", "table") else {}
    if kind in ("cityscapes", "masks") and split == "train":
        options = {"crop": crop, "flip": flip, "seed": seed or 0}
    dataset = open_whole(folder, kind, split if own else "train", file, num_classes, on_error, **options)
    if isinstance(dataset, ClassFolders) and dataset.classes != classes_in(root):  # they are numbered in their order
        differ = ", ".join(sorted(set(classes_in(root)) ^ set(dataset.classes)))
        raise ValueError(f"{str(folder)!r} has different classes from the training set: {differ}")
    chosen = np.arange(len(dataset))
    if not own:
        if seed is None:
            rule = (
                "depends on the seed that a network was trained with: give that as --seed, and --holdout if it was set"
            )
            raise ValueError(f"{split!r} in {str(root)!r} is a part of the training set, which {rule}")
        order = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(2**31,))).permutation(len(dataset))
        held = max(1, round(holdout * len(dataset)))
        if held >= len(dataset):
            raise ValueError(f"data.holdout {holdout} of {len(dataset)} samples leaves none to train with")
        chosen = np.sort(order[held:] if split == "train" else order[:held])
    if split == "train" and limit is not None:
        if not 1 <= limit <= len(chosen):
            raise ValueError(f"data.limit is from 1 to the size of the training set, {len(chosen)}, got {limit}")
        labels = np.asarray(getattr(dataset, "labels", np.zeros(len(dataset))))  # zeros if every pixel has a class
        chosen = chosen[np.sort(split_classes(labels[chosen], [limit], seed or 0)[0])]
    return dataset if len(chosen) == len(dataset) else Part(dataset, chosen)


def open_whole(
    folder: Path, kind: Kind, split: str, table: Path | None, num_classes: int, on_error: OnError, **options: Any
) -> ImageDataset:
    """Open all samples of a split, whose place is known."""
    if kind == "pcam":
        return PCam(folder, split)
    if kind == "cityscapes":
        return Cityscapes(folder, "val" if split == "valid" else split, on_error=on_error, **options)
    if kind == "idx":
        return read_idx_images(folder, split, num_classes)
    if kind == "masks":
        return MaskFolders(folder / "images", folder / "masks", num_classes, on_error=on_error, **options)
    if table is None:
        return ClassFolders(folder, on_error=on_error, **options)
    if kind == "pcam_folder":
        return PCamFolder(folder, table, on_error=on_error)
    return LabeledFolder(folder, table, num_classes, on_error=on_error, **options)


def find_split(root: Path, kind: Kind, split: str, table: str | Path | None = None) -> tuple[Path, Path | None, bool]:
    """The folder of a split, its table, and whether these are its own; otherwise they are the training set's.

    A training set counts as its own if there is also a validation set; otherwise that has to be held out of it.
    """
    if kind in ("pcam", "cityscapes"):
        return root, None, True
    if kind == "idx":
        return root, None, split not in ("train", "valid") or any(root.glob(f"valid{IMAGES}*"))
    needed = (split, "valid") if split == "train" else (split,)
    if kind in ("class_folders", "masks"):
        own = all(named(root, name) for name in needed)
        return named(root, split if own else "train") or root, None, own
    own = table is None and all(named(root, name, ".csv") for name in needed)
    file = named(root, split, ".csv") if own else Path(root / "train.csv" if table is None else table)
    if file is None or not file.is_file():
        rule = f"labels are in {split}.csv in data.root, or in data.table"
        raise FileNotFoundError(f"data.table: there is no file {str(file)!r}; {rule}")
    return named(root, split if own else "train") or root, file, own


def classes_in(root: Path) -> list[str]:
    """The names of the classes of data with a folder for each class, in the first split that there is."""
    return folder_classes(next(filter(None, (named(root, split) for split in SPLITS)), root))


def named(root: Path, split: str, suffix: str = "") -> Path | None:
    """The folder of a split, or its file if there is a suffix, under any of its names."""
    paths = (root / f"{name}{suffix}" for name in _NAMES.get(split, (split,)))
    return next((path for path in paths if (path.is_file() if suffix else path.is_dir())), None)
