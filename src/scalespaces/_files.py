"""The door for files from outside, within limits; and writing files so that nothing is lost or half-written."""

import csv
import gzip
import hashlib
import io
import json
import os
import secrets
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from glob import escape
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from scalespaces._extras import require

File = str | os.PathLike[str]

MOST = {
    "pixels": 2**30 // 12,  # of an image: where Pillow begins to warn
    "bytes": 2**31,  # of an array in memory
    "classes": 2**15,  # of a network
    "values": 2**11,  # in a recipe
}

_MOST_OF_YAML = {"bytes": 2**20, "letters": 2**12, "depth": 16}  # letters of a value

_HEAD = struct.Struct("<III")  # of a record in a journal: number, length, checksum of these and of the data


def most(unit: str) -> int:
    """The limit on what files may declare, a key of ``MOST``; ``SCALESPACES_MAX_{UNIT}`` overrides it."""
    text = os.environ.get(f"SCALESPACES_MAX_{unit.upper()}", "") or str(MOST[unit])
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"SCALESPACES_MAX_{unit.upper()} in the environment must be a whole number, got {text!r}")
    return int(text)


def excess(number: int, unit: str, verb: str = "declares") -> str:
    """What is wrong with a file that declares so many pixels or bytes, as a phrase that follows its name; or ""."""
    rule = f"if you trust it, set SCALESPACES_MAX_{unit.upper()} in the environment to allow more"
    return f"{verb} {number:,} {unit}, more than {most(unit):,}; {rule}" if number > most(unit) else ""


def regular(path: File) -> Path:
    """Return the path of a file to be read; refuse pipes, sockets and devices, which could block or never end."""
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise ValueError(f"{str(path)!r} is not a regular file but a pipe, socket or device; copy it to a file")
    return Path(path)


# The door: no other module opens a file that came from outside. Readers call one of the functions below, check what the
# file declares with `excess` before they take memory, and turn the errors of the format's library into ValueErrors.


def open_file(path: File) -> io.BufferedReader:
    """Open any file from outside for reading."""
    return regular(path).open("rb")


def open_image(stream: BinaryIO, formats: Sequence[str] | None, extra: str) -> Any:
    """Open an image with Pillow, of which only the header is read. Without ``formats``, the caller checks them."""
    pillow: Any = require("PIL.Image", extra)
    if (pillow.MAX_IMAGE_PIXELS or most("pixels")) < most("pixels"):  # or it would refuse what the environment allows
        pillow.MAX_IMAGE_PIXELS = most("pixels")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pillow.DecompressionBombWarning)  # an error of ours follows
        return pillow.open(stream, formats=formats)


def open_tiff(file: File | BinaryIO) -> Any:
    """Open a TIFF with tifffile."""
    return require("tifffile", "slides").TiffFile(regular(file) if isinstance(file, (str, os.PathLike)) else file)


def open_hdf5(path: File) -> Any:
    """Open an HDF5 file for reading."""
    return require("h5py", "train").File(regular(path), "r")


def open_packed(path: File) -> BinaryIO:
    """Open a file that may be compressed with gzip; what is read is unpacked."""
    raw = open_file(path)
    if not raw.peek(2).startswith(b"\x1f\x8b"):
        return raw
    packed: Any = gzip.GzipFile(fileobj=raw)
    packed.myfileobj = raw  # so that both are closed together
    return packed


@contextmanager
def open_table(path: File) -> "Iterator[csv.DictReader[str]]":
    """Open a CSV file. Its rows take several times as much memory as the file has bytes."""
    with open_file(path) as stream:
        if reason := excess(16 * os.fstat(stream.fileno()).st_size, "bytes", "needs"):
            raise ValueError(f"{str(path)!r} {reason}")
        yield csv.DictReader(io.TextIOWrapper(stream, encoding="utf-8-sig", newline=""))


def read_yaml(path: File) -> Any:
    """The root node of a YAML file, once it is known that it is soon built and imports nothing."""
    with open_file(path) as stream:
        content = stream.read(_MOST_OF_YAML["bytes"] + 1)
    _refuse(len(content) > _MOST_OF_YAML["bytes"], f"more than {_MOST_OF_YAML['bytes']:,} bytes")
    return _yaml_root(content.decode("utf-8"))


def _yaml_root(text: str) -> Any:
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth, values, (letters, deepest) = 0, most("values"), (_MOST_OF_YAML["letters"], _MOST_OF_YAML["depth"])
    for number, event in enumerate(yaml.parse(text, loader)):
        _refuse(isinstance(event, yaml.AliasEvent), "aliases, as in *name")
        _refuse(getattr(event, "tag", None) not in (None, "!"), "tags, as in !name")
        _refuse(len(getattr(event, "value", "")) > letters, f"values of more than {letters:,} letters")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        _refuse(depth > deepest, f"more than {deepest} levels of nesting")
        _refuse(number > values, f"more than {values:,} values; to raise the limit, set SCALESPACES_MAX_VALUES")
    root = yaml.compose(text, loader)
    nodes = [root]
    while nodes:
        node = nodes.pop()
        if isinstance(node, yaml.MappingNode):
            keys = [key.value if isinstance(key, yaml.ScalarNode) else "a list or mapping" for key, _ in node.value]
            if twice := [key for key in keys if keys.count(key) > 1]:
                raise ValueError(f"duplicate key {twice[0]!r:.80}")
            # A parser of settings would import what it names, and make an instance of it.
            _refuse(any("class_path" in key.split(".") for key in keys), "a key 'class_path'")
            nodes += [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            nodes += node.value
        elif node is not root and node is not None:  # it would read lists and mappings in a string, too
            with suppress(yaml.YAMLError):
                if isinstance(next(islice(yaml.parse(node.value, loader), 2, None), None), yaml.CollectionStartEvent):
                    _yaml_root(node.value)
    return root


def _refuse(wrong: bool, what: str) -> None:
    if wrong:
        raise ValueError(f"a recipe may not have {what}")


def open_tensors(path: File) -> Any:
    """Open a safetensors file; tensors are read one by one."""
    return require("safetensors", "files").safe_open(regular(path), framework="pt")


def load_checkpoint(path: File, device: Any) -> Any:
    """Read a checkpoint of tensors and plain values, which takes about as much memory as the file has bytes."""
    with open_file(path) as stream, zipfile.ZipFile(stream) as archive:
        entries, size = archive.infolist(), os.fstat(stream.fileno()).st_size
        if sum(entry.file_size for entry in entries) > size or any(entry.compress_type for entry in entries):
            raise ValueError("it is compressed")
        pickles = (archive.read(entry) for entry in entries if entry.filename.endswith(".pkl"))
        if any(b"bytearray" in pickle for pickle in pickles):  # a few bytes could stand for one of any length
            raise ValueError("it has an array of bytes")
        stream.seek(0)
        return require("torch", "train").load(stream, map_location=device, weights_only=True)


def digest(path: File, algorithm: str) -> str:
    """The checksum of a file."""
    with open_file(path) as stream:
        return hashlib.file_digest(stream, algorithm).hexdigest()


def prepare(path: File) -> Path:
    """Return the path of a file to be written, after creating the folders above it; refuse a folder."""
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{str(path)!r} is a folder; name a file in it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):  # the folder is a file, or one above it is
        raise NotADirectoryError(f"{str(path.parent)!r} is not a folder, so no file can be written there") from None
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"the folder {str(path.parent)!r} is not writable; use another")
    return path


@contextmanager
def replacing(path: File) -> Iterator[Path]:
    """Give a temporary path in the same folder, which becomes ``path`` if all goes well and vanishes if not."""
    # A reader of the path sees the complete old or new file, with the permissions of any new file.
    path = prepare(path)
    draft = path.with_name(f".{path.stem}-{secrets.token_hex(4)}{path.suffix}")
    try:
        draft.touch()
        mode = draft.stat().st_mode
        yield draft
        draft.chmod(mode)  # some writers make files that only their owner may read
        os.replace(draft, path)
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error  # a write says only that the disk is full
    finally:
        draft.unlink(missing_ok=True)


def write_json(path: File, document: object) -> None:
    """Write a document as JSON, whole or not at all; NaN and infinity are errors, since JSON has neither."""
    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    with replacing(path) as draft:
        draft.write_text(text, encoding="utf-8")


def refuse_existing(paths: Iterable[Path], force: bool) -> None:
    """Refuse to overwrite files or folders, unless ``force`` is set."""
    there = [path for path in paths if path.exists()]
    if there and not force:
        more = f" and {len(there) - 1} more" if len(there) > 1 else ""
        raise FileExistsError(f"{str(there[0])!r}{more} exists; use --force (force=True) to overwrite")


class Journal:
    """Parts of long work that are done, beside its output: a file for each process, to which parts are appended."""

    # A kill leaves at most one torn record at the end of a file, which its length or checksum shows.

    def __init__(self, out: Path, key: str, rank: int) -> None:
        """Open the file of this process, and find the parts in all files of the same output and key."""
        import fcntl

        self.out, self.key = out, key[:16]
        self.places: dict[int, tuple[Path, int, int]] = {}
        own = out.with_name(f"{out.name}.{self.key}.{rank}.part")
        self.stream = own.open("ab", buffering=0)
        try:
            fcntl.flock(self.stream, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the system releases it when the process ends
        except BlockingIOError:
            self.stream.close()
            raise ValueError(f"another process is writing {str(out)!r}; wait for it or write elsewhere") from None
        self.stream.truncate(self.scan().get(own, 0))

    def scan(self) -> dict[Path, int]:
        """Find the parts in all files; return where the whole records of each file end."""
        ends = {}
        for path in sorted(self.out.parent.glob(f"{escape(self.out.name)}.{self.key}.*.part")):
            with path.open("rb") as stream:
                end = 0
                while len(head := stream.read(_HEAD.size)) == _HEAD.size:
                    number, length, checksum = _HEAD.unpack(head)
                    if len(data := stream.read(length)) < length or zlib.crc32(head[:8] + data) != checksum:
                        break
                    self.places[number] = path, end + _HEAD.size, length
                    end = stream.tell()
                ends[path] = end
        return ends

    def add(self, number: int, data: bytes) -> None:
        """Keep a part, compressed."""
        data = data and zlib.compress(data, 1)
        checksum = zlib.crc32(_HEAD.pack(number, len(data), 0)[:8] + data)
        record = memoryview(_HEAD.pack(number, len(data), checksum) + data)
        while record:
            record = record[self.stream.write(record) :]

    def read(self, number: int, most: int) -> bytes:
        """A part of at most so many bytes."""
        path, start, length = self.places[number]
        with path.open("rb") as stream:
            stream.seek(start)
            return zlib.decompressobj().decompress(stream.read(length), most)

    def close(self, remove: bool = False) -> None:
        """Close the file, and remove all files of this output, those of other keys included."""
        self.stream.close()
        if remove:
            for path in self.out.parent.glob(f"{escape(self.out.name)}.{'[0-9a-f]' * 16}.*.part"):
                path.unlink(missing_ok=True)
