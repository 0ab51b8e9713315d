"""Images in files: a folder for each class, a folder with a table of labels, images with masks, and Cityscapes."""

import csv
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from scalespaces._files import open_table
from scalespaces._progress import progress
from scalespaces.data._keys import ImageDataset, check_labels
from scalespaces.data._pixels import SUFFIXES, read_mask, read_pixels, sides

T = TypeVar("T")
OnError = Literal["raise", "skip"]
Size = int | tuple[int, int] | None
CITY_SPLITS = ("train", "val", "test")
CITY_CLASSES = {  # Cityscapes' own, in their order: the number in labelIds files
    "road": 7, "sidewalk": 8, "building": 11, "wall": 12, "fence": 13, "pole": 17, "traffic light": 19,
    "traffic sign": 20, "vegetation": 21, "terrain": 22, "sky": 23, "person": 24, "rider": 25, "car": 26, "truck": 27,
    "bus": 28, "train": 31, "motorcycle": 32, "bicycle": 33,
}  # fmt: skip
CITY_IDS = 34


class NothingLeftError(ValueError):
    """A dataset has no samples; ``skipped`` has the files that were left out, each with the reason."""

    def __init__(self, message: str, skipped: dict[str, str]) -> None:
        super().__init__(message)
        self.skipped = skipped


class ImageFiles(ImageDataset, Generic[T]):
    """Images in files, each with a target: a label, or the file of a mask that :meth:`load` of a subclass reads.

    ``problems`` are those already known, by file. With ``on_error="raise"``, they raise an error now, and broken files
    raise one when they are read. With ``"skip"``, every file is read now, and files with problems are left out, counted
    in a warning, and listed in ``skipped``, a dictionary of files and reasons.
    """

    def __init__(
        self,
        root: str | Path,
        samples: Iterable[tuple[Path, T]],
        problems: Mapping[str, str],
        on_error: OnError,
        *,
        size: Size = None,
        deep: bool = False,
        crop: Size = None,
        flip: bool = False,
        center: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error is one of raise, skip, got {on_error!r}")
        self.size, self.crop, self.deep, self.flip = sides(size, "size"), sides(crop, "crop"), deep, flip
        self.center = center
        self.root, self.samples, self.skipped = Path(root), list(samples), dict(problems)
        self._sizes, self._shares = Counter[str](), Counter[int]()
        if on_error == "skip":
            self._skip_unreadable()
        elif problems:
            file, reason = next(iter(problems.items()))
            more = f" and {plural(len(problems) - 1, 'more problem')}" if len(problems) > 1 else ""
            way = "set data.on_error to skip in a recipe, --skip-errors for evaluate, on_error='skip' in Python"
            raise ValueError(f"{file!r} {reason}{more}; to leave such files out, {way}")
        if not self.samples:
            rule = f"images are files that end in {', '.join(SUFFIXES)}"
            raise NothingLeftError(f"no images in {str(root)!r} can be used; {rule}", self.skipped)

    def _skip_unreadable(self) -> None:
        readable = []
        for file, target in progress(self.samples, f"reading {self.root}"):
            try:
                image, classes = self.load(file, target)
            except ValueError as error:
                self.skipped[str(file)] = str(error).removeprefix(repr(str(file))).strip()
            else:
                readable.append((file, target))
                self._sizes[f"{image.shape[2]} x {image.shape[1]}"] += 1
                values, counts = np.unique(classes.numpy(), return_counts=True)
                self._shares.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
        self.samples = readable
        if self.skipped:
            number, (file, reason) = len(self.skipped), next(iter(self.skipped.items()))
            text = f"left out {number} of {number + len(readable)} in {str(self.root)!r}, first {file!r}: {reason}"
            warnings.warn(f"{text}; the rest are in .skipped", stacklevel=4)

    def summary(self) -> str:
        """Sizes of the images and shares of the classes, as found with ``on_error="skip"``."""
        sizes = ", ".join(f"{number} of {size}" for size, number in self._sizes.most_common(3))
        more = f" and {len(self._sizes) - 3} more sizes" if len(self._sizes) > 3 else ""
        total = sum(self._shares.values()) or 1
        names: Any = getattr(self, "classes", None) or range(max(self._shares, default=0) + 1)
        shares = ", ".join(f"{names[label]}: {100 * n / total:.3g} %" for label, n in sorted(self._shares.items()))
        return f"{sizes}{more} pixels; classes {shares}"

    def load(self, file: Path, target: T) -> tuple[Tensor, Tensor]:
        """Read a sample as it is in its files, and check it."""
        return read_pixels(file, deep=self.deep, size=self.size), torch.tensor(target)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        index = range(len(self))[index]  # an IndexError past the end
        image, target = self.load(*self.samples[index])
        if self.crop is None and not self.flip:
            return image, target
        generator, (height, width) = self.generator(index), image.shape[1:]
        if self.crop is not None:
            h, w = self.crop
            if h > height or w > width:
                file = str(self.samples[index][0])
                raise ValueError(f"{file!r} is {width} x {height} pixels, smaller than the crop, {w} x {h}")
            rooms = (height - h, width - w)
            top, left = (room // 2 if self.center else int(generator.integers(room + 1)) for room in rooms)
            image = image[..., top : top + h, left : left + w]
            target = target[..., top : top + h, left : left + w] if target.ndim else target
        if self.flip and generator.integers(2):
            image, target = image.flip(-1), target.flip(-1) if target.ndim else target
        return image.contiguous(), target.contiguous()


class ClassFolders(ImageFiles[int]):
    """A folder with a folder of images for each class. Classes are numbered in the order of their names.

    Args:
        root: the folder; images may lie deeper in the folder of their class.
        size: side or ``(height, width)`` that all images are resized to; by default they keep their sizes.
        deep: also read images of more than 8 bits, and return all as float32.
        on_error: ``"raise"``, or ``"skip"`` to leave out empty classes and unreadable images, with a warning.
        crop, flip, seed: as in :class:`Cityscapes`; crops keep the scale of what is in the images.
        center: crop the center of images, not a random part.

    Shape:
        - Samples: image :math:`(3, H, W)` uint8, class number int64
    """

    def __init__(
        self,
        root: str | Path,
        *,
        size: Size = None,
        deep: bool = False,
        on_error: OnError = "raise",
        crop: Size = None,
        flip: bool = False,
        center: bool = False,
        seed: int = 0,
    ) -> None:
        problems = dict.fromkeys(map(str, image_files(root, deep=False)), "lies outside the class folders")
        found = {Path(root, name): image_files(Path(root, name)) for name in folder_classes(root)}
        problems |= {str(folder): "is a class without images" for folder, files in found.items() if not files}
        found = {folder: files for folder, files in found.items() if files}
        self.classes = [folder.name for folder in found]
        samples = [(file, label) for label, files in enumerate(found.values()) for file in files]
        crops: dict[str, Any] = {"crop": crop, "flip": flip, "center": center, "seed": seed}
        super().__init__(root, samples, problems, on_error, size=size, deep=deep, **crops)
        self.labels = torch.tensor([label for _, label in self.samples])


class LabeledFolder(ImageFiles[int]):
    """A folder of images, and a CSV file with the columns ``id`` (file names, with or without suffix) and ``label``.

    Args:
        root: the folder of the images.
        table: the CSV file.
        num_classes: labels are whole numbers below it.
        size, deep: as in :class:`ClassFolders`.
        on_error: ``"raise"``, or ``"skip"`` to leave out, with a warning: rows without an image, images without a row,
            labels out of range and unreadable images.
        others: tables of other splits with images in the same folder, which need no row in this one.
        crop, flip, center, seed: as in :class:`ClassFolders`.
    """

    def __init__(
        self,
        root: str | Path,
        table: str | Path,
        num_classes: int,
        *,
        size: Size = None,
        deep: bool = False,
        on_error: OnError = "raise",
        others: Iterable[str | Path] = (),
        crop: Size = None,
        flip: bool = False,
        center: bool = False,
        seed: int = 0,
    ) -> None:
        files = image_files(root)
        by_name = {file.name: file for file in files} | _by_stem(files)
        labels: dict[Path, int] = {}
        problems, named = {}, set()
        for line, name, label in _rows(table):
            where, file = f"{table}:{line}", by_name.get(name)
            named.add(file)
            if file is None:
                problems[where] = f"names {name!r}, which is not an image in {str(root)!r}"
            elif not (label.isascii() and label.isdecimal() and len(label) < 19 and int(label) < num_classes):
                problems[where] = f"has the label {label!r} for {name!r}; labels are from 0 to {num_classes - 1}"
            elif labels.setdefault(file, int(label)) != int(label):
                raise ValueError(f"{str(table)!r} has two labels for {str(file)!r}: {labels[file]} and {int(label)}")
        named |= {by_name.get(name) for other in others for _, name, _ in _rows(other)}
        problems |= {str(file): f"has no label in {str(table)!r}" for file in files if file not in named}
        crops: dict[str, Any] = {"crop": crop, "flip": flip, "center": center, "seed": seed}
        super().__init__(root, sorted(labels.items()), problems, on_error, size=size, deep=deep, **crops)
        self.labels = torch.tensor([label for _, label in self.samples])


class MaskFolders(ImageFiles[Path]):
    """A folder of images and a folder of masks of the same names, for segmentation.

    Args:
        images: the folder of the images.
        masks: the folder of the masks, whose pixels are class numbers; suffixes may differ.
        num_classes: class numbers are below it.
        ignore_index: a larger number that means no class.
        crop, flip, seed: as in :class:`Cityscapes`.
        deep: as in :class:`ClassFolders`.
        on_error: ``"raise"``, or ``"skip"`` to leave out, with a warning: images without masks, masks without images,
            unreadable files, sizes that differ and class numbers out of range.

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
        crop: Size = None,
        flip: bool = False,
        deep: bool = False,
        seed: int = 0,
        on_error: OnError = "raise",
    ) -> None:
        self.num_classes, self.ignore_index = num_classes, ignore_index
        pictures, annotations = _by_stem(image_files(images)), _by_stem(image_files(masks))
        problems = {str(pictures[name]): f"has no mask in {str(masks)!r}" for name in pictures.keys() - annotations}
        problems |= {str(annotations[n]): f"has no image in {str(images)!r}" for n in annotations.keys() - pictures}
        samples = [(pictures[name], annotations[name]) for name in sorted(pictures.keys() & annotations)]
        problems = dict(sorted(problems.items()))
        super().__init__(images, samples, problems, on_error, crop=crop, flip=flip, deep=deep, seed=seed)

    def load(self, file: Path, target: Path) -> tuple[Tensor, Tensor]:
        """The whole image and its mask; class numbers out of range are refused."""
        image, mask = read_pair(file, target, self.deep)
        check_labels(mask[mask != self.ignore_index].numpy(), self.num_classes, f"class numbers in {str(target)!r}")
        return image, mask


class Cityscapes(ImageFiles[Path]):
    """A split of Cityscapes: ``leftImg8bit/{split}/{city}/*_leftImg8bit.png`` and ``gtFine/.../*_gtFine_labelIds.png``.

    Args:
        root: the folder that contains ``leftImg8bit`` and ``gtFine``.
        split: ``"train"``, ``"val"`` or ``"test"`` (whose annotations are blank).
        crop: side or ``(height, width)`` of random crops, 992 in the paper; whole images by default.
        flip: mirror half of the images left to right.
        seed: of crops and flips.
        on_error: ``"raise"``, or ``"skip"`` to leave out, with a warning, images without annotation and broken files.

    Shape:
        - Samples: image :math:`(3, H, W)` uint8, mask :math:`(H, W)` int64: the 19 classes, 255 ignored
    """

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        *,
        crop: Size = None,
        flip: bool = False,
        seed: int = 0,
        on_error: OnError = "raise",
    ) -> None:
        if split not in CITY_SPLITS:
            raise ValueError(f"split is one of {', '.join(CITY_SPLITS)}, got {split!r}")
        self._table = train_ids()
        images, masks = Path(root) / "leftImg8bit" / split, Path(root) / "gtFine" / split
        samples, problems = [], {}
        for image in image_files(images):
            mask = masks / image.parent.name / image.name.replace("_leftImg8bit.png", "_gtFine_labelIds.png")
            if not image.name.endswith("_leftImg8bit.png"):
                problems[str(image)] = "is not called *_leftImg8bit.png"
            elif not mask.is_file():
                problems[str(image)] = f"has no annotation: no file {str(mask)!r}"
            else:
                samples.append((image, mask))
        super().__init__(images, samples, problems, on_error, crop=crop, flip=flip, seed=seed)

    def load(self, file: Path, target: Path) -> tuple[Tensor, Tensor]:
        """The whole image and its 19 classes. Undefined numbers raise an error."""
        image, mask = read_pair(file, target)
        if int(mask.min()) < 0 or int(mask.max()) >= CITY_IDS:
            check_labels(mask.numpy(), CITY_IDS, f"numbers in {str(target)!r}")
        return image, self._table[mask]


def train_ids() -> Tensor:
    """The table from the numbers in labelIds files to the 19 classes, 255 for the rest."""
    table = torch.full((CITY_IDS,), 255)
    table[list(CITY_CLASSES.values())] = torch.arange(len(CITY_CLASSES))
    return table


def read_pair(file: Path, mask_file: Path, deep: bool = False) -> tuple[Tensor, Tensor]:
    """Read an image and its mask, which must have the same size."""
    image, mask = read_pixels(file, deep=deep), read_mask(mask_file)
    if image.shape[1:] != mask.shape:
        mask_size, size = (f"{shape[-1]} x {shape[-2]}" for shape in (mask.shape, image.shape))
        raise ValueError(f"{str(mask_file)!r} is {mask_size} pixels, its image {size}")
    return image, mask


def image_files(folder: str | Path, deep: bool = True) -> list[Path]:
    """The images in a folder and, if ``deep``, in the folders inside it, sorted; hidden ones are left out.

    Links to files and folders are followed, but not a link to a folder that contains it, which would never end.
    """
    found: list[Path] = []
    for place, folders, names in os.walk(_folder(folder), followlinks=True):
        inside = Path(place)
        above = {inside.resolve(), *inside.resolve().parents}
        hidden = [name for name in folders if name.startswith(".") or (inside / name).resolve() in above]
        folders[:] = [name for name in folders if deep and name not in hidden]
        files = (inside / name for name in names if not name.startswith("."))
        found += [file for file in files if file.suffix.lower() in SUFFIXES and file.is_file()]
    return sorted(found)


def folder_classes(root: str | Path) -> list[str]:
    """The names of the folders that stand for classes, sorted; hidden ones are left out."""
    return sorted(path.name for path in _folder(root).iterdir() if path.is_dir() and not path.name.startswith("."))


def plural(number: int, what: str) -> str:
    """The number and the word, with an s unless there is one."""
    return f"{number} {what}{'' if number == 1 else 's'}"


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


def is_table(file: Path) -> bool:
    """Whether it is a CSV file with the columns of labels."""
    try:
        return bool(_rows(file))
    except (ValueError, OSError):
        return False


def _rows(table: str | Path) -> list[tuple[int, str, str]]:
    try:
        with open_table(table) as reader:
            names = list(reader.fieldnames or ())
            if not names.count("id") == names.count("label") == 1:
                raise ValueError(f"{str(table)!r} must have the columns id and label, got {names}; name each once")
            return [(reader.line_num, (row["id"] or "").strip(), (row["label"] or "").strip()) for row in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{str(table)!r} is not a CSV file: {error}") from error
