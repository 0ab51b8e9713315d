"""The command ``scalespaces``: a module for each subcommand, imported when it is called.

The module's docstring is the command's help, an example after an empty line included. ``add_arguments`` takes the
parser, and ``run`` the arguments. A module that has a function ``parse`` instead does its own parsing.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

import scalespaces
from scalespaces.cli._arguments import Parser

__all__ = ["main"]

COMMANDS = {
    "demo": "train on digits of one size, recognize them at others, and write a report",
    "equivariance": "measure how equivariant random networks are (the paper's figure)",
    "models": "list the networks",
    "info": "print what a network costs, layer by layer (the paper's tables)",
    "calibrate": "let a network learn which of its levels to trust, from images without labels",
    "export": "write a saved network as ONNX or for torch.export",
    "data": "download, make and check datasets",
    "train": "train a network from a recipe",
    "evaluate": "measure networks at several scales, compared with test-time augmentation",
    "predict": "predict the classes of images, or of their pixels, with a saved network",
    "app": "explore scale-spaces, equivariance and predictions on a local page",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, by default those of the process, and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = " ".join(["scalespaces", *words[:1]])
    try:
        args = parse(words)
        args.run(args)
    except (ValueError, OSError, ImportError) as error:
        message = " ".join(str(error).split())
        print(f"{name}: error: {message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 130
    return 0


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command, and the function ``run`` that takes them. The first word names the command."""
    parser = Parser(prog="scalespaces", description=scalespaces.__doc__)
    parser.add_argument("--version", action="version", version=f"scalespaces {scalespaces.__version__}")
    listed = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, about in COMMANDS.items():
        listed.add_parser(name, help=about)
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
