"""Data to write: the scale sets, and small synthetic data in the formats of PCam and Cityscapes."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from scalespaces._extras import require
from scalespaces._files import refuse_existing, replacing
from scalespaces.data._cityscapes import CLASSES, NUM_IDS
from scalespaces.data._idx import IMAGES, LABELS, SCALES, write_idx
from scalespaces.data._keys import ArrayImages, keyed_generator
from scalespaces.data._pcam import SIDE, pcam_file
from scalespaces.data._progress import progress

CITY = "synthetic"


def write_sets(folder: str | Path, sets: Mapping[str, ArrayImages], *, force: bool = False) -> list[Path]:
    """Write sets of images, labels and scales as IDX files; with ``force``, instead of sets written there before."""
    folder, plan = Path(folder), {}
    for name, images in sets.items():
        plan[folder / f"{name}{IMAGES}.gz"] = images.images[:, 0].numpy()
        plan[folder / f"{name}{LABELS}.gz"] = images.labels.numpy().astype(np.uint8)
        if images.scales is not None:
            plan[folder / f"{name}{SCALES}.gz"] = images.scales.numpy()
    refuse_existing(plan, force)
    for old in folder.glob(f"*{SCALES}.gz"):  # of sets written here before, which may have other names
        for file in folder.glob(old.name.replace(f"{SCALES}.gz", "-*-idx?-*.gz")):
            file.unlink()
    for path in progress(plan, f"writing {folder}"):
        write_idx(path, plan[path])
    return list(plan)


def make_pcam(
    folder: str | Path, counts: Mapping[str, int], *, seed: int = 0, compress: bool = False, force: bool = False
) -> list[Path]:
    """Write synthetic patches in PCam's format: tissue with cells. Tumor cells are large and dark.

    As in PCam, label 1 means that a tumor cell touches the central 32 x 32 pixels; tumor cells elsewhere do not count.
    Half of the patches have label 1.

    Args:
        folder, force: where the files go, and whether they may replace others.
        counts: the number of patches of each split to write.
        seed: of the patches.
        compress: compress the patches, one by one, with gzip inside the file.
    """
    files = {split: [Path(folder, pcam_file(split, part)) for part in "xy"] for split in counts}
    written = [file for pair in files.values() for file in pair]
    refuse_existing(written, force)
    h5py = require("h5py", "train")
    chunked = {"chunks": (1, SIDE, SIDE, 3), "compression": "gzip"} if compress else {}
    for epoch, (split, (x_file, y_file)) in enumerate(files.items()):
        count = counts[split]
        labels = keyed_generator(seed, epoch, count).permutation(np.arange(count) % 2).astype(np.uint8)
        with replacing(x_file) as draft, h5py.File(draft, "w") as file:
            patches = file.create_dataset("x", (count, SIDE, SIDE, 3), np.uint8, **chunked)
            for i in progress(range(count), f"making {split}"):
                patches[i] = _tissue(keyed_generator(seed, epoch, i), bool(labels[i]))
        with replacing(y_file) as draft, h5py.File(draft, "w") as file:
            file.create_dataset("y", data=labels.reshape(-1, 1, 1, 1))
    return written


def _tissue(generator: np.random.Generator, tumor: bool) -> np.ndarray:
    """A patch of pink tissue with violet cells, and a tumor cell in the center or not."""
    patch = np.full((SIDE, SIDE, 3), (225.0, 170.0, 200.0)) + generator.normal(0, 12, (SIDE, SIDE, 1))

    def cell(center: np.ndarray, radius: float, color: tuple[float, float, float]) -> None:
        squash = generator.uniform(0.8, 1.25)
        top, left = np.maximum(center - 1.25 * radius - 1, 0).astype(int)
        part = patch[top : int(center[0] + 1.25 * radius + 2), left : int(center[1] + 1.25 * radius + 2)]
        rows, columns = np.ogrid[top : top + part.shape[0], left : left + part.shape[1]]
        distance = np.hypot((rows - center[0]) * squash, (columns - center[1]) / squash)
        edge = np.clip(radius - distance + 0.5, 0, 1)[..., None]
        part[:] = (1 - edge) * part + edge * (np.array(color) + generator.normal(0, 8, edge.shape))

    for center in generator.uniform(0, SIDE, (40, 2)):
        cell(center, generator.uniform(2.5, 4), (130, 80, 160))
    for center in generator.uniform(0, SIDE, (4, 2)):
        radius = generator.uniform(6, 9)
        if np.abs(center - (SIDE - 1) / 2).max() > 16 + 1.25 * radius + 1:  # all of it outside of the center
            cell(center, radius, (75, 35, 110))
    if tumor:
        cell(generator.uniform(36, 60, 2), generator.uniform(6, 9), (75, 35, 110))
    return np.clip(np.rint(patch), 0, 255).astype(np.uint8)


def make_cityscapes(
    folder: str | Path,
    counts: Mapping[str, int],
    *,
    size: tuple[int, int] = (1024, 2048),
    seed: int = 0,
    force: bool = False,
) -> list[Path]:
    """Write synthetic street scenes in Cityscapes' format: a road to the horizon, with objects along it.

    Objects are smaller the farther away they are. Annotations of test scenes have no classes, as in Cityscapes.

    Args:
        folder, force: where the tree goes, and whether it may replace synthetic scenes.
        counts: the number of scenes of each split to write.
        size: height and width.
        seed: of the scenes.
    """
    pillow = require("PIL.Image", "train")
    trees = [Path(folder, kind, split, CITY) for split in counts for kind in ("gtFine", "leftImg8bit")]
    refuse_existing(trees, force)
    for tree in trees:
        shutil.rmtree(tree, ignore_errors=True)
    written = []
    for epoch, (split, count) in enumerate(counts.items()):
        for i in progress(range(count), f"making {split}"):
            image, ids = _street(keyed_generator(seed, epoch, i), size)
            # The annotation first, so that every image has one.
            for kind, end, pixels in (
                ("gtFine", "gtFine_labelIds", ids * (split != "test")),
                ("leftImg8bit", "leftImg8bit", image),
            ):
                written.append(Path(folder, kind, split, CITY, f"{CITY}_{i:06d}_000019_{end}.png"))
                with replacing(written[-1]) as draft:
                    pillow.fromarray(pixels).save(draft)
    return written


def _street(generator: np.random.Generator, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """A scene and its labelIds."""
    height, width = size
    rows, columns = (axis / n for axis, n in zip(np.mgrid[:height, :width], size, strict=True))
    horizon = generator.uniform(0.4, 0.5)
    depth = np.clip((rows - horizon) / (1 - horizon), 0, 1)  # 0 at the horizon, 1 at the camera
    ids = np.full(size, CLASSES["sky"], np.uint8)

    def paint(name: str, where: np.ndarray) -> None:
        ids[where] = CLASSES[name]

    skyline = horizon - np.repeat(generator.uniform(0.05, 0.35, 12), -(-width // 12))[:width]
    paint("building", (rows > skyline) & (rows <= horizon))
    paint("vegetation", (rows > horizon - 0.08) & (rows <= horizon) & (np.sin(40 * columns) > 0.6))
    middle = np.abs(columns - 0.5)
    paint("terrain", rows > horizon)
    paint("sidewalk", (rows > horizon) & (middle < 0.06 + 0.5 * depth))
    paint("road", (rows > horizon) & (middle < 0.03 + 0.35 * depth))
    # (name, width and height at the camera, distance from the middle at the camera)
    things = [("pole", 0.02, 0.9, 0.45), ("person", 0.06, 0.4, 0.42), ("bus", 0.4, 0.5, 0.2), ("car", 0.3, 0.25, 0.2)]
    things += [("traffic sign", 0.06, 0.1, 0.45), ("bicycle", 0.1, 0.15, 0.35), ("rider", 0.06, 0.3, 0.33)]
    for near in np.sort(generator.uniform(0.05, 0.9, 14)):
        name, wide, high, aside = things[generator.integers(len(things))]
        foot = horizon + near * (1 - horizon)
        center = 0.5 + generator.choice([-1, 1]) * aside * near
        inside = (np.abs(columns - center) < wide * near / 2) & (rows < foot) & (rows > foot - high * near)
        paint(name, inside)
    paint("car", (rows > 0.97) & (middle < 0.2))
    ids[-max(1, height // 64) :] = 1  # "ego vehicle", which is not a class
    palette = np.zeros((NUM_IDS, 3))
    palette[1] = 20
    palette[list(CLASSES.values())] = np.random.default_rng(19).integers(40, 216, (len(CLASSES), 3))
    image = palette[ids] + generator.normal(0, 10, (height, width, 1)) + generator.normal(0, 10, 3)
    return np.clip(np.rint(image), 0, 255).astype(np.uint8), ids
