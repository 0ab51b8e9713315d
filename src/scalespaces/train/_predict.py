"""Predictions: the classes of images in files, and of the pixels of images of any size."""

import colorsys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scalespaces._choices import TILE, LevelPool
from scalespaces.data import to_unit
from scalespaces.data._folders import CITY_CLASSES, Size
from scalespaces.data._pixels import decode_file, read_pixels, sides
from scalespaces.models import Card, ScaleNetwork, load
from scalespaces.models._network import evaluating, first_channels
from scalespaces.theory._arguments import check_integer
from scalespaces.train._batches import same_shape
from scalespaces.train._levels import answer, answer_and_level

WHOLE = 2**22  # pixels processed at once; the paper's S-ResNet needs 3.2 GiB for these
_COARSEST = 64  # pixels; windows start at multiples, so that networks which halve six times see the same grid
_ITU = torch.tensor([0.299, 0.587, 0.114])  # weights of Pillow's "L"
_CITYSCAPES = (  # the benchmark's colors, in the order of its classes
    "804080 f423e8 464646 66669c be9999 999999 faaa1e dcdc00 6b8e23 98fb98 "
    "4682b4 dc143c ff0000 00008e 000046 003c64 005064 0000e6 770b20"
)

File = str | Path
Color = tuple[int, int, int]


def predict(
    model: nn.Module | File,
    images: Tensor | File | Sequence[File],
    *,
    batch: int = 32,
    pool: LevelPool = "model",
    size: tuple[int, int] | None = None,
    tile: Size = None,
) -> Any:
    """The probabilities of the classes: of images, or of their pixels if the network answers for every pixel.

    Images are normalized as the network's card says, on its device. The network runs in evaluation mode.

    Args:
        model: a network, or a file that :func:`scalespaces.models.save` wrote.
        images: a tensor ``(B, C, H, W)`` or ``(C, H, W)``, of bytes or of numbers from 0 to 1; or the name of an image
            file, or several.
        batch: number of images per batch.
        pool: how levels are combined: by the network itself, or as in :func:`~scalespaces.functional.scale_pool`.
        size: height and width that files are resized to first, as in training; by default they keep their size.
        tile: side of the windows for large images, where every pixel has a class.

    Returns:
        A tensor ``(B, classes)`` or ``(B, classes, H, W)`` on the CPU; a list of ``(classes, H, W)`` for files that
        differ in size.

    Example:
        >>> model = scalespaces.models.create_model("s_cnn", channels=(4, 4), kernel_size=3)
        >>> predict(model, torch.rand(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """
    network = model if isinstance(model, nn.Module) else load(model)
    check_integer("batch", batch, 1)
    tensor = images if isinstance(images, Tensor) else None
    files: Any = [images] if isinstance(images, File) else images
    if not len(files) or (tensor is not None and tensor.ndim not in (3, 4)):
        got = "none" if tensor is None else f"shape {tuple(tensor.shape)}"
        raise ValueError(f"images are a tensor (B, C, H, W) or (C, H, W), a file, or several files, got {got}")
    if tensor is not None and size is not None:
        raise ValueError(f"size is for files, got {size}; resize the tensor first")
    with evaluating(network):
        pixels = describe_answers(network)[1]
        if tile is not None and not pixels:
            raise ValueError(f"tile is for networks that answer for every pixel, got {tile}")
        if tensor is not None:
            seen: Any = to_input(network, tensor if tensor.ndim == 4 else tensor[None])
        elif pixels:
            seen = [to_input(network, read_channels(file, channels_of(network), size)) for file in files]
        else:
            return torch.stack([p for _, p, _ in predict_classes(network, files, batch=batch, pool=pool, size=size)])
        if not pixels:
            found = [probabilities(network, part, pool, False) for part in seen.split(batch)]
            return check_finite(torch.cat(found)).cpu()
        masks = [check_finite(predict_mask(network, image, tile=tile, pool=pool)).cpu() for image in seen]
        return torch.stack(masks) if len({mask.shape for mask in masks}) == 1 else masks


def predict_classes(
    model: nn.Module,
    files: Iterable[File],
    *,
    batch: int = 32,
    pool: LevelPool = "model",
    size: tuple[int, int] | None = None,
    skipped: dict[str, str] | None = None,
) -> Iterator[tuple[File, Tensor, int | None]]:
    """The probabilities ``(classes,)`` of each image, file by file, in their order, on the CPU; as :func:`predict`.

    The third value is the level that says most for the predicted class, see :func:`answer_and_level`.
    Images may differ in size. They are read until there are ``batch`` of them or four million pixels; then those of
    equal size form a batch. Files that cannot be used raise an error, or are added to ``skipped`` with the reason.
    """
    waiting: list[tuple[File, Tensor]] = []

    def answers() -> Iterator[tuple[File, Tensor, int | None]]:
        found: dict[int, tuple[Tensor, int | None]] = {}
        for group in same_shape([image for _, image in waiting]):
            with skipping([waiting[i][0] for i in group], skipped), named(*waiting[group[0]]):
                said, levels = _answer(model, torch.stack([waiting[i][1] for i in group]), pool)
                numbers = [None] * len(group) if levels is None else levels.tolist()
                found |= dict(zip(group, zip(said.cpu(), numbers, strict=True), strict=True))
        for i in sorted(found):
            with skipping([waiting[i][0]], skipped), named(*waiting[i]):
                yield waiting[i][0], check_finite(found[i][0]), found[i][1]
        waiting.clear()

    for file in files:
        with skipping([file], skipped):
            waiting.append((file, to_input(model, read_channels(file, channels_of(model), size))))
        if len(waiting) == batch or sum(image[0].numel() for _, image in waiting) >= WHOLE:
            yield from answers()
    yield from answers()


def class_scores(model: nn.Module, images: Tensor, pixels: bool, pool: LevelPool, tile: Size = None) -> Tensor:
    """The logits of images ``(B, classes)``; or of all pixels ``(B, classes, H, W)``, see :func:`predict_mask`."""
    if not pixels:
        return answer(model, images, pool)
    masks = [predict_mask(model, image, tile=tile, pool=pool) for image in images]
    return torch.stack(masks).clamp(min=1e-30).log()


def predict_mask(model: nn.Module, image: Tensor, **options: Any) -> Tensor:
    """The probabilities of the classes at every pixel of an image: :func:`predict_rows`, put together."""
    return torch.cat(list(predict_rows(model, image, **options)), 1)


def predict_rows(
    model: nn.Module,
    image: Tensor,
    *,
    tile: Size = None,
    overlap: int | None = None,
    batch: int = 8,
    pool: LevelPool = "model",
    see: Callable[[Tensor], Tensor] = lambda image: image,
) -> Iterator[Tensor]:
    """The probabilities at every pixel, ``(classes, h, W)``, some rows at a time from the top, to save memory.

    The image is processed whole or in windows that overlap. Where they do, their probabilities are blended
    with weights that fall off linearly from the middle. The outer quarter of an overlap is ignored, since it is near
    the border of a window. So windows make no difference if the network sees no further than that from a pixel, and has
    no strides longer than that or than 64 pixels.

    Args:
        tile: side of the windows, or ``(height, width)``; up to 63 pixels more, so that they start at multiples of 64.
            By default, images of up to four million pixels are processed whole, others in windows of 1024.
        overlap: of the windows, in pixels; by default a quarter of ``tile``.
        batch: windows per batch, if they have no more than four million pixels.
        see: what turns parts of the image into what the network takes, such as :func:`to_input`; by default they are.
    """
    height, width = image.shape[1:]
    tiles = sides(tile, "tile") or ((height, width) if height * width <= WHOLE else (TILE, TILE))
    y, x = Axis(height, tiles[0], overlap), Axis(width, tiles[1], overlap)
    if len(y.places) == len(x.places) == 1:
        yield probabilities(model, see(image)[None], pool, True)[0]
        return
    at_once = max(1, min(check_integer("batch", batch, 1), WHOLE // (y.window * x.window)))
    like = see(image[:, :1, :1])
    dtype = torch.promote_types(like.dtype, torch.float32)
    places = (torch.arange(n, device=like.device, dtype=dtype) for n in (y.trusted, x.trusted))
    column, row = (1 - (place - (len(place) - 1) / 2).abs() / ((len(place) + 1) / 2) for place in places)
    tent = column[:, None] * row
    weights, total = tent.new_zeros(y.trusted, width), tent.new_zeros(0)
    for top, start, end in zip(y.places, y.starts, [*y.places[1:], height], strict=True):
        band = see(image[:, start : start + y.window])
        for n in range(0, len(x.starts), at_once):
            windows = torch.stack([band[..., left : left + x.window] for left in x.starts[n : n + at_once]])
            answers = probabilities(model, windows, pool, True)[:, :, top - start :][:, :, : y.trusted]
            if not len(total):
                total = answers.new_zeros(answers.shape[1], *weights.shape)
            for one, place, left in zip(answers, x.places[n:], x.starts[n:], strict=False):
                total[..., place : place + x.trusted] += tent * one[..., place - left :][..., : x.trusted]
                weights[:, place : place + x.trusted] += tent
        done = end - top  # no window further down sees these rows
        yield total[:, :done] / weights[:done]
        total, weights = (F.pad(rest[..., done:, :], (0, 0, 0, done)) for rest in (total, weights))


class Axis:
    """Windows along an axis, all of ``window`` pixels: where they start, and which part of each is trusted."""

    # From place i on, so many pixels of window i count, a quarter of the overlap away from ends not the image's.
    # Between cuts i and i + 1, the center of that part of window i is the nearest.

    def __init__(self, length: int, tile: int, overlap: int | None) -> None:
        tile = min(tile, length)
        overlap = tile // 4 if overlap is None else check_integer("overlap", overlap, 0)
        if overlap >= tile < length:
            raise ValueError(f"overlap must be less than the side of the windows, {tile}, got {overlap}")
        step = _COARSEST
        while step > max(1, min(overlap // 4, tile - overlap)):
            step //= 2
        self.window = length - (length - tile) // step * step
        if self.window == length:
            self.trusted, self.places, self.starts, self.cuts = length, [0], [0], [0, length]
            return
        border, stride = overlap // 4 // step, (tile - overlap) // step
        self.trusted = self.window - 2 * border * step
        room = (length - self.trusted) // step
        last = -(-room // stride)  # evenly spread, no further apart than the stride
        self.places = [step * (room * i // last) for i in range(last + 1)]
        self.starts = [min(max(place - border * step, 0), length - self.window) for place in self.places]
        middles = [(one + other + self.trusted) // 2 for one, other in pairwise(self.places)]
        self.cuts = [0, *middles, length]


def channels_of(model: nn.Module) -> int:
    """The number of channels of the images it takes: 1 or 3, for which files can be read."""
    channels = len(Card.of(model).mean) or first_channels(model)
    if channels not in (1, 3):
        raise ValueError(f"images in files have 1 or 3 channels, but the network takes {channels}")
    return channels


def device_called(name: str) -> torch.device:
    """The device of that name; the best available for ``"auto"``."""
    found = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    there = [kind for kind in found if found[kind]]
    device = there[0] if name == "auto" else name
    if device.partition(":")[0] not in there:
        raise ValueError(f"no device {name!r} is available; use auto or one of {', '.join(there)}")
    return torch.device(device)


def read_channels(file: File, channels: int, size: tuple[int, int] | None = None, *, raw: bool = False) -> Tensor:
    """Read an image as 3 channels, RGB, or 1, gray: Pillow's ``"L"``, with the weights of ITU-R 601; float32.

    With ``raw``, an image of 8 bits stays bytes, a quarter of the memory.
    """

    def gray(picture: Any) -> Tensor | None:
        if picture.mode.startswith(("I", "F")):  # one channel, which Pillow would cut down to 8 bits
            return None
        pixels = torch.from_numpy(np.array(picture.convert("RGB").convert("L")))[None]
        return pixels if raw else to_unit(pixels)

    if channels == 1 and size is None and (found := decode_file(file, gray)) is not None:
        return found
    pixels = read_pixels(file, deep=True, raw=raw, size=size)
    if channels == 1 and size is not None:
        return (pixels * _ITU[:, None, None]).sum(0, keepdim=True)
    return pixels[:channels]


def to_input(model: nn.Module, image: Tensor) -> Tensor:
    """The image, bytes or numbers from 0 to 1, as the network takes it: normalized by its card, on its device."""
    like = next((p for p in model.parameters() if p.is_floating_point()), image)
    return Card.of(model).normalize(to_unit(image.to(like.device))).to(like.dtype)


def describe_answers(model: nn.Module) -> tuple[tuple[str, ...], bool]:
    """The names of the classes, numbers if its card has none, and whether there is an answer for every pixel."""
    channels, found = channels_of(model), None
    side = max(32, model.smallest_side if isinstance(model, ScaleNetwork) else 0)
    while found is None:  # until it takes images of this size
        image = to_input(model, torch.zeros(1, channels, side, side))
        try:
            with warnings.catch_warnings(action="ignore"):  # about levels with few samples
                found = probabilities(model, image, "model")
        except (ValueError, RuntimeError) as error:
            if side >= 1024:
                raise ValueError(f"the network does not answer for {side} x {side} pixels: {error}") from error
            side = min(2 * side, 1024)
    names, number = tuple(Card.of(model).classes), found.shape[1]
    if names and len(names) != number:
        raise ValueError(f"the network's card has {len(names)} classes, but its answers {number}; they must agree")
    return names or tuple(map(str, range(number))), found.ndim == 4


@torch.no_grad()
def probabilities(model: nn.Module, images: Tensor, pool: LevelPool, pixels: bool | None = None) -> Tensor:
    """The probabilities ``(B, classes[, H, W])``; an error if ``pixels`` says otherwise."""
    if model.training:
        raise ValueError("predictions are made in evaluation mode; call model.eval() first")
    return _normalized(answer(model, images, pool), images, pixels)


@torch.no_grad()
def _answer(model: nn.Module, images: Tensor, pool: LevelPool) -> tuple[Tensor, Tensor | None]:
    """The probabilities ``(B, classes)``, and the level that says most for each image."""
    if model.training:
        raise ValueError("predictions are made in evaluation mode; call model.eval() first")
    logits, levels = answer_and_level(model, images, pool)
    return _normalized(logits, images, False), levels


def _normalized(logits: Any, images: Tensor, pixels: bool | None) -> Tensor:
    b, _, h, w = images.shape
    shape = tuple(logits.shape) if isinstance(logits, Tensor) else ()
    if (len(shape), *shape[:1], *shape[2:]) not in ((2, b), (4, b, h, w)):
        expected = f"({b}, classes) or ({b}, classes, {h}, {w}) for images of shape {tuple(images.shape)}"
        raise ValueError(f"networks answer with logits {expected}, got {shape or type(logits).__name__}")
    if logits.shape[1] < 2:
        raise ValueError(f"predictions need two classes or more, but the network has {logits.shape[1]}")
    if pixels is not None and pixels != (logits.ndim == 4):
        use = "images as a whole; use predict_classes" if pixels else "every pixel; use predict_mask"
        raise ValueError(f"the network answers for {use}")
    return logits.softmax(1, dtype=torch.promote_types(logits.dtype, torch.float32))


def check_finite(probabilities: Tensor) -> Tensor:
    """Refuse probabilities that are not finite."""
    if not probabilities.isfinite().all():
        raise ValueError("its scores are not finite; check its weights and the values of the image")
    return probabilities


def palette(classes: Sequence[str]) -> tuple[Color, ...]:
    """A color for each class: Cityscapes' own for its classes; for others, evenly spread hues in three shades."""
    if tuple(classes) == tuple(CITY_CLASSES):
        return tuple((r, g, b) for r, g, b in map(bytes.fromhex, _CITYSCAPES.split()))
    shades = ((0.8, 1.0), (0.8, 0.7), (0.5, 0.85))
    colors = (colorsys.hsv_to_rgb(n / len(classes), *shades[n % 3]) for n in range(len(classes)))
    return tuple((round(255 * r), round(255 * g), round(255 * b)) for r, g, b in colors)


@contextmanager
def named(file: File, image: Tensor) -> Iterator[None]:
    """Name the file in the network's errors about its image."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ValueError(f"{str(file)!r} does not fit into memory; use a smaller batch or tile: {error}") from error
    except (ValueError, RuntimeError) as error:
        size = f"{image.shape[-1]} x {image.shape[-2]} pixels"
        raise ValueError(f"the network cannot answer for {str(file)!r}, {size}: {error}") from error


@contextmanager
def skipping(files: Iterable[File], skipped: dict[str, str] | None) -> Iterator[None]:
    """Note the error of these files in ``skipped``, if there is such a dictionary."""
    try:
        yield
    except ValueError as error:
        if skipped is None:
            raise
        skipped |= {str(file): str(error) for file in files}
