"""Data by name: the datasets of a recipe, and their loaders."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from scalespaces.data import Cityscapes, ClassFolders, ImageDataset, LabeledFolder, MaskFolders, PCam, PCamFolder
from scalespaces.data._cityscapes import CLASSES
from scalespaces.data._folders import is_class_folder
from scalespaces.data._idx import read_idx_images
from scalespaces.data._scales import split_classes
from scalespaces.train._batches import KeyedBatches

Kind = Literal["pcam", "pcam_folder", "cityscapes", "idx", "class_folders", "table", "masks"]

_SPLITS = {"valid": ("valid", "val", "validation"), "val": ("val", "valid", "validation")}


@dataclass
class DataOptions:
    """Which images to train with, and what is done to them.

    Args:
        kind: pcam (the official HDF5 files), pcam_folder (patches and a CSV file), cityscapes (the official tree), idx
            (MNIST's format), class_folders (a folder for each class), table (images and a CSV file with the columns id
            and label) or masks (a folder images beside a folder masks).
        root: folder of the data. Own data have a folder, or CSV file, for each of train, valid and test in it, or none:
            then a part is held out for validation.
        batch_size: samples of one step, over all devices and accumulated batches.
        workers: processes that read, for each device.
        size: height and width images are brought to (class_folders, table); needed if theirs differ. Give the same to
            evaluate and predict.
        crop: height and width of random crops while training (segmentation); whole images are validated in windows of
            this size.
        flip: mirror half of the images left to right while training (segmentation).
        augment: what is done to training images on the device: none, or the paper's augmentation for pcam.
        jitter: scale jitter: training images are shown larger or smaller by a factor between these two.
        mean: of each channel of images in [0, 1], subtracted; saved with the network.
        std: of each channel, divided by; saved with the network.
        num_classes: number of classes, where the data do not tell (masks, table, idx).
        classes: their names, where the data do not tell (masks, table, idx); saved with the network.
        table: CSV file with the labels (table, pcam_folder), if it is not called after the split.
        holdout: part of the training set that is held out for validation where there is no set for that.
        limit: use this many training samples only, with all classes in their proportions.
        on_error: raise an error at files that cannot be read, or skip and count them.
    """

    kind: Kind
    root: str
    batch_size: int = 128
    workers: int = 2
    size: tuple[int, int] | None = None
    crop: tuple[int, int] | None = None
    flip: bool = False
    augment: Literal["none", "pcam"] = "none"
    jitter: tuple[float, float] | None = None
    mean: list[float] | None = None
    std: list[float] | None = None
    num_classes: int | None = None
    classes: list[str] | None = None
    table: str | None = None
    holdout: float = 0.1
    limit: int | None = None
    on_error: Literal["raise", "skip"] = "raise"

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"data.kind is one of {', '.join(get_args(Kind))}, got {self.kind!r}")
        if (self.mean is None) != (self.std is None):
            raise ValueError("data.mean and data.std are given together or not at all")
        if self.batch_size < 1 or self.workers < 0:
            raise ValueError(f"data.batch_size is at least 1 and data.workers 0, got {self.batch_size}, {self.workers}")
        if not 0 < self.holdout < 1:
            raise ValueError(f"data.holdout is a part between 0 and 1, got {self.holdout}")
        if self.jitter is not None and not 0 < self.jitter[0] <= self.jitter[1]:
            raise ValueError(f"data.jitter is two factors above 0, the smaller first, got {self.jitter}")
        if self.classes is not None and self.kind not in ("masks", "table", "idx"):
            raise ValueError(f"data.classes are for masks, table and idx; data of the kind {self.kind} have their own")
        if self.augment == "pcam" and self.segmentation:
            raise ValueError(f"data.augment pcam is for classification, got the kind {self.kind}")
        if self.size is not None and self.kind not in ("class_folders", "table"):
            raise ValueError(f"data.size is for class_folders and tables, got the kind {self.kind}")
        if self.flip and not self.segmentation:
            raise ValueError(f"data.flip is for segmentation, got the kind {self.kind}")
        if self.crop is not None and not self.segmentation:
            raise ValueError(f"data.crop is for segmentation, got the kind {self.kind}; use data.size")

    @property
    def segmentation(self) -> bool:
        """Whether every pixel has a class, or every image."""
        return self.kind in ("cityscapes", "masks")


def open_split(options: DataOptions, split: str = "train", *, seed: int | None = 0) -> ImageDataset:
    """A dataset of a recipe.

    Args:
        options: the recipe's.
        split: ``"train"``, ``"valid"`` or ``"test"``, or the name of any IDX set. Crops and flips are made of the
            training set alone.
        seed: of crops, flips, and what is held out; None if it is not known, when what is held out is an error.
    """
    root = Path(options.root)
    if not root.exists():
        raise FileNotFoundError(f"data.root: there is no folder {options.root!r}")
    dataset = _OPEN[options.kind](options, root, split, seed)
    if split == "train" and options.limit is not None:
        dataset = Part(dataset, _limited(dataset, options.limit, seed or 0))
    return dataset


def class_names(options: DataOptions) -> tuple[str, ...]:
    """The names of the classes, in their order; none where neither the data nor the options tell."""
    if options.kind in ("pcam", "pcam_folder"):
        return ("normal", "tumor")
    if options.kind == "cityscapes":
        return tuple(CLASSES)
    if options.kind == "class_folders":
        root = Path(options.root)
        folder = next(filter(None, (_folder(root, split) for split in ("train", "valid", "test"))), root)
        return tuple(sorted(path.name for path in folder.iterdir() if is_class_folder(path)))
    return tuple(options.classes or ())


def num_classes(options: DataOptions) -> int:
    """The number of classes."""
    names = class_names(options)
    if options.num_classes is not None:
        if names and len(names) != options.num_classes:
            raise ValueError(f"data.num_classes is the number of {', '.join(names)}, got {options.num_classes}")
        return options.num_classes
    if names:
        return len(names)
    if options.kind == "idx":
        return 10
    raise ValueError(f"data.num_classes is needed for data of the kind {options.kind}, which do not tell it")


# --- the kinds -------------------------------------------------------------------------------------------------------


def _open_pcam(options: DataOptions, root: Path, split: str, seed: int | None) -> ImageDataset:
    return PCam(root, split)


def _open_pcam_folder(options: DataOptions, root: Path, split: str, seed: int | None) -> ImageDataset:
    def table(folder: Path, file: Path) -> ImageDataset:
        return PCamFolder(folder, file, on_error=options.on_error)

    return _open_tabled(options, root, split, seed, table)


def _open_cityscapes(options: DataOptions, root: Path, split: str, seed: int | None) -> ImageDataset:
    training = split == "train"
    crop = options.crop if training else None
    names = {"valid": "val"}
    return Cityscapes(
        root,
        names.get(split, split),
        crop=crop,
        flip=options.flip and training,
        seed=seed or 0,
        on_error=options.on_error,
    )


def _open_idx(options: DataOptions, root: Path, split: str, seed: int | None) -> ImageDataset:
    classes = num_classes(options)
    if split in ("train", "valid") and not any(root.glob("valid-images-idx3-ubyte*")):
        return Part(*_held_out(read_idx_images(root, "train", classes), options, split, seed))
    return read_idx_images(root, split, classes)


def _open_class_folders(options: DataOptions, root: Path, split: str, seed: int | None) -> ImageDataset:
    def whole(folder: Path) -> ImageDataset:
        dataset = ClassFolders(folder, size=options.size, on_error=options.on_error)
        expected = list(class_names(options))
        if dataset.classes != expected:  # they are numbered in their order
            differ = sorted(set(expected) ^ set(dataset.classes))
            raise ValueError(f"{str(folder)!r} has other classes than the training set: {', '.join(differ)}")
        return dataset

    return _open_folders(options, root, split, seed, whole)


def _open_masks(options: DataOptions, root: Path, split: str, seed: int | None) -> ImageDataset:
    training = split == "train"

    def whole(folder: Path) -> ImageDataset:
        return MaskFolders(
            folder / "images",
            folder / "masks",
            num_classes(options),
            crop=options.crop if training else None,
            flip=options.flip and training,
            seed=seed or 0,
            on_error=options.on_error,
        )

    return _open_folders(options, root, split, seed, whole)


def _open_table(options: DataOptions, root: Path, split: str, seed: int | None) -> ImageDataset:
    def table(folder: Path, file: Path) -> ImageDataset:
        return LabeledFolder(folder, file, num_classes(options), size=options.size, on_error=options.on_error)

    return _open_tabled(options, root, split, seed, table)


_OPEN: dict[str, Any] = {
    "pcam": _open_pcam,
    "pcam_folder": _open_pcam_folder,
    "cityscapes": _open_cityscapes,
    "idx": _open_idx,
    "class_folders": _open_class_folders,
    "table": _open_table,
    "masks": _open_masks,
}


# --- splits ----------------------------------------------------------------------------------------------------------


def _folder(root: Path, split: str) -> Path | None:
    """The folder of a split, under any of its names."""
    return next((root / name for name in _SPLITS.get(split, (split,)) if (root / name).is_dir()), None)


def _open_folders(options: DataOptions, root: Path, split: str, seed: int | None, whole: Any) -> ImageDataset:
    """A split with a folder of its own, or a part of what there is."""
    own, train = _folder(root, split), _folder(root, "train")
    if own is not None and (split != "train" or _folder(root, "valid") is not None):
        return whole(own)
    return Part(*_held_out(whole(train or root), options, split, seed))


def _open_tabled(options: DataOptions, root: Path, split: str, seed: int | None, whole: Any) -> ImageDataset:
    """The same with a CSV file for each split, or one for all."""
    files = [root / f"{name}.csv" for name in _SPLITS.get(split, (split,))]
    own = next((file for file in files if file.is_file()), None)
    others = any((root / f"{name}.csv").is_file() for name in _SPLITS["valid"])
    if options.table is None and own is not None and (split != "train" or others):
        return whole(_folder(root, split) or root, own)
    table = Path(options.table) if options.table is not None else root / "train.csv"
    if not table.is_file():
        raise FileNotFoundError(
            f"data.table: there is no file {str(table)!r}; labels are in {split}.csv in data.root, or in data.table"
        )
    return Part(*_held_out(whole(_folder(root, "train") or root, table), options, split, seed))


def _held_out(
    dataset: ImageDataset, options: DataOptions, split: str, seed: int | None
) -> tuple[ImageDataset, np.ndarray]:
    if split not in ("train", "valid"):
        raise FileNotFoundError(f"data.root: there is no set {split!r} in {options.root!r}")
    if seed is None:
        raise ValueError(
            f"{split!r} in {options.root!r} is a part of the training set, which depends on the seed that a network "
            "was trained with: give that as --seed, and --holdout if it was set"
        )
    order = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(2**31,))).permutation(len(dataset))
    held = max(1, round(options.holdout * len(dataset)))
    if held >= len(dataset):
        raise ValueError(f"data.holdout {options.holdout} of {len(dataset)} samples leaves none to train with")
    return dataset, np.sort(order[held:] if split == "train" else order[:held])


def _limited(dataset: ImageDataset, limit: int, seed: int) -> np.ndarray:
    if not 1 <= limit <= len(dataset):
        raise ValueError(f"data.limit is from 1 to the size of the training set, {len(dataset)}, got {limit}")
    return np.sort(split_classes(_labels(dataset), [limit], seed)[0])


def _labels(dataset: Any) -> np.ndarray:
    """The class of each image; of images whose pixels have classes, zeros."""
    if isinstance(dataset, Part):
        return _labels(dataset.dataset)[dataset.indices]
    if isinstance(dataset, ClassFolders | LabeledFolder):
        return np.array([label for _, label in dataset.samples])
    return np.asarray(getattr(dataset, "labels", np.zeros(len(dataset))))


class Part(ImageDataset):
    """Some samples of a dataset."""

    def __init__(self, dataset: ImageDataset, indices: Sequence[int] | np.ndarray) -> None:
        super().__init__(dataset.seed)
        self.dataset, self.indices = dataset, np.asarray(indices)
        self._epoch = dataset._epoch  # it is theirs together

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.dataset[int(self.indices[index])]


# --- loaders ---------------------------------------------------------------------------------------------------------


class TrainingLoader(DataLoader[Any]):
    """A loader that goes on in the middle of an epoch: where, the trainer's own progress says, and not a state."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing: see the sampler's ``epoch`` and ``start``."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load."""


def collate(samples: list[Any]) -> list[Tensor]:
    """Put samples into a batch; their images must have the same size."""
    sizes = {tuple(sample[0].shape) for sample in samples}
    if len(sizes) > 1:
        shown = ", ".join(" x ".join(map(str, size)) for size in sorted(sizes)[:3])
        raise ValueError(f"images of a batch have the same size, got {shown}; set data.size, or data.crop for masks")
    return default_collate(samples)


def training_loader(batches: KeyedBatches, workers: int, *, pin: bool = False) -> TrainingLoader:
    """The loader of training batches: images, targets and the samples' indices."""
    options = worker_options(workers)
    return TrainingLoader(batches.dataset, batch_sampler=batches, collate_fn=collate, pin_memory=pin, **options)


def evaluation_loader(
    dataset: ImageDataset, batch_size: int, workers: int = 0, *, rank: int = 0, processes: int = 1, pin: bool = False
) -> DataLoader[Any]:
    """A loader of every sample once, in order; of every ``processes``-th where several share them."""
    if len(dataset) < processes:  # one without would not take part when the others put their results together
        raise ValueError(
            f"{processes} processes share a set of at least as many samples, got {len(dataset)}; use fewer processes"
        )
    own: Any = dataset if processes == 1 else Part(dataset, np.arange(rank, len(dataset), processes))
    return DataLoader(own, batch_size, collate_fn=collate, pin_memory=pin, **worker_options(workers))


def worker_options(workers: int) -> dict[str, Any]:
    """Arguments of loaders with this many processes that read."""
    # Forked workers hang with threads of the parent that hold locks; there is no forkserver on Windows.
    way = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    return {"num_workers": workers, "persistent_workers": workers > 0, "worker_init_fn": _one_thread} | (
        {"multiprocessing_context": way} if workers else {}
    )


def _one_thread(_: int) -> None:
    torch.set_num_threads(1)
