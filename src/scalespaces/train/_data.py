"""The data of a recipe: its options, its sets, its classes and its batches.

A training batch depends on (seed, epoch, batch) alone, not on the number of processes.
"""

import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from scalespaces.data import ClassFolders, ImageDataset
from scalespaces.data._folders import CITY_CLASSES
from scalespaces.data._keys import Part
from scalespaces.data._open import ANY, Kind, classes_in, find_split, open_whole
from scalespaces.data._scales import split_classes
from scalespaces.theory._arguments import check_choice
from scalespaces.train._scales import Fill


@dataclass
class DataOptions:
    """Which images to train with, and how they are prepared.

    Args:
        kind: pcam (the official HDF5 files), cityscapes (the official tree), idx (MNIST's format), class_folders (a
            folder for each class), table (images and a CSV file with the columns id and label) or masks (a folder
            images next to a folder masks).
        root: folder of the data. For your own data it has a folder, or CSV file, for each of train, valid and test; or
            none, and a part is held out for validation.
        batch_size: samples per step, over all devices and accumulated batches.
        workers: reading processes per device.
        size: height and width that images are resized to (class_folders, table); needed if they differ in size. Use the
            same for evaluate and predict.
        crop: height and width of random crops while training (segmentation); whole images are validated in windows of
            this size.
        flip: mirror half of the images left to right while training (segmentation).
        augment: augmentation of training images on the device: none, or the paper's for pcam.
        jitter: scale jitter: training images are shown larger or smaller by a factor between these two.
        jitter_fill: what lies around an image that is shown smaller: its mirror image (reflect), or black (zeros).
        mean: of each channel of images in [0, 1], subtracted; saved with the network.
        std: of each channel, divided by; saved with the network.
        num_classes: number of classes, if the data do not define it (masks, table, idx).
        classes: names of the classes, if the data do not define them (masks, table, idx); saved with the network.
        table: CSV file with the labels (table), if it is not named after the split.
        holdout: share of the training set that is held out for validation if there is no validation set.
        limit: use only this many training samples, with all classes in their proportions.
        on_error: raise an error for files that cannot be read, or skip and count them.
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
    jitter_fill: Fill = "reflect"
    mean: list[float] | None = None
    std: list[float] | None = None
    num_classes: int | None = None
    classes: list[str] | None = None
    table: str | None = None
    holdout: float = 0.1
    limit: int | None = None
    on_error: Literal["raise", "skip"] = "raise"

    def __post_init__(self) -> None:
        check_choice("data.kind", self.kind, get_args(Kind))
        if (self.mean is None) != (self.std is None):
            raise ValueError("data.mean and data.std must be given together or not at all")
        if self.batch_size < 1 or self.workers < 0:
            raise ValueError(f"data.batch_size is at least 1 and data.workers 0, got {self.batch_size}, {self.workers}")
        if self.num_classes is not None and self.num_classes < 1:
            raise ValueError(f"data.num_classes is at least 1, got {self.num_classes}")
        if not 0 < self.holdout < 1:
            raise ValueError(f"data.holdout is a share between 0 and 1, got {self.holdout}")
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
        """Whether every pixel has a class, and not every image."""
        return self.kind in ("cityscapes", "masks")


def open_split(options: DataOptions, split: str = "train", *, seed: int | None = 0) -> ImageDataset:
    """A set of a recipe: ``"train"``, ``"valid"`` or ``"test"``, or any IDX set by its name."""
    # A validation set without files of its own is held out of the training set. Without a seed, none can be.
    root, kind = Path(options.root), options.kind
    if not root.exists():
        raise FileNotFoundError(f"data.root: there is no folder {str(root)!r}")
    classes = num_classes(options) if kind in ("idx", "table", "masks") else ANY
    folder, table, own = find_split(root, kind, split, options.table)
    if not own and split not in ("train", "valid"):
        raise FileNotFoundError(f"data.root: there is no set {split!r} in {str(root)!r}")
    more: dict[str, Any] = {"size": options.size} if kind in ("class_folders", "table") else {}
    if options.segmentation and split == "train":
        more = {"crop": options.crop, "flip": options.flip, "seed": seed or 0}
    dataset = open_whole(folder, kind, split if own else "train", table, classes, options.on_error, **more)
    if isinstance(dataset, ClassFolders) and dataset.classes != classes_in(root):  # they are numbered in their order
        differ = ", ".join(sorted(set(classes_in(root)) ^ set(dataset.classes)))
        raise ValueError(f"{str(folder)!r} has different classes from the training set: {differ}")
    number, chosen = len(dataset), np.arange(len(dataset))
    if not own:
        if seed is None:
            rule = "depends on the seed that a network was trained with: give it as --seed, and --holdout if it was set"
            raise ValueError(f"{split!r} in {str(root)!r} is a part of the training set, which {rule}")
        order = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(2**31,))).permutation(number)
        held = max(1, round(options.holdout * number))
        if held >= number:
            raise ValueError(f"data.holdout {options.holdout} of {number} samples leaves none to train with")
        chosen = np.sort(order[held:] if split == "train" else order[:held])
    if split == "train" and (limit := options.limit) is not None:
        if not 1 <= limit <= len(chosen):
            raise ValueError(f"data.limit is from 1 to the size of the training set, {len(chosen)}, got {limit}")
        labels = np.asarray(getattr(dataset, "labels", np.zeros(number)))  # zeros if every pixel has a class
        chosen = chosen[np.sort(split_classes(labels[chosen], [limit], seed or 0)[0])]
    return dataset if len(chosen) == number else Part(dataset, chosen)


def class_names(options: DataOptions) -> tuple[str, ...]:
    """The names of the classes, in their order; none if neither the data nor the options define them."""
    if options.kind == "pcam":
        return ("normal", "tumor")
    if options.kind == "cityscapes":
        return tuple(CITY_CLASSES)
    if options.kind == "class_folders":
        return tuple(classes_in(Path(options.root)))
    return tuple(options.classes or ())


def num_classes(options: DataOptions) -> int:
    """The number of classes."""
    names, number = class_names(options), options.num_classes
    if names and number not in (None, len(names)):
        raise ValueError(f"data.num_classes is the number of {', '.join(names)}, got {number}")
    if not names and number is None and options.kind != "idx":
        raise ValueError(f"data.num_classes is needed for data of the kind {options.kind}, which do not define it")
    return number or len(names) or 10  # as MNIST has


class KeyedBatches(Sampler[list[int]]):
    r"""The batches of an epoch, of which every process takes its part.

    The samples are permuted by (seed, epoch). Step :math:`n` takes the samples :math:`nB` to :math:`(n+1)B` with the
    batch size :math:`B`. Processes and accumulated batches split a step and do not change it. Samples that do not fill
    a step are left out; they differ in every epoch. The first batch is batch ``start`` of ``epoch``.

    Example:
        >>> images, labels = torch.zeros(10, 8, 8, dtype=torch.uint8), torch.arange(10)
        >>> dataset = scalespaces.data.ArrayImages(images, labels)
        >>> whole, half = KeyedBatches(dataset, 4), KeyedBatches(dataset, 4, rank=1, processes=2)
        >>> [batch[2:] for batch in whole] == list(half)
        True
    """

    def __init__(
        self,
        dataset: ImageDataset,
        batch_size: int,
        seed: int = 0,
        *,
        rank: int = 0,
        processes: int = 1,
        accumulate: int = 1,
        epoch: int = 0,
        start: int = 0,
    ) -> None:
        if batch_size % (processes * accumulate):
            rule = f"data.batch_size is divided among {processes} processes and {accumulate} accumulated batches"
            raise ValueError(f"{rule}, got {batch_size}; use a multiple of {processes * accumulate}")
        if len(dataset) < batch_size:
            rule = f"a step needs data.batch_size, {batch_size} samples, but the training set has {len(dataset)}"
            raise ValueError(f"{rule}; use a smaller data.batch_size")
        self.dataset, self.batch_size, self.seed = dataset, batch_size, seed
        self.rank, self.processes, self.accumulate = rank, processes, accumulate
        self.epoch, self.start = epoch, start

    def set_epoch(self, epoch: int) -> None:
        """Continue with that epoch; from its first batch, unless it is the epoch to start with."""
        if epoch != self.epoch:
            self.epoch, self.start = epoch, 0

    def __len__(self) -> int:
        return len(self.dataset) // self.batch_size * self.accumulate

    def __iter__(self) -> Iterator[list[int]]:
        self.dataset.set_epoch(self.epoch)
        key = np.random.SeedSequence(self.seed, spawn_key=(self.epoch,))
        order = np.random.default_rng(key).permutation(len(self.dataset))
        part = self.batch_size // (self.processes * self.accumulate)
        for batch in range(self.start, len(self)):
            first = (batch * self.processes + self.rank) * part
            yield order[first : first + part].tolist()


class Indexed(Dataset[tuple[Tensor, Tensor, int]]):
    """A dataset whose samples carry their index, which keys the augmentation on the device."""

    def __init__(self, dataset: ImageDataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        return *self.dataset[index], range(len(self))[index]


def training_loader(batches: KeyedBatches, workers: int, *, pin: bool = False) -> DataLoader[Any]:
    """The loader of training batches: images, targets and the samples' indices."""
    options: dict[str, Any] = {"collate_fn": collate, "pin_memory": pin} | worker_options(workers)
    return DataLoader(Indexed(batches.dataset), batch_sampler=batches, **options)


def evaluation_loader(
    dataset: ImageDataset, batch_size: int, workers: int = 0, *, rank: int = 0, processes: int = 1, pin: bool = False
) -> DataLoader[tuple[Tensor, ...]]:
    """A loader of every sample once, in order; with several processes, of every ``processes``-th sample."""
    if (number := len(dataset)) < processes:  # a process without samples would not take part in combining results
        raise ValueError(f"{processes} processes need at least as many samples, got {number}; use fewer processes")
    own = dataset if processes == 1 else Part(dataset, np.arange(rank, number, processes))
    return DataLoader(own, batch_size, collate_fn=collate, pin_memory=pin, **worker_options(workers))


def collate(samples: list[tuple[Tensor, ...]]) -> list[Tensor]:
    """Put samples into a batch; their images must have the same size."""
    sizes = {tuple(sample[0].shape) for sample in samples}
    if len(sizes) > 1:
        shown = ", ".join(" x ".join(map(str, size)) for size in sorted(sizes)[:3])
        raise ValueError(f"images of a batch must have one size, got {shown}; set data.size, or data.crop for masks")
    return default_collate(samples)


def same_shape(images: Sequence[Tensor]) -> Iterable[list[int]]:
    """The indices of images, grouped by their shape."""
    groups: dict[torch.Size, list[int]] = {}
    for i, image in enumerate(images):
        groups.setdefault(image.shape, []).append(i)
    return groups.values()


def worker_options(workers: int) -> dict[str, Any]:
    """Arguments of a loader with this many reading processes."""
    # Forked workers hang if a thread of the parent holds a lock; Windows has no forkserver.
    way = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    return {"num_workers": workers, "persistent_workers": True, "multiprocessing_context": way} if workers else {}
