"""Write a saved network as ONNX (opset 18) or as a torch.export program. Batch, height and width stay dynamic for base
2 with pyramid sampling. Otherwise they are fixed, and a note says so. The result is run on random images (ONNX in
onnxruntime), and the file is only written if the numbers agree with PyTorch's.

example: scalespaces export out/photos photos.onnx --normalize
"""

import argparse
import sys
from typing import Any

from scalespaces.cli import Parser, add_source, network_file, positive, progress, source


def add_arguments(parser: Parser) -> None:
    add = parser.add_argument
    add("file", metavar="FILE", help="the network: a .safetensors file, or a folder that scalespaces train wrote")
    add("out", metavar="OUT", help="file to write: .onnx or .pt2")
    add_source(parser)
    add = parser.add_argument_group("shapes").add_argument
    size = "height and width, if they are fixed (default: the paper's for its networks, else 224, or more if needed)"
    add("--size", type=positive, nargs=2, metavar=("H", "W"), help=size)
    add("--batch", type=positive, default=1, metavar="N", help="batch size, if it is fixed")
    add("--static", action="store_true", help="fix batch, height and width even if they could be dynamic")
    add = parser.add_argument_group("graph").add_argument
    add("--levels", action="store_true", help="also output the scores of each level, as level_0, level_1, ...")
    add("--normalize", action="store_true", help="take images in [0, 1]: add the network's normalization to the graph")


def run(args: argparse.Namespace) -> None:
    from scalespaces import models
    from scalespaces.models._export import check_format

    check_format(args.out)
    network: Any = models.load(network_file(args.file), source(args), num_levels=args.num_levels)
    if models.Card.of(network).mean and not args.normalize:
        print("note: images must be normalized first; --normalize adds that to the graph", file=sys.stderr)
    options = {name: getattr(args, name) for name in ("size", "batch", "static", "levels", "normalize")}
    with progress(f"exporting to {args.out}"):
        exported = models.export(network, args.out, **options)
    for note in exported.notes:
        print(f"note: {note}", file=sys.stderr)
    print(f"wrote {exported}")
