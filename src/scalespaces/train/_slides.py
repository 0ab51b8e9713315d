"""Predictions for slides: tiled TIFF images of any size, window by window at bounded memory, resumable."""

import atexit
import hashlib
import json
import os
import zlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from scalespaces._choices import TILE, WINDOW, LevelPool
from scalespaces._extras import require
from scalespaces._files import Journal, open_tiff, prepare, refuse_existing, replacing
from scalespaces._progress import Progress
from scalespaces.data._slides import Slide
from scalespaces.models import Card, load
from scalespaces.models._network import evaluating
from scalespaces.theory._arguments import check_integer
from scalespaces.train import _predict as base
from scalespaces.train._predict import Axis, File

_FORMAT = 1  # of what is kept and written; another number makes older parts useless
SKIPPED = 255  # in masks; in heat maps all probabilities are zero
_BLOCK = 16  # a part of a heat map is so many windows wide and high
_PICTURE = 1024  # pixels of the longer side of the picture
_BLANK = (230, 230, 230)
_CACHE = 2**27  # bytes of parts that are kept while the result is written


def predict_slide(
    model: nn.Module | File,
    file: File,
    out: File,
    *,
    tile: int | None = None,
    overlap: int | None = None,
    batch: int = 32,
    pool: LevelPool = "model",
    skip_background: float | None = None,
    force: bool = False,
) -> dict[str, Any] | None:
    """Predict a tiled TIFF of any size by windows, and write the result as a tiled pyramidal TIFF, and a small PNG.

    A classifier gives a heat map: a pixel for each window, with the probability of each class. A network that answers
    for every pixel gives a mask of class numbers: each pixel has the class of the window whose center is nearest, of
    those that see it a quarter of the overlap away from their border. The physical size of pixels is kept.

    Parts that are done are kept beside the output. So the same call resumes after an interruption, and the result is
    the same bit for bit. Processes that torchrun started share the windows. Needs the extra ``slides``.

    Args:
        model: a network, or a file that :func:`scalespaces.models.save` wrote.
        file: a tiled TIFF, or a whole-slide format that tifffile reads.
        out: the TIFF to write; the picture has the same name and ends in ``.png``.
        tile: side of the windows in pixels; by default 256 for classifiers, 1024 for others.
        overlap: of the windows, in pixels; by default a quarter of ``tile``.
        batch: windows per batch, if they have no more than four million pixels.
        pool: how levels are combined, as in :func:`~scalespaces.train.predict`.
        skip_background: leave out windows whose standard deviation, of values from 0 to 1, is at most this in every
            channel, and windows whose tiles the file leaves out. They are 255 in masks and zero in heat maps.
        force: overwrite an existing file that another network, image or setting gave.

    Returns:
        What the file's description says: the classes, their shares of what was predicted, the share that was skipped,
        and more. None in all processes but the first.
    """
    network = model if isinstance(model, nn.Module) else load(model)
    check_integer("batch", batch, 1)
    if skip_background is not None and not 0 <= skip_background < float("inf"):
        raise ValueError(f"skip_background must be a number of at least 0, got {skip_background}")
    out = prepare(out)
    if out.suffix.lower() not in (".tif", ".tiff"):
        raise ValueError(f"slides are written as TIFF, so the name must end in .tif, got {str(out)!r}")
    if out.resolve() == Path(file).resolve():
        raise ValueError(f"{str(out)!r} would be overwritten, but it is the image; use another name")
    with Slide(file) as slide, evaluating(network), ExitStack() as stack:
        classes, pixels = base.describe_answers(network)
        if len(classes) > SKIPPED and pixels:
            raise ValueError(f"masks have {SKIPPED} classes at most, but the network has {len(classes)}")
        plan = _Plan.of(slide, pixels, len(classes), tile, overlap, batch)
        settings = [tile, overlap, batch, pool, skip_background, _FORMAT, torch.__version__]
        key = _key(network, [slide.key(), *settings])
        if out.exists() and (found := _description(out)).get("key") == key:
            return found  # the same call has finished before
        refuse_existing([out], force)
        rank, world = _processes()
        journal = Journal(out, key, rank)
        stack.callback(journal.close)  # frees its lock, also after an error
        mine = [n for n in range(rank, len(plan.parts), world) if n not in journal.places]
        with Progress(
            f"predicting {Path(file).name}", sum(plan.windows(n) for n in mine), " windows", left=True
        ) as line:
            for n in mine:
                journal.add(n, _predict_part(network, slide, plan, n, batch, pool, skip_background))
                line.add(plan.windows(n))
        if world > 1:
            distributed.barrier()
        if rank:
            return None
        journal.scan()
        about = {"key": key, "source": Path(file).name, "classes": classes}
        about |= {"window": [plan.y.window, plan.x.window], "image": [slide.height, slide.width]}
        return _write(out, _Parts(plan, journal), about, slide.pixel_size)


@dataclass
class _Steps:
    """Windows of a classifier along an axis: a step apart, the last one moved back into the image."""

    window: int
    starts: list[int]
    cuts: list[int]

    @classmethod
    def of(cls, length: int, tile: int, overlap: int) -> "_Steps":
        window = min(tile, length)
        number = -(-max(length - tile, 0) // (tile - overlap)) + 1
        starts = [min(i * (tile - overlap), length - window) for i in range(number)]
        return cls(window, starts, list(range(number + 1)))


@dataclass
class _Plan:
    """Where windows are, and the parts of the result: rectangles of windows, each predicted and kept as a whole."""

    y: Axis | _Steps
    x: Axis | _Steps
    classes: int  # of each pixel of a heat map; 0 for a mask
    step: int  # pixels of the image per pixel of the result
    rows: list[int]  # the numbers of the windows at which parts begin, and the end
    columns: list[int]

    @classmethod
    def of(cls, slide: Slide, pixels: bool, classes: int, tile: int | None, overlap: int | None, batch: int) -> "_Plan":
        tile = check_integer("tile", (TILE if pixels else WINDOW) if tile is None else tile, 1)
        if pixels:
            y, x = Axis(slide.height, tile, overlap), Axis(slide.width, tile, overlap)
            block = 1, max(1, min(batch, base.WHOLE // (y.window * x.window)))
            step = 1
        else:
            overlap = tile // 4 if overlap is None else check_integer("overlap", overlap, 0)
            if overlap >= tile:
                raise ValueError(f"overlap must be less than the side of the windows, {tile}, got {overlap}")
            y, x = _Steps.of(slide.height, tile, overlap), _Steps.of(slide.width, tile, overlap)
            block, step = (_BLOCK, _BLOCK), tile - overlap
        edges = [[*range(0, len(axis.starts), n), len(axis.starts)] for axis, n in zip((y, x), block, strict=True)]
        return cls(y, x, 0 if pixels else classes, step, *edges)

    @property
    def parts(self) -> range:
        return range((len(self.rows) - 1) * (len(self.columns) - 1))

    def inside(self, n: int) -> tuple[range, range]:
        """The numbers of the windows of a part, along both axes."""
        i, j = divmod(n, len(self.columns) - 1)
        return range(self.rows[i], self.rows[i + 1]), range(self.columns[j], self.columns[j + 1])

    def windows(self, n: int) -> int:
        rows, columns = self.inside(n)
        return len(rows) * len(columns)

    def place(self, n: int) -> tuple[int, int, int, int]:
        """The part's rectangle of the result: top, bottom, left, right."""
        rows, columns = self.inside(n)
        return self.y.cuts[rows.start], self.y.cuts[rows.stop], self.x.cuts[columns.start], self.x.cuts[columns.stop]

    @property
    def size(self) -> tuple[int, int]:
        return self.y.cuts[-1], self.x.cuts[-1]

    def blank(self, height: int, width: int) -> np.ndarray:
        """A result in which everything was skipped."""
        if self.classes:
            return np.zeros((height, width, self.classes), "<f4")
        return np.full((height, width), SKIPPED, np.uint8)


def _predict_part(
    model: nn.Module, slide: Slide, plan: _Plan, n: int, batch: int, pool: LevelPool, threshold: float | None
) -> bytes:
    """The result in a part; nothing if all its windows are skipped."""
    top, bottom, left, right = plan.place(n)
    found = plan.blank(bottom - top, right - left)
    waiting: list[tuple[int, int, Tensor]] = []
    channels, some = base.channels_of(model), False
    y, x, at_once = plan.y, plan.x, max(1, min(batch, base.WHOLE // (plan.y.window * plan.x.window)))

    def answer() -> None:
        with base.named(slide.file, waiting[0][2]):
            images = base.to_input(model, torch.stack([image for _, _, image in waiting]))
            answers = base.check_finite(base.probabilities(model, images, pool, not plan.classes)).cpu()
        for (i, j, _), one in zip(waiting, answers, strict=True):
            rows, columns = (slice(axis.cuts[k], axis.cuts[k + 1]) for axis, k in ((y, i), (x, j)))
            if not plan.classes:
                core = one[:, rows.start - y.starts[i] : rows.stop - y.starts[i]]
                one = core[..., columns.start - x.starts[j] : columns.stop - x.starts[j]].argmax(0)
            found[rows.start - top : rows.stop - top, columns.start - left : columns.stop - left] = one.numpy()
        waiting.clear()

    for i, j in product(*plan.inside(n)):
        window = y.starts[i], x.starts[j], y.window, x.window
        if threshold is not None and slide.is_empty(*window):
            continue
        image = slide.read(*window, channels)
        if threshold is not None and float(image.flatten(1).std(1, correction=0).max()) <= threshold:
            continue
        some = True
        waiting.append((i, j, image))
        if len(waiting) == at_once:
            answer()
    if waiting:
        answer()
    return found.tobytes() if some else b""


def _key(model: nn.Module, settings: Sequence[object]) -> str:
    """A key that changes with the network, the image and the settings."""
    config = getattr(model, "config", None)
    found = hashlib.sha256(repr((type(model).__name__, config, Card.of(model), *settings)).encode())
    for name, tensor in sorted(model.state_dict().items()):
        if isinstance(tensor, Tensor):
            found.update(repr((name, tensor.dtype, tuple(tensor.shape), tensor.device.type)).encode())
            found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _processes() -> tuple[int, int]:
    """The number of this process and of all that torchrun started; they are connected, to wait for each other."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1 and not distributed.is_initialized():
        store, rank, world = next(rendezvous("env://"))
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # the store keeps the addresses of former ones
        keys = PrefixStore(f"slides_{attempt}", store)
        distributed.init_process_group("gloo", store=keys, rank=rank, world_size=world, timeout=timedelta(days=365))
        atexit.register(distributed.destroy_process_group)
    return (distributed.get_rank(), distributed.get_world_size()) if world > 1 else (0, 1)


def is_first() -> bool:
    """Whether this is the only process, or the first of those that torchrun started."""
    return int(os.environ.get("RANK", "0")) == 0


class _Parts:
    """The result, of which a rectangle at a time is in memory."""

    def __init__(self, plan: _Plan, journal: Journal) -> None:
        self.plan, self.journal = plan, journal
        self.cache: OrderedDict[int, np.ndarray] = OrderedDict()
        self.tops = [plan.y.cuts[i] for i in plan.rows[:-1]]
        self.lefts = [plan.x.cuts[j] for j in plan.columns[:-1]]

    def part(self, n: int) -> np.ndarray | None:
        if n in self.cache:
            self.cache.move_to_end(n)
            return self.cache[n]
        if not self.journal.places[n][2]:
            return None
        top, bottom, left, right = self.plan.place(n)
        blank = self.plan.blank(bottom - top, right - left)
        self.cache[n] = np.frombuffer(self.journal.read(n, blank.nbytes), blank.dtype).reshape(blank.shape)
        while len(self.cache) > 1 and sum(one.nbytes for one in self.cache.values()) > _CACHE:
            self.cache.popitem(last=False)
        return self.cache[n]

    def region(self, top: int, left: int, side: int, step: int) -> np.ndarray | None:
        """A square of the result, every so many pixels of it; None if all of it was skipped."""
        found, columns = None, len(self.lefts)
        rows = range(bisect_right(self.tops, top) - 1, bisect_right(self.tops, top + side * step - 1))
        for i in rows:
            for j in range(bisect_right(self.lefts, left) - 1, bisect_right(self.lefts, left + side * step - 1)):
                if (part := self.part(i * columns + j)) is None:
                    continue
                found = self.plan.blank(side, side) if found is None else found
                y, x = self.tops[i] - top, self.lefts[j] - left
                some = part[max(-y, 0) or -(y) % step :: step, max(-x, 0) or -(x) % step :: step]
                into = found[-(-max(y, 0) // step) :, -(-max(x, 0) // step) :][: some.shape[0], : some.shape[1]]
                into[:] = some[: into.shape[0], : into.shape[1]]
        return found


def _write(out: Path, parts: _Parts, about: dict[str, Any], pixel_size: tuple[float, float] | None) -> dict[str, Any]:
    """Write the picture and the TIFF, and remove the parts."""
    tifffile, plan = require("tifffile", "slides"), parts.plan
    height, width = plan.size
    side, colors = 128 if plan.classes else 512, base.palette(about["classes"])
    pixel_size = pixel_size and (pixel_size[0] * plan.step, pixel_size[1] * plan.step)
    about |= {
        "step": plan.step,
        "pixel_size": pixel_size,
        **_paint(out.with_suffix(".png"), parts, colors, about["classes"]),
    }
    levels = 1
    while max(height, width) > side << levels - 1:
        levels += 1
    options: dict[str, Any] = {"tile": (side, side), "compression": "zlib", "metadata": None}
    options |= {"photometric": "minisblack", "planarconfig": "contig"} if plan.classes else {"photometric": "palette"}
    if not plan.classes:
        shades = [*colors, *[_BLANK] * (256 - len(colors))]
        options["colormap"] = np.array(shades, np.uint16).T * np.uint16(257)
    blank = plan.blank(side, side)
    options["dtype"] = blank.dtype
    big = height * width * blank[0, 0].nbytes >= 2**31
    with replacing(out) as draft, tifffile.TiffWriter(draft, bigtiff=big) as writer:
        for level in range(levels):
            step = 2**level
            down, across = -(-height // step), -(-width // step)
            if pixel_size:
                options["resolution"] = tuple(1e4 / (length * step) for length in pixel_size)
                options["resolutionunit"] = "CENTIMETER"
            first = {"subifds": levels - 1, "description": json.dumps(about), "software": "scalespaces"}
            shape = (down, across, plan.classes) if plan.classes else (down, across)
            more = {"subfiletype": 1} if level else first
            writer.write(_tiles(parts, level, side), shape=shape, **options, **more)
    parts.journal.close(remove=True)
    return json.loads(json.dumps(about))


def _tiles(parts: _Parts, level: int, side: int) -> Iterator[bytes]:
    """The compressed tiles of a level of the pyramid, which has every 2^level-th pixel."""
    blank, step = zlib.compress(parts.plan.blank(side, side).tobytes()), 2**level
    height, width = parts.plan.size
    for top, left in product(range(0, height, side * step), range(0, width, side * step)):
        found = parts.region(top, left, side, step)
        yield blank if found is None else zlib.compress(found.tobytes())


def _paint(path: Path, parts: _Parts, colors: Sequence[Any], classes: Sequence[str]) -> dict[str, Any]:
    """Write the picture, in which colors fade with the probability; return the shares of the classes."""
    plan, counts = parts.plan, np.zeros(len(colors), np.int64)
    height, width = plan.size
    step = -(-max(height, width) // _PICTURE)
    picture = np.full((-(-height // step), -(-width // step), 3), _BLANK, np.uint8)
    for n in plan.parts:
        if (part := parts.part(n)) is None:
            continue
        seen: Any = part.any(2) if plan.classes else part != SKIPPED
        label = part.argmax(2) if plan.classes else part
        counts += np.bincount(label[seen], minlength=len(colors))[: len(colors)]
        top, _, left, _ = plan.place(n)
        some = np.s_[-top % step :: step, -left % step :: step]
        into = picture[-(-top // step) :, -(-left // step) :][: seen[some].shape[0], : seen[some].shape[1]]
        sure = (part[some].max(2) - 1 / len(colors)) / (1 - 1 / len(colors)) if plan.classes else np.float32(1)
        shades = np.array(colors, np.float32)[np.where(seen, label, 0)[some]]
        faded = 255 + (shades - 255) * np.asarray(sure, np.float32)[..., None]
        into[seen[some]] = faded.round().astype(np.uint8)[seen[some]]
    with replacing(path) as draft:
        require("PIL.Image", "slides").fromarray(picture).save(draft, format="PNG")
    total = int(counts.sum())
    shares = (counts / max(total, 1)).tolist()
    return {"share": dict(zip(classes, shares, strict=True)), "skipped": 1 - total / (height * width)}


def _description(path: Path) -> dict[str, Any]:
    """What :func:`predict_slide` wrote into the description of a file; nothing for other files."""
    try:
        with open_tiff(path) as file:
            found = json.loads(file.pages[0].description)
            return found if isinstance(found, dict) else {}
    except Exception:  # any file may be there
        return {}
