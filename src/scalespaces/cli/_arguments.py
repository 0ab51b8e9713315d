"""What the commands share: parsers, types of arguments, and a line of progress."""

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn


class Help(argparse.ArgumentDefaultsHelpFormatter):
    """Show defaults, except None and False, and where the help itself says them."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        said = action.default is None or action.default is False or "(default: " in (action.help or "")
        return action.help if said else super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """Errors are one line, without the usage above it. Options are not abbreviated."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, formatter_class=Help, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def add_source(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add ``--model``, the source of a converted network."""
    about = "for a converted network, the function that makes the original model: torchvision.models:resnet18, or with "
    about += "arguments, 'timm:create_model(model_name=\"resnet18\")'"
    parser.add_argument("--model", metavar="MODULE:FUNCTION", help=about)


def whole(rule: str, allowed: range, text: str) -> int:
    if not text.strip().isdecimal() or int(text) not in allowed:
        raise argparse.ArgumentTypeError(f"expected a whole number {rule}, got {text!r}")
    return int(text)


positive = partial(whole, "of at least 1", range(1, 2**63))
natural = partial(whole, "of at least 0", range(2**63))
seed = partial(whole, "from 0 to 2**63 - 1", range(2**63))


def sampling(text: str) -> str | float:
    if text in ("dense", "pyramid"):
        return text
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected dense, pyramid or a number >= 1, got {text!r}") from None


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Print on stderr what is being done, and how long it took."""
    start = time.perf_counter()
    print(f"{what} ...", file=sys.stderr, flush=True)
    yield
    print(f"{what}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
