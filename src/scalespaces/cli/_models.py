"""List the networks by name."""

import argparse

from scalespaces._tables import text_table
from scalespaces.cli import Parser


def add_arguments(parser: Parser) -> None:
    parser.add_argument("pattern", nargs="?", default="*", metavar="PATTERN", help="names to list, such as 's_*'")


def run(args: argparse.Namespace) -> None:
    from scalespaces import models
    from scalespaces.models._registry import entry

    names = models.list_models(args.pattern)
    if not names:
        raise ValueError(f"no model matches {args.pattern!r}; there are {', '.join(models.list_models())}")
    print(text_table([[name, entry(name).about] for name in names], left=2))
