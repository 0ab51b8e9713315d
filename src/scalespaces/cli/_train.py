"""``scalespaces train``: a recipe, and any of its keys from the command line."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from scalespaces._extras import require
from scalespaces.cli import Parser, add_allowed


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse a recipe's file, which comes first, and options for its keys."""
    require("yaml", "train")
    from scalespaces.train._recipe import parse_recipe, recipe_parser

    parser = recipe_parser(
        prog="scalespaces train [RECIPE]",
        description="Train a network from a recipe, a YAML file with the keys below. Any of them can be given as an "
        "option instead. To use several devices or machines, start it with torchrun or SLURM: torchrun "
        "--nproc-per-node 4 -m scalespaces train ... . --resume continues an interrupted run exactly. --allow-source "
        "PACKAGE lets model.source name a function of a package of your own.",
        epilog="example: scalespaces train recipes/mnist_scale_s_cnn.yaml --data.root data/mnist-scale/seed_0 --seed 1",
    )
    add = parser.add_argument
    add("--out", help="folder for the results (default: out/NAME, after the recipe)")
    add("--resume", action="store_true", help="continue from the last checkpoint in --out, if there is one")
    add("--force", action="store_true", help="start over if --out already contains a run")
    own = Parser(prog="scalespaces train", add_help=False)
    add_allowed(own)  # not an option of the recipe's parser: a recipe could set that itself
    allowed, words = own.parse_known_args(words)
    if not words:
        return argparse.Namespace(run=lambda _: parser.print_help())
    file = None if words[0].startswith("-") else words[0]
    if file is not None and file.endswith(".safetensors"):
        way = f"to train it further, name it in a recipe, or: scalespaces train RECIPE --model.file {file}"
        raise ValueError(f"{file!r} is a network, but train takes a recipe, a YAML file; {way}")
    for word in words[1:] if file is None else ():
        if word.endswith((".yaml", ".yml")) and Path(word).is_file():
            raise ValueError(f"the recipe comes first: scalespaces train {word} ...")
    recipe, said = parse_recipe(parser, file, words if file is None else words[1:])
    out = Path(said.out or Path("out", "train" if file is None else Path(file).stem))
    more = {"resume": said.resume, "force": said.force, "allow_source": allowed.allow_source or ()}
    return argparse.Namespace(run=_run, recipe=recipe, out=out, more=more)


def _run(args: argparse.Namespace) -> None:
    require("lightning.pytorch", "train")  # takes seconds, so it comes after the recipe is checked
    from scalespaces.train._run import train

    try:
        result = train(args.recipe, args.out, **args.more)
    except KeyboardInterrupt:
        print(f"--resume continues from the last checkpoint in {args.out}, if there is one", file=sys.stderr)
        raise
    best = "" if result.best is None else f"; best {result.monitor} {result.best:.4g} in epoch {result.best_epoch}"
    print(f"wrote {args.out} after {result.steps} steps{best}")
