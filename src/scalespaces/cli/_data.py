"""``scalespaces data``: download, make and check datasets."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scalespaces import data
from scalespaces._files import refuse_existing
from scalespaces.cli._arguments import Help, Parser, positive, seed
from scalespaces.data._fetch import BY_HAND, REMOTES
from scalespaces.data._idx import IMAGES, read_idx_images
from scalespaces.data._make import make_cityscapes, make_pcam, write_sets
from scalespaces.data._pcam import repack


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments."""
    parser = Parser(prog="scalespaces data", description="Download, make and check datasets (extra train).")
    parser.set_defaults(run=lambda _: parser.print_help())
    tasks = parser.add_subparsers(dest="task", metavar="TASK", title="tasks")

    task = tasks.add_parser("fetch", help="download a dataset")
    task.description = (
        "Download a dataset and check its checksums. Files that are there already stay; an interrupted download "
        "resumes where it stopped. Without NAME, list the datasets."
    )
    task.epilog = "example: scalespaces data fetch mnist --to data/mnist"
    task.set_defaults(run=_fetch)
    task.add_argument("name", nargs="?", metavar="NAME", help="the dataset")
    task.add_argument("--to", metavar="FOLDER", help="where the files go (default: data/NAME)")
    task.add_argument("--mirror", metavar="URL", help="folder on another server with the same files")
    task.add_argument("--force", action="store_true", help="replace files that have another checksum")

    task = tasks.add_parser("make", help="make scale sets, or synthetic data in the formats of PCam and Cityscapes")
    task.description = (
        "Make sets with many scales or with unseen ones, of MNIST or of the digits that come with scikit-learn; or "
        "small synthetic data in the formats of PCam and Cityscapes, to try things out."
    )
    _add_kinds(task)

    task = tasks.add_parser("check", help="report what a dataset holds, and what is wrong where")
    task.description = (
        "Read all of a dataset and report what it holds and what is wrong where: files that are missing or cannot be "
        "read, sizes that do not fit, labels out of range. Known are PCam's HDF5 files, Cityscapes' tree, IDX files, a "
        "folder images next to a folder masks, images with a CSV file (columns id and label), a folder for each class, "
        "and single files. The exit code is 2 if anything is wrong."
    )
    task.epilog = "example: scalespaces data check data/pcam"
    task.set_defaults(run=_check)
    task.add_argument("path", metavar="PATH", help="file or folder")
    task.add_argument("--labels", metavar="CSV", help="labels of the images (default: a CSV file in or next to PATH)")
    task.add_argument("--classes", type=positive, metavar="N", help="number of classes; labels must be below")

    task = tasks.add_parser("repack", help="rewrite PCam's patches plain, which is faster to read at random")
    task.description = (
        "Rewrite the patches of an HDF5 file plain. If patches are compressed together, reading one unpacks them all."
    )
    task.set_defaults(run=_repack)
    task.add_argument("file", metavar="FILE", help="camelyonpatch_level_2_split_*_x.h5")
    task.add_argument("out", metavar="OUT", help="file to write")
    task.add_argument("--force", action="store_true", help="overwrite it")
    return parser.parse_args(words)


def _add_kinds(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=lambda _: parser.print_help())
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", title="kinds")

    def kind(run: Any, help: str, example: str, out: str = "folder", counts: str = "", **numbers: int) -> Any:
        one = kinds.add_parser(example.split()[0], help=help, description=f"{help}.", formatter_class=Help)
        one.epilog = f"example: scalespaces data make {example}"
        one.set_defaults(run=run)
        one.add_argument("out", metavar="OUT", help=out)
        one.add_argument("--force", action="store_true", help="overwrite files")
        if counts:
            one.add_argument("--source", default="digits", metavar="FOLDER", help="of MNIST's files, or digits")
            text = f"images of each split (default: {counts}, or in these proportions of a smaller source)"
            one.add_argument("--counts", type=positive, nargs=3, metavar=("TRAIN", "VALID", "TEST"), help=text)
        for split, number in numbers.items():
            one.add_argument(f"--{split}", type=positive, default=number, metavar="N", help="number of images")
        return one.add_argument

    example, counts = "mnist-scale data/mnist-scale --source data/mnist", "10000 2000 50000"
    add = kind(_mnist_scale, "MNIST-scale as SESN made it", example, "folder, one in it per seed", counts)
    add("--seeds", type=seed, nargs="+", default=[0, 1, 2, 3, 4, 5], metavar="N", help="a split and scales for each")
    add("--scales", type=float, nargs=2, default=[0.3, 1.0], metavar=("LOW", "HIGH"), help="drawn uniformly between")

    example, counts = "unseen-scale data/unseen --train 1 --tests 0.5 1 2 4 8 --canvas 112", "50000 10000 10000"
    add = kind(_unseen_scale, "Train at one scale, test at others", example, counts=counts)
    add("--train", type=_span, default=1.0, metavar="SCALE", help="of the training images; LOW-HIGH for a range")
    tests = "of each test set, relative to the source's pixels; LOW-HIGH for a range"
    add("--tests", type=_span, nargs="+", default=[0.5, 1.0, 2.0, 4.0], metavar="SCALE", help=tests)
    add("--canvas", type=positive, metavar="N", help="side of the images (default: four times the source's)")
    add("--place", choices=("center", "random"), default="center", help="where on the canvas")
    add("--seed", type=seed, default=0, metavar="N", help="of the split, the scales and the places")

    example = "pcam data/synthetic-pcam --train 2000"
    add = kind(_synthetic, "Synthetic patches in PCam's HDF5 files", example, train=512, valid=128, test=128)
    add("--gzip", action="store_true", help="compress the patches in the files")
    add("--seed", type=seed, default=0, metavar="N", help="of the patches")

    example = "cityscapes data/synthetic-cityscapes --size 256 512"
    add = kind(_synthetic, "Synthetic scenes in Cityscapes' tree", example, train=16, val=4, test=4)
    add("--size", type=positive, nargs=2, default=[1024, 2048], metavar=("H", "W"), help="of the scenes")
    add("--seed", type=seed, default=0, metavar="N", help="of the scenes")


def _span(text: str) -> float | tuple[float, float]:
    low, dash, high = text.partition("-")
    try:
        return (float(low), float(high)) if dash else float(low)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, or two with a dash between, got {text!r}") from None


def _fetch(args: argparse.Namespace) -> None:
    if args.name is None:
        about = {name: remote.about for name, remote in REMOTES.items()} | BY_HAND
        width = max(map(len, about))
        print("\n".join(f"{name:{width}}  {text}" for name, text in about.items()))
        return
    folder = args.to or f"data/{args.name}"
    files = data.fetch(args.name, folder, mirror=args.mirror, force=args.force)
    print(f"{folder} has {', '.join(file.name for file in files)}")


def _check(args: argparse.Namespace) -> None:
    report = data.check_dataset(args.path, table=args.labels, num_classes=args.classes)
    print(report)
    if report.problems:
        problems = "1 problem" if len(report.problems) == 1 else f"{len(report.problems)} problems"
        raise ValueError(f"{problems} in {args.path}")


def _repack(args: argparse.Namespace) -> None:
    repack(args.file, args.out, force=args.force)
    print(f"wrote {args.out}")


def _mnist_scale(args: argparse.Namespace) -> None:
    folders = [Path(args.out, f"seed_{number}") for number in args.seeds]
    refuse_existing(folders, args.force)
    source = _source(args.source)
    for number, folder in zip(args.seeds, folders, strict=True):
        sets = data.mnist_scale(*source, number, counts=args.counts, scales=tuple(args.scales))
        _print(write_sets(folder, sets, force=args.force))


def _unseen_scale(args: argparse.Namespace) -> None:
    refuse_existing(Path(args.out).glob(f"*{IMAGES}*"), args.force)
    images, labels = _source(args.source)
    options: Any = {"canvas": args.canvas or 4 * images.shape[-1], "place": args.place, "counts": args.counts}
    sets = data.unseen_scales(images, labels, args.train, args.tests, seed=args.seed, **options)
    _print(write_sets(args.out, sets, force=args.force))


def _source(name: str) -> tuple[np.ndarray, np.ndarray]:
    """All images and labels of scikit-learn's digits, or of MNIST's files in a folder: training and test set pooled."""
    if name == "digits":
        return data.digits()
    sets = [read_idx_images(name, split) for split in ("train", "test")]
    return np.concatenate([s.images[:, 0] for s in sets]), np.concatenate([s.labels for s in sets])


def _synthetic(args: argparse.Namespace) -> None:
    counts = {split: getattr(args, split) for split in ("train", "valid", "val", "test") if hasattr(args, split)}
    if args.kind == "pcam":
        _print(make_pcam(args.out, counts, seed=args.seed, compress=args.gzip, force=args.force))
    else:
        _print(make_cityscapes(args.out, counts, size=tuple(args.size), seed=args.seed, force=args.force))


def _print(files: Sequence[Path]) -> None:
    print(f"wrote {len(files)} files, from {files[0]} to {files[-1]}")
