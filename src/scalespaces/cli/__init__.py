"""The command ``scalespaces``: one function per subcommand, imported when it is called.

It takes the words after the command's name, and returns a namespace, with a function ``run`` that is called with it.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

import scalespaces
from scalespaces.cli._arguments import Parser

__all__ = ["main"]

COMMANDS = {  # name: its module, the function unless it is parse, and its line in the list of commands
    "demo": ("_demo", "train on digits of one size, recognize them at others, and write a report"),
    "equivariance": ("_equivariance", "measure how equivariant random networks are (the paper's figure)"),
    "models": ("_info:parse_list", "list the networks"),
    "info": ("_info", "print what a network costs, layer by layer (the paper's tables)"),
    "calibrate": ("_calibrate", "let a network learn which of its levels to trust, from images without labels"),
    "export": ("_export", "write a saved network as ONNX or for torch.export"),
    "data": ("_data", "download, make and check datasets"),
    "train": ("_train", "train a network from a recipe"),
    "evaluate": ("_evaluate", "measure networks at several scales, compared with test-time augmentation"),
    "predict": ("_predict", "predict the classes of images, or of their pixels, with a saved network"),
    "app": ("_app", "explore scale-spaces, equivariance and predictions on a local page"),
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
    for name, (_, about) in COMMANDS.items():
        listed.add_parser(name, help=about)
    command = parser.parse_args(words[:1]).command
    if command is None:
        return argparse.Namespace(run=lambda _: parser.print_help())
    module, _, function = COMMANDS[command][0].partition(":")
    return getattr(import_module(f"scalespaces.cli.{module}"), function or "parse")(words[1:])
