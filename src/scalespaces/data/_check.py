"""Is a dataset complete? What it contains, and what is wrong where."""

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from scalespaces._choices import Kind
from scalespaces._files import digest
from scalespaces._progress import progress
from scalespaces.data import _pcam as pcam
from scalespaces.data._folders import (
    CITY_SPLITS,
    ClassFolders,
    ImageFiles,
    NothingLeftError,
    folder_classes,
    image_files,
    plural,
)
from scalespaces.data._idx import IMAGES, read_idx, read_idx_images
from scalespaces.data._open import ANY, kind_of, named, only_table, open_whole
from scalespaces.data._pixels import read_pixels


@dataclass
class Report:
    """What a check found: a line for each part of the dataset, and the problems, each with the file it is in."""

    kind: str
    facts: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    sets: dict[str, ImageFiles[Any]] = field(default_factory=dict, repr=False)  # those that could be read

    def __str__(self) -> str:
        verdict = f"{plural(len(self.problems), 'problem')}:" if self.problems else "no problems"
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
                self.sets[name] = dataset
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
    kind = None
    with suppress(ValueError):
        kind = kind_of(path)
    if kind == "pcam":
        return _check_pcam(path)
    if kind == "cityscapes":
        return _check_cityscapes(path)
    if kind == "idx":
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
    alone = only_table(path) or (None if folder_classes(path) else next(iter(sorted(path.glob("*.csv"))), None))
    files = [Path(table)] if table is not None else [] if alone is None else [alone]
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
        report.read(split or "images", folder, kind, split, tables.get(split), num_classes)
    classes = {name: data.classes for name, data in report.sets.items() if isinstance(data, ClassFolders)}
    for name, found in classes.items():
        if differ := sorted(set(found) ^ set(next(iter(classes.values())))):
            report.note({name: f"has different classes from {next(iter(classes))}: {', '.join(differ)}"})
    with report.noting(path):
        _find_leaks(report)
    return report


def _find_leaks(report: Report) -> None:
    """Images of one split that are also in another, which makes results look better than they are."""
    sizes = Counter(file.stat().st_size for data in report.sets.values() for file, _ in data.samples)
    by_content: dict[str, list[tuple[str, Path]]] = {}
    by_name: dict[str, list[tuple[str, Path]]] = {}
    for name, data in report.sets.items():
        for file, _ in progress(data.samples, f"comparing {name}"):
            by_name.setdefault(file.name, []).append((name, file))
            if sizes[file.stat().st_size] > 1:  # only files of the same size can be the same
                by_content.setdefault(digest(file, "sha256"), []).append((name, file))
    copies = 0
    for found in by_content.values():
        (first, file), *others = found
        copies += sum(name == first for name, _ in others)
        for name, other in others:
            if name != first:
                same = "is also" if other == file else f"has the same content as {file}"
                report.note({other: f"is a leak: it is in {name}, and {same} in {first}; keep it in one split"})
    if copies:
        held = "; the part held out for validation may contain some" if len(report.sets) == 1 else ""
        report.facts.append(f"copies of images within a set: {copies}{held}")
    again = [found for found in by_name.values() if len({name for name, _ in found}) > 1]
    if again:
        text = f"{plural(len(again), 'file name')} in more than one split, first {again[0][0][1].name!r}"
        report.facts.append(f"{text}; a leak, if a name stands for one scene or patient")
