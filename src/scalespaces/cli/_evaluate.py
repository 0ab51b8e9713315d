"""Measure saved networks on images at several scales, and what they cost. Metrics are accuracy, auroc and nll for
classes of images; average_precision, mean_iou and accuracy for classes of pixels. The scale of a set that `scalespaces
data make unseen-scale` made is multiplied by the factors of --scales.

example: scalespaces evaluate cnn.safetensors s_cnn.safetensors --kind idx --root data/unseen --splits test_0.5 test_1
test_2 --tta 0.5 0.71 1 1.41 2 --plot scales.png
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from scalespaces._choices import Baselines, Kind, LevelPool
from scalespaces._files import prepare, write_json
from scalespaces.cli import Parser, add_source, natural, positive, seed, source

if TYPE_CHECKING:
    from torch import nn


def add_arguments(parser: Parser) -> None:
    add = parser.add_argument
    add("files", nargs="+", metavar="MODEL", help="networks, .safetensors")
    add("--names", nargs="+", metavar="NAME", help="one name per network (default: from their files or folders)")
    add_source(parser)
    pool = "how levels are combined: by the network itself, or by pooling their logits"
    add("--pool", choices=get_args(LevelPool), default="model", help=pool)
    add = parser.add_argument_group("images").add_argument
    kinds = get_args(Kind)
    about = f"kind of the data: {', '.join(kinds)} (default: what the names in --root suggest)"
    add("--kind", choices=kinds, metavar="KIND", help=about)
    add("--root", required=True, metavar="FOLDER", help="folder of the data")
    about = "sets: test, valid, train, or any IDX set's name (default: test, or else what was held out for validation)"
    add("--splits", nargs="+", metavar="NAME", help=about)
    about = "resize all images to this before anything else (default: as in the run of the first network)"
    add("--size", type=positive, nargs=2, metavar=("H", "W"), help=about)
    add("--classes", type=positive, metavar="N", help="number of classes (default: the data's, or the first network's)")
    add("--table", metavar="CSV", help="labels (table), if not in a file named after the split")
    run = "(default: that of the run, if the first network lies next to its recipe.yaml)"
    add("--seed", type=seed, metavar="N", help=f"seed used in training, if a set is held out of the training set {run}")
    add("--holdout", type=float, metavar="PART", help=f"part of the training set that was held out {run}")
    add("--skip-errors", action="store_true", help="leave out files that cannot be read, and count them")
    add("--limit", type=positive, metavar="N", help="measure only N images of each set, evenly spread over it")
    add = parser.add_argument_group("scales").add_argument
    add("--scales", type=float, nargs="+", default=[1.0], metavar="SCALE", help="resize images by each of these")
    add("--tta", type=float, nargs="+", metavar="SCALE", help="test-time augmentation: mean over these scales")
    add("--select", type=float, nargs="+", metavar="SCALE", help="take the most certain answer at these scales")
    add("--baselines", choices=get_args(Baselines), default="one-level", help="networks to run with --tta and --select")
    add = parser.add_argument_group("computation and output").add_argument
    add("--batch", type=positive, default=64, metavar="N", help="images per batch")
    add("--tile", type=positive, metavar="N", help="side of the windows in which large images are segmented")
    add("--workers", type=natural, default=0, metavar="N", help="processes that read images")
    add("--device", default="auto", metavar="NAME", help="auto, cpu, cuda or mps")
    add("--metric", metavar="NAME", help="the only metric to show (default: all; the plot shows the first)")
    add("--json", metavar="FILE", help="write all results there, classes and settings included")
    add("--plot", metavar="FILE", help="draw the metric against scale there: .png, .pdf, .svg ...")


def run(args: argparse.Namespace) -> None:
    from scalespaces.data._open import kind_of, sets_in
    from scalespaces.models._network import check_classes
    from scalespaces.plotting import check_writable, plot_over_scales
    from scalespaces.train._data import DataOptions, class_names, num_classes, open_split
    from scalespaces.train._evaluate import evaluate
    from scalespaces.train._levels import says_image_only
    from scalespaces.train._predict import describe_answers

    # Find what is wrong before the work begins.
    if args.json is not None:
        prepare(args.json)
    if args.plot is not None:
        check_writable(args.plot)
    files = dict(zip(_names(args.files, args.names), args.files, strict=True))
    check_classes("--classes", args.classes)
    original = source(args)
    networks = {name: _load(file, original) for name, file in files.items()}
    own = len(describe_answers(next(iter(networks.values())))[0])
    args.kind = args.kind or kind_of(args.root)
    before = _recipe_of(args.files[0])
    size = args.size or (before and before.data.kind == args.kind and before.data.size) or None
    options = DataOptions(
        args.kind,
        args.root,
        size=size and (size[0], size[1]),
        num_classes=own if args.classes is None and args.kind in ("masks", "table") else args.classes,
        table=args.table,
        holdout=args.holdout or (before.data.holdout if before else 0.1),
        on_error="skip" if args.skip_errors else "raise",
    )
    if args.seed is None and before and Path(before.data.root).resolve() == Path(args.root).resolve():
        args.seed = before.seed
    if args.splits is None:
        args.splits = ["test" if args.kind == "idx" or "test" in sets_in(Path(args.root), args.kind) else "valid"]
    given = ("scales", "baselines", "pool", "batch", "device", "workers", "limit", "tile", "metric")
    found = evaluate(
        networks,
        {split: open_split(options, split, seed=args.seed) for split in args.splits},
        tta=args.tta or (),
        select=args.select or (),
        classes=class_names(options) or num_classes(options),
        **{name: getattr(args, name) for name in given},
    )
    where = f"{options.root}: {', '.join(args.splits)}, {found.rows[0].images} images"
    print(f"{where}, resized to {size[0]} x {size[1]}" if size else where)
    print(found)
    for metric in found.metrics[1:] if args.metric is None else ():
        print(f"\n{found.table(metric)}")
    for name, network in networks.items():
        if args.pool == "model" and (note := says_image_only(network)):
            print(f"note: {name}: {note}")
    if args.json is not None:
        document = found.to_json()
        keys = ("kind", "root", "splits", "size", "table", "model")
        document["settings"] |= {"files": files} | {key: getattr(args, key) for key in keys}
        write_json(args.json, document)
        print(f"\nwrote {args.json}")
    if args.plot is not None:
        plot_over_scales(found.lines(), args.plot, ylabel=found.metric)
        print(f"wrote {args.plot}")


def _recipe_of(file: str) -> Any:
    """The recipe that a network was trained with, if that lies next to it."""
    from scalespaces.train._recipe import load_recipe

    recipe = Path(file).with_name("recipe.yaml")
    return load_recipe(recipe) if recipe.is_file() else None


def _load(file: str, source: nn.Module | None) -> nn.Module:
    """The network in a file, which may be a converted one if there is a source."""
    from scalespaces import models

    try:
        return models.load(file)
    except ValueError:
        if source is None:
            raise
        return models.load(file, source)


def _names(files: Sequence[str], given: Sequence[str] | None) -> list[str]:
    """A name for each network: the given ones, or those of the files, or of their folders."""
    if given is not None:
        if len(given) != len(files) or len(set(given)) < len(given):
            raise ValueError(f"--names must be {len(files)} different names, one per network, got {' '.join(given)}")
        return list(given)
    if len(set(files)) < len(files):
        raise ValueError(f"networks must be different files, got {' '.join(files)}")
    choices = [[Path(file).stem for file in files], [Path(file).absolute().parent.name for file in files], list(files)]
    return next(names for names in choices if len(set(names)) == len(names))
