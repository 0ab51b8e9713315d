"""``scalespaces predict``: what a saved network says of a user's own images."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor, nn

import scalespaces
from scalespaces import models
from scalespaces._extras import require
from scalespaces._files import replacing
from scalespaces.cli._arguments import natural, positive
from scalespaces.data._folders import image_files
from scalespaces.data._make import refuse_existing
from scalespaces.data._pixels import SUFFIXES
from scalespaces.data._progress import Progress, progress
from scalespaces.models._source import build
from scalespaces.train._levels import LevelPool
from scalespaces.train._palette import Color, palette
from scalespaces.train._predict import (
    TILE,
    channels_of,
    check_finite,
    describe_answers,
    device_called,
    named,
    predict_classes,
    predict_rows,
    read_channels,
    to_input,
)


def add(commands: Any) -> None:
    """Add the parser."""
    parser = commands.add_parser(
        "predict",
        help="say what a saved network sees in images",
        description="Say what a network that scalespaces.models.save wrote sees in images: PNG, JPEG, TIFF and others, "
        "of any size, gray or RGB as the network takes them. The answer of a classifier is a CSV file with a row for "
        "each image: file, the predicted class, and the probability of each class. That of a network for segmentation "
        "is a folder with a palette PNG of class numbers for each image, and legend.json, which has the classes, their "
        "colors, and their shares of each image. Every file is written whole or not at all.",
        epilog="example: scalespaces predict model.safetensors slides/ --out predictions.csv",
    )
    parser.set_defaults(run=_run)
    add = parser.add_argument
    add("file", metavar="MODEL", help="the network, .safetensors")
    add("images", nargs="+", metavar="IMAGE", help="images, or folders: all images in them, and in the folders in them")
    add("--out", required=True, metavar="OUT", help="CSV file (classification) or folder (segmentation) to write")
    add("--force", action="store_true", help="overwrite what is there")
    add("--skip-errors", action="store_true", help="leave out images that cannot be used, and list them")
    add = parser.add_argument_group("network").add_argument
    add(
        "--model",
        metavar="MODULE:FUNCTION",
        help="for a converted network, what makes the model it was made of: torchvision.models:resnet18, or with "
        "arguments, 'timm:create_model(model_name=\"resnet18\")'",
    )
    add("--pool", choices=get_args(LevelPool), default="model", help="over levels (default: as the network does)")
    add("--device", default="auto", metavar="NAME", help="auto, cpu, cuda or mps (default: auto, the best there is)")
    add("--batch", type=positive, default=32, metavar="N", help="images, or windows, seen at once (default: 32)")
    add = parser.add_argument_group("classification").add_argument
    add(
        "--size",
        type=positive,
        nargs=2,
        metavar=("H", "W"),
        help="bring all images to this, as data.size did in training",
    )
    add = parser.add_argument_group("segmentation").add_argument
    add(
        "--tile",
        type=positive,
        metavar="N",
        help="side of the windows through which larger images are seen, in pixels (default: images of up to 4 million "
        f"pixels are seen whole, others through windows of {TILE})",
    )
    add("--overlap", type=natural, metavar="N", help="of those windows, in pixels (default: a quarter of --tile)")
    add("--overlay", action="store_true", help="also write NAME.overlay.png: the classes' colors on the image")
    add("--probabilities", action="store_true", help="also write NAME.npy: (classes, height, width), float32")


def _run(args: argparse.Namespace) -> None:
    # Whatever can be wrong is found before the work begins.
    files, out = _find(args.images), Path(args.out)
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        refuse_existing([out], args.force)
    source = None if args.model is None else build(args.model)
    model: nn.Module = models.load(args.file, source, device=device_called(args.device))
    classes, pixels = describe_answers(model)
    channels_of(model)
    skipped: dict[str, str] | None = {} if args.skip_errors else None
    if pixels and args.size is not None:
        raise ValueError("--size is for classification: masks are as large as their images")
    if pixels:
        _write_masks(args, model, classes, files, skipped)
    else:
        _write_table(args, model, classes, files, skipped)
    if skipped:
        for reason in skipped.values():
            print(f"left out: {reason}", file=sys.stderr)
        print(f"left out {len(skipped)} of {len(files)} images", file=sys.stderr)


def _find(given: Sequence[str]) -> dict[Path, Path]:
    """The images, sorted, and what each is called below the folder it was found in."""
    found: dict[Path, Path] = {}
    for path in map(Path, given):
        if path.is_dir():
            found |= {file: file.relative_to(path) for file in image_files(path)}
        elif path.exists():
            found[path] = Path(path.name)
        else:
            raise FileNotFoundError(f"there is no file or folder {str(path)!r}")
    if not found:
        folders = ", ".join(map(repr, given))
        raise ValueError(f"no images in {folders}; files that end in {', '.join(SUFFIXES)} are looked for")
    return dict(sorted(found.items()))


def _refuse_sources(args: argparse.Namespace, files: Iterable[Path], written: Iterable[Path]) -> None:
    """Whatever --force says, what is read is not overwritten."""
    read = {file.resolve() for file in [*files, Path(args.file)]}
    for path in written:
        if path.resolve() in read:
            raise ValueError(f"{str(path)!r} would be overwritten, and is what the prediction is made of; change --out")


def _check_any(number: int, skipped: dict[str, str] | None) -> None:
    if number == 0 and skipped:
        raise ValueError(f"none of {len(skipped)} images can be used; the first: {next(iter(skipped.values()))}")


# --- classification --------------------------------------------------------------------------------------------------


def _write_table(
    args: argparse.Namespace,
    model: nn.Module,
    classes: Sequence[str],
    files: dict[Path, Path],
    skipped: dict[str, str] | None,
) -> None:
    for option in ("overlay", "probabilities", "tile", "overlap"):
        if getattr(args, option):
            raise ValueError(f"--{option} is for networks that answer for every pixel, and this one classifies images")
    _refuse_sources(args, files, [Path(args.out)])
    counts: Counter[str] = Counter()
    with replacing(args.out) as draft, draft.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["file", "predicted", *classes])
        with Progress("predicting", len(files)) as line:
            for file, found in predict_classes(
                model, files, batch=args.batch, pool=args.pool, size=args.size, skipped=skipped
            ):
                predicted = classes[int(found.argmax())]
                writer.writerow([Path(file).as_posix(), predicted, *(f"{p:.7g}" for p in found.tolist())])
                counts[predicted] += 1
                line.add()
        _check_any(counts.total(), skipped)
    often = ", ".join(f"{number} {name}" for name, number in counts.most_common(5))
    more = f" and {len(counts) - 5} more classes" if len(counts) > 5 else ""
    print(f"wrote {args.out}: {often}{more}")


# --- segmentation ----------------------------------------------------------------------------------------------------


def _write_masks(
    args: argparse.Namespace,
    model: nn.Module,
    classes: Sequence[str],
    files: dict[Path, Path],
    skipped: dict[str, str] | None,
) -> None:
    if len(classes) > 256:
        raise ValueError(f"masks have 256 classes at most, and the network has {len(classes)}")
    out, colors = Path(args.out), palette(classes)
    if out.is_file():
        raise NotADirectoryError(f"masks go into a folder, and {args.out!r} is a file")
    _check_targets(args, out, files)
    images: dict[str, Any] = {}
    for file, name in progress(list(files.items()), "predicting"):
        try:
            images[file.as_posix()] = _write_mask(args, model, file, out / name, colors)
        except ValueError as error:
            if skipped is None:
                raise
            skipped[str(file)] = str(error)
    _check_any(len(images), skipped)
    for image in images.values():
        image["share"] = dict(zip(classes, image["share"], strict=True))
    legend = {
        "scalespaces": scalespaces.__version__,
        "model": Path(args.file).as_posix(),
        "classes": [{"number": n, "name": name, "color": list(colors[n])} for n, name in enumerate(classes)],
        "images": images,
    }
    with replacing(out / "legend.json") as draft:
        draft.write_text(json.dumps(legend, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    print(f"wrote {len(images)} {'mask' if len(images) == 1 else 'masks'} and legend.json into {out}")


def _targets(args: argparse.Namespace, path: Path) -> dict[str, Path]:
    """What is written for an image that is called so."""
    wanted = {"mask": ".png"}
    wanted |= {"overlay": ".overlay.png"} if args.overlay else {}
    wanted |= {"probabilities": ".npy"} if args.probabilities else {}
    return {kind: path.with_name(path.stem + suffix) for kind, suffix in wanted.items()}


def _check_targets(args: argparse.Namespace, out: Path, files: dict[Path, Path]) -> None:
    taken: dict[Path, Path] = {}
    for file, name in files.items():
        for target in _targets(args, out / name).values():
            other = taken.setdefault(target, file)
            if other != file:
                raise ValueError(
                    f"{str(other)!r} and {str(file)!r} would both be written as {str(target)!r}; predict them apart"
                )
    _refuse_sources(args, files, [*taken, out / "legend.json"])


def _write_mask(
    args: argparse.Namespace, model: nn.Module, file: Path, path: Path, colors: Sequence[Color]
) -> dict[str, Any]:
    """Write what belongs to an image, and return its entry in the legend."""
    pixels = read_channels(file, channels_of(model))
    height, width = pixels.shape[1:]
    targets, mask = _targets(args, path), torch.empty(height, width, dtype=torch.uint8)
    options: dict[str, Any] = {"tile": args.tile, "overlap": args.overlap, "batch": args.batch, "pool": args.pool}
    rows, top = predict_rows(model, to_input(model, pixels), **options), 0
    wanted = "probabilities" in targets
    with replacing(targets["probabilities"]) if wanted else nullcontext(Path()) as draft, named(file, pixels):
        shape = (len(colors), height, width)
        every = np.lib.format.open_memmap(draft, "w+", np.float32, shape) if wanted else None
        for some in rows:
            below = top + some.shape[1]
            mask[top:below] = check_finite(some).argmax(0)
            if every is not None:
                every[:, top:below] = some.float().cpu().numpy()
            top = below
        del every  # closes the file
    _draw(mask, pixels, colors, targets)
    share = mask.flatten().bincount(minlength=len(colors)) / mask.numel()
    return {"mask": targets["mask"].relative_to(args.out).as_posix(), "size": [width, height], "share": share.tolist()}


def _draw(mask: Tensor, pixels: Tensor, colors: Sequence[Color], targets: dict[str, Path]) -> None:
    pillow = require("PIL.Image", "train")
    picture = pillow.fromarray(mask.numpy())
    flat = [value for color in colors for value in color]
    picture.putpalette(flat + [0] * (768 - len(flat)))  # of a shorter palette, Pillow writes fewer bits per pixel
    with replacing(targets["mask"]) as draft:
        picture.save(draft)
    if "overlay" in targets:
        image = pixels.clamp(0, 1).mul(255).round().byte().expand(3, -1, -1).permute(1, 2, 0)
        with replacing(targets["overlay"]) as draft:
            pillow.blend(pillow.fromarray(image.numpy()), picture.convert("RGB"), 0.5).save(draft)
