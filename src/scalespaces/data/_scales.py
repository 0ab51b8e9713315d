"""Sets of digits that test how a network handles scale: one with many scales, and ones with unseen scales."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from scalespaces._extras import require
from scalespaces.data._keys import ArrayImages, keyed_generator
from scalespaces.data._progress import progress

Span = tuple[float, float]
Place = Literal["center", "random"]


def digits() -> tuple[np.ndarray, np.ndarray]:
    """The 1,797 handwritten digits that come with scikit-learn (extra ``demo``): no download.

    Shape:
        - Output: images :math:`(1797, 8, 8)`, uint8 from 0 to 255 (16 steps); labels :math:`(1797,)`

    Example:
        >>> images, labels = digits()
        >>> images.shape, int(images.max()), labels[:5]
        ((1797, 8, 8), 255, array([0, 1, 2, 3, 4]))
    """
    bundled = require("sklearn.datasets", "demo").load_digits()
    return np.rint(bundled.images * (255 / 16)).astype(np.uint8), bundled.target.astype(np.int64)


def mnist_scale(
    images: np.ndarray,
    labels: np.ndarray,
    seed: int = 0,
    *,
    counts: Sequence[int] | None = None,
    scales: Span = (0.3, 1.0),
) -> dict[str, ArrayImages]:
    """MNIST-scale, as SESN made it: digits of scales drawn uniformly, on a canvas of their own size.

    Every seed splits the pooled digits anew, with the classes in their proportions; SESN averages over the six seeds
    from 0 to 5. Interpolation is bicubic without antialiasing, as in SESN. The random draws are ours, so that single
    digits differ from SESN's.

    Args:
        images: all digits, ``(N, H, W)``, uint8.
        labels: ``(N,)``.
        seed: of the split and the scales.
        counts: of train, valid and test; 10,000, 2,000 and 50,000, or in these proportions if there are fewer.
        scales: their range.

    Returns:
        The sets ``train``, ``valid`` and ``test``.
    """
    plan = [(name, part, scales) for part, name in enumerate(("train", "valid", "test"))]
    counts = _shares((10_000, 2_000, 50_000), len(labels)) if counts is None else counts
    return _rescaled_sets(images, labels, plan, counts, seed, canvas=images.shape[-1], antialias=False)


def unseen_scales(
    images: np.ndarray,
    labels: np.ndarray,
    train: float | Span,
    tests: Sequence[float | Span],
    *,
    canvas: int,
    place: Place = "center",
    counts: Sequence[int] | None = None,
    seed: int = 0,
) -> dict[str, ArrayImages]:
    """Train at one scale, test at others: in the manner of MNIST Large Scale, or of STIR with ranges and random places.

    Every test set shows the same objects, so that the sets differ in scale alone.

    Args:
        images: all, ``(N, H, W)``, uint8.
        labels: ``(N,)``.
        train: scale of the training and validation images relative to ``images``, or its range.
        tests: scale or range of each test set.
        canvas: side of the results; objects that do not fit are cut off.
        place: in the center, or anywhere the image fits.
        counts: of train, valid and test; 50,000, 10,000 and 10,000, or in these proportions if there are fewer.
        seed: of the split, scales and places.

    Returns:
        The sets ``train``, ``valid`` and, for each of the scales, ``test_{scale}`` or ``test_{low}-{high}``.

    Example:
        >>> sets = unseen_scales(*digits(), train=2.0, tests=[1, 2, 4], canvas=32)
        >>> {name: len(dataset) for name, dataset in sets.items()}
        {'train': 1283, 'valid': 256, 'test_1': 256, 'test_2': 256, 'test_4': 256}
    """
    shown = ["-".join(f"{s:g}" for s in scale) if isinstance(scale, tuple) else f"{scale:g}" for scale in tests]
    if len(set(shown)) < len(shown):
        raise ValueError(f"test scales must differ, got {', '.join(shown)}")
    plan: list[tuple[str, int, float | Span]] = [("train", 0, train), ("valid", 1, train)]
    plan += [(f"test_{name}", 2, scale) for name, scale in zip(shown, tests, strict=True)]
    counts = _shares((50_000, 10_000, 10_000), len(labels)) if counts is None else counts
    return _rescaled_sets(images, labels, plan, counts, seed, canvas=canvas, place=place)


def _shares(usual: Sequence[int], available: int) -> list[int]:
    return [n * min(available, sum(usual)) // sum(usual) for n in usual]


def _rescaled_sets(
    images: np.ndarray,
    labels: np.ndarray,
    plan: Sequence[tuple[str, int, float | Span]],
    counts: Sequence[int],
    seed: int,
    *,
    canvas: int,
    place: Place = "center",
    antialias: bool = True,
) -> dict[str, ArrayImages]:
    """Split images, and make each set of a plan: its name, its part of the split, its scale or range of scales.

    What is drawn for an image depends on the seed, the part and its index in the part alone.
    """
    chosen, sets = split_classes(labels, counts, seed), {}
    for name, part, scale in plan:
        low, high = scale if isinstance(scale, tuple) else (scale, scale)
        if not 0 < low <= high:
            raise ValueError(f"scales run from a number above 0 to a larger one, got {low} to {high}")
        number = len(chosen[part])
        shown, scales = np.empty((number, canvas, canvas), np.uint8), np.empty(number, np.float32)
        for i in progress(range(number), f"scaling {name}"):
            image, generator = images[chosen[part][i]], keyed_generator(seed * 3 + part, 0, i)
            scales[i] = generator.uniform(low, high)
            # Anywhere the whole image fits, or in the center.
            room = [max(0.0, canvas - n * float(scales[i])) / 2 * (place == "random") for n in image.shape]
            top, left = (generator.uniform(-r, r) for r in room)
            shown[i] = rescale(image, float(scales[i]), canvas, (top, left), antialias=antialias)
        sets[name] = ArrayImages(shown, labels[chosen[part]], scales=scales)
    return sets


def split_classes(labels: np.ndarray, counts: Sequence[int], seed: int) -> list[np.ndarray]:
    """Draw disjoint sets of these sizes at random, each with all classes in their proportions.

    Example:
        >>> a, b = split_classes(np.arange(100) % 10, [20, 50], seed=0)
        >>> len(a), len(b), len(set(a) & set(b))
        (20, 50, 0)
    """
    if min(counts) < 0 or sum(counts) > len(labels):
        raise ValueError(f"cannot draw {' + '.join(map(str, counts))} of {len(labels)} samples; ask for fewer")
    generator = np.random.default_rng(seed)
    rest = generator.permutation(len(labels))
    sets = []
    for count in counts:
        rest = rest[np.argsort(labels[rest], kind="stable")]
        # Every n-th along the sorted labels: all classes get their share.
        picked = np.diff(np.arange(len(rest) + 1) * count // max(len(rest), 1)) == 1
        sets.append(generator.permutation(rest[picked]))
        rest = generator.permutation(rest[~picked])
    return sets


def rescale(
    image: np.ndarray, scale: float, canvas: int, shift: tuple[float, float] = (0, 0), *, antialias: bool = True
) -> np.ndarray:
    """Show an image ``scale`` times its size in the middle of a black canvas, by bicubic interpolation.

    Args:
        image: ``(H, W)``, uint8.
        scale: any number above 0; not rounded to whole pixels.
        canvas: side of the result.
        shift: rows and columns from the middle.
        antialias: widen the kernel when scaling down (Pillow's ``resize``), or do not (its ``transform``, which SESN
            made MNIST-scale with).

    Example:
        >>> image = np.full((8, 8), 255, dtype=np.uint8)
        >>> (rescale(image, 2, 32) > 127).sum()
        np.int64(256)
    """
    if not scale > 0:
        raise ValueError(f"scale must be above 0, got {scale}")
    pillow = require("PIL.Image", "train")
    bicubic = pillow.Resampling.BICUBIC
    corner = [n / 2 - (canvas / 2 + move) / scale for n, move in zip(image.shape, shift, strict=True)]
    extent = canvas / scale
    if not antialias:
        margin = 2  # black, so that the kernel sees the edge of the image and not a continuation of it
        affine = (1 / scale, 0, corner[1] + margin, 0, 1 / scale, corner[0] + margin)
        padded = pillow.fromarray(np.pad(image, margin))
        return np.array(padded.transform((canvas, canvas), pillow.Transform.AFFINE, affine, bicubic))
    # A margin so that the box and the kernel, four pixels wide or 4 / scale, stay inside.
    reach = 2 * max(1.0, 1 / scale) + 1
    before = [int(np.ceil(max(0.0, -c) + reach)) for c in corner]
    after = [int(np.ceil(max(0.0, c + extent - n) + reach)) for c, n in zip(corner, image.shape, strict=True)]
    padded = pillow.fromarray(np.pad(image, list(zip(before, after, strict=True))))
    top, left = (c + b for c, b in zip(corner, before, strict=True))
    return np.array(padded.resize((canvas, canvas), bicubic, (left, top, left + extent, top + extent)))
