"""Download, make and check datasets. Needs pip install 'scalespaces[train]'."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalespaces._files import refuse_existing
from scalespaces.cli import Parser, positive, seed

if TYPE_CHECKING:
    import numpy as np

    from scalespaces.data import ArrayImages


def add_arguments(parser: Parser) -> None:
    tasks = parser.add_subparsers(dest="task", metavar="TASK", title="tasks")

    text = "Existing files are kept; an interrupted download resumes. Without NAME, list the datasets."
    add = _task(tasks, "fetch", _fetch, "download a dataset and check its checksums", text, "mnist --to data/mnist")
    add("name", nargs="?", metavar="NAME", help="name of the dataset, such as mnist")
    add("--to", metavar="FOLDER", help="where the files go (default: data/NAME)")
    add("--mirror", metavar="URL", help="folder on another server with the same files")
    add("--force", action="store_true", help="replace existing files whose checksum is wrong")

    text = "make sets of digits at random scales, or at scales not seen in training"
    make = tasks.add_parser("make", help=text, description=f"{text[:1].upper()}{text[1:]}.")
    make.set_defaults(run=lambda _: make.print_help())
    kinds = make.add_subparsers(dest="kind", metavar="KIND", title="kinds")

    text = "scale each digit at random: MNIST-scale, as in the SESN paper"
    add = _task(kinds, "mnist-scale", _mnist_scale, text, "", "data/mnist-scale --source data/mnist")
    _add_digits(add, "10000 2000 50000")
    add("--seeds", type=seed, nargs="+", default=[0, 1, 2, 3, 4, 5], metavar="N", help="seeds, one folder for each")
    add("--scales", type=float, nargs=2, default=[0.3, 1.0], metavar=("LOW", "HIGH"), help="range of the random scales")
    add("--size", type=positive, metavar="N", help="side that the finished images are resized to; SESN also has 56")

    text = "A SCALE is relative to the source's pixels; LOW-HIGH is a range."
    about = "make a training set at one scale, and test sets at others"
    add = _task(kinds, "unseen-scale", _unseen_scale, about, text, "data/unseen-scale")
    _add_digits(add, "50000 10000 10000")
    add("--train", type=_span, default=1.0, metavar="SCALE", help="scale of the training and validation images")
    add("--tests", type=_span, nargs="+", default=[0.5, 1.0, 2.0, 4.0], metavar="SCALE", help="scale of each test set")
    add("--canvas", type=positive, metavar="N", help="side of the images in pixels (default: four times the source's)")
    add("--place", choices=("center", "random"), default="center", help="where the digits are placed")
    add("--tests-only", action="store_true", help="make no training and validation set; --train has no effect")
    add("--seed", type=seed, default=0, metavar="N", help="random seed")

    text = "It knows PCam's HDF5 files, Cityscapes' tree, IDX files, a folder images next to a folder masks, images "
    text += "with a CSV file (columns id and label), a folder for each class, and single files; and train, "
    text += "valid and test as folders or CSV files. An image that is in two of these three is reported as a leak. "
    text += "Every file is read. The exit code is 2 if anything is wrong."
    add = _task(tasks, "check", _check, "report what a dataset contains, and what is wrong where", text, "data/pcam")
    add("path", metavar="PATH", help="file or folder")
    add("--labels", metavar="CSV", help="labels of the images (default: a CSV file in PATH, or labels.csv next to it)")
    add("--classes", type=positive, metavar="N", help="number of classes; labels are from 0 to N - 1")

    text = "Patches that are compressed together are slow: reading one unpacks them all."
    add = _task(tasks, "repack", _repack, "rewrite PCam's patches so that reading is fast", text, "packed.h5 plain.h5")
    add("file", metavar="FILE", help="PCam's file of patches, camelyonpatch_level_2_split_*_x.h5")
    add("out", metavar="OUT", help="file to write")
    add("--force", action="store_true", help="overwrite OUT")


def _task(tasks: Any, name: str, run: Any, help: str, more: str, example: str) -> Any:
    task = tasks.add_parser(name, help=help, description=f"{help[:1].upper()}{help[1:]}. {more}")
    task.epilog = f"example: {task.prog} {example}"
    task.set_defaults(run=run)
    return task.add_argument


def _add_digits(add: Any, counts: str) -> None:
    add("out", metavar="OUT", help="folder to write")
    add("--force", action="store_true", help="overwrite existing files")
    text = "folder of MNIST's files (see scalespaces data fetch), or the word digits for scikit-learn's digits"
    add("--source", default="digits", metavar="FOLDER", help=text)
    text = f"images in each split (default: {counts}, or fewer in these proportions if the source is smaller)"
    add("--counts", type=positive, nargs=3, metavar=("TRAIN", "VALID", "TEST"), help=text)


def _span(text: str) -> float | tuple[float, float]:
    low, dash, high = text.partition("-")
    try:
        return (float(low), float(high)) if dash else float(low)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, or two with a dash between, got {text!r}") from None


def _fetch(args: argparse.Namespace) -> None:
    from scalespaces.data import fetch
    from scalespaces.data._fetch import BY_HAND, REMOTES

    if args.name is None:
        about = {name: remote.about for name, remote in REMOTES.items()} | BY_HAND
        print("\n".join(f"{name:13}  {text}" for name, text in about.items()))
        return
    folder = args.to or f"data/{args.name}"
    files = fetch(args.name, folder, mirror=args.mirror, force=args.force)
    print(f"{folder} has {', '.join(file.name for file in files)}")


def _check(args: argparse.Namespace) -> None:
    from scalespaces.data import check_dataset
    from scalespaces.data._folders import plural

    report = check_dataset(args.path, table=args.labels, num_classes=args.classes)
    print(report)
    if number := len(report.problems):
        raise ValueError(f"{plural(number, 'problem')} in {args.path}")
    if report.sets:
        table = f" --data.table {args.labels}" if args.labels else ""
        print(f"to train a network with it: scalespaces train --data.root {args.path}{table}")


def _repack(args: argparse.Namespace) -> None:
    from scalespaces.data._pcam import repack

    repack(args.file, args.out, force=args.force)
    print(f"wrote {args.out}")


def _mnist_scale(args: argparse.Namespace) -> None:
    from scalespaces.data import mnist_scale

    folders = [Path(args.out, f"seed_{number}") for number in args.seeds]
    refuse_existing(folders, args.force)
    source = _source(args.source)
    options: Any = {"counts": args.counts, "scales": tuple(args.scales), "size": args.size}
    for number, folder in zip(args.seeds, folders, strict=True):
        _write(folder, mnist_scale(*source, number, **options), args.force)


def _unseen_scale(args: argparse.Namespace) -> None:
    from scalespaces.data import unseen_scales
    from scalespaces.data._idx import IMAGES

    refuse_existing(Path(args.out).glob(f"*{IMAGES}*"), args.force)
    images, labels = _source(args.source)
    options: Any = {"canvas": args.canvas or 4 * images.shape[-1], "place": args.place, "counts": args.counts}
    train = None if args.tests_only else args.train
    sets = unseen_scales(images, labels, train, args.tests, seed=args.seed, **options)
    _write(args.out, sets, args.force)


def _source(name: str) -> tuple[np.ndarray, np.ndarray]:
    """All images and labels of scikit-learn's digits, or of MNIST's files in a folder: training and test set pooled."""
    import numpy as np

    from scalespaces.data import digits
    from scalespaces.data._idx import read_idx_images

    if name == "digits":
        return digits()
    sets = [read_idx_images(name, split) for split in ("train", "test")]
    return np.concatenate([s.images[:, 0] for s in sets]), np.concatenate([s.labels for s in sets])


def _write(folder: str | Path, sets: dict[str, ArrayImages], force: bool) -> None:
    from scalespaces.data._idx import write_sets

    files = write_sets(folder, sets, force=force)
    print(f"wrote {len(files)} files, from {files[0]} to {files[-1]}")
