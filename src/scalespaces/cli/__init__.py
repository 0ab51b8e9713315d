"""The command ``scalespaces``: a module for each subcommand, imported when it is called; and what these share.

The module's docstring is the command's help, an example after an empty line included. ``add_arguments`` takes the
parser, and ``run`` the arguments. A module that has a function ``parse`` instead does its own parsing.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

import scalespaces

__all__ = ["main"]

COMMANDS = {
    "demo": "train on digits of one size, recognize them at others, and write a report",
    "app": "explore scale-spaces, equivariance and predictions on a local web page",
    "data": "download, make and check datasets",
    "train": "train a network on a folder of images, or from a recipe",
    "evaluate": "measure networks, also at several scales and with test-time augmentation",
    "predict": "predict the classes of images, or of their pixels, with a saved network",
    "calibrate": "let a network learn which of its levels to trust, from images without labels",
    "export": "write a saved network as ONNX or for torch.export",
    "models": "list the networks",
    "info": "print what a network costs, layer by layer (the paper's tables)",
    "equivariance": "measure how equivariant random networks are (the paper's figure)",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, by default those of the process, and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = " ".join(["scalespaces", *words[:1]])
    args = argparse.Namespace()
    try:
        args = parse(words)
        args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:  # of `scalespaces models | head -1`: the reader has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter flushes it again at its end
        return 128 + 13  # as if SIGPIPE had ended it
    except (ValueError, OSError, ImportError) as error:
        message = " ".join(str(error).split())
        message = _with_option(message, error) if hasattr(args, "size") else message
        print(f"{name}: error: {message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 130
    return 0


def _with_option(message: str, error: Any) -> str:
    """An error about an image that is too small, with the option that helps instead of arguments in Python."""
    while error is not None and not hasattr(error, "smallest_side"):
        error = error.__cause__
    if error is None:
        return message
    side, way = error.smallest_side, error.way
    return message.replace(way, f"use --size {side} {side} or more")


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command, and the function ``run`` that takes them. The first word names the command."""
    steps = "For the options of a command: scalespaces COMMAND --help. "
    steps += "For your own images: scalespaces data check photos, then scalespaces train --data.root photos"
    parser = Parser(prog="scalespaces", description=scalespaces.__doc__, epilog=steps)
    parser.add_argument("--version", action="version", version=f"scalespaces {scalespaces.__version__}")
    listed = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, about in COMMANDS.items():
        listed.add_parser(name, help=about)
    if words and not words[0].startswith("-") and words[0] not in COMMANDS:
        from scalespaces.theory._arguments import did_you_mean  # late, as it needs NumPy

        parser.error(f"there is no command {words[0]!r}{did_you_mean(words[0], COMMANDS)}")
    name = parser.parse_args(words[:1]).command
    if name is None:
        return argparse.Namespace(run=lambda _: parser.print_help())
    command = import_module(f"scalespaces.cli._{name}")
    if hasattr(command, "parse"):
        return command.parse(words[1:])
    description, _, example = (command.__doc__ or "").partition("\n\n")
    parser = Parser(prog=f"scalespaces {name}", description=description, epilog=example)
    parser.set_defaults(run=getattr(command, "run", lambda _: parser.print_help()))
    command.add_arguments(parser)
    return parser.parse_args(words[1:])


class Help(argparse.ArgumentDefaultsHelpFormatter):
    """Show defaults, except None and False, and where the help itself says them; lists as they are typed."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        said = action.default is None or action.default is False or "(default: " in (action.help or "")
        if not said and isinstance(action.default, list):
            return f"{action.help} (default: {' '.join(map(str, action.default))})"
        return action.help if said else super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """Errors are one line, without the usage above it. Options are not abbreviated."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, formatter_class=Help, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def add_source(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add ``--num-levels``; ``--model``, the source of a converted network; and ``--allow-source``."""
    about = "number of levels (default: as in training); more for larger objects, fewer to save time"
    parser.add_argument("--num-levels", type=positive, metavar="N", help=about)
    about = "only for a converted network: the function that makes the original model, such as "
    about += "torchvision.models:resnet18, or with arguments, 'timm:create_model(model_name=\"resnet18\")'"
    parser.add_argument("--model", metavar="MODULE:FUNCTION", help=about)
    add_allowed(parser)


def add_allowed(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add ``--allow-source``."""
    about = "a package whose code may run to make the model, such as your own; may be given several times"
    parser.add_argument("--allow-source", action="append", metavar="PACKAGE", help=about)


def source(args: argparse.Namespace) -> Any:
    """The model that ``--model`` names, or None."""
    from scalespaces.models._registry import build

    return args.model and build(args.model, allow=args.allow_source or ())


def network_file(path: str) -> str:
    """The file of a network, which may be given by the folder of its run."""
    return os.path.join(path, "model.safetensors") if os.path.isdir(path) else path


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
