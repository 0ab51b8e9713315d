"""``scalespaces export``: a saved network as ONNX or for torch.export."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from scalespaces import models
from scalespaces.cli._arguments import positive
from scalespaces.cli._output import progress
from scalespaces.models._export import check_format
from scalespaces.models._source import build


def add(commands: Any) -> None:
    """Add the parser."""
    parser = commands.add_parser(
        "export",
        help="write a saved network as ONNX or for torch.export",
        description="Write a network that scalespaces.models.save wrote as ONNX (opset 18) or as a program of "
        "torch.export. Batch, height and width stay free for base 2 in pyramid sampling; otherwise they are fixed, and "
        "it says so. What was written is run on random images, in onnxruntime if it is ONNX, and only put in place if "
        "it computes what PyTorch does.",
        epilog="example: scalespaces export model.safetensors model.onnx --normalize",
    )
    parser.set_defaults(run=_run)
    add = parser.add_argument
    add("file", metavar="FILE", help="the network, .safetensors")
    add("out", metavar="OUT", help="what to write: .onnx or .pt2")
    add(
        "--model",
        metavar="MODULE:FUNCTION",
        help="for a converted network, what makes the model it was made of: torchvision.models:resnet18, or with "
        "arguments, 'timm:create_model(model_name=\"resnet18\")'",
    )
    add = parser.add_argument_group("shapes").add_argument
    add(
        "--size",
        type=positive,
        nargs=2,
        metavar=("H", "W"),
        help="height and width where they are fixed (default: the paper's for its networks, else 224 224)",
    )
    add("--batch", type=positive, default=1, metavar="N", help="number of images where it is fixed (default: 1)")
    add("--static", action="store_true", help="fix batch, height and width in any case")
    add = parser.add_argument_group("graph").add_argument
    add("--levels", action="store_true", help="also write the scores of each level: outputs level_0, level_1, ...")
    add("--normalize", action="store_true", help="take raw images: put the normalization in the file into the graph")


def _run(args: argparse.Namespace) -> None:
    check_format(args.out)
    network: Any = models.load(args.file, None if args.model is None else build(args.model))
    card = models.Card.of(network)
    if card.mean and not args.normalize:
        print("note: images must come in normalized; --normalize puts it into the graph", file=sys.stderr)
    with progress(f"exporting to {args.out}"):
        exported = models.export(
            network,
            args.out,
            size=args.size,
            batch=args.batch,
            static=args.static,
            levels=args.levels,
            normalize=args.normalize,
        )
    for note in exported.notes:
        print(f"note: {note}", file=sys.stderr)
    print(f"wrote {exported}")
