"""``scalespaces models``: the networks by name."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from scalespaces import models
from scalespaces._tables import text_table
from scalespaces.cli._arguments import Parser
from scalespaces.models._registry import entry


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments."""
    parser = Parser(prog="scalespaces models", description="List the networks by name.")
    parser.set_defaults(run=_run)
    parser.add_argument("pattern", nargs="?", default="*", metavar="PATTERN", help="names that match, such as 's_*'")
    return parser.parse_args(words)


def _run(args: argparse.Namespace) -> None:
    names = models.list_models(args.pattern)
    if not names:
        raise ValueError(f"no model matches {args.pattern!r}; there are {', '.join(models.list_models())}")
    print(text_table([[name, entry(name).about] for name in names], left=2))
