"""Whether an image file holds all the rows it declares: Pillow leaves those that are missing black or gray."""

import io
import zlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, BinaryIO

from scalespaces._files import open_image

_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # of PNG's color types
_PASSES = ((0, 8, 0, 8), (4, 8, 0, 8), (0, 4, 4, 8), (2, 4, 0, 4), (0, 2, 2, 4), (1, 2, 0, 2), (0, 1, 1, 2))
_PIECE = 2**16
_SMALL = 2**12  # pixels: so few are always decoded twice


def lacks_rows(picture: Any, stream: BinaryIO) -> bool:
    """Whether a PNG or JPEG that Pillow has decoded from this stream is damaged or ends before its last row."""
    if picture.format == "PNG":
        # Missing rows are zero, so the file is unpacked again only if the last row is.
        width, height = picture.size
        last = picture.crop((0, height - 1, width, height))
        return bool(picture.info.get("interlace") or last.getbbox(alpha_only=False) is None) and _lacks_png(stream)
    return picture.format in ("JPEG", "MPO") and _is_gray_below(picture) and _lacks_jpeg(picture, stream)


def _lacks_png(stream: BinaryIO) -> bool:
    stream.seek(16)
    header = stream.read(13)
    width, height = int.from_bytes(header[:4]), int.from_bytes(header[4:8])
    bits, passes = header[8] * _CHANNELS[header[9]], _PASSES if header[12] else ((0, 1, 0, 1),)
    sizes = [(-(-(height - y) // dy), -(-(width - x) // dx)) for y, dy, x, dx in passes]
    missing = sum(rows * (1 + -(-columns * bits // 8)) for rows, columns in sizes if rows > 0 and columns > 0)
    unpacker, most = zlib.decompressobj(), missing + _PIECE  # more than it should hold, too, if the data end somewhere
    for piece in _png_data(stream):
        while piece and missing > -most and not unpacker.eof:
            missing -= len(unpacker.decompress(piece, _PIECE))
            piece = unpacker.unconsumed_tail
    while missing > -most and not unpacker.eof and (rest := unpacker.decompress(b"", _PIECE)):
        missing -= len(rest)
    return missing > 0 or not unpacker.eof


def _png_data(stream: BinaryIO) -> Iterator[bytes]:
    """The compressed pixels, piece by piece."""
    stream.seek(8)
    while len(head := stream.read(8)) == 8:
        length = int.from_bytes(head[:4])
        if head[4:] != b"IDAT":
            stream.seek(length + 4, io.SEEK_CUR)
            continue
        while length > 0 and (piece := stream.read(min(length, _PIECE))):
            length -= len(piece)
            yield piece
        stream.seek(4, io.SEEK_CUR)


def _is_gray_below(picture: Any) -> bool:
    """Whether the last pixels have JPEG's value for missing ones, or the image is small enough to look closer."""
    width, height = picture.size
    corner = picture.crop((max(0, width - 4), height - 1, width, height))
    return width * height <= _SMALL or all(low >= 126 and high <= 130 for low, high in _extrema(corner))


def _extrema(picture: Any) -> list[tuple[int, int]]:
    return [band.getextrema() for band in picture.split()]


def _lacks_jpeg(picture: Any, stream: BinaryIO) -> bool:
    """Whether more data at the end of every scan change the pixels: then those that were there did not suffice."""
    stream.seek(0)
    data = stream.read()
    places = [0, *_scan_ends(data), len(data)]
    pieces = [data[start:end] for start, end in pairwise(places)]
    with open_image(io.BytesIO((b"\x5a\xc3\x96" * 64).join(pieces)), ("JPEG",), "train") as longer:
        longer.draft(picture.mode, picture.size)  # at the fraction of its size that the picture was decoded at
        return longer.size == picture.size and longer.tobytes() != picture.tobytes()


def _scan_ends(data: bytes) -> Iterator[int]:
    """Where the scans of a JPEG end; progressive ones have several."""
    place, scanning = 2, False
    while 0 <= place < len(data) - 1:
        marker = data[place + 1]
        if data[place] != 0xFF or marker in (0x00, 0xFF) or 0xD0 <= marker <= 0xD8:  # pixels, or without a length
            place = data.find(b"\xff", place + 1)
            continue
        if scanning:
            yield place
        if marker == 0xD9:
            return
        scanning = marker == 0xDA
        place += 2 + int.from_bytes(data[place + 2 : place + 4])
