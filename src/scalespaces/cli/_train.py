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
    from scalespaces.train._recipe import options_in, parse_recipe, recipe_parser

    parser = recipe_parser(
        prog="scalespaces train",
        usage="scalespaces train [RECIPE] [--data.root FOLDER] [--KEY VALUE ...] [--out FOLDER] [--resume] [--force]",
        description="Train a network. RECIPE is a YAML file with the keys below; options replace its values. "
        "Without a recipe only --data.root is needed, a folder of images: settings that are not given are "
        "then chosen to suit the images, and may differ from the defaults below. A saved network (.safetensors) in "
        "place of RECIPE is trained further. To use several devices or machines, start it with torchrun or SLURM, as "
        "in torchrun --nproc-per-node 4 -m scalespaces train RECIPE. --resume continues an interrupted run exactly. "
        "--allow-source PACKAGE lets model.source name a function of your own package.",
        epilog="examples: scalespaces train --data.root photos; "
        "scalespaces train recipes/mnist_scale_s_cnn.yaml --data.root data/mnist-scale/seed_0 --seed 1",
    )
    add = parser.add_argument
    add("--out", help="folder for the results; if not given, out/NAME, named after the recipe or the folder of images")
    add("--resume", action="store_true", help="continue from the last checkpoint in --out, if there is one")
    add("--force", action="store_true", help="start over if --out already contains a run")
    own = Parser(prog="scalespaces train", add_help=False)
    add_allowed(own)  # not an option of the recipe's parser: a recipe could set that itself
    allowed, words = own.parse_known_args(words)
    if not words:
        return argparse.Namespace(run=lambda _: parser.print_help())
    file = None if words[0].startswith("-") else words[0]
    for word in words[1:] if file is None else ():
        if word.endswith((".yaml", ".yml")) and Path(word).is_file():
            raise ValueError(f"the recipe comes first: scalespaces train {word} ...")
    rest = words if file is None else words[1:]
    given = options_in(rest)
    if file is not None and file.endswith(".safetensors") and not given.keys() & {"data.root", "data", "help", "h"}:
        raise ValueError(f"which images? to train a network further: scalespaces train {file} --data.root FOLDER")
    out = Path(given.get("out") or _folder(file, given.get("data.root", "train")))
    if "resume" in given and (out / "recipe.yaml").is_file() and (file is None or not file.endswith((".yaml", ".yml"))):
        file = str(out / "recipe.yaml")  # what was chosen when the run began
    recipe, said = parse_recipe(parser, file, rest)
    more = {"resume": said.resume, "force": said.force, "allow_source": allowed.allow_source or ()}
    return argparse.Namespace(run=_run, recipe=recipe, out=out, more=more)


def _folder(file: str | None, root: str) -> Path:
    """The default folder for results."""
    name = Path(root if file is None or not Path(file).is_dir() else file).resolve().name
    if file is not None and not Path(file).is_dir():
        name = f"{name}-finetuned" if file.endswith(".safetensors") else Path(file).stem
    return Path("out", name)


def _run(args: argparse.Namespace) -> None:
    require("lightning.pytorch", "train")  # takes seconds, so it comes after the recipe is checked
    from scalespaces.train._run import train

    try:
        recipe = args.recipe()
        result = train(recipe, args.out, **args.more)
    except KeyboardInterrupt:
        print(f"--resume continues from the last checkpoint in {args.out}, if there is one", file=sys.stderr)
        raise
    best = "" if result.best is None else f"; best {result.monitor} {result.best:.4g} in epoch {result.best_epoch}"
    print(f"wrote {args.out} after {result.steps} steps{best}")
    if recipe.chosen:
        print(f"to measure it: scalespaces evaluate {args.out} --root {recipe.data.root}")
