"""Data made on the spot: the scale sets, and small synthetic data in the formats of PCam and Cityscapes."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from scalespaces._extras import require
from scalespaces._files import replacing
from scalespaces.data._cityscapes import CLASSES
from scalespaces.data._idx import read_idx_images, write_idx
from scalespaces.data._keys import ArrayImages, keyed_generator
from scalespaces.data._pcam import SIDE, pcam_file
from scalespaces.data._progress import progress
from scalespaces.data._scales import digits

CITY = "synthetic"


def source_images(source: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """All images and labels of ``"digits"``, or of a folder with MNIST's files: training and test images pooled."""
    if str(source) == "digits":
        return digits()
    splits = [read_idx_images(source, split) for split in ("train", "test")]
    images = np.concatenate([split.images[:, 0].numpy() for split in splits])
    return images, np.concatenate([split.labels.numpy() for split in splits])


def write_sets(folder: str | Path, sets: Mapping[str, ArrayImages], *, force: bool = False) -> list[Path]:
    """Write sets of images, labels and scales as IDX files, for ``read_idx_images``.

    With ``force``, they replace the sets that were written there before.
    """
    folder, plan = Path(folder), []
    for name, images in sets.items():
        plan.append((folder / f"{name}-images-idx3-ubyte.gz", images.images[:, 0].numpy()))
        plan.append((folder / f"{name}-labels-idx1-ubyte.gz", images.labels.numpy().astype(np.uint8)))
        if images.scales is not None:
            plan.append((folder / f"{name}-scales-idx1-float.gz", images.scales.numpy()))
    files = [path for path, _ in plan]
    refuse_existing(files, force)
    for old in folder.glob("*-scales-idx1-float.gz"):  # of sets made here before, which may be others
        for file in folder.glob(old.name.replace("-scales-idx1-float.gz", "-*-idx?-*.gz")):
            file.unlink()
    for path, array in progress(plan, f"writing {folder}"):
        write_idx(path, array)
    return files


def make_pcam(
    folder: str | Path,
    counts: Mapping[str, int],
    *,
    seed: int = 0,
    compress: bool = False,
    force: bool = False,
) -> list[Path]:
    """Write synthetic patches in PCam's format: cells, of which those of tumors are large and dark.

    Label 1 means that a tumor cell touches the central 32 x 32 pixels; tumor cells elsewhere mean nothing, as in
    PCam. Half of the patches have it.

    Args:
        folder: where the files go.
        counts: how many patches, for each of the splits to write.
        seed: of the patches.
        compress: compress the patches, one by one, with gzip inside the file.
        force: overwrite files that are there.
    """
    folder = Path(folder)
    files = {split: [folder / pcam_file(split, part) for part in ("x", "y")] for split in counts}
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
    """Write synthetic street scenes in Cityscapes' format: a road to the horizon, and what stands along it.

    Objects are the smaller the farther they are. Files of test scenes have annotations without a class, as the
    official ones.

    Args:
        folder: where the tree goes; all scenes are of the city "synthetic".
        counts: how many scenes, for each of the splits to write.
        size: height and width.
        seed: of the scenes.
        force: replace the synthetic scenes that are there.
    """
    pillow = require("PIL.Image", "train")
    trees = [Path(folder) / kind / split / CITY for split in counts for kind in ("gtFine", "leftImg8bit")]
    refuse_existing(trees, force)
    for tree in trees:
        shutil.rmtree(tree, ignore_errors=True)
    written = []
    for epoch, (split, count) in enumerate(counts.items()):
        for i in progress(range(count), f"making {split}"):
            image, ids = _street(keyed_generator(seed, epoch, i), size)
            name = f"{CITY}_{i:06d}_000019"
            # The annotation first: an image is never without one.
            for path, pixels in (
                (f"gtFine/{split}/{CITY}/{name}_gtFine_labelIds.png", ids * (split != "test")),
                (f"leftImg8bit/{split}/{CITY}/{name}_leftImg8bit.png", image),
            ):
                with replacing(Path(folder) / path) as draft:
                    pillow.fromarray(pixels).save(draft)
                written.append(Path(folder) / path)
    return written


_COLORS = dict(zip(CLASSES, np.random.default_rng(19).integers(40, 216, (len(CLASSES), 3)), strict=True))


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
    # From far to near: (name, width and height at the camera, distance from the middle at the camera).
    things = [("pole", 0.02, 0.9, 0.45), ("person", 0.06, 0.4, 0.42), ("bus", 0.4, 0.5, 0.2), ("car", 0.3, 0.25, 0.2)]
    things += [("traffic sign", 0.06, 0.1, 0.45), ("bicycle", 0.1, 0.15, 0.35), ("rider", 0.06, 0.3, 0.33)]
    for near in np.sort(generator.uniform(0.05, 0.9, 14)):
        name, wide, high, aside = things[generator.integers(len(things))]
        foot = horizon + near * (1 - horizon)
        center = 0.5 + generator.choice([-1, 1]) * aside * near
        inside = (np.abs(columns - center) < wide * near / 2) & (rows < foot) & (rows > foot - high * near)
        paint(name, inside)
    paint("car", (rows > 0.97) & (middle < 0.2))
    ids[-max(1, height // 64) :] = 1  # "ego vehicle", which no class is
    palette = np.zeros((34, 3))
    palette[1] = 20
    palette[list(CLASSES.values())] = [_COLORS[name] for name in CLASSES]
    image = palette[ids] + generator.normal(0, 10, (height, width, 1)) + generator.normal(0, 10, 3)
    return np.clip(np.rint(image), 0, 255).astype(np.uint8), ids


def refuse_existing(paths: list[Path], force: bool) -> None:
    """Refuse to write over what is there, unless that is asked for."""
    there = [path for path in paths if path.exists()]
    if there and not force:
        more = f" and {len(there) - 1} more" if len(there) > 1 else ""
        raise FileExistsError(f"{str(there[0])!r}{more} exists; use --force (force=True) to overwrite")
