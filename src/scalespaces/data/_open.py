"""Find and open a split of a dataset of any kind."""

from pathlib import Path
from typing import Any

from scalespaces._choices import Kind
from scalespaces.data._folders import (
    Cityscapes,
    ClassFolders,
    LabeledFolder,
    MaskFolders,
    OnError,
    folder_classes,
    is_table,
)
from scalespaces.data._idx import IMAGES, read_idx_images
from scalespaces.data._keys import ImageDataset
from scalespaces.data._pcam import SPLITS, PCam, pcam_file

ANY = 2**31  # so many classes that every label is valid
_NAMES = {"valid": ("valid", "val", "validation"), "val": ("val", "valid", "validation")}


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
    tables = [named(folder, name, ".csv") for name in SPLITS] if table.parent == folder else []
    others = [other for other in tables if other is not None] if table in tables else []
    return LabeledFolder(folder, table, num_classes, on_error=on_error, others=others, **options)


def kind_of(root: str | Path) -> Kind:
    """The kind of the data in a folder, from the names in it."""
    root = Path(root)
    if not root.is_dir():
        raise FileNotFoundError(f"there is no folder {str(root)!r}")
    first = next(filter(None, (named(root, split) for split in SPLITS)), root)
    if any((root / pcam_file(split, part)).exists() for split in SPLITS for part in "xy"):
        return "pcam"
    if (root / "leftImg8bit").is_dir() or (root / "gtFine").is_dir():
        return "cityscapes"
    if any(root.glob(f"*{IMAGES}*")):
        return "idx"
    if (first / "images").is_dir() and (first / "masks").is_dir():
        return "masks"
    if any(named(root, split, ".csv") for split in SPLITS) or only_table(root):
        return "table"
    if folder_classes(root):
        return "class_folders"
    layouts = "a folder for each class, a CSV file with the columns id and label, or the folders images and masks"
    raise ValueError(f"{str(root)!r} has no layout that is known; use {layouts}")


def sets_in(root: Path, kind: Kind) -> list[str]:
    """The names of the sets that can be opened. A validation set is listed if it has files of its own."""
    if kind == "idx":
        return sorted({file.name.partition(IMAGES)[0] for file in root.glob(f"*{IMAGES}*")})
    if kind == "pcam":
        return [split for split in SPLITS if (root / pcam_file(split, "x")).exists()]
    place = root / "leftImg8bit" if kind == "cityscapes" else root
    found = [split for split in SPLITS if named(place, split, ".csv" if kind == "table" else "")]
    return found or ["train"]


def find_split(root: Path, kind: Kind, split: str, table: str | Path | None = None) -> tuple[Path, Path | None, bool]:
    """The folder of a split, its table, and whether these are its own; otherwise they are the training set's."""
    # A training set counts as its own if there is also a validation set; otherwise that has to be held out of it.
    if kind in ("pcam", "cityscapes"):
        return root, None, True
    if kind == "idx":
        return root, None, split not in ("train", "valid") or any(root.glob(f"valid{IMAGES}*"))
    needed = (split, "valid") if split == "train" else (split,)
    if kind in ("class_folders", "masks"):
        own = all(named(root, name) for name in needed)
        return named(root, split if own else "train") or root, None, own
    own = table is None and all(named(root, name, ".csv") for name in needed)
    first = named(root, "train", ".csv") or only_table(root) or root / "train.csv"
    file = named(root, split, ".csv") if own else first if table is None else Path(table)
    if file is None or not file.is_file():
        rule = f"labels are in {split}.csv or the only CSV file in data.root, or in data.table"
        raise FileNotFoundError(f"data.table: there is no file {str(file)!r}; {rule}")
    return named(root, split if own else "train") or root, file, own


def only_table(root: Path) -> Path | None:
    """The CSV file with the labels of all images: the only one in the folder, or ``labels.csv`` next to it."""
    files = sorted(root.glob("*.csv")) or sorted(root.parent.glob("labels.csv"))
    return files[0] if len(files) == 1 and is_table(files[0]) else None


def classes_in(root: Path) -> list[str]:
    """The names of the classes of data with a folder for each class, in the first split that there is."""
    return folder_classes(next(filter(None, (named(root, split) for split in SPLITS)), root))


def named(root: Path, split: str, suffix: str = "") -> Path | None:
    """The folder of a split, or its file if there is a suffix, under any of its names."""
    paths = (root / f"{name}{suffix}" for name in _NAMES.get(split, (split,)))
    return next((path for path in paths if (path.is_file() if suffix else path.is_dir())), None)
