"""What the commands' parsers share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NoReturn


def add_own(commands: Any, name: str, run: Callable[[Sequence[str]], object], help: str) -> None:
    """Add a command that parses its own arguments: ``run`` gets those that follow its name, ``--help`` among them."""
    parser = commands.add_parser(name, help=help, add_help=False, prefix_chars="\0")  # so that nothing is an option
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    parser.set_defaults(run=lambda args: run(args.arguments))


class Parser(argparse.ArgumentParser):
    """Errors are one line, without the usage above it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


class Help(argparse.ArgumentDefaultsHelpFormatter):
    """Say the defaults, but not that something is absent by default."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        absent = action.default is None or action.default is False
        return action.help if absent else super()._get_help_string(action)


def positive(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def natural(text: str) -> int:
    if not text.strip().isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 0, got {text!r}")
    return int(text)


def seed(text: str) -> int:
    if not text.strip().isdecimal() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 to 2**63 - 1, got {text!r}")
    return int(text)


def sampling(text: str) -> str | float:
    if text in ("dense", "pyramid"):
        return text
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected dense, pyramid or a number >= 1, got {text!r}") from None
