"""``scalespaces data``: download, make and check datasets."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalespaces import data
from scalespaces.cli._arguments import Help, Parser, positive, seed
from scalespaces.data import _make as make
from scalespaces.data._fetch import BY_HAND, REMOTES
from scalespaces.data._make import refuse_existing
from scalespaces.data._pcam import repack


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments."""
    parser = Parser(
        prog="scalespaces data",
        description="Download, make and check datasets (extra train).",
    )
    parser.set_defaults(run=lambda _: parser.print_help())
    tasks = parser.add_subparsers(dest="task", metavar="TASK", title="tasks")
    _add_data_fetch(tasks)
    _add_data_make(tasks)
    _add_data_check(tasks)
    _add_data_repack(tasks)
    return parser.parse_args(words)


def _add_data_fetch(tasks: Any) -> None:
    parser = tasks.add_parser(
        "fetch",
        help="download a dataset",
        description="Download a dataset and check its checksums. What is there already stays; an interrupted "
        "download continues where it stopped. Without NAME, list what there is.",
        epilog="example: scalespaces data fetch mnist --to data/mnist",
    )
    parser.set_defaults(run=_run_data_fetch)
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", help="the dataset")
    add("--to", metavar="FOLDER", help="where the files go (default: data/NAME)")
    add("--mirror", metavar="URL", help="folder on another server with the same files")
    add("--force", action="store_true", help="replace what is there with another checksum")


def _run_data_fetch(args: argparse.Namespace) -> None:
    if args.name is None:
        width = max(map(len, [*REMOTES, *BY_HAND]))
        for name, about in {**{name: remote.about for name, remote in REMOTES.items()}, **BY_HAND}.items():
            print(f"{name:{width}}  {about}")
        return
    folder = args.to or f"data/{args.name}"
    files = data.fetch(args.name, folder, mirror=args.mirror, force=args.force)
    print(f"{folder} has {', '.join(file.name for file in files)}")


def _add_data_make(tasks: Any) -> None:
    parser = tasks.add_parser(
        "make",
        help="make scale sets, or synthetic data in the formats of PCam and Cityscapes",
        description="Make data on the spot: sets with many scales or with unseen ones, of MNIST or of the digits that "
        "come with scikit-learn; or small synthetic data in the formats of PCam and Cityscapes, to try things out.",
    )
    parser.set_defaults(run=lambda _: parser.print_help())
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", title="kinds")

    def kind(name: str, run: Any, help: str, out: str, example: str) -> Any:
        one = kinds.add_parser(name, help=help, description=f"{help}.", epilog=example, formatter_class=Help)
        one.set_defaults(run=run)
        one.add_argument("out", metavar="OUT", help=out)
        one.add_argument("--force", action="store_true", help="overwrite what is there")
        return one.add_argument

    example = "example: scalespaces data make mnist-scale data/mnist-scale --source data/mnist"
    add = kind("mnist-scale", _run_mnist_scale, "MNIST-scale as SESN made it", "folder, one in it per seed", example)
    _add_source(add, "10000 2000 50000")
    add("--seeds", type=seed, nargs="+", default=[0, 1, 2, 3, 4, 5], metavar="N", help="one realization for each")
    add("--scales", type=float, nargs=2, default=[0.3, 1.0], metavar=("LOW", "HIGH"), help="drawn uniformly between")

    example = "example: scalespaces data make unseen-scale data/unseen --train 1 --tests 0.5 1 2 4 8 --canvas 112"
    add = kind("unseen-scale", _run_unseen_scale, "Train at one scale, test at others", "folder", example)
    _add_source(add, "50000 10000 10000")
    add("--train", type=_span, default=1.0, metavar="SCALE", help="of the images trained with; LOW-HIGH for a range")
    add(
        "--tests",
        type=_span,
        nargs="+",
        default=[0.5, 1.0, 2.0, 4.0],
        metavar="SCALE",
        help="of each test set, relative to the source's pixels; LOW-HIGH for a range",
    )
    add("--canvas", type=positive, metavar="N", help="side of the images (default: four times the source's)")
    add("--place", choices=("center", "random"), default="center", help="where on the canvas")
    add("--seed", type=seed, default=0, metavar="N", help="of the split, the scales and the places")

    example = "example: scalespaces data make pcam data/synthetic-pcam --train 2000"
    add = kind("pcam", _run_make_pcam, "Synthetic patches in PCam's HDF5 files", "folder", example)
    for split, number in (("train", 512), ("valid", 128), ("test", 128)):
        add(f"--{split}", type=positive, default=number, metavar="N", help="number of patches")
    add("--gzip", action="store_true", help="compress the patches in the files")
    add("--seed", type=seed, default=0, metavar="N", help="of the patches")

    example = "example: scalespaces data make cityscapes data/synthetic-cityscapes --size 256 512"
    add = kind("cityscapes", _run_make_cityscapes, "Synthetic scenes in Cityscapes' tree", "folder", example)
    for split, number in (("train", 16), ("val", 4), ("test", 4)):
        add(f"--{split}", type=positive, default=number, metavar="N", help="number of scenes")
    add("--size", type=positive, nargs=2, default=[1024, 2048], metavar=("H", "W"), help="of the scenes")
    add("--seed", type=seed, default=0, metavar="N", help="of the scenes")


def _add_source(add: Any, counts: str) -> None:
    add("--source", default="digits", metavar="FOLDER", help="MNIST's files, or digits for scikit-learn's")
    add(
        "--counts",
        type=positive,
        nargs=3,
        metavar=("TRAIN", "VALID", "TEST"),
        help=f"images of each split (default: {counts}, or in these proportions of a smaller source)",
    )


def _run_mnist_scale(args: argparse.Namespace) -> None:
    folders = [Path(args.out, f"seed_{number}") for number in args.seeds]
    refuse_existing(folders, args.force)
    images, labels = make.source_images(args.source)
    for number, folder in zip(args.seeds, folders, strict=True):
        sets = data.mnist_scale(images, labels, number, counts=args.counts, scales=tuple(args.scales))
        _say_written(make.write_sets(folder, sets, force=args.force))


def _run_unseen_scale(args: argparse.Namespace) -> None:
    refuse_existing(list(Path(args.out).glob("*-images-idx3-ubyte*")), args.force)
    images, labels = make.source_images(args.source)
    canvas = args.canvas or 4 * images.shape[-1]
    options: dict[str, Any] = {"place": args.place, "counts": args.counts, "seed": args.seed}
    sets = data.unseen_scales(images, labels, args.train, args.tests, canvas=canvas, **options)
    _say_written(make.write_sets(args.out, sets, force=args.force))


def _run_make_pcam(args: argparse.Namespace) -> None:
    counts = {split: getattr(args, split) for split in ("train", "valid", "test")}
    _say_written(make.make_pcam(args.out, counts, seed=args.seed, compress=args.gzip, force=args.force))


def _run_make_cityscapes(args: argparse.Namespace) -> None:
    counts = {split: getattr(args, split) for split in ("train", "val", "test")}
    _say_written(make.make_cityscapes(args.out, counts, size=tuple(args.size), seed=args.seed, force=args.force))


def _say_written(files: Sequence[Path]) -> None:
    print(f"wrote {len(files)} files, from {files[0]} to {files[-1]}")


def _add_data_check(tasks: Any) -> None:
    parser = tasks.add_parser(
        "check",
        help="say what a dataset holds, and what is wrong where",
        description="Read all of a dataset and say what it holds and what is wrong where: files that are missing or "
        "cannot be read, sizes that do not fit, labels out of range. Known are PCam's HDF5 files, Cityscapes' tree, "
        "IDX files, a folder images beside a folder masks, images with a CSV file (columns id and label), a folder for "
        "each class, and single files. The exit code is 2 if anything is wrong.",
        epilog="example: scalespaces data check data/pcam",
    )
    parser.set_defaults(run=_run_data_check)
    add = parser.add_argument
    add("path", metavar="PATH", help="file or folder")
    add("--labels", metavar="CSV", help="labels of the images in the folder (default: a CSV file in it or beside it)")
    add("--classes", type=positive, metavar="N", help="number of classes; labels must be below")


def _run_data_check(args: argparse.Namespace) -> None:
    report = data.check_dataset(args.path, table=args.labels, num_classes=args.classes)
    print(report)
    if report.problems:
        problems = "1 problem" if len(report.problems) == 1 else f"{len(report.problems)} problems"
        raise ValueError(f"{problems} in {args.path}")


def _add_data_repack(tasks: Any) -> None:
    parser = tasks.add_parser(
        "repack",
        help="rewrite PCam's patches plain, to be read at random faster",
        description="Rewrite the patches of an HDF5 file plain: reading one of many that are compressed together "
        "unpacks them all.",
    )
    parser.set_defaults(run=_run_data_repack)
    parser.add_argument("file", metavar="FILE", help="camelyonpatch_level_2_split_*_x.h5")
    parser.add_argument("out", metavar="OUT", help="what to write")
    parser.add_argument("--force", action="store_true", help="overwrite it")


def _run_data_repack(args: argparse.Namespace) -> None:
    repack(args.file, args.out, force=args.force)
    print(f"wrote {args.out}")


def _span(text: str) -> float | tuple[float, float]:
    low, dash, high = text.partition("-")
    try:
        return (float(low), float(high)) if dash else float(low)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, or two with a dash between, got {text!r}") from None
