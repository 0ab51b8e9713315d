"""Print a network's table, layer by layer: the shape of the output as [levels, height, width, channels], parameters,
multiply-adds and activations; and the totals compared with the plain baseline's. Nothing is computed, so any size
works. Settings that are not given come from --preset.
"""

import argparse
import json

import scalespaces
from scalespaces import models
from scalespaces._files import prepare, write_json
from scalespaces.cli import Parser, positive, sampling
from scalespaces.functional._conv import SCALE_PADDINGS
from scalespaces.functional._lift import METHODS
from scalespaces.functional._pool import WINDOWS
from scalespaces.models._registry import PRESETS, entry
from scalespaces.nn._lift import ARGUMENTS


def add_arguments(parser: Parser) -> None:
    parser.argument_default = argparse.SUPPRESS
    add = parser.add_argument
    add("model", metavar="MODEL", help="a name that `scalespaces models` lists")
    size = "channels, height and width of the image (default: the paper's, 3 96 96 or 3 992 992)"
    add("--input", type=positive, nargs=3, metavar=("C", "H", "W"), help=size)
    add("--json", nargs="?", const="-", metavar="FILE", help="write JSON there; without FILE, print JSON, no table")
    add = parser.add_argument_group("network").add_argument
    add("--preset", choices=PRESETS, help="recommended: cascade, pyramid, dilated windows; paper: direct, dense, plain")
    add("--classes", type=positive, dest="num_classes", metavar="N", help="number of classes")
    add("--levels", type=positive, dest="num_levels", metavar="S", help="number of levels that are pooled at the end")
    deep = "levels of the filters where the paper's are deep, or one number for every place"
    add("--filter-levels", type=positive, nargs="+", metavar="K", help=deep)
    add("--scale-padding", choices=SCALE_PADDINGS, help="padding past the last level")
    add("--window", choices=WINDOWS, help="windows of the pooling layers")
    add = parser.add_argument_group("lift").add_argument
    add("--base", type=float, metavar="C", help="dilation between levels")
    add("--zero-scale", type=float, metavar="S0", help="blur that the image already has, a variance")
    add("--method", choices=METHODS, help="the exact lift, or the paper's")
    add("--sampling", type=sampling, metavar="MODE", help="pyramid, dense, or a number for oversampling")
    add("--first-level", type=int, metavar="K", help="number of the first level; negative for finer ones")


def run(args: argparse.Namespace) -> None:
    found = entry(args.model)
    said = {name: value for name, value in vars(args).items() if name not in ("run", "model")}
    path, shape = said.pop("json", None), tuple(said.pop("input", found.input_shape))
    if len(said.get("filter_levels", ())) == 1:
        said["filter_levels"] = said["filter_levels"][0]
    said["lift"] = {name: said.pop(name) for name in ARGUMENTS if name in said}
    if path not in (None, "-"):
        prepare(path)
    model = models.create_model(args.model, in_channels=shape[0], **said)
    summary, others = models.summarize(model, shape), {}
    if found.baseline is not None:
        plain = models.create_model(found.baseline, in_channels=shape[0], num_classes=model.config["num_classes"])
        others[found.baseline] = models.summarize(plain, shape)
    document = {
        "scalespaces": scalespaces.__version__,
        "config": model.config,
        "input_shape": list(shape),
        **summary.to_json(),
        "baseline": {name: other.total for name, other in others.items()},
    }
    if path == "-":
        print(json.dumps(document, indent=1, allow_nan=False))
        return
    plain = model.config["lift"] | {key: value for key, value in model.config.items() if key not in ("name", "lift")}
    settings = ", ".join(f"{key} {value}" for key, value in plain.items() if value is not None)
    print(f"{args.model}: {found.about}\n{settings}\n")
    print(summary.table(args.model, others))
    print("\nshape: [levels, height, width, channels], at level 0; MiB: the outputs of all layers, float32, one image")
    if path is not None:
        write_json(path, document)
        print(f"\nwrote {path}")
