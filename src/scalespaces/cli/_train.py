"""``scalespaces train``: a recipe, and any of its keys from the command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalespaces._extras import require
from scalespaces.cli._arguments import add_own

_DESCRIPTION = (
    "Train a network by a recipe, a YAML file with the keys below, any of which may be given here instead. Several "
    "devices and machines are started with torchrun or SLURM: torchrun --nproc-per-node 4 -m scalespaces train ... . "
    "--resume continues an interrupted run exactly where it stopped."
)
_EPILOG = (
    "example: scalespaces train recipes/mnist_scale_s_cnn.yaml --data.root data/mnist-scale/seed_0 "
    "--model.lift.num_levels 3 --seed 1"
)


def add(commands: Any) -> None:
    """Add the command; it parses its own arguments."""
    add_own(commands, "train", run, "train a network by a recipe")


def run(argv: Sequence[str]) -> None:
    """Train."""
    from scalespaces.train._recipe import parse_recipe, parser

    named = [argv[0]] if argv and not argv[0].startswith("-") else []
    made = parser(prog="scalespaces train [RECIPE]", description=_DESCRIPTION, epilog=_EPILOG)
    made.add_argument("--out", help="folder of the results (default: out/ and the name of the recipe)")
    made.add_argument(
        "--resume", action="store_true", help="continue from the last checkpoint in --out, if there is one"
    )
    made.add_argument("--force", action="store_true", help="start over if --out holds a run already")
    if not argv:
        made.print_help()
        return
    if stray := [word for word in argv[1:] if word.endswith((".yaml", ".yml")) and Path(word).is_file() and not named]:
        raise ValueError(f"the recipe comes first: scalespaces train {stray[0]} ...")
    recipe, rest = parse_recipe(made, named[0] if named else None, argv[len(named) :])
    out = Path(rest.out or Path("out", Path(named[0]).stem if named else "train"))
    require("lightning.pytorch", "train")  # takes seconds, and is not needed to say what is wrong
    from scalespaces.train._run import train

    try:
        result = train(recipe, out, resume=rest.resume, force=rest.force)
    except KeyboardInterrupt:
        print(f"--resume continues from the last checkpoint in {out}, if there is one", file=sys.stderr)
        raise
    best = "" if result.best is None else f"; best {result.monitor} {result.best:.4g} in epoch {result.best_epoch}"
    print(f"wrote {out} after {result.steps} steps{best}", file=sys.stdout)
