"""Slides: tiled TIFF files of any size, read window by window through tifffile (extra ``slides``)."""

import hashlib
import logging
import math
import os
import re
import struct
from collections import OrderedDict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from scalespaces._extras import require
from scalespaces._files import excess, most, open_file, open_tiff
from scalespaces.data._pixels import Refused, to_unit

SLIDES = (".svs", ".ndpi", ".scn", ".bif", ".btf", ".tf2", ".tf8", ".qptiff")
_TILE = 2**24  # pixels of a tile at most; some are in memory at a time
_CACHE = 2**27  # bytes of decoded tiles that are kept
_INTEGERS = {"B": 255, "H": 65535}
_MICRONS = {"µm": 1.0, "um": 1.0, "nm": 1e-3, "mm": 1e3}


def is_slide(file: str | Path) -> bool:
    """Whether a file is a tiled TIFF that is too large to be read whole, or has the suffix of a whole-slide format."""
    path = Path(file)
    if path.suffix.lower() in SLIDES:
        return True
    tags = _first_tags(path)
    return 322 in tags and tags.get(256, 0) * tags.get(257, 0) > most("pixels")


def _first_tags(path: Path) -> dict[int, int]:
    """The whole numbers in the first directory of a TIFF file; none for other files."""
    try:
        with open_file(path) as stream:
            order = {b"II": "<", b"MM": ">"}[stream.read(2)]
            big = {42: False, 43: True}[struct.unpack(f"{order}H", stream.read(2))[0]]
            stream.seek(8 if big else 4)
            stream.seek(struct.unpack(f"{order}{'Q' if big else 'I'}", stream.read(8 if big else 4))[0])
            count = struct.unpack(f"{order}{'Q' if big else 'H'}", stream.read(8 if big else 2))[0]
            found: dict[int, int] = {}
            for _ in range(min(count, 1024)):
                entry = stream.read(20 if big else 12)
                tag, kind = struct.unpack_from(f"{order}HH", entry)
                if kind in (3, 4, 16):
                    form = {3: "H", 4: "I", 16: "Q"}[kind]
                    found[tag] = struct.unpack_from(order + form, entry, 12 if big else 8)[0]
            return found
    except (KeyError, struct.error, OSError, OverflowError):
        return {}


class Slide:
    """A tiled TIFF file, open for reading: the largest of its images, of which a pyramid holds smaller copies.

    Damaged files, and those that declare more tiles than they hold, are refused with a ValueError that names the file.
    """

    def __init__(self, file: str | Path) -> None:
        self.file = Path(file)
        for name in ("tifffile", "imagecodecs"):
            require(name, "slides")
        logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # what it could repair; errors are raised
        stream = open_file(file)
        try:
            self._bytes = os.fstat(stream.fileno()).st_size
            self._stream = stream
            self._page = self._largest()
            self._check()
            self.pixel_size = self._resolution()
        except Exception as error:
            stream.close()
            raise self._error(error) from (None if isinstance(error, Refused) else error)
        self.height, self.width = self._page.imagelength, self._page.imagewidth
        self._down, self._across = self._page.tilelength, self._page.tilewidth
        self._columns = -(-self.width // self._across)
        self._cache: OrderedDict[int, np.ndarray] = OrderedDict()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None):
        self._stream.close()

    def _error(self, error: Exception) -> ValueError:
        if isinstance(error, Refused):
            return ValueError(f"{str(self.file)!r} {error}")
        reason = f"{type(error).__name__}: {error}"[:200]
        return ValueError(f"{str(self.file)!r} is not a tiled TIFF that tifffile reads, or damaged: {reason}")

    def _largest(self) -> Any:
        pages = [page for page in open_tiff(self._stream).pages if hasattr(page, "imagewidth")]
        sizes = [page.imagewidth * page.imagelength for page in pages]
        if not sizes or max(sizes) < 1:
            raise Refused("holds no image")
        if (same := sizes.count(max(sizes))) > 1:
            raise Refused(f"holds {same} images of the same size (channels, planes or times); write one of them")
        page = pages[sizes.index(max(sizes))]
        return page.aspage() if hasattr(page, "aspage") else page

    def _check(self) -> None:
        page: Any = self._page
        if not page.is_tiled:
            raise Refused("is not tiled, so it cannot be read in parts; write it as a tiled TIFF")
        area, samples = page.tilewidth * page.tilelength, page.samplesperpixel
        if min(page.tilewidth, page.tilelength) < 1 or area > _TILE:
            size = f"{page.tilewidth} x {page.tilelength}"
            raise Refused(f"has tiles of {size} pixels, but {_TILE:,} are the most; write it with smaller tiles")
        kind = getattr(page.dtype, "char", "none")
        if page.imagedepth != 1 or page.tiledepth != 1 or kind not in (*_INTEGERS, "f"):
            raise Refused(f"has values of the kind {page.dtype}; convert it to 8 or 16 bits or to float32")
        colors = {0: (1, 2), 1: (1, 2), 2: (3, 4), 6: (3,)}.get(int(page.photometric), ())
        if samples not in colors or (samples > 1 and int(page.planarconfig) != 1):
            rule = "slides are gray or RGB, with the samples of a pixel together"
            raise Refused(f"has {samples} samples per pixel, {page.photometric!s}; {rule}; convert it")
        if reason := excess(area * samples * page.dtype.itemsize, "bytes"):
            raise Refused(f"has a tile that {reason}")
        needed = -(-page.imagewidth // page.tilewidth) * -(-page.imagelength // page.tilelength)
        there = min(len(page.dataoffsets), len(page.databytecounts))
        if there != needed:
            raise Refused(f"is cut off: its pixels need {needed:,} tiles, it has {there:,}; write it again")
        ends = np.asarray(page.dataoffsets, dtype=object) + np.asarray(page.databytecounts, dtype=object)
        if max(ends) > self._bytes:
            raise Refused(f"is cut off: its tiles end at byte {max(ends):,}, it has {self._bytes:,}; write it again")

    def _resolution(self) -> tuple[float, float] | None:
        """The width and height of a pixel in micrometers, from the tags or a description; None if unknown."""
        tags, text = self._page.tags, self._page.description or ""
        unit = {2: 25400.0, 3: 10000.0}.get(int(tags.valueof(296, default=2)))
        if unit and 282 in tags and 283 in tags:
            (x, of_x), (y, of_y) = tags.valueof(282), tags.valueof(283)
            if min(x, of_x, y, of_y) > 0:
                return unit * of_x / x, unit * of_y / y
        if found := re.search(r"MPP\s*=\s*(\d+\.?\d*)", text):  # Aperio's
            return (float(found[1]), float(found[1])) if float(found[1]) else None
        pair = [re.search(rf'PhysicalSize{axis}="(\d+\.?\d*(?:[eE][+-]?\d+)?)"', text) for axis in "XY"]  # OME's
        named = re.search(r'PhysicalSizeXUnit="([^"]*)"', text)
        unit = _MICRONS.get(named[1], 0.0) if named else 1.0
        x, y = (float(found[1]) * unit if found else 0.0 for found in pair)
        return (x, y) if min(x, y) > 0 and math.isfinite(x + y) else None

    def key(self) -> str:
        """A text that changes with the file: its size, time, and where its tiles are."""
        when = os.fstat(self._stream.fileno()).st_mtime_ns
        tiles = repr((self._page.dataoffsets, self._page.databytecounts)).encode()
        return f"{self.width} {self.height} {self._bytes} {when} {hashlib.sha256(tiles).hexdigest()}"

    def is_empty(self, top: int, left: int, height: int, width: int) -> bool:
        """Whether the file holds no tile of this window: sparse files leave out background."""
        return not any(self._page.databytecounts[i] for i in self._tiles(top, left, height, width))

    def _tiles(self, top: int, left: int, height: int, width: int) -> list[int]:
        rows = range(top // self._down, -(-(top + height) // self._down))
        columns = range(left // self._across, -(-(left + width) // self._across))
        return [row * self._columns + column for row in rows for column in columns]

    def read(self, top: int, left: int, height: int, width: int, channels: int = 3) -> Tensor:
        """A window ``(channels, height, width)`` in float32, as :func:`read_channels` gives a whole image.

        Tiles that the file leaves out are zero.
        """
        samples = self._page.samplesperpixel
        pixels = np.zeros((height, width, samples), self._page.dtype)
        for index in self._tiles(top, left, height, width):
            if not self._page.databytecounts[index]:
                continue
            y, x = index // self._columns * self._down - top, index % self._columns * self._across - left
            tile = self._tile(index)[max(-y, 0) :, max(-x, 0) :][: height - max(y, 0), : width - max(x, 0)]
            pixels[max(y, 0) :, max(x, 0) :][: tile.shape[0], : tile.shape[1]] = tile
        return _to_channels(pixels, channels, int(self._page.photometric) == 0)

    def _tile(self, index: int) -> np.ndarray:
        if index in self._cache:
            self._cache.move_to_end(index)
            return self._cache[index]
        page = self._page
        try:
            self._stream.seek(page.dataoffsets[index])
            data = self._stream.read(page.databytecounts[index])
            tile = page.decode(data, index, jpegtables=page.jpegtables)[0]
            if tile is None or tile.shape[0] != 1 or tile.shape[3] != page.samplesperpixel:
                raise Refused(f"has a damaged tile, number {index}; write it again")
            tile = tile[0]
            row, column = divmod(index, self._columns)
            down, across = self.height - row * self._down, self.width - column * self._across
            if tile.shape[0] < min(self._down, down) or tile.shape[1] < min(self._across, across):
                raise Refused(f"has a tile that is cut off, number {index}; write it again")
        except Exception as error:  # broken files make decoders raise errors of every kind
            raise self._error(error) from (None if isinstance(error, Refused) else error)
        self._cache[index] = tile
        while len(self._cache) > 1 and sum(one.nbytes for one in self._cache.values()) > _CACHE:
            self._cache.popitem(last=False)
        return tile


def _to_channels(pixels: np.ndarray, channels: int, inverted: bool) -> Tensor:
    """Pixels ``(H, W, samples)`` as gray or RGB; transparency is dropped, and gray is Pillow's ``"L"``."""
    most = _INTEGERS.get(pixels.dtype.char)
    pixels = pixels[..., :3] if pixels.shape[2] > 2 else pixels[..., :1]
    if inverted and most:
        pixels = most - pixels
    if channels == 1 and pixels.shape[2] == 3:
        if most is None:
            pixels = pixels @ np.array([[0.299], [0.587], [0.114]], np.float32)
        else:  # in whole numbers, with Pillow's rounding
            weights = np.array([19595, 38470, 7471], np.uint64)
            pixels = ((pixels * weights).sum(2, keepdims=True) + 32768 >> np.uint64(16)).astype(pixels.dtype)
    values = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
    values = values.to(torch.float32) / 65535 if values.dtype == torch.uint16 else to_unit(values)
    return values.expand(channels, -1, -1) if len(values) < channels else values
