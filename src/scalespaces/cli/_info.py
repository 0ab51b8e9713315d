"""Print a network, layer by layer: the shape of the output as [levels, height, width, channels], parameters,
multiply-adds and activations; and the totals compared with the plain baseline's. Nothing is computed, so any size
works. Settings that are not given are the network's own. For a saved network or a recipe, none can be given.

example: scalespaces info s_densenet --num-levels 3
"""

import argparse
import json
from pathlib import Path
from typing import Any

import scalespaces
from scalespaces._choices import METHODS, PRESETS, SCALE_PADDINGS, WINDOWS
from scalespaces._files import prepare, write_json
from scalespaces.cli import Parser, positive, sampling


def add_arguments(parser: Parser) -> None:
    parser.argument_default = argparse.SUPPRESS
    add = parser.add_argument
    about = "a name that `scalespaces models` lists, a saved network (.safetensors) or a recipe (.yaml)"
    add("model", metavar="MODEL", help=about)
    size = "channels, height and width of the image (default: those of the network's dataset, such as 3 96 96)"
    add("--input", type=positive, nargs=3, metavar=("C", "H", "W"), help=size)
    add("--json", nargs="?", const="-", metavar="FILE", help="write JSON to FILE; without FILE, print JSON, no table")
    add = parser.add_argument_group("network").add_argument
    about = "method, sampling and window; recommended: cascade, pyramid, dilated; paper: direct, dense, plain "
    add("--preset", choices=PRESETS, help=f"{about}(default: recommended)")
    add("--classes", type=positive, dest="num_classes", metavar="N", help="number of classes")
    add("--num-levels", type=positive, metavar="S", help="number of levels that are combined at the end")
    deep = "levels that filters span: one number for all, or one for each place where the paper's span several"
    add("--filter-levels", type=positive, nargs="+", metavar="K", help=deep)
    add("--scale-padding", choices=SCALE_PADDINGS, help="padding past the last level")
    add("--window", choices=WINDOWS, help="windows of the pooling layers: the equivariant ones, or the paper's")
    add = parser.add_argument_group("lift").add_argument
    add("--base", type=float, metavar="C", help="scale factor from one level to the next")
    add("--zero-scale", type=float, metavar="S0", help="blur that the image already has, as a variance")
    add("--method", choices=METHODS, help="cascade: the exact lift; direct: the paper's")
    add("--sampling", type=sampling, metavar="MODE", help="pyramid, dense, or a number of at least 1 for oversampling")
    add("--first-level", type=int, metavar="K", help="number of the first level; negative if finer than the image")


def run(args: argparse.Namespace) -> None:
    from scalespaces import models
    from scalespaces.models._registry import entry
    from scalespaces.nn._lift import ARGUMENTS

    said = {name: value for name, value in vars(args).items() if name not in ("run", "model")}
    path, given = said.pop("json", None), said.pop("input", None)
    name, said = _settings(args.model, said)
    found = entry(name)
    shape = tuple(given or (said.get("in_channels", found.input_shape[0]), *found.input_shape[1:]))
    said["lift"] = {**said.pop("lift", {}), **{name: said.pop(name) for name in ARGUMENTS if name in said}}
    if path not in (None, "-"):
        prepare(path)
    said["in_channels"] = shape[0]
    model = models.create_model(name, **said)
    if given is None:
        shape = (shape[0], *(max(n, model.smallest_side) for n in shape[1:]))
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
    print(f"{args.model}: {found.about if args.model == name else f'{name}, {found.about}'}\n{settings}\n")
    print(summary.table(name, others))
    print("\nshape: [levels, height, width, channels], at level 0; MiB: the outputs of all layers, float32, one image")
    if path is not None:
        write_json(path, document)
        print(f"\nwrote {path}")


def _settings(model: str, said: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name and the arguments of a network: those that were given, or those of a file."""
    file = Path(model)
    if file.suffix not in (".safetensors", ".yaml", ".yml"):
        if len(said.get("filter_levels", ())) == 1:
            said["filter_levels"] = said["filter_levels"][0]
        return model, said
    if said:
        got = ", ".join(f"--{name.replace('_', '-')}" for name in said)
        raise ValueError(f"{model!r} has its own settings; leave out {got}, or give the name of a network")
    if file.suffix == ".safetensors":
        from scalespaces import models

        config = dict(models.load(file).config)
        return config.pop("name"), config
    from scalespaces.train import load_recipe

    recipe = load_recipe(file, ["--data.root", "."])  # which is not read
    if recipe.model.name is None:
        raise ValueError(f"info knows networks by name, but {model!r} has no model.name")
    more: dict[str, Any] = {"preset": recipe.model.preset, "lift": recipe.model.lift}
    if recipe.data.num_classes is not None:
        more["num_classes"] = recipe.data.num_classes
    return recipe.model.name, more | recipe.model.arguments
