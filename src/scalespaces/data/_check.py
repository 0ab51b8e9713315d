"""Is a dataset complete? What it contains, and what is wrong where."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from scalespaces._progress import progress
from scalespaces.data import _pcam as pcam
from scalespaces.data._folders import CITY_SPLITS, ImageFiles, NothingLeftError, folder_classes, image_files
from scalespaces.data._idx import IMAGES, read_idx, read_idx_images
from scalespaces.data._open import ANY, Kind, named, open_whole
from scalespaces.data._pixels import read_pixels


@dataclass
class Report:
    """What a check found: a line for each part of the dataset, and the problems, each with the file it is in."""

    kind: str
    facts: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        verdict = f"{len(self.problems)} problems:" if self.problems else "no problems"
        return "\n  ".join([self.kind, *self.facts]) + "\n" + "\n  ".join([verdict, *self.problems])

    def note(self, problems: Mapping[Path, str] | Mapping[str, str]) -> None:
        """Add problems, by file."""
        self.problems += [f"{file}: {reason}" for file, reason in problems.items()]

    @contextmanager
    def noting(self, where: str | Path) -> Iterator[None]:
        """Turn an error into a problem of a file or set, and continue."""
        try:
            with warnings.catch_warnings(action="ignore"):  # of files that are left out, which are noted
                yield
        except (ValueError, OSError) as error:
            skipped = error.skipped if isinstance(error, NothingLeftError) else {}
            self.note(skipped or {str(where): str(error).removeprefix(repr(str(where))).strip()})

    def read(self, name: str, folder: Path, kind: Kind, split: str, table: Path | None, num_classes: int) -> None:
        """Read all image files of a set, and note what it contains and what had to be left out."""
        with self.noting(name):
            dataset = open_whole(folder, kind, split, table, num_classes, "skip")
            if isinstance(dataset, ImageFiles):
                self.note(dataset.skipped)
                self.facts.append(f"{name}: {len(dataset)} images, {dataset.summary()}")


def check_dataset(path: str | Path, *, table: str | Path | None = None, num_classes: int | None = None) -> Report:
    """Read a whole dataset, and report what it contains and what is wrong.

    The kind of dataset follows from the names of its files: PCam's files, Cityscapes' tree, IDX files, ``images`` and
    ``masks``, images with a table of labels, a folder for each class, or a single HDF5, IDX or image file.

    Args:
        path: file or folder.
        table: CSV file with the labels of the images; by default, one in the folder or ``labels.csv`` next to it.
        num_classes: labels must be below this; by default, they are only checked if the format has a limit.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"no file or folder {str(path)!r}")
    if path.is_file():
        return _check_file(path)
    if any((path / pcam.pcam_file(split, part)).exists() for split in pcam.SPLITS for part in "xy"):
        return _check_pcam(path)
    if (path / "leftImg8bit").is_dir() or (path / "gtFine").is_dir():
        return _check_cityscapes(path)
    if any(path.glob(f"*{IMAGES}*")):
        return _check_idx(path, 10 if num_classes is None else num_classes)
    return _check_folders(path, table, ANY if num_classes is None else num_classes)


def _check_file(path: Path) -> Report:
    if path.suffix in (".h5", ".hdf5"):
        report = Report("HDF5 file")
        with report.noting(path):
            if not (parts := pcam.parts_in(path)):
                raise ValueError("has neither a dataset x nor y")
            for part in parts:
                _check_h5(report, path, part)
        return report
    report = Report("IDX file" if "-idx" in path.name else "image")
    with report.noting(path):
        if report.kind == "IDX file":
            report.facts.append(_describe(read_idx(path)))
        else:
            report.facts.append("{2} x {1} pixels, {0} channels".format(*read_pixels(path, deep=True).shape))
    return report


def _check_pcam(path: Path) -> Report:
    report = Report("PatchCamelyon")
    for split in pcam.SPLITS:
        files = [path / pcam.pcam_file(split, part) for part in "xy"]
        if not any(file.exists() for file in files):
            report.facts.append(f"{split}: not there")
            continue
        patches, labels = (_check_h5(report, file, part) for part, file in zip("xy", files, strict=True))
        if None not in (patches, labels) and patches != labels:
            report.note({files[0]: f"has {patches} patches for {labels} labels"})
    return report


def _check_h5(report: Report, file: Path, part: str) -> int | None:
    """Read all patches or labels in a file, and return their number, or None if it cannot be read."""
    with report.noting(file):
        if not file.exists():
            raise ValueError("is missing")
        if part == "y":
            labels = pcam.read_labels(file)
            report.facts.append(f"{file.name}: {len(labels)} labels, {int(labels.sum())} of them 1")
            return len(labels)
        with pcam.open_part(file, "x") as patches:
            step = (patches.chunks or (64,))[0]
            for start in progress(range(0, len(patches), step), f"reading {file}"):
                last = min(start + step, len(patches)) - 1
                try:
                    pcam.read_part(patches, slice(start, last + 1), f"patches {start} to {last}")
                except ValueError as error:
                    report.note({file: str(error)})
            together = pcam.patches_per_read(patches)
            stored = f"gzip, {together} together" if patches.compression else "plain"
            slow = "; slow to read at random, see `scalespaces data repack`" if together > 1 else ""
            report.facts.append(f"{file.name}: {len(patches)} patches, {stored}{slow}")
            return len(patches)
    return None


def _check_cityscapes(path: Path) -> Report:
    report = Report("Cityscapes")
    pictures, annotations = path / "leftImg8bit", path / "gtFine"
    report.note({folder: "is missing" for folder in (pictures, annotations) if not folder.is_dir()})
    for split in CITY_SPLITS:
        if (pictures / split).is_dir():
            report.read(split, path, "cityscapes", split, None, ANY)
        else:
            report.facts.append(f"{split}: not there")
        images = {file.name.removesuffix("_leftImg8bit.png") for file in (pictures / split).rglob("*.png")}
        masks = sorted((annotations / split).rglob("*_gtFine_labelIds.png"))
        alone = [file for file in masks if file.name.removesuffix("_gtFine_labelIds.png") not in images]
        report.note(dict.fromkeys(alone, "has no image"))
    return report


def _check_idx(path: Path, num_classes: int) -> Report:
    report = Report("IDX images")
    for split in sorted({file.name.partition(IMAGES)[0] for file in path.glob(f"*{IMAGES}*")}):
        with report.noting(path):
            dataset = read_idx_images(path, split, num_classes)
            classes = ", ".join(map(str, np.bincount(dataset.labels.numpy(), minlength=num_classes)))
            report.facts.append(f"{split}: {_describe(dataset.images[:, 0].numpy())}, {classes} by class")
            if (scales := dataset.scales) is not None and len(scales):
                report.facts[-1] += f", scales {scales.min():.3g} to {scales.max():.3g}"
    return report


def _describe(array: np.ndarray) -> str:
    return f"{' x '.join(map(str, array.shape))} {array.dtype}"


def _check_folders(path: Path, table: str | Path | None, num_classes: int) -> Report:
    """Images in folders: with masks, with a table, or with a folder for each class; with or without splits."""
    sets = {split: folder for split in pcam.SPLITS if (folder := named(path, split))} or {"": path}
    tables = {split: file for split in pcam.SPLITS if (file := named(path, split, ".csv"))}
    files = sorted([*path.glob("*.csv"), *path.parent.glob("labels.csv")]) if table is None else [Path(table)]
    if files and (table is not None or not tables):
        tables = {"": files[0]}
    first = next(iter(sets.values()))
    if (first / "images").is_dir() and (first / "masks").is_dir():
        kind, report = "masks", Report("images and masks")
    elif tables:
        kind, report = "table", Report(f"images with labels in {', '.join(map(str, tables.values()))}")
        sets = {split: named(path, split) or path for split in tables}
    elif folder_classes(path):
        kind, report = "class_folders", Report("a folder for each class")
    else:
        what = f"{len(image_files(path))} images but neither classes nor labels" if image_files(path) else "nothing"
        raise ValueError(f"{str(path)!r} holds {what} that is known here; see `scalespaces data check --help`")
    for split, folder in sets.items():
        report.read(split if len(sets) > 1 else "images", folder, kind, split, tables.get(split), num_classes)
    return report
