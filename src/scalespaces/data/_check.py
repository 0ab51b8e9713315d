"""Is a dataset whole? What it holds, and what is wrong where."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from scalespaces.data import _cityscapes as cityscapes
from scalespaces.data import _pcam as pcam
from scalespaces.data._cityscapes import Cityscapes
from scalespaces.data._folders import (
    ClassFolders,
    ImageFiles,
    LabeledFolder,
    MaskFolders,
    NothingLeftError,
    image_files,
)
from scalespaces.data._idx import read_idx, read_idx_images
from scalespaces.data._pixels import read_pixels
from scalespaces.data._progress import progress

_IDX_IMAGES = "-images-idx3-ubyte"


@dataclass
class Report:
    """What a check found: a line for each part of the dataset, and the problems, each with the file it is in."""

    kind: str
    facts: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [self.kind, *(f"  {fact}" for fact in self.facts)]
        lines += ["no problems"] if not self.problems else [f"{len(self.problems)} problems:"]
        return "\n".join([*lines, *(f"  {problem}" for problem in self.problems)])


def check_dataset(path: str | Path, *, table: str | Path | None = None, num_classes: int | None = None) -> Report:
    """Read all of a dataset, and report what it holds and what is wrong.

    What it is shows by its names: PCam's files, Cityscapes' tree, IDX files, ``images`` beside ``masks``, images with
    a table of labels, or a folder for each class; or a single HDF5, IDX or image file.

    Args:
        path: file or folder.
        table: CSV file with the labels of the images in the folder; ``labels.csv`` beside or in it when left out.
        num_classes: labels must be below; not checked when left out, except where the format says it.
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
    if list(path.glob(f"*{_IDX_IMAGES}*")):
        return _check_idx(path, 10 if num_classes is None else num_classes)
    if (path / "images").is_dir() and (path / "masks").is_dir():
        report, most = Report("images and masks"), 2**31 if num_classes is None else num_classes
        _collect(report, "images", lambda: MaskFolders(path / "images", path / "masks", most, on_error="skip"))
        return report
    tables = [Path(table)] if table is not None else sorted([*path.glob("*.csv"), *path.parent.glob("labels.csv")])
    if tables:
        report, most = Report(f"images with labels in {tables[0]}"), 2**31 if num_classes is None else num_classes
        _collect(report, "images", lambda: LabeledFolder(path, tables[0], most, on_error="skip"))
        return report
    if not any(folder.is_dir() for folder in path.iterdir()):
        what = f"{len(image_files(path))} images but neither classes nor labels" if image_files(path) else "nothing"
        raise ValueError(
            f"{str(path)!r} holds {what} that is known here; see `scalespaces data check --help` for what is"
        )
    report = Report("a folder for each class")
    _collect(report, "images", lambda: ClassFolders(path, on_error="skip"))
    return report


def _check_file(path: Path) -> Report:
    if path.suffix in (".h5", ".hdf5"):
        report = Report("HDF5 file")
        try:
            with pcam.open_h5(path) as file:
                parts = [part for part in "xy" if part in file]
        except ValueError as error:
            report.problems.append(f"{path}: {_without(error, path)}")
            return report
        if not parts:
            report.problems.append(f"{path}: has neither a dataset x nor y")
        for part in parts:
            (_check_patches if part == "x" else _check_labels)(report, path)
        return report
    if "-idx" in path.name:
        report = Report("IDX file")
        _attempt(report, lambda: _describe(read_idx(path)), path)
        return report
    report = Report("image")
    _attempt(report, lambda: "{2} x {1} pixels, {0} channels".format(*read_pixels(path, deep=True).shape), path)
    return report


def _check_pcam(path: Path) -> Report:
    report = Report("PatchCamelyon")
    for split in pcam.SPLITS:
        files = {part: path / pcam.pcam_file(split, part) for part in "xy"}
        there = {part: file for part, file in files.items() if file.exists()}
        if not there:
            report.facts.append(f"{split}: not there")
            continue
        report.problems += [f"{file}: is missing" for part, file in files.items() if part not in there]
        counts = {}
        for part, file in there.items():
            counts[part] = (_check_patches if part == "x" else _check_labels)(report, file)
        if None not in counts.values() and len(set(counts.values())) > 1:
            report.problems.append(f"{files['x']}: has {counts['x']} patches for {counts['y']} labels")
    return report


def _check_patches(report: Report, file: Path) -> int | None:
    try:
        with pcam.open_h5(file) as handle:
            if "x" not in handle:
                raise ValueError(f"{str(file)!r} must have a dataset 'x', has {', '.join(handle) or 'none'}")
            patches = handle["x"]
            pcam.check_patches(patches, file)
            together, step = pcam.patches_per_read(patches), (patches.chunks or (64,))[0]
            bad = []
            for start in progress(range(0, len(patches), step), f"reading {file}"):
                try:
                    patches[start : start + step]
                except OSError as error:
                    bad.append(f"{file}: patches {start} to {min(start + step, len(patches)) - 1}: {error}")
            report.problems += bad
            stored = f"gzip, {together} together" if patches.compression else "plain"
            slow = "; slow to read at random, see `scalespaces data repack`" if together > 1 else ""
            report.facts.append(f"{file.name}: {len(patches)} patches, {stored}{slow}")
            return len(patches)
    except ValueError as error:
        report.problems.append(f"{file}: {_without(error, file)}")
    return None


def _check_labels(report: Report, file: Path) -> int | None:
    try:
        labels = pcam.read_labels(file)
    except ValueError as error:
        report.problems.append(f"{file}: {_without(error, file)}")
        return None
    report.facts.append(f"{file.name}: {len(labels)} labels, {int(labels.sum())} of them 1")
    return len(labels)


def _check_cityscapes(path: Path) -> Report:
    report = Report("Cityscapes")
    for kind in ("leftImg8bit", "gtFine"):
        if not (path / kind).is_dir():
            report.problems.append(f"{path / kind}: is missing")
    for split in cityscapes.SPLITS:
        if (path / "leftImg8bit" / split).is_dir():
            _collect(report, split, lambda split=split: Cityscapes(path, split, on_error="skip"))
        else:
            report.facts.append(f"{split}: not there")
        images = {file.name.removesuffix("_leftImg8bit.png") for file in (path / "leftImg8bit" / split).rglob("*.png")}
        for file in sorted((path / "gtFine" / split).rglob("*_gtFine_labelIds.png")):
            if file.name.removesuffix("_gtFine_labelIds.png") not in images:
                report.problems.append(f"{file}: has no image")
    return report


def _check_idx(path: Path, num_classes: int) -> Report:
    report = Report("IDX images")
    splits = sorted({file.name.partition(_IDX_IMAGES)[0] for file in path.glob(f"*{_IDX_IMAGES}*")})
    for split in splits:

        def describe(split: str = split) -> str:
            dataset = read_idx_images(path, split, num_classes)
            classes = np.bincount(dataset.labels.numpy(), minlength=num_classes)
            fact = f"{split}: {_describe(dataset.images[:, 0].numpy())}, {', '.join(map(str, classes))} by class"
            scales = dataset.scales
            return fact if scales is None else f"{fact}, scales {scales.min():.3g} to {scales.max():.3g}"

        _attempt(report, describe, path)
    return report


def _collect(report: Report, name: str, make: Callable[[], ImageFiles]) -> None:
    """Read all files of a dataset, which leaves out what is wrong, and report both."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what was left out is in the report
            dataset = make()
    except NothingLeftError as error:
        report.problems += [f"{file}: {reason}" for file, reason in error.skipped.items()]
        report.problems += [] if error.skipped else [f"{name}: {error}"]
        return
    except (ValueError, OSError) as error:
        report.problems.append(f"{name}: {error}")
        return
    report.problems += [f"{file}: {reason}" for file, reason in dataset.skipped.items()]
    report.facts.append(f"{name}: {len(dataset)} images, {dataset.summary()}")


def _attempt(report: Report, describe: Callable[[], str], path: Path) -> None:
    try:
        report.facts.append(describe())
    except (ValueError, OSError) as error:
        report.problems.append(f"{path}: {_without(error, path)}")


def _describe(array: np.ndarray) -> str:
    return f"{' x '.join(map(str, array.shape))} {array.dtype}"


def _without(error: Exception, file: Path) -> str:
    return str(error).removeprefix(repr(str(file))).strip()
