"""The command ``scalespaces``: a module for each subcommand, which adds its parser and runs it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import scalespaces
from scalespaces.cli import (
    _app,
    _data,
    _demo,
    _equivariance,
    _evaluate,
    _export,
    _models,
    _predict,
    _train,
)
from scalespaces.cli._arguments import Parser

__all__ = ["main"]

COMMANDS = (_demo, _equivariance, _models, _export, _data, _train, _evaluate, _predict, _app)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, those of the process when left out, and return its exit code."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.run is None:
        parser.print_help()
        return 0
    try:
        args.run(args)
    except (ValueError, OSError, ImportError) as error:
        message = " ".join(str(error).split())
        print(f"scalespaces {args.command}: error: {message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"scalespaces {args.command}: interrupted", file=sys.stderr)
        return 130
    return 0


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command and all its subcommands."""
    parser = Parser(prog="scalespaces", description=scalespaces.__doc__)
    parser.add_argument("--version", action="version", version=f"scalespaces {scalespaces.__version__}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for command in COMMANDS:
        command.add(commands)
    return parser
