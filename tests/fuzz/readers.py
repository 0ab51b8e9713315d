"""All readers of outside files, each with files to damage and a check of what comes out."""

import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pictures import city_file, noise, save_picture, write_cityscapes, write_patches
from slides import write_slide

from scalespaces.app._images import read_picture
from scalespaces.data import Cityscapes, LabeledFolder, MaskFolders, PCam, read_image
from scalespaces.data._idx import read_idx_images, write_idx
from scalespaces.data._pcam import pcam_file
from scalespaces.data._pixels import read_pixels
from scalespaces.data._slides import Slide
from scalespaces.models import create_model, load, save
from scalespaces.train._checkpoints import AtomicCheckpoints
from scalespaces.train._recipe import Recipe, load_recipe
from tests.fuzz import mutations
from tests.fuzz.mutations import Change

CLASSES = 3


class WrongLabel(AssertionError):
    """A reader returned a label, or pixels, that the file does not hold."""


@dataclass
class Reader:
    """A file, the function that reads it, and changes that are made beside those of bytes."""

    name: str
    file: Path
    read: Callable[[], object]
    changes: list[Change] = field(default_factory=list)
    share: float = 1.0


def expect(held: object) -> None:
    if not held:
        raise WrongLabel


def readers(folder: Path, canary: Path) -> Iterator[Reader]:
    """All readers, with their files in a folder. Code in a file would create the canary."""
    yield from _images(folder)
    yield from _masks(folder)
    yield from _slides(folder)
    yield from _hdf5(folder)
    yield from _idx(folder)
    yield from _tables(folder)
    yield from _recipes(folder, canary)
    yield from _networks(folder, canary)


PIXELS = np.random.default_rng(0).integers(100, 256, (16, 12, 3), dtype=np.uint8)  # none is black
IMAGES: dict[str, dict[str, Any]] = {name: {} for name in ("a.png", "a.jpg", "a.bmp", "a.webp", "a.ppm", "a.tif")}
IMAGES |= {f"{way}.tif": {"compression": way} for way in ("tiff_lzw", "tiff_adobe_deflate", "jpeg", "packbits")}
IMAGES["progressive.jpg"] = {"progressive": True}


def _images(folder: Path) -> Iterator[Reader]:
    def reading(file: Path) -> Callable[[], None]:
        def read() -> None:
            pixels = read_pixels(file)
            deep = read_pixels(file, deep=True, size=(4, 4))
            assert pixels.dtype == torch.uint8
            assert pixels.shape[0] == 3
            assert deep.shape == (3, 4, 4)
            assert 0 <= read_image(file).min() <= read_image(file).max() <= 1
            if file.name in ("a.png", "a.bmp", "a.tif", "a.ppm"):  # in others a changed byte can make pixels black
                expect(pixels[:, -1].any())

        return read

    for name, options in IMAGES.items():
        file = save_picture(folder / "images" / name, PIXELS, **options)
        changes = [mutations.png] if name.endswith("png") else []
        yield Reader(f"image {name}", file, reading(file), changes)
    for name in ("app.png", "app.jpg", "app.gif", "app.ico", "app.tga", "app.tif"):
        more = {"sizes": [(12, 16)]} if name.endswith("ico") else {}  # others are left out of this format
        file = save_picture(folder / "app" / name, PIXELS, **more)
        yield Reader(f"upload {name[4:]}", file, lambda file=file: read_picture(file))


def _masks(folder: Path) -> Iterator[Reader]:
    values = np.random.default_rng(1).integers(1, CLASSES, (16, 12))  # none is 0
    kinds = {"a.png": np.uint8, "a.tif": np.uint8, "a.bmp": np.uint8, "deep.png": np.uint16, "wide.tif": np.int32}
    for number, (name, dtype) in enumerate(kinds.items()):
        place = folder / f"masks{number}"
        save_picture(place / "images" / Path(name).with_suffix(".png"), PIXELS)
        file = save_picture(place / "masks" / name, values.astype(dtype))

        def read(place: Path = place) -> None:
            _, mask = MaskFolders(place / "images", place / "masks", CLASSES)[0]
            expect(set(mask.unique().tolist()) <= {*range(CLASSES), 255})
            expect(mask[-1].any())

        yield Reader(f"mask {name}", file, read, [mutations.png] if name.endswith("png") else [])
    write_cityscapes(folder / "city", {"train": 1}, (16, 16))

    def city() -> None:
        expect(set(Cityscapes(folder / "city")[0][1].unique().tolist()) <= {*range(19), 255})

    yield Reader("mask cityscapes", city_file(folder / "city", "gtFine", "train", 0), city, [mutations.png])


def _slides(folder: Path) -> Iterator[Reader]:
    for way in (None, "zlib", "jpeg", "lzw"):
        file = write_slide(folder / f"slide_{way}.tif", noise(100, 100), compression=way)

        def read(file: Path = file) -> None:
            with Slide(file) as slide:
                if slide.height * slide.width < 10**6:
                    assert slide.read(0, 0, slide.height, slide.width).shape == (3, slide.height, slide.width)

        yield Reader(f"slide {way or 'plain'}", file, read)


def _hdf5(folder: Path) -> Iterator[Reader]:
    labels = np.array([0, 1, 1, 0, 1], np.uint8).reshape(-1, 1, 1, 1)
    patches = np.broadcast_to(np.arange(1, 97, dtype=np.uint8)[:, None], (5, 96, 96, 3))
    for kind, options in {"plain": {}, "gzip": {"chunks": (1, 96, 96, 3), "compression": "gzip"}}.items():
        place = write_patches(folder / kind, patches, labels, **options)
        files = {part: place / pcam_file("train", part) for part in "xy"}

        def read(place: Path = place, file: Path = files["y"]) -> None:
            dataset = PCam(place)
            found, data = dataset.labels.numpy(), file.read_bytes()
            kinds = [f"{order}{sign}{size}" for order in "<>" for sign in "iu" for size in (1, 2, 4, 8)]
            expect(set(found.tolist()) <= {0, 1})
            expect(any(found.astype(kind).tobytes() in data for kind in kinds))
            for patch, _ in dataset:
                assert patch.shape == (3, 96, 96)
                expect(patch[:, -1].any())

        for part, file in files.items():
            yield Reader(f"hdf5 {kind} {part}", file, read)


def _idx(folder: Path) -> Iterator[Reader]:
    parts = ("images-idx3-ubyte", "labels-idx1-ubyte", "scales-idx1-float")
    arrays = (np.ones((4, 3, 3), np.uint8), np.arange(4, dtype=np.uint8) % CLASSES, np.ones(4, np.float32))
    for suffix in ("", ".gz"):
        place = folder / f"idx{suffix}"
        files = [place / f"train-{part}{suffix}" for part in parts]
        for file, array in zip(files, arrays, strict=True):
            write_idx(file, array)

        def read(place: Path = place, labels: Path = files[1]) -> None:
            dataset = read_idx_images(place, "train", CLASSES)
            found = dataset.labels.numpy()
            expect(set(found.tolist()) <= set(range(CLASSES)))
            if not labels.suffix:
                data = labels.read_bytes()
                expect(any(data.endswith(found.astype(f">{kind}").tobytes()) for kind in ("u1", "i1", "i2", "i4")))
            assert dataset.scales is not None
            assert len(dataset.scales) == len(found) == len(dataset.images)
            expect(bool((dataset.scales.isfinite() & (dataset.scales > 0)).all()))

        for file, part in zip(files, parts, strict=True):
            yield Reader(f"idx {part.split('-')[0]}{suffix}", file, read, [mutations.packed] if suffix else [])


def _tables(folder: Path) -> Iterator[Reader]:
    for n in range(4):
        save_picture(folder / "table" / f"{n}.png")
    table = folder / "labels.csv"
    table.write_text("id,label\n" + "".join(f'"{n}",{n % CLASSES}\n' for n in range(4)))

    def read() -> None:
        found = LabeledFolder(folder / "table", table, CLASSES).labels.tolist()
        text = table.read_text(encoding="utf-8-sig")
        expect(set(found) <= set(range(CLASSES)))
        expect(all(str(label) in text for label in found))

    hostile = [
        b"id,label,label",
        b"label,id",
        b"0,2",
        b"0,1,1,1",
        b"0,-1",
        b'"0',
        b"\xff\xfe0",
        b"../x,0",
        b"0," + b"9" * 5000,
    ]
    yield Reader(
        "csv", table, read, [mutations.among([*hostile, b"0,1e3", b"\0", b",", b'"' + b"x" * 200_000 + b'",1'])]
    )


def _recipes(folder: Path, canary: Path) -> Iterator[Reader]:
    file, touch = folder / "recipe.yaml", f"touch {canary}"
    Recipe(**vars(load_recipe(None, ["--model.name=s_cnn", "--data.kind=idx", f"--data.root={folder}"]))).save(file)
    laughs = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else 'x'] * 9)}]" for n in range(12))
    hostile = [
        f"model: {{source: 'os:system', arguments: {{command: '{touch}'}}}}",
        f"model: {{source: 'subprocess:getoutput', arguments: {{cmd: '{touch}'}}}}",
        f"model: !!python/object/apply:os.system ['{touch}']",
        f"data: {{class_path: os.system, init_args: {{command: '{touch}'}}}}",
        f"optimizer: '!!python/object/apply:os.system [{touch}]'",
        "model: &a {lift: *a}", "seed: *a", "a: &a [*a]", "<<: *a", laughs, "seed: " + "[" * 5000,
        "seed: " + "{a: " * 3000, "\n".join(f"key{n}: {n}" for n in range(20_000)), "seed: " + "9" * 5000,
        "seed: 1e400", "seed: .nan", "data: {num_classes: 1000000000}", "optimizer: {lr: .inf}", "model: 3",
        "trainer: [1]", "? [1, 2]\n: 3", "---\nseed: 1\n---\nseed: 2", "seed: 2020-01-01", "%YAML 9.9\n---",
    ]  # fmt: skip
    yield Reader("recipe", file, lambda: load_recipe(file), [mutations.among([text.encode() for text in hostile])], 0.5)


class _Exploit:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


def _networks(folder: Path, canary: Path) -> Iterator[Reader]:
    arguments = {"channels": [2, 2], "kernel_size": 3, "hidden": 4, "in_channels": 1, "num_classes": 3}
    network, file = create_model("s_cnn", **arguments), folder / "a.safetensors"
    save(network, file)
    yield Reader("network", file, lambda: load(file), [mutations.tensors, mutations.tensors], 0.5)
    exploit = pickle.dumps({"state_dict": _Exploit(f"touch {canary}")})
    last, document = folder / "last.ckpt", {"epoch": 1, "global_step": 2, "state_dict": network.state_dict()}
    torch.save(document | {"loops": {}, "callbacks": {}, "optimizer_states": [{}], "lr_schedulers": []}, last)
    changes: list[Change] = [mutations.archive, lambda data, generator: mutations.damage(exploit, generator)]
    yield Reader("checkpoint", last, lambda: AtomicCheckpoints().load_checkpoint(last), [*changes, mutations.archive])
