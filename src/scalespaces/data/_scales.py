"""Sets of digits that test how a network handles scale: one with many scales, and ones with unseen scales."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from scalespaces._extras import require
from scalespaces._progress import progress
from scalespaces.data._keys import ArrayImages, keyed_generator

Span = tuple[float, float]
Digits = tuple[NDArray, NDArray]  # images and labels
Plan = Sequence[tuple[str, int, float | Span]]  # the name, the part of the split and the scale of each set


def digits() -> Digits:
    """The 1,797 handwritten digits that come with scikit-learn (extra ``demo``), and their labels: no download.

    Example:
        >>> images, labels = digits()
        >>> images.shape, int(images.max()), labels[:5]
        ((1797, 8, 8), 255, array([0, 1, 2, 3, 4]))
    """
    bundled = require("sklearn.datasets", "demo").load_digits()
    return np.rint(bundled.images * (255 / 16)).astype(np.uint8), bundled.target.astype(np.int64)


def mnist_scale(
    images: NDArray,
    labels: NDArray,
    seed: int = 0,
    *,
    counts: Sequence[int] | None = None,
    scales: Span = (0.3, 1.0),
    size: int | None = None,
) -> dict[str, ArrayImages]:
    """MNIST-scale, as SESN made it: digits at uniformly drawn scales, on a canvas of the original size.

    Every seed splits the pooled digits differently, with the classes in their proportions; SESN averages over the six
    seeds from 0 to 5. Interpolation is bicubic without antialiasing, as in SESN. The random draws are our own, so
    single digits differ from SESN's.

    Args:
        images, labels: all digits, ``(N, H, W)`` uint8, and their classes, ``(N,)``.
        seed: of the split and the scales.
        counts: of train, valid and test; 10,000, 2,000 and 50,000, or in these proportions if there are fewer.
        scales: their range.
        size: side in pixels that the finished images are resized to; SESN also compares networks at 56.
    """
    if size is not None and size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    plan = [(name, part, scales) for part, name in enumerate(("train", "valid", "test"))]
    counts = _shares((10_000, 2_000, 50_000), len(labels)) if counts is None else counts
    sets = _rescaled_sets((images, labels), plan, counts, seed, images.shape[-1], random=False, antialias=False)
    return sets if size is None else {name: _resized(made, size, name) for name, made in sets.items()}


def unseen_scales(
    images: NDArray,
    labels: NDArray,
    train: float | Span | None,
    tests: Sequence[float | Span],
    *,
    canvas: int,
    place: Literal["center", "random"] = "center",
    counts: Sequence[int] | None = None,
    seed: int = 0,
) -> dict[str, ArrayImages]:
    """Train at one scale, test at others: like MNIST Large Scale, or with ranges and random places like STIR.

    Every test set shows the same objects, so the sets differ only in scale.

    Args:
        images, labels, seed: as in :func:`mnist_scale`.
        train: scale of the training and validation images relative to ``images``, or its range; or None, to make only
            the test sets.
        tests: scale or range of each test set.
        canvas: side of the results; objects that do not fit are cut off.
        place: in the center, or anywhere the image fits.
        counts: of train, valid and test; 50,000, 10,000 and 10,000, or in these proportions if there are fewer.

    Returns:
        The sets ``train`` and ``valid`` and, for each of the scales, ``test_{scale}`` or ``test_{low}-{high}``.

    Example:
        >>> sets = unseen_scales(*digits(), train=2.0, tests=[1, 2, 4], canvas=32)
        >>> {name: len(dataset) for name, dataset in sets.items()}
        {'train': 1283, 'valid': 256, 'test_1': 256, 'test_2': 256, 'test_4': 256}
    """
    shown = ["-".join(f"{s:g}" for s in scale) if isinstance(scale, tuple) else f"{scale:g}" for scale in tests]
    if len(set(shown)) < len(shown):
        raise ValueError(f"test scales must differ, got {', '.join(shown)}")
    test_sets = [(f"test_{name}", 2, scale) for name, scale in zip(shown, tests, strict=True)]
    plan = [*([] if train is None else [("train", 0, train), ("valid", 1, train)]), *test_sets]
    counts = _shares((50_000, 10_000, 10_000), len(labels)) if counts is None else counts
    return _rescaled_sets((images, labels), plan, counts, seed, canvas, random=place == "random", antialias=True)


def _shares(usual: Sequence[int], available: int) -> list[int]:
    return [n * min(available, sum(usual)) // sum(usual) for n in usual]


def _rescaled_sets(
    digits: Digits, plan: Plan, counts: Sequence[int], seed: int, canvas: int, *, random: bool, antialias: bool
) -> dict[str, ArrayImages]:
    """Split images, and make the sets of a plan. An image's draws depend on the seed, the part and its index in it."""
    images, labels = digits
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
            room = [max(0.0, canvas - n * float(scales[i])) / 2 * random for n in image.shape]
            top, left = (generator.uniform(-r, r) for r in room)
            shown[i] = rescale(image, float(scales[i]), canvas, (top, left), antialias=antialias)
        sets[name] = ArrayImages(shown, labels[chosen[part]], scales=scales)
    return sets


def _resized(made: ArrayImages, size: int, name: str) -> ArrayImages:
    images = progress(made.images[:, 0].numpy(), f"resizing {name}")
    shown = np.stack([rescale(image, size / image.shape[-1], size) for image in images])
    return ArrayImages(shown, made.labels, scales=made.scales)


def split_classes(labels: NDArray, counts: Sequence[int], seed: int) -> list[NDArray]:
    """Draw disjoint sets of these sizes at random, each with all classes in their proportions."""
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
    image: NDArray, scale: float, canvas: int, shift: tuple[float, float] = (0, 0), *, antialias: bool = True
) -> NDArray:
    """Show a gray image at ``scale`` times its size, not rounded to whole pixels, in the middle of a black canvas.

    Interpolation is bicubic. ``shift`` is the distance from the middle in rows and columns. With ``antialias``, the
    kernel is wider when scaling down (Pillow's ``resize``); without, it is not (Pillow's ``transform``, as in SESN).
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
