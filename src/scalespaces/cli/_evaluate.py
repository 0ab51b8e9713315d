"""Measure how well saved networks do on images at several scales, and how much time they take. Metrics are accuracy,
auroc and nll for classes of images; average_precision, mean_iou and accuracy for classes of pixels. Runs that differ
only in their seed share one line: their mean and standard deviation. If `scalespaces data make unseen-scale` made the
set, its own scale is multiplied by those of --scales.

example: scalespaces evaluate out/cnn_0 out/cnn_1 out/s_cnn_0 out/s_cnn_1 --root photos --scales 0.5 1 2 --tta 0.5 1 2
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from scalespaces._choices import Baselines, Kind, LevelPool
from scalespaces._files import prepare, write_json
from scalespaces.cli import Parser, add_source, natural, network_file, positive, seed, source

if TYPE_CHECKING:
    from torch import nn

    from scalespaces.train import Recipe


def add_arguments(parser: Parser) -> None:
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="networks: .safetensors files or folders that scalespaces train wrote")
    about = "one name per network; those with the same name are merged (default: names from files or folders, the "
    about += "same for runs whose recipes differ only in the seed)"
    add("--names", nargs="+", metavar="NAME", help=about)
    add_source(parser)
    pool = "how levels are combined, see levels.pool in scalespaces train --help; model: as the network itself does it"
    add("--pool", choices=get_args(LevelPool), default="model", help=pool)
    add = parser.add_argument_group("images").add_argument
    kinds = get_args(Kind)
    about = f"kind of the data: {', '.join(kinds)} (default: what the names in --root suggest)"
    add("--kind", choices=kinds, metavar="KIND", help=about)
    add("--root", required=True, metavar="FOLDER", help="folder of the data")
    about = "sets: test, valid, train, or any IDX set's name (default: test, or valid if there is no test set)"
    add("--splits", nargs="+", metavar="NAME", help=about)
    about = "resize all images to this size before anything else (default: as in the first network's training)"
    add("--size", type=positive, nargs=2, metavar=("H", "W"), help=about)
    add("--classes", type=positive, metavar="N", help="number of classes (default: the data's, or the first network's)")
    add("--table", metavar="CSV", help="CSV file with the labels, if it is not named after the split")
    run = "(default: each network's own, if recipe.yaml is next to it"
    add("--seed", type=seed, metavar="N", help=f"seed used in training, which says what was held out {run})")
    add("--holdout", type=float, metavar="PART", help=f"share of the training set that was held out {run}; else 0.1)")
    add("--skip-errors", action="store_true", help="skip files that cannot be read, and count them")
    add("--limit", type=positive, metavar="N", help="measure only N images of each set, evenly spread over it")
    add = parser.add_argument_group("scales").add_argument
    add(
        "--scales",
        type=float,
        nargs="+",
        default=[1.0],
        metavar="SCALE",
        help="factors by which images are resized (default: 1)",
    )
    add("--tta", type=float, nargs="+", metavar="SCALE", help="also use test-time augmentation: mean over these scales")
    add("--select", type=float, nargs="+", metavar="SCALE", help="also use the most confident answer at these scales")
    about = "networks that --tta and --select are for: those with one level, or all"
    add("--baselines", choices=get_args(Baselines), default="one-level", help=about)
    add = parser.add_argument_group("computation and output").add_argument
    add("--batch", type=positive, default=64, metavar="N", help="images per batch")
    tile = "side in pixels of the windows in which large images are segmented (default: as in scalespaces predict)"
    add("--tile", type=positive, metavar="N", help=tile)
    add("--workers", type=natural, default=0, metavar="N", help="processes that read images")
    add("--device", default="auto", metavar="NAME", help="auto, cpu, cuda or mps")
    add("--metric", metavar="NAME", help="show only this metric (default: all; the plot shows the first)")
    add("--json", metavar="FILE", help="write all results to this file, including each class and the settings")
    add("--plot", metavar="FILE", help="draw the metric against scale into this file: .png, .pdf, .svg ...")


def run(args: argparse.Namespace) -> None:
    from scalespaces.data._open import find_split, kind_of, sets_in
    from scalespaces.models._network import check_classes
    from scalespaces.plotting import check_writable, plot_over_scales
    from scalespaces.train._data import DataOptions, class_names, num_classes, open_split
    from scalespaces.train._evaluate import evaluate, merge
    from scalespaces.train._levels import says_image_only
    from scalespaces.train._predict import describe_answers
    from scalespaces.train._recipe import recipe_beside

    # Find what is wrong before the work begins.
    if args.json is not None:
        prepare(args.json)
    if args.plot is not None:
        check_writable(args.plot)
    paths = [network_file(file) for file in args.files]
    recipes = {path: recipe_beside(path) for path in paths}
    files, names = _names(paths, args.names, recipes)
    check_classes("--classes", args.classes)
    original = source(args)
    networks = {run: _load(file, original, args.num_levels) for run, file in files.items()}
    own = len(describe_answers(next(iter(networks.values())))[0])
    args.kind = args.kind or kind_of(args.root)
    before = recipes[paths[0]]
    size = args.size or (before and before.data.kind == args.kind and before.data.size) or None
    root = Path(args.root)
    if args.splits is None:
        args.splits = ["test" if args.kind == "idx" or "test" in sets_in(root, args.kind) else "valid"]

    def options_of(recipe: Recipe | None) -> DataOptions:
        return DataOptions(
            args.kind,
            args.root,
            size=size and (size[0], size[1]),
            num_classes=own if args.classes is None and args.kind in ("masks", "table") else args.classes,
            table=args.table or (recipe and recipe.data.table),
            holdout=args.holdout or (recipe.data.holdout if recipe else 0.1),
            on_error="skip" if args.skip_errors else "raise",
        )

    # What a run held out is unknown to that run alone, so each is measured with its own.
    held = not all(find_split(root, args.kind, split, args.table)[2] for split in args.splits)
    groups: dict[tuple[int | None, float], list[str]] = {}
    for run, file in files.items():
        recipe = recipes[file] if held else None
        if recipe is not None and Path(recipe.data.root).resolve() != root.resolve():
            recipe = None
        seed = args.seed if recipe is None or args.seed is not None else recipe.seed
        groups.setdefault((seed, options_of(recipe).holdout), []).append(run)
    given = ("scales", "baselines", "pool", "batch", "device", "workers", "limit", "tile", "metric")
    parts, options = [], options_of(before)
    for (seed, holdout), runs in groups.items():
        options.holdout = holdout
        part = evaluate(
            {run: networks[run] for run in runs},
            {split: open_split(options, split, seed=seed) for split in args.splits},
            tta=args.tta or (),
            select=args.select or (),
            classes=class_names(options) or num_classes(options),
            **{name: getattr(args, name) for name in given},
        )
        parts.append(part)
    found = merge(parts, names)
    where = f"{options.root}: {', '.join(args.splits)}, {found.rows[0].images} images"
    print(f"{where}, resized to {size[0]} x {size[1]}" if size else where)
    if len(groups) > 1:
        print("each run is measured with the images that it held out itself")
    for name, number in Counter(names.values()).items():
        if number > 1:
            print(f"{name}: mean ± standard deviation over {number} runs")
    print(found)
    for metric in found.metrics[1:] if args.metric is None else ():
        print(f"\n{found.table(metric)}")
    for name, network in networks.items():
        if args.pool == "model" and (note := says_image_only(network)):
            print(f"note: {name}: {note}")
    if args.json is not None:
        document = found.to_json()
        keys = ("kind", "root", "splits", "size", "table", "model", "num_levels")
        document["settings"] |= {"files": files} | {key: getattr(args, key) for key in keys}
        write_json(args.json, document)
        print(f"\nwrote {args.json}")
    if args.plot is not None:
        plot_over_scales(found.lines(), args.plot, ylabel=found.metric)
        print(f"wrote {args.plot}")


def _load(file: str, source: nn.Module | None, num_levels: int | None) -> nn.Module:
    """The network in a file, which may be a converted one if there is a source; one level stays one level."""
    from scalespaces import models

    try:
        network = models.load(file)
    except ValueError:
        if source is None:
            raise
        return models.load(file, source, num_levels=num_levels)
    return models.load(file, num_levels=num_levels) if num_levels and network.lift.num_levels > 1 else network


def _names(
    files: Sequence[str], given: Sequence[str] | None, recipes: Mapping[str, Recipe | None]
) -> tuple[dict[str, str], dict[str, str]]:
    """The files by the names of runs, all different, and the name of the network of each run."""
    if len(set(files)) < len(files):
        raise ValueError(f"networks must be different files, got {' '.join(files)}")
    stems, folders = ([name(Path(file).absolute()) for file in files] for name in (_stem, _folder))
    ways = (folders, files) if "model" in stems else (stems, folders, files)  # train calls all networks model
    runs = next(names for names in ways if len(set(names)) == len(names))
    if given is not None:
        if len(given) != len(files):
            raise ValueError(f"--names must be {len(files)} names, one per network, got {' '.join(given)}")
        runs = given if len(set(given)) == len(given) else runs
        return dict(zip(runs, files, strict=True)), dict(zip(runs, given, strict=True))
    groups: list[list[str]] = []  # runs that differ only in their seed
    by_run = dict(zip(runs, files, strict=True))
    for run, file in by_run.items():
        mine = recipes[file]
        for group in groups:
            theirs = recipes[by_run[group[0]]]
            if mine is not None and theirs is not None and mine.differences(theirs) == ["seed"]:
                group.append(run)
                break
        else:
            groups.append([run])
    firsts = [group[0] for group in groups]
    short = [re.sub(r"[\W_]*(seed)?[\W_]*\d+$", "", group[0]) if len(group) > 1 else group[0] for group in groups]
    chosen = short if all(short) and len(set(short)) == len(short) else firsts
    return by_run, {run: name for name, group in zip(chosen, groups, strict=True) for run in group}


def _stem(file: Path) -> str:
    return file.stem


def _folder(file: Path) -> str:
    return file.parent.name
