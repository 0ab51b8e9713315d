"""The data of a recipe: its options, its sets and its classes; and the recipe that suits a folder, if none is given.

Help shows the options, so torch is imported late.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from scalespaces._choices import Fill, Kind
from scalespaces._progress import progress
from scalespaces.theory._arguments import check_choice

if TYPE_CHECKING:  # jsonargparse would run this to resolve the options, if their types were not evaluated here
    from scalespaces.data import ImageDataset
    from scalespaces.models import ScaleNetwork


@dataclass
class DataOptions:
    """Which images to train with, and how they are prepared.

    Args:
        kind: pcam (the official HDF5 files), cityscapes (the official tree), idx (MNIST's format), class_folders (a
            folder for each class), table (images and a CSV file with the columns id and label) or masks (a folder
            images next to a folder masks). Without a recipe, it follows from the names in the folder.
        root: folder of the data. Your own data may have a folder, or CSV file, for each of train, valid and test.
            Without valid, a part of the training set is held out for validation.
        batch_size: samples per step, in total over all devices and accumulated parts.
        workers: processes per device that read images.
        size: height and width that images are resized to (class_folders, table), such as [128,128]; size or crop is
            needed if they differ in size. With recipe.yaml next to the network, evaluate and predict resize, too.
        crop: height and width of random crops while training (class_folders, table, segmentation). Unlike size, this
            keeps the scale of what is in the images. Validation uses the center, of this size; for
            segmentation, whole images in windows of this size.
        flip: mirror half of the images left to right while training (class_folders, table, segmentation).
        color: largest change of brightness, contrast, saturation and hue while training, such as [0.2,0.2,0.2,0.02].
        balanced: draw training samples so that all classes are equally frequent (classification).
        augment: augmentation of training images on the device: none, or the paper's for pcam.
        jitter: scale jitter: training images are shown larger or smaller by a factor in this range, such as [0.5,2].
        jitter_fill: what lies around an image that is shown smaller: its mirror image (reflect), or black (zeros).
        mean: the mean of each channel of images in [0, 1], which is subtracted; saved with the network.
        std: the standard deviation of each channel, by which it is divided; saved with the network.
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
    color: tuple[float, float, float, float] | None = None
    balanced: bool = False
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
        if (self.flip or self.crop is not None) and self.kind in ("pcam", "idx"):
            rule = "data.flip and data.crop are for class_folders, table, masks and cityscapes"
            raise ValueError(f"{rule}, got the kind {self.kind}")
        if self.color is not None and not (min(self.color) >= 0 and max(self.color[1:3]) <= 1):
            rule = "data.color is four changes, at least 0: brightness, contrast and saturation up to 1, hue"
            raise ValueError(f"{rule}, got {self.color}")
        if self.color is not None and self.augment == "pcam":
            raise ValueError("data.augment pcam changes colors itself: leave data.color out")
        if self.balanced and self.segmentation:
            raise ValueError(f"data.balanced is for classification, got the kind {self.kind}")

    @property
    def segmentation(self) -> bool:
        """Whether every pixel has a class, and not every image."""
        return self.kind in ("cityscapes", "masks")


def open_split(options: DataOptions, split: str = "train", *, seed: int | None = 0) -> "ImageDataset":
    """A set of a recipe: ``"train"``, ``"valid"`` or ``"test"``, or any IDX set by its name."""
    from scalespaces.data import ClassFolders
    from scalespaces.data._keys import Part
    from scalespaces.data._open import ANY, classes_in, find_split, open_whole, sets_in
    from scalespaces.data._scales import split_classes

    # A validation set without files of its own is held out of the training set. Without a seed, none can be.
    root, kind = Path(options.root), options.kind
    if not root.exists():
        raise FileNotFoundError(f"data.root: there is no folder {str(root)!r}")
    classes = num_classes(options) if kind in ("idx", "table", "masks") else ANY
    folder, table, own = find_split(root, kind, split, options.table)
    if not own and split not in ("train", "valid"):
        there = ", ".join(sets_in(root, kind))
        way = "" if "valid" in there else "; valid is the part of train that is held out for validation"
        raise FileNotFoundError(f"data.root: there is no set {split!r} in {str(root)!r}, which has {there}{way}")
    more: dict[str, Any] = {"size": options.size} if kind in ("class_folders", "table") else {}
    if kind in ("class_folders", "table"):
        training = split == "train"
        more |= {"crop": options.crop, "flip": options.flip and training, "center": not training, "seed": seed or 0}
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
    from scalespaces.data._folders import CITY_CLASSES
    from scalespaces.data._open import classes_in

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


_LOOK = 100  # images that settings are chosen from
_LARGE, _RESIZED, _CROPPED = 256, 128, 256  # pixels along a side: classified as they are; if larger; segmented
_STEPS, _EPOCHS, _BATCH = 1000, (10, 60), 32  # of training: about so many, within these, at most


def choose(said: Mapping[str, str], network: "ScaleNetwork | None" = None) -> tuple[dict[str, Any], str]:
    """The keys of a recipe that suit the images in ``data.root``, and a text that says which and why.

    Args:
        said: keys and values as on the command line; those that others depend on are respected.
        network: a network that is trained further. Otherwise one is chosen: a small one.
    """
    import torch

    from scalespaces.data import to_unit
    from scalespaces.data._open import ANY, kind_of
    from scalespaces.models import create_model

    root = said["data.root"]
    kind = kind_of(root)
    names = [] if kind in ("masks", "table", "idx") else class_names(DataOptions(kind, root))
    whole = DataOptions(kind, root, num_classes=None if names else ANY, table=said.get("data.table"))
    whole.on_error = "skip" if said.get("data.on_error") == "skip" else "raise"
    train_set = open_split(whole)
    number = min(len(train_set), int(said.get("data.limit", len(train_set))))
    look = [n * number // min(number, _LOOK) for n in range(min(number, _LOOK))]
    images = [to_unit(train_set[n][0]) for n in progress(look, f"looking at {root}")]
    shapes = sorted({tuple(image.shape[1:]) for image in images})
    side, dense = min(map(min, shapes)), whole.segmentation
    keys: dict[str, Any] = {"data.kind": kind}
    if not names and "data.classes" not in said:
        keys["data.num_classes"] = int(said.get("data.num_classes", 0)) or _count_classes(whole)
    classes = len(names) or keys.get("data.num_classes") or len(json.loads(said["data.classes"]))
    fixed = said.get("data.crop") or said.get("data.size")
    if fixed is not None:
        side = min(json.loads(fixed))
    elif dense:
        side = min(_CROPPED, side // 32 * 32 or side)
        keys["data.crop"] = [side, side]
    elif kind in ("class_folders", "table") and (len(shapes) > 1 or max(shapes[0]) > _LARGE):
        side = min(_RESIZED, side)
        keys["data.size"] = [side, side]
    if network is None or not network.card.mean:
        pixels = torch.cat([image.flatten(1)[:, :: max(1, image[0].numel() // 10_000)] for image in images], 1)
        keys["data.mean"] = [round(float(value), 4) for value in pixels.mean(1)]
        keys["data.std"] = [max(round(float(value), 4), 1e-4) for value in pixels.std(1)]
    about = "the network further"
    if network is None and "model.name" not in said and "model.source" not in said:
        depth = 2 + (side >= 32) + (side >= 64)
        small = {"channels": [16, 32, 64, 128][:depth], "kernel_size": 3, "grid": 1, "hidden": 64, "dropout": 0.2}
        name: str = "s_resnet" if dense else "s_cnn"
        arguments: dict[str, Any] = {"width": 8} if dense else small
        lift: dict[str, Any] = {"base": 2.0}  # levels an octave apart
        for lift["num_levels"] in (4, 3, 2):  # the last has two samples after all poolings, so any size is exported
            trial = create_model(name, lift=lift, **arguments)
            if trial.smallest_side + 2 ** (len(trial.levels_pooled) + trial.lift.num_levels - 1) <= side:
                break
        keys |= {"model.name": name, "model.arguments": arguments, "model.lift": lift}
        about = f"{name} with {lift['num_levels']} levels, as {side} pixels have room for"
    elif network is None:
        about = said.get("model.name") or said["model.source"]
    most = 8 if dense else _BATCH
    batch = int(said.get("data.batch_size", 2 ** int(np.log2(max(2, min(most, number // 8))))))
    steps = max(1, number // batch)
    epochs = int(said.get("trainer.epochs", min(max(-(-_STEPS // steps), _EPOCHS[0]), _EPOCHS[1])))
    new = network is not None and tuple(network.card.classes) != tuple(names)
    keys |= {
        "data.batch_size": batch,
        "trainer.epochs": epochs,
        "optimizer.name": "adamw",
        "optimizer.weight_decay": 0.01,
    }
    keys |= {
        "optimizer.lr": 3e-4 if network else 3e-3,
        "optimizer.schedule": "cosine",
        "optimizer.warmup": epochs * steps // 10,
    }
    keys |= {"finetune.head_first": min(2, epochs - 1)} if new else {}
    sizes = " x ".join(map(str, shapes[0][::-1])) if len(shapes) == 1 else f"{len(shapes)} or more sizes"
    text = f"{root} ({kind}): {number} training images of {sizes} pixels, {classes} classes\n"
    text += f"no recipe was given, so this trains {about}: {epochs} epochs of {steps} steps of {batch} images"
    if "data.size" in keys or "data.crop" in keys:
        text += f", {'cropped' if dense else 'resized'} to {side} x {side}"
    return keys, f"{text}. All settings are in recipe.yaml in the output folder; --KEY VALUE changes one."


def _count_classes(options: DataOptions) -> int:
    """The number of classes in tables or masks: the largest class number of all sets, and one."""
    from scalespaces.data._open import ANY, find_split, open_whole, sets_in
    from scalespaces.data._pixels import read_mask

    root, largest = Path(options.root), 1
    for split in sets_in(root, options.kind) if options.kind != "idx" else ():
        folder, table, _ = find_split(root, options.kind, split, options.table)
        dataset: Any = open_whole(folder, options.kind, split, table, ANY, "raise")
        if options.kind == "table":
            largest = max(largest, int(dataset.labels.max()))
            continue
        for _, file in progress(dataset.samples, f"reading the masks of {split}"):
            mask = read_mask(file)
            largest = max(largest, int(mask[mask != 255].max().item() if (mask != 255).any() else 0))
    return 10 if options.kind == "idx" else largest + 1
