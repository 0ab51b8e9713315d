"""Predict with a saved network. A classifier writes a CSV file with a row for each image: file, predicted class, the
level with the highest score for it if the network has several, and the probability of each class. A network for
segmentation writes a folder with a palette PNG of class numbers for each image, and legend.json: the classes, their
colors, and their shares of each image. Every file is written completely or not at all. Slides (whole-slide formats, and
tiled TIFF images too large to be read whole) are read window by window. OUT is then a folder with legend.json and, for
each slide, a tiled pyramidal TIFF (the heat map of a classifier, or the mask) and a small PNG to look at. After an
interruption, the same command resumes. With torchrun, processes share the windows.

example: scalespaces predict out/photos new_photos --out predictions.csv
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import scalespaces
from scalespaces._choices import BACKGROUND, TILE, WINDOW, LevelPool
from scalespaces._extras import require
from scalespaces._files import refuse_existing, replacing, write_json
from scalespaces._progress import progress
from scalespaces.cli import Parser, add_source, natural, network_file, positive, source

if TYPE_CHECKING:
    from torch import Tensor, nn

    from scalespaces.train._predict import Color

Skipped = dict[str, str] | None  # files that cannot be used and the reasons; None if they are errors


def add_arguments(parser: Parser) -> None:
    add = parser.add_argument
    add("file", metavar="FILE", help="the network: a .safetensors file, or a folder that scalespaces train wrote")
    add("images", nargs="+", metavar="IMAGE", help="images, or folders of images, subfolders included")
    add("--out", required=True, metavar="OUT", help="CSV file (classification) or folder (masks, slides) to write")
    add("--force", action="store_true", help="overwrite existing files")
    add("--skip-errors", action="store_true", help="skip images that cannot be used, and list them")
    group = parser.add_argument_group("network")
    add_source(group)
    add = group.add_argument
    pool = "how levels are combined, see levels.pool in scalespaces train --help; model: as the network itself does it"
    add("--pool", choices=get_args(LevelPool), default="model", help=pool)
    add("--device", default="auto", metavar="NAME", help="auto, cpu, cuda or mps (default: auto, the best available)")
    add("--batch", type=positive, default=32, metavar="N", help="images or windows per batch")
    add = parser.add_argument_group("classification").add_argument
    size = "resize all images to this (default: as in training, if recipe.yaml is next to the network; else not at all)"
    add("--size", type=positive, nargs=2, metavar=("H", "W"), help=size)
    add = parser.add_argument_group("segmentation and slides").add_argument
    tile = "side in pixels of the windows for large images (default: images of up to 4 million pixels as a whole, "
    tile += f"others in windows of {TILE}; {WINDOW} for a classifier on slides)"
    add("--tile", type=positive, metavar="N", help=tile)
    add("--overlap", type=natural, metavar="N", help="pixels that windows share (default: a quarter of --tile)")
    add("--overlay", action="store_true", help="also write NAME.overlay.png: the classes' colors over the image")
    add = parser.add_argument_group("slides").add_argument
    add("--stream", action="store_true", help="read every image as a slide, whatever its size; all must be tiled TIFF")
    skip = (
        "skip windows of plain background: those whose values, from 0 to 1, have a standard deviation of at most T in "
    )
    skip += f"every channel ({BACKGROUND} if T is not given), and those for which the file has no tiles"
    add("--skip-background", type=_deviation, nargs="?", const=BACKGROUND, metavar="T", help=skip)


def _deviation(text: str) -> float:
    try:
        if 0 <= float(text) < float("inf"):
            return float(text)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"expected a number of at least 0, got {text!r}")


def run(args: argparse.Namespace) -> None:
    from scalespaces import models
    from scalespaces.train import _predict as predict
    from scalespaces.train._levels import says_image_only

    # Find what is wrong before the work begins.
    args.file = network_file(args.file)
    files, out = _find(args.images), Path(args.out)
    stream = _streams(args, files)
    if not stream and (out.is_file() or (out.is_dir() and any(out.iterdir()))):
        refuse_existing([out], args.force)
    device = predict.device_called(args.device)
    model = models.load(args.file, source(args), num_levels=args.num_levels, device=device)
    classes, pixels = predict.describe_answers(model)
    notes = [says_image_only(model)] if args.pool == "model" else []
    if not models.Card.of(model).mean:
        notes.append("images are not normalized: the network's card has no mean and std")
    for note in filter(None, notes):
        print(f"note: {note}", file=sys.stderr)
    skipped: Skipped = {} if args.skip_errors else None
    write = _write_slides if stream else _write_masks if pixels else _write_table
    write(args, model, classes, files, skipped)
    if skipped:
        print("\n".join(f"left out: {reason}" for reason in skipped.values()), file=sys.stderr)
        print(f"left out {len(skipped)} of {len(files)} images", file=sys.stderr)


def _find(given: Sequence[str]) -> dict[Path, Path]:
    """The images, sorted, and the path of each below the folder it was found in."""
    from scalespaces.data._folders import image_files
    from scalespaces.data._pixels import SUFFIXES

    found: dict[Path, Path] = {}
    for path in map(Path, given):
        if path.is_dir():
            found |= {file: file.relative_to(path) for file in image_files(path)}
        elif path.exists():
            found[path] = Path(path.name)
        else:
            raise FileNotFoundError(f"no file or folder {str(path)!r}")
    if not found:
        folders = ", ".join(map(repr, given))
        raise ValueError(f"no images in {folders}; files that end in {', '.join(SUFFIXES)} are looked for")
    return dict(sorted(found.items()))


def _streams(args: argparse.Namespace, files: Iterable[Path]) -> bool:
    """Whether the images are slides: all of them or none."""
    from scalespaces.data._slides import is_slide

    kinds = {file: args.stream or is_slide(file) for file in files}
    if len({*kinds.values()}) > 1:
        first = next(str(file) for file in kinds if kinds[file])
        raise ValueError(f"{first!r} is a slide, but other images are not; predict them separately, or use --stream")
    if args.skip_background is not None and not any(kinds.values()):
        raise ValueError("--skip-background is for slides; use --stream to read a tiled TIFF of any size as one")
    return any(kinds.values())


def _refuse_sources(args: argparse.Namespace, files: Iterable[Path], written: Iterable[Path]) -> None:
    """Never overwrite a file that is read, not even with --force."""
    read = {file.resolve() for file in [*files, Path(args.file)]}
    for path in written:
        if path.resolve() in read:
            raise ValueError(f"{str(path)!r} would be overwritten, but it is an input of the prediction; change --out")


def _check_any(done: int, skipped: Skipped) -> None:
    if skipped and not done:
        raise ValueError(f"none of {len(skipped)} images can be used; the first: {next(iter(skipped.values()))}")


def _write_table(
    args: argparse.Namespace, model: nn.Module, classes: Sequence[str], files: dict[Path, Path], skipped: Skipped
) -> None:
    from scalespaces.train import _predict as predict
    from scalespaces.train._recipe import recipe_beside

    for option in ("overlay", "tile", "overlap"):
        if getattr(args, option):
            raise ValueError(f"--{option} is for networks that answer for every pixel, but this one classifies images")
    _refuse_sources(args, files, [Path(args.out)])
    counts: Counter[str] = Counter()
    before = recipe_beside(args.file)
    if args.size is None and before is not None and before.data.size is not None:
        args.size = before.data.size
        print(f"images are resized to {args.size[0]} x {args.size[1]}, as in training", file=sys.stderr)
    options = {"batch": args.batch, "pool": args.pool, "size": args.size, "skipped": skipped}
    found = predict.predict_classes(model, progress(files, "predicting"), **options)
    with replacing(args.out) as draft, draft.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        for n, (file, probabilities, level) in enumerate(found):
            levels, predicted = [] if level is None else [level], classes[int(probabilities.argmax())]
            if n == 0:
                writer.writerow(["file", "predicted", *(["level"] if levels else []), *classes])
            writer.writerow([Path(file).as_posix(), predicted, *levels, *(f"{p:.7g}" for p in probabilities.tolist())])
            counts[predicted] += 1
        _check_any(counts.total(), skipped)
    often = ", ".join(f"{name!r} {number} time{'s' * (number > 1)}" for name, number in counts.most_common(5))
    more = f", and {len(counts) - 5} other classes" if len(counts) > 5 else ""
    images = f"{counts.total()} image{'s' * (counts.total() > 1)}"
    print(f"wrote {args.out} with {images}; predicted {often}{more}")


def _write_masks(
    args: argparse.Namespace, model: nn.Module, classes: Sequence[str], files: dict[Path, Path], skipped: Skipped
) -> None:
    from scalespaces.train import _predict as predict

    if args.size is not None:
        raise ValueError("--size is for classification: masks are as large as their images")
    if len(classes) > 256:
        raise ValueError(f"masks have 256 classes at most, but the network has {len(classes)}")
    out, colors = Path(args.out), predict.palette(classes)
    targets = _targets(args, files, (".png", ".overlay.png") if args.overlay else (".png",))
    images: dict[str, object] = {}
    for file in progress(files, "predicting"):
        with predict.skipping([file], skipped):
            mask = _write_mask(args, model, file, colors, targets[file])
            shares = (mask.flatten().bincount(minlength=len(colors)) / mask.numel()).tolist()
            images[file.as_posix()] = {
                "mask": targets[file][0].relative_to(out).as_posix(),
                "size": [mask.shape[1], mask.shape[0]],
                "share": dict(zip(classes, shares, strict=True)),
            }
    _check_any(len(images), skipped)
    _write_legend(args, classes, images)
    print(f"wrote {len(images)} {'mask' if len(images) == 1 else 'masks'} and legend.json into {out}")


def _write_slides(
    args: argparse.Namespace, model: nn.Module, classes: Sequence[str], files: dict[Path, Path], skipped: Skipped
) -> None:
    from scalespaces.train import _predict as predict
    from scalespaces.train import _slides as slides

    for option in ("size", "overlay"):
        if getattr(args, option):
            raise ValueError(f"--{option} is for images that are read whole, but these are slides")
    if args.skip_errors and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("--skip-errors is for one process, but torchrun started several; leave damaged slides out")
    out, images = Path(args.out), {}
    targets = _targets(args, files, (".tif", ".png"))
    options: dict[str, Any] = {"tile": args.tile, "overlap": args.overlap, "batch": args.batch, "pool": args.pool}
    options |= {"skip_background": args.skip_background, "force": args.force}
    for file in files:
        with predict.skipping([file], skipped):
            about = slides.predict_slide(model, file, targets[file][0], **options)
            if about is not None:
                images[file.as_posix()] = {"result": targets[file][0].relative_to(out).as_posix(), **about}
    if slides.is_first():
        _check_any(len(images), skipped)
        _write_legend(args, classes, images)
        print(f"wrote {len(images)} tiled TIFF {'file' if len(images) == 1 else 'files'} and legend.json into {out}")


def _targets(args: argparse.Namespace, files: dict[Path, Path], suffixes: Sequence[str]) -> dict[Path, list[Path]]:
    """The files to write for each image, in the folder of the output."""
    out = Path(args.out)
    if out.is_file():
        raise NotADirectoryError(f"results go into a folder, but {args.out!r} is a file")
    targets: dict[Path, list[Path]] = {}
    taken: dict[Path, Path] = {}
    for file, name in files.items():
        targets[file] = [out / name.with_name(name.stem + suffix) for suffix in suffixes]
        for target in targets[file]:
            if (other := taken.setdefault(target, file)) != file:
                both = f"{str(other)!r} and {str(file)!r}"
                raise ValueError(f"{both} would both be written as {str(target)!r}; predict them separately")
    _refuse_sources(args, files, [*taken, out / "legend.json"])
    return targets


def _write_legend(args: argparse.Namespace, classes: Sequence[str], images: dict[str, Any]) -> None:
    from scalespaces.train._predict import palette

    colors = palette(classes)
    legend = {
        "scalespaces": scalespaces.__version__,
        "model": Path(args.file).as_posix(),
        "classes": [{"number": n, "name": name, "color": list(colors[n])} for n, name in enumerate(classes)],
        "images": images,
    }
    write_json(Path(args.out) / "legend.json", legend)


def _write_mask(
    args: argparse.Namespace, model: nn.Module, file: Path, colors: Sequence[Color], targets: Sequence[Path]
) -> Tensor:
    """Write the files of an image, and return its mask."""
    import torch

    from scalespaces.train import _predict as predict

    image = predict.read_channels(file, predict.channels_of(model), raw=True)
    options: dict[str, Any] = {"tile": args.tile, "overlap": args.overlap, "batch": args.batch, "pool": args.pool}
    with predict.named(file, image):
        rows = predict.predict_rows(model, image, see=partial(predict.to_input, model), **options)
        mask = torch.cat([predict.check_finite(some).argmax(0).byte().cpu() for some in rows])
    pillow = require("PIL.Image", "train")
    picture = pillow.fromarray(mask.numpy())
    flat = [value for color in colors for value in color]
    picture.putpalette(flat + [0] * (768 - len(flat)))  # with a shorter palette, Pillow writes fewer bits per pixel
    with replacing(targets[0]) as draft:
        picture.save(draft)
    for overlay in targets[1:]:
        pixels = image if image.dtype == torch.uint8 else image.clamp(0, 1).mul(255).round().byte()
        pixels = pixels.expand(3, -1, -1).permute(1, 2, 0)
        with replacing(overlay) as draft:
            pillow.blend(pillow.fromarray(pixels.numpy()), picture.convert("RGB"), 0.5).save(draft)
    return mask
