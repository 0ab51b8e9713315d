"""Damaged copies of files: changes of bytes, and changes inside a container that stays intact around them."""

import gzip
import io
import json
import re
import zipfile
import zlib
from collections.abc import Callable

import numpy as np

Change = Callable[[bytes, np.random.Generator], bytes]
NUMBERS = [0, 1, 2, 3, 255, 256, 2**15, 2**16 - 1, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1]
WORDS = [b"0", b"-1", b"-40", b"1e999", b"NaN", b"1" * 30, b"null", b"true", b"[]", b"{}", b'""', b"1.5", b" ", b"\0"]


def damage(data: bytes, generator: np.random.Generator) -> bytes:
    """One to three changes; half of them near the beginning, where headers are."""
    for _ in range(int(generator.choice([1, 1, 1, 2, 3]))):
        copy = bytearray(data or b"\0")
        reach = min(len(copy), 128) if generator.integers(2) else len(copy)
        start, length = int(generator.integers(reach)), int(generator.integers(1, 9))
        kind = int(generator.integers(9))
        if kind == 0:
            del copy[start:]
        elif kind == 1:
            del copy[start : start + length]
        elif kind == 2:
            copy[start:start] = generator.integers(256, size=length, dtype=np.uint8).tobytes()
        elif kind == 3:
            copy[start : start + length] = bytes([int(generator.choice([0, 255]))]) * length
        elif kind == 4:  # splice
            other = int(generator.integers(len(copy)))
            copy[start : start + 4 * length] = copy[other : other + 4 * length]
        elif kind == 5:  # a field of a header
            size, number = int(generator.choice([1, 2, 4, 8])), NUMBERS[int(generator.integers(len(NUMBERS)))]
            order = "big" if generator.integers(2) else "little"
            copy[start : start + size] = (number % 256**size).to_bytes(size, order)
        elif kind == 6 and (found := list(re.finditer(rb"\d+|[A-Za-z_]+", copy[:4096]))):
            chosen = found[int(generator.integers(len(found)))]
            copy[chosen.start() : chosen.end()] = WORDS[int(generator.integers(len(WORDS)))]
        else:
            copy[start] ^= 1 << int(generator.integers(8))
        data = bytes(copy)
    return data


def png(data: bytes, generator: np.random.Generator) -> bytes:
    """A change inside a chunk, whose check sum is right."""
    chunks, place = [], 8
    while place + 8 <= len(data):
        length = int.from_bytes(data[place : place + 4])
        chunks.append((data[place + 4 : place + 8], data[place + 8 : place + 8 + length]))
        place += 12 + length
    number = int(generator.integers(len(chunks)))
    kind, content = chunks[number]
    if kind == b"IDAT" and generator.integers(2):
        content = zlib.compress(damage(zlib.decompress(content), generator))
    else:
        content = damage(content, generator)
    chunks[number] = (kind, content)
    parts = [len(c).to_bytes(4) + k + c + zlib.crc32(k + c).to_bytes(4) for k, c in chunks]
    return data[:8] + b"".join(parts)


def packed(data: bytes, generator: np.random.Generator) -> bytes:
    return gzip.compress(damage(gzip.decompress(data), generator), 1, mtime=0)


def tensors(data: bytes, generator: np.random.Generator) -> bytes:
    """A change in the description of a network, inside a safetensors file with the right lengths."""
    size = int.from_bytes(data[:8], "little")
    header, rest = json.loads(data[8 : 8 + size]), data[8 + size :]
    if generator.integers(2):
        text = damage(header["__metadata__"]["scalespaces"].encode(), generator)
        header["__metadata__"]["scalespaces"] = text.decode("utf-8", "replace")
        new = json.dumps(header).encode()
    else:
        new = damage(data[8 : 8 + size], generator)
    return len(new).to_bytes(8, "little") + new + rest


def archive(data: bytes, generator: np.random.Generator) -> bytes:
    """A change in a file of a checkpoint's archive, mostly in the pickle, with the right check sum."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        names = old.namelist()
        chosen = names[0] if generator.integers(4) else names[int(generator.integers(len(names)))]
        for name in names:
            content = old.read(name)
            new.writestr(name, damage(content, generator) if name == chosen else content)
    return out.getvalue()


def among(hostile: list[bytes]) -> Change:
    """A hostile text, put between the lines or at the end, or instead of them."""

    def change(data: bytes, generator: np.random.Generator) -> bytes:
        text, lines = hostile[int(generator.integers(len(hostile)))], data.splitlines(keepends=True)
        place = int(generator.integers(len(lines) + 1))
        if generator.integers(3) == 0:
            return text
        return b"".join([*lines[:place], text + b"\n", *lines[place:]])

    return change
