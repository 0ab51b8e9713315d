"""A user's own images: a folder for each class, a folder with a table of labels, or images beside masks."""

from __future__ import annotations

import csv
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from scalespaces.data._keys import ImageDataset, check_labels
from scalespaces.data._pixels import SUFFIXES, random_crop, read_mask, read_pixels, sides
from scalespaces.data._progress import progress

OnError = Literal["raise", "skip"]


class NothingLeftError(ValueError):
    """A dataset without samples, and what was left out of it: file and reason."""

    def __init__(self, message: str, skipped: dict[str, str]) -> None:
        super().__init__(message)
        self.skipped = skipped


class ImageFiles(ImageDataset):
    """Images in files, each with what :meth:`load` makes of it.

    Args:
        root: what messages call the dataset.
        samples: one entry for each sample; its first item is the path of its image.
        problems: what is wrong already, by file.
        on_error: ``"raise"`` refuses a dataset with problems, and files that cannot be read when they are read.
            ``"skip"`` reads every file now, leaves out what is wrong, warns with the count, and lists it in
            ``skipped``: a dictionary of file and reason.
        seed: of crops and flips.
    """

    def __init__(
        self,
        root: str | Path,
        samples: Iterable[Sequence[Any]],
        problems: dict[str, str],
        on_error: OnError,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error is one of raise, skip, got {on_error!r}")
        self.root, self.samples, self.skipped = Path(root), list(samples), dict(problems)
        self._sizes: Counter[str] = Counter()
        self._labels: Counter[int] = Counter()
        if on_error == "skip":
            self._skip_unreadable()
        elif problems:
            file, reason = next(iter(problems.items()))
            more = f" and {len(problems) - 1} more problems" if len(problems) > 1 else ""
            raise ValueError(f"{file!r} {reason}{more}; on_error='skip' leaves such files out")
        if not self.samples:
            looked = f"files that end in {', '.join(SUFFIXES)} are looked for"
            raise NothingLeftError(f"no images in {str(root)!r} can be used; {looked}", self.skipped)

    def _skip_unreadable(self) -> None:
        readable = []
        for sample in progress(self.samples, f"reading {self.root}"):
            try:
                image, target = self.load(sample)
            except ValueError as error:
                file = str(sample[0])
                self.skipped[file] = str(error).removeprefix(repr(file)).strip()
            else:
                readable.append(sample)
                self._sizes[f"{image.shape[2]} x {image.shape[1]}"] += 1
                values, counts = np.unique(target.numpy(), return_counts=True)
                self._labels.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
        self.samples = readable
        if self.skipped:
            file, reason = next(iter(self.skipped.items()))
            warnings.warn(
                f"left out {len(self.skipped)} of {len(readable) + len(self.skipped)} in {str(self.root)!r}, "
                f"first {file!r}: {reason}; the rest are in .skipped",
                stacklevel=4,
            )

    def summary(self) -> str:
        """Sizes of the images and how often each class occurs, as they were read with ``on_error="skip"``."""
        sizes = ", ".join(f"{number} of {size}" for size, number in self._sizes.most_common(3))
        more = f" and {len(self._sizes) - 3} more sizes" if len(self._sizes) > 3 else ""
        total = sum(self._labels.values()) or 1
        shares = ", ".join(f"{label}: {100 * n / total:.3g} %" for label, n in sorted(self._labels.items()))
        return f"{sizes}{more} pixels; labels {shares}"

    def load(self, sample: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Read a sample as it is in its files, and check it."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.load(self.samples[index])


class ClassFolders(ImageFiles):
    """A folder with a folder of images for each class; classes are numbered in the order of their names.

    Args:
        root: the folder; images may lie deeper in the folder of their class.
        size: side or ``(height, width)`` all images are brought to; as they are when left out.
        deep: read images of more than 8 bits, and all as float32.
        on_error: ``"raise"``, or ``"skip"`` to leave out empty classes and unreadable images, counted.

    Shape:
        - Samples: image :math:`(3, H, W)` uint8, class number int64
    """

    def __init__(
        self,
        root: str | Path,
        *,
        size: int | tuple[int, int] | None = None,
        deep: bool = False,
        on_error: OnError = "raise",
    ) -> None:
        self.size, self.deep = sides(size, "size"), deep
        problems = dict.fromkeys(map(str, image_files(root, deep=False)), "lies outside of the folders of the classes")
        found = {folder: image_files(folder) for folder in sorted(_folder(root).iterdir()) if is_class_folder(folder)}
        problems |= {str(folder): "is a class without images" for folder, files in found.items() if not files}
        found = {folder: files for folder, files in found.items() if files}
        self.classes = [folder.name for folder in found]
        samples = [(file, label) for label, files in enumerate(found.values()) for file in files]
        super().__init__(root, samples, problems, on_error)

    def load(self, sample: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """The image, and its class."""
        return read_pixels(sample[0], deep=self.deep, size=self.size), torch.tensor(sample[1])


class LabeledFolder(ImageFiles):
    """A folder of images, and a CSV file with the columns ``id``, their names with or without suffix, and ``label``.

    Args:
        root: the folder of the images.
        table: the CSV file.
        num_classes: labels are whole numbers below it.
        size: as in :class:`ClassFolders`.
        deep: as in :class:`ClassFolders`.
        on_error: ``"raise"``, or ``"skip"`` to leave out, counted: rows without an image, images without a row,
            labels out of range and unreadable images.
    """

    def __init__(
        self,
        root: str | Path,
        table: str | Path,
        num_classes: int,
        *,
        size: int | tuple[int, int] | None = None,
        deep: bool = False,
        on_error: OnError = "raise",
    ) -> None:
        self.size, self.deep = sides(size, "size"), deep
        files = image_files(root)
        by_name = {file.name: file for file in files} | _by_stem(files)
        samples, problems, named = [], {}, set()
        for line, name, label in _rows(table):
            where, file = f"{table}:{line}", by_name.get(name)
            named.add(file)
            if file is None:
                problems[where] = f"names {name!r}, which is no image in {str(root)!r}"
            elif not (label.isascii() and label.isdecimal() and int(label) < num_classes):
                problems[where] = f"has the label {label!r} for {name!r}; labels are from 0 to {num_classes - 1}"
            else:
                samples.append((file, int(label)))
        labels: dict[Path, int] = {}
        for file, label in samples:
            if labels.setdefault(file, label) != label:
                raise ValueError(f"{str(table)!r} has two labels for {str(file)!r}: {labels[file]} and {label}")
        problems |= {str(file): f"has no label in {str(table)!r}" for file in files if file not in named}
        super().__init__(root, sorted(labels.items()), problems, on_error)

    def load(self, sample: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """The image, and its label."""
        return read_pixels(sample[0], deep=self.deep, size=self.size), torch.tensor(sample[1])


class MaskFolders(ImageFiles):
    """A folder of images and a folder of masks of the same names, for segmentation.

    Args:
        images: the folder of the images.
        masks: the folder of the masks, whose pixels are class numbers; suffixes may differ.
        num_classes: class numbers are below it.
        ignore_index: the one number that may be larger: no class.
        crop: side or ``(height, width)`` of random crops; whole images when left out.
        flip: mirror half of the images left to right.
        deep: as in :class:`ClassFolders`.
        seed: of crops and flips.
        on_error: ``"raise"``, or ``"skip"`` to leave out, counted: images without masks, masks without images, what
            cannot be read, sizes that differ and class numbers out of range.

    Shape:
        - Samples: image :math:`(3, H, W)` uint8, mask :math:`(H, W)` int64
    """

    def __init__(
        self,
        images: str | Path,
        masks: str | Path,
        num_classes: int,
        *,
        ignore_index: int = 255,
        crop: int | tuple[int, int] | None = None,
        flip: bool = False,
        deep: bool = False,
        seed: int = 0,
        on_error: OnError = "raise",
    ) -> None:
        self.num_classes, self.ignore_index, self.deep = num_classes, ignore_index, deep
        self.crop, self.flip = sides(crop, "crop"), flip
        pictures, annotations = _by_stem(image_files(images)), _by_stem(image_files(masks))
        problems = {str(pictures[name]): f"has no mask in {str(masks)!r}" for name in pictures.keys() - annotations}
        problems |= {str(annotations[n]): f"has no image in {str(images)!r}" for n in annotations.keys() - pictures}
        samples = [(pictures[name], annotations[name]) for name in sorted(pictures.keys() & annotations)]
        super().__init__(images, samples, dict(sorted(problems.items())), on_error, seed)

    def load(self, sample: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """The whole image and its mask."""
        image, mask = read_pixels(sample[0], deep=self.deep), read_mask(sample[1])
        if image.shape[1:] != mask.shape:
            raise ValueError(
                f"{str(sample[1])!r} is {mask.shape[1]} x {mask.shape[0]} pixels, "
                f"its image {image.shape[2]} x {image.shape[1]}"
            )
        return image, self.classes_of(mask, sample[1])

    def classes_of(self, mask: Tensor, file: Path) -> Tensor:
        """The classes that the numbers in a mask stand for."""
        rest = mask[mask != self.ignore_index]
        if len(rest) and not 0 <= int(rest.min()) <= int(rest.max()) < self.num_classes:
            check_labels(rest.numpy(), self.num_classes, f"class numbers in {str(file)!r}")
        return mask

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        index = range(len(self))[index]
        image, mask = super().__getitem__(index)
        if self.crop is None and not self.flip:
            return image, mask
        return random_crop(image, mask, self.crop, self.flip, self.generator(index), str(self.samples[index][0]))


def image_files(folder: str | Path, deep: bool = True) -> list[Path]:
    """The images in a folder and, if ``deep``, the folders in it, by name; hidden ones are not seen."""
    folder = _folder(folder)
    files = folder.rglob("*") if deep else folder.iterdir()
    return sorted(
        file
        for file in files
        if file.suffix.lower() in SUFFIXES
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
        and file.is_file()
    )


def is_class_folder(folder: Path) -> bool:
    """Whether it is a folder that stands for a class: any that is not hidden."""
    return folder.is_dir() and not folder.name.startswith(".")


def _folder(path: str | Path) -> Path:
    path = Path(path)
    if not path.is_dir():
        raise NotADirectoryError(f"{str(path)!r} is not a folder" if path.exists() else f"no folder {str(path)!r}")
    return path


def _by_stem(files: Iterable[Path]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for file in files:
        other = found.setdefault(file.stem, file)
        if other != file:
            raise ValueError(f"{str(other)!r} and {str(file)!r} have the same name; rename one")
    return found


def _rows(table: str | Path) -> list[tuple[int, str, str]]:
    try:
        with Path(table).open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream)
            if not {"id", "label"} <= set(reader.fieldnames or ()):
                raise ValueError(f"{str(table)!r} must have the columns id and label, got {reader.fieldnames}")
            return [(reader.line_num, (row["id"] or "").strip(), (row["label"] or "").strip()) for row in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{str(table)!r} is no CSV file: {error}") from error
