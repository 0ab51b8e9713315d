"""The command ``scalespaces``: one function that adds a subcommand's parser and one that runs it."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, get_args

import numpy as np
import torch
from torch import Tensor, nn

import scalespaces
from scalespaces import data, models
from scalespaces._files import prepare, replacing
from scalespaces.data import photograph, read_image
from scalespaces.data.fetch import BY_HAND, REMOTES
from scalespaces.data.make import refuse_existing
from scalespaces.functional.conv import SCALE_PADDINGS
from scalespaces.functional.grid import pad
from scalespaces.functional.lift import METHODS
from scalespaces.functional.pool import WINDOWS
from scalespaces.models.export import check_format
from scalespaces.models.registry import entry
from scalespaces.nn import Lift, ScaleConv2d
from scalespaces.plotting import check_writable, plot_equivariance
from scalespaces.testing import DOWNSCALINGS, EquivarianceTable, equivariance_error, translation_error
from scalespaces.theory import KERNELS, PaddingMode, check_base

_DOWNSCALED_BY = {"cascade": "D^l, the generator", "direct": "the paper's S", "pillow": "Pillow's bicubic resize"}


class _Parser(argparse.ArgumentParser):
    """Errors are one line, without the usage above it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Say the defaults, but not that something is absent by default."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        absent = action.default is None or action.default is False
        return action.help if absent else super()._get_help_string(action)


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
    parser = _Parser(prog="scalespaces", description=scalespaces.__doc__)
    parser.add_argument("--version", action="version", version=f"scalespaces {scalespaces.__version__}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    _add_equivariance(commands)
    _add_models(commands)
    _add_info(commands)
    _add_export(commands)
    _add_data(commands)
    return parser


# --- equivariance ----------------------------------------------------------------------------------------------------


def random_network(
    layers: int,
    *,
    in_channels: int = 3,
    channels: int = 8,
    filter_levels: int = 2,
    scale_padding: str = "zero",
    padding_mode: PaddingMode = "reflect",
    seed: int = 0,
    **lift_arguments: Any,
) -> nn.Sequential:
    """A lift and some layers of correlation and ReLU, with random weights after He: the paper's test of equivariance.

    Args:
        layers: number of correlations, each with filters of ``(filter_levels, 3, 3)`` and no bias.
        in_channels: channels of the image.
        channels: channels of every layer.
        filter_levels: levels of the filters; each layer sees that many less one past the level it computes.
        scale_padding: as in :class:`~scalespaces.nn.ScaleConv2d`.
        padding_mode: of the lift and of the layers.
        seed: of the weights; the global random state is left as it was.
        **lift_arguments: as in :class:`~scalespaces.nn.Lift`.

    Example:
        >>> random_network(2, num_levels=4)(torch.rand(1, 3, 16, 16)).stack().shape
        torch.Size([1, 8, 4, 16, 16])
    """
    modules: list[nn.Module] = [Lift(padding_mode=padding_mode, **lift_arguments)]
    paddings: dict[str, Any] = {"padding_mode": padding_mode, "scale_padding": scale_padding}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for layer in range(layers):
            width = channels if layer else in_channels
            modules += [ScaleConv2d(width, channels, (filter_levels, 3, 3), bias=False, **paddings), nn.ReLU()]
    return nn.Sequential(*modules)


def _add_equivariance(commands: Any) -> None:
    parser = commands.add_parser(
        "equivariance",
        help="measure how equivariant random networks are (the paper's figure)",
        description="Measure how far networks with random weights are from commuting with downscaling: the paper's "
        'figure "Equivariance quality". The defaults are the paper\'s settings.',
        formatter_class=_Help,
    )
    parser.set_defaults(run=_run_equivariance)
    add = parser.add_argument_group("image").add_argument
    add("--image", metavar="FILE", help="any image Pillow reads (default: a photograph that comes with the package)")
    add("--size", type=_positive, metavar="N", help="side of the centre crop, in pixels (default: all of the image)")
    add("--no-fit", action="store_true", help="do not extend the image to a size at which padding suits all scales")
    add = parser.add_argument_group("network").add_argument
    add("--layers", type=_positive, nargs="+", default=[1, 2, 3], metavar="L", help="one network for each number")
    add("--channels", type=_positive, default=16, metavar="N", help="channels of each layer")
    add("--filter-levels", type=_positive, default=2, metavar="N", help="levels of each filter")
    add(
        "--padding-mode",
        choices=get_args(PaddingMode),
        nargs="+",
        default=["reflect", "zeros"],
        help="what lies outside the image, for lift and layers; one or several",
    )
    add("--scale-padding", choices=SCALE_PADDINGS, default="zero", help="past the last level")
    add("--seed", type=_seed, default=0, metavar="N", help="of the weights")
    add("--double", action="store_true", help="compute in float64 instead of float32")
    add = parser.add_argument_group("lift").add_argument
    add("--levels", type=_positive, default=8, metavar="N", help="number of levels")
    add("--base", type=float, default=2.0, metavar="C", help="dilation between levels")
    add("--zero-scale", type=float, default=0.25, metavar="S0", help="blur the image comes with, a variance")
    add("--kernel", default="discrete_gaussian", metavar="NAME", help=f"one of {', '.join(KERNELS)}")
    add("--method", choices=METHODS, default="direct", help="the paper's lift, or the exact one")
    add("--sampling", type=_sampling, default="dense", metavar="MODE", help="dense, pyramid or oversampling, a number")
    add = parser.add_argument_group("measurement and output").add_argument
    add(
        "--downscaling",
        choices=DOWNSCALINGS,
        nargs="+",
        default=argparse.SUPPRESS,
        help="how the image is downscaled, one or several: cascade (D^l), direct (the paper's S) or pillow "
        "(a third party's resize) (default: as --method)",
    )
    add("--translations", action="store_true", help="measure equivariance to translations, too")
    add("--json", metavar="FILE", help="write the errors and settings there")
    add("--plot", metavar="FILE", help="draw the figure there: .png, .pdf, .svg ...")


@dataclass
class _Result:
    """One network, measured with one downscaling."""

    layers: int
    padding_mode: str
    downscaling: str
    boundary: int
    table: EquivarianceTable

    @property
    def mean_before(self) -> float:
        return float(np.mean(self.table.before(self.boundary)))

    @property
    def largest_behind(self) -> float | None:
        k, shift = np.array(self.table.levels), np.array(self.table.rows)[:, None]
        behind = self.table.errors[(k + shift >= self.boundary) & ~np.isnan(self.table.errors)]
        return float(behind.max()) if behind.size else None

    def to_json(self) -> dict[str, Any]:
        numbers = {name: getattr(self, name) for name in ("layers", "padding_mode", "downscaling", "boundary")}
        means = {"mean_before": self.mean_before, "largest_behind": self.largest_behind}
        return numbers | means | self.table.to_json()

    def __str__(self) -> str:
        behind = "nothing" if self.largest_behind is None else f"{self.largest_behind:.3e}"
        return (
            f"{_plural(self.layers)}, {self.padding_mode} padding, "
            f"image downscaled by {self.downscaling} ({_DOWNSCALED_BY[self.downscaling]})\n"
            f"{self.table}\n"
            f"mean error before the truncation boundary (k + l < {self.boundary}): {self.mean_before:.3e}; "
            f"largest behind it: {behind}\n"
        )


def _run_equivariance(args: argparse.Namespace) -> None:
    # Whatever can be wrong is found before the work begins.
    downscalings = list(dict.fromkeys(getattr(args, "downscaling", [args.method])))
    boundaries = [_boundary(args, layers) for layers in args.layers]
    if args.json is not None:
        prepare(args.json)
    if args.plot is not None:
        check_writable(args.plot)
    image = photograph(args.size) if args.image is None else read_image(args.image, args.size)
    _check_size(args, image)
    paddings = list(dict.fromkeys(args.padding_mode))
    networks = {(mode, n): _network(args, mode, n, image.shape[1]) for mode in paddings for n in args.layers}
    image, notes = _fit(args, image)
    image = image.double() if args.double else image
    print(_headline(args, image))
    for note in notes:
        print(f"note: {note}", file=sys.stderr)

    results, moves = [], []
    for (mode, layers), network in networks.items():
        what = f"{_plural(layers)}, {mode} padding"
        for downscaling in downscalings:
            with _progress(f"{what}, image downscaled by {downscaling}"):
                table = equivariance_error(network, image, downscaling=downscaling)
            results.append(_Result(layers, mode, downscaling, _boundary(args, layers), table))
            print(f"\n{results[-1]}", end="", flush=True)
        if args.translations:
            with _progress(f"{what}, image moved"):
                moves.append((layers, mode, translation_error(network, image)))
            print(f"\n{what}, image moved by pixels\n{moves[-1][-1]}", flush=True)

    if len(results) > 1:
        print(f"\n{_summary(results, downscalings)}")
    if args.json is not None:
        settings = {name: value for name, value in vars(args).items() if name not in ("run", "command", "json", "plot")}
        document = {
            "scalespaces": scalespaces.__version__,
            "settings": settings | {"downscaling": downscalings},
            "image_shape": list(image.shape),
            "equivariance": [result.to_json() for result in results],
            "translation": [{"layers": n, "padding_mode": mode, **table.to_json()} for n, mode, table in moves],
        }
        _write_json(args.json, document)
    if args.plot is not None:
        rows = {
            f"{mode} padding, {name}": [r.table for r in results if (r.padding_mode, r.downscaling) == (mode, name)]
            for mode in paddings
            for name in downscalings
        }
        columns = [_plural(layers) for layers in args.layers]
        title = f"Equivariance errors, {args.method} lift, sampling {args.sampling}"
        plot_equivariance(rows, args.plot, columns=columns, boundaries=boundaries, title=title)
        print(f"wrote {args.plot}")


def _summary(results: Sequence[_Result], downscalings: Sequence[str]) -> str:
    """Mean errors before the boundary: a row for each network, a column for each downscaling."""
    rows: dict[tuple[int, str], dict[str, float]] = {}
    for result in results:
        rows.setdefault((result.layers, result.padding_mode), {})[result.downscaling] = result.mean_before
    head = f"{'mean error before the boundary':30} | " + " ".join(f"{name:>9}" for name in downscalings)
    lines = [head, "-" * len(head)]
    for (layers, mode), means in rows.items():
        cells = " ".join(f"{means[name]:9.2e}" for name in downscalings)
        lines.append(f"{f'{_plural(layers)}, {mode} padding':30} | {cells}")
    return "\n".join(lines)


def _network(args: argparse.Namespace, padding_mode: PaddingMode, layers: int, in_channels: int) -> nn.Sequential:
    network = random_network(
        layers,
        in_channels=in_channels,
        channels=args.channels,
        filter_levels=args.filter_levels,
        scale_padding=args.scale_padding,
        padding_mode=padding_mode,
        seed=args.seed,
        num_levels=args.levels,
        base=args.base,
        zero_scale=args.zero_scale,
        kernel=args.kernel,
        method=args.method,
        sampling=args.sampling,
    )
    return network.double() if args.double else network


def _boundary(args: argparse.Namespace, layers: int) -> int:
    """The first k + l whose receptive field crosses the top of the scale-space."""
    boundary = args.levels - layers * (args.filter_levels - 1)
    if boundary < 2:
        raise ValueError(
            f"{_plural(layers)} of filters of {args.filter_levels} levels leave nothing to compare before the "
            f"truncation boundary of {args.levels} levels; use --levels {args.levels + 2 - boundary} or more"
        )
    return boundary


def _headline(args: argparse.Namespace, image: Tensor) -> str:
    name = "the bundled photograph" if args.image is None else args.image
    precision = "float64" if args.double else "float32"
    return (
        f"{name}, {image.shape[3]} x {image.shape[2]} pixels, {precision}\n"
        f"{args.method} lift to {args.levels} levels of base {args.base:g}, {args.kernel}, zero-scale "
        f"{args.zero_scale:g}, sampling {args.sampling}; layers of {args.channels} channels, filters of "
        f"{args.filter_levels} levels; scale padding {args.scale_padding}, seed {args.seed}"
    )


# --- export ----------------------------------------------------------------------------------------------------------


def _add_export(commands: Any) -> None:
    parser = commands.add_parser(
        "export",
        help="write a saved network as ONNX or for torch.export",
        description="Write a network that scalespaces.models.save wrote as ONNX (opset 18) or as a program of "
        "torch.export. Batch, height and width stay free for base 2 in pyramid sampling; otherwise they are fixed, and "
        "it says so. What was written is run on random images, in onnxruntime if it is ONNX, and only put in place if "
        "it computes what PyTorch does.",
        epilog="example: scalespaces export model.safetensors model.onnx --normalise",
    )
    parser.set_defaults(run=_run_export)
    add = parser.add_argument
    add("file", metavar="FILE", help="the network, .safetensors")
    add("out", metavar="OUT", help="what to write: .onnx or .pt2")
    add(
        "--model",
        metavar="MODULE:FUNCTION",
        help="for a converted network, what makes the model it was made of, as in torchvision.models:resnet18",
    )
    add = parser.add_argument_group("shapes").add_argument
    add(
        "--size",
        type=_positive,
        nargs=2,
        metavar=("H", "W"),
        help="height and width where they are fixed (default: the paper's for its networks, else 224 224)",
    )
    add("--batch", type=_positive, default=1, metavar="N", help="number of images where it is fixed (default: 1)")
    add("--static", action="store_true", help="fix batch, height and width in any case")
    add = parser.add_argument_group("graph").add_argument
    add("--levels", action="store_true", help="also put out every level (of a converted network, instead of the pool)")
    add("--normalise", action="store_true", help="take raw images: put the normalisation in the file into the graph")


def _run_export(args: argparse.Namespace) -> None:
    check_format(args.out)
    network: Any = models.load(args.file, None if args.model is None else _make(args.model))
    card = models.Card.of(network)
    if card.mean and not args.normalise:
        print("note: images must come in normalised; --normalise puts it into the graph", file=sys.stderr)
    with _progress(f"exporting to {args.out}"):
        exported = models.export(
            network,
            args.out,
            size=args.size,
            batch=args.batch,
            static=args.static,
            levels=args.levels,
            normalise=args.normalise,
        )
    for note in exported.notes:
        print(f"note: {note}", file=sys.stderr)
    print(f"wrote {exported}")


def _make(place: str) -> nn.Module:
    """The model that a function of no arguments makes."""
    module, _, name = place.partition(":")
    try:
        model = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(
            f"--model names a function of no arguments, MODULE:FUNCTION, got {place!r}: {error}"
        ) from error
    if not isinstance(model, nn.Module):
        raise ValueError(f"--model names what makes an nn.Module, got {place!r}, a {type(model).__name__}")
    return model


# --- images ----------------------------------------------------------------------------------------------------------


def _check_size(args: argparse.Namespace, image: Tensor) -> None:
    """The last level must have two samples left along each axis; moved images, a pixel more to move by."""
    check_base(args.base)
    room = min(image.shape[2:]) - (2 if args.translations else 1)
    levels = 1
    while levels < args.levels and args.base**levels <= room:
        levels += 1
    if levels < args.levels:
        raise ValueError(
            f"{args.levels} levels of base {args.base:g} are too many for an image of {image.shape[3]} x "
            f"{image.shape[2]} pixels; use --levels {levels} at most, or a larger image"
        )


def _fit(args: argparse.Namespace, image: Tensor) -> tuple[Tensor, list[str]]:
    """The image at a size where padding is the same at all scales, and what to say about it.

    Reflection at the last pixel is reflection at every level if that pixel belongs to all of them: if the side is 1
    modulo ``base ** (levels - 1)``. For circular padding it must be 0. Otherwise borders add to the errors.
    """
    rests = {{"reflect": 1, "replicate": 1, "circular": 0}[mode] for mode in args.padding_mode if mode != "zeros"}
    exact = args.method == "cascade" and args.sampling == "pyramid"
    period = args.base ** (args.levels - 1)
    if not rests or exact or args.base != round(args.base):
        return image, []
    rest, sides = max(rests), image.shape[2:]
    larger = [int(n + (rest - n) % period) for n in sides]
    if all(new == n for new, n in zip(larger, sides, strict=True)) and len(rests) == 1:
        return image, []
    if not args.no_fit and len(rests) == 1 and all(8 * (new - n) <= n for new, n in zip(larger, sides, strict=True)):
        image = pad(image, [(0, new - n) for new, n in zip(larger, sides, strict=True)], "reflect")
        return image, [
            f"the image is extended by reflection from {sides[1]} x {sides[0]} to {larger[1]} x {larger[0]} pixels, "
            f"so that its borders are the same at all scales (side {rest} modulo {period:g}); --no-fit leaves it"
        ]
    smaller = int((min(sides) - rest) // period * period + rest)
    return image, [
        "padding adds errors at the borders, because the levels end at different pixels; they vanish for sides that "
        f"leave {rest} when divided by {period:g}" + (f": try --size {smaller}" if smaller >= period else "")
    ]


# --- models and what they cost ---------------------------------------------------------------------------------------


def _add_models(commands: Any) -> None:
    parser = commands.add_parser("models", help="list the networks", description="List the networks by name.")
    parser.set_defaults(run=_run_models)
    parser.add_argument("pattern", nargs="?", default="*", metavar="PATTERN", help="names that match, as in 's_*'")


def _run_models(args: argparse.Namespace) -> None:
    names = models.list(args.pattern)
    if not names:
        raise ValueError(f"no model matches {args.pattern!r}; there are {', '.join(models.list())}")
    width = max(map(len, names))
    for name in names:
        print(f"{name:{width}}  {entry(name).about}")


def _add_info(commands: Any) -> None:
    parser = commands.add_parser(
        "info",
        help="what a network costs, layer by layer (the paper's tables)",
        description="Print a network's table, layer by layer: the shape of the output as [levels, height, width, "
        "channels], parameters, multiply-adds and activations; and the totals beside those of the plain baseline. "
        "Nothing is computed, so any size will do. What is not said is as in the paper.",
        argument_default=argparse.SUPPRESS,
    )
    parser.set_defaults(run=_run_info)
    parser.add_argument("model", metavar="MODEL", help="a name that `scalespaces models` lists")
    parser.add_argument(
        "--input",
        type=_positive,
        nargs=3,
        metavar=("C", "H", "W"),
        help="channels, height and width of the image (default: the paper's, 3 96 96 or 3 992 992)",
    )
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="write JSON there; without FILE, print it and no table"
    )
    add = parser.add_argument_group("network").add_argument
    add("--classes", type=_positive, dest="num_classes", metavar="N", help="number of classes")
    add("--levels", type=_positive, dest="num_levels", metavar="S", help="levels that are pooled in the end")
    add(
        "--filter-levels",
        type=_positive,
        nargs="+",
        metavar="K",
        help="levels of the filters where the paper's are deep, or one number for every place",
    )
    add("--scale-padding", choices=SCALE_PADDINGS, help="past the last level")
    add("--window", choices=WINDOWS, help="windows of the poolings")
    add = parser.add_argument_group("lift").add_argument
    add("--base", type=float, metavar="C", help="dilation between levels")
    add("--zero-scale", type=float, metavar="S0", help="blur the image comes with, a variance")
    add("--method", choices=METHODS, help="the paper's lift, or the exact one")
    add("--sampling", type=_sampling, metavar="MODE", help="dense, pyramid or oversampling, a number")
    add("--first-level", type=int, metavar="K", help="number of the first level; negative for finer ones")


def _run_info(args: argparse.Namespace) -> None:
    found = entry(args.model)
    shape = tuple(getattr(args, "input", found.input_shape))
    said = {
        name: value for name, value in vars(args).items() if name not in ("run", "command", "model", "input", "json")
    }
    if len(said.get("filter_levels", ())) == 1:
        said["filter_levels"] = said["filter_levels"][0]
    path = getattr(args, "json", None)
    if path not in (None, "-"):
        prepare(path)
    model = models.create(args.model, in_channels=shape[0], **said)
    summary, others = models.summarise(model, shape), {}
    if found.baseline is not None:
        classes = model.config["num_classes"]
        plain = models.create(found.baseline, in_channels=shape[0], num_classes=classes)
        others[found.baseline] = models.summarise(plain, shape)
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
    settings = ", ".join(f"{key} {value}" for key, value in model.config.items() if key != "name" and value is not None)
    print(f"{args.model}: {found.about}\n{settings}\n")
    print(summary.table(args.model, others))
    print("\nshape: [levels, height, width, channels], at level 0; MiB: the outputs of all layers, float32, one image")
    if path is not None:
        _write_json(path, document)


# --- data ------------------------------------------------------------------------------------------------------------


def _add_data(commands: Any) -> None:
    parser = commands.add_parser(
        "data",
        help="download, make and check datasets",
        description="Download, make and check datasets (extra train).",
    )
    parser.set_defaults(run=lambda _: parser.print_help())
    tasks = parser.add_subparsers(dest="task", metavar="TASK", title="tasks")
    _add_data_fetch(tasks)
    _add_data_make(tasks)
    _add_data_check(tasks)
    _add_data_repack(tasks)


def _add_data_fetch(tasks: Any) -> None:
    parser = tasks.add_parser(
        "fetch",
        help="download a dataset",
        description="Download a dataset and check its checksums. What is there already stays; a download that was "
        "broken off goes on where it stopped. Without NAME, list what there is.",
        epilog="example: scalespaces data fetch mnist --to data/mnist",
    )
    parser.set_defaults(run=_run_data_fetch)
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", help="the dataset")
    add("--to", metavar="FOLDER", help="where the files go (default: data/NAME)")
    add("--mirror", metavar="URL", help="folder on another server with the same files")
    add("--force", action="store_true", help="replace what is there with another checksum")


def _run_data_fetch(args: argparse.Namespace) -> None:
    if args.name is None:
        width = max(map(len, [*REMOTES, *BY_HAND]))
        for name, about in {**{name: remote.about for name, remote in REMOTES.items()}, **BY_HAND}.items():
            print(f"{name:{width}}  {about}")
        return
    folder = args.to or f"data/{args.name}"
    files = data.fetch(args.name, folder, mirror=args.mirror, force=args.force)
    print(f"{folder} has {', '.join(file.name for file in files)}")


def _add_data_make(tasks: Any) -> None:
    parser = tasks.add_parser(
        "make",
        help="make scale sets, or synthetic data in the formats of PCam and Cityscapes",
        description="Make data on the spot: sets with many scales or with unseen ones, of MNIST or of the digits that "
        "come with scikit-learn; or small synthetic data in the formats of PCam and Cityscapes, to try things out.",
    )
    parser.set_defaults(run=lambda _: parser.print_help())
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", title="kinds")

    def kind(name: str, run: Any, help: str, out: str, example: str) -> Any:
        one = kinds.add_parser(name, help=help, description=f"{help}.", epilog=example, formatter_class=_Help)
        one.set_defaults(run=run)
        one.add_argument("out", metavar="OUT", help=out)
        one.add_argument("--force", action="store_true", help="overwrite what is there")
        return one.add_argument

    example = "example: scalespaces data make mnist-scale data/mnist-scale --source data/mnist"
    add = kind("mnist-scale", _run_mnist_scale, "MNIST-scale as SESN made it", "folder, one in it per seed", example)
    _add_source(add, "10000 2000 50000")
    add("--seeds", type=_seed, nargs="+", default=[0, 1, 2, 3, 4, 5], metavar="N", help="one realisation for each")
    add("--scales", type=float, nargs=2, default=[0.3, 1.0], metavar=("LOW", "HIGH"), help="drawn uniformly between")

    example = "example: scalespaces data make unseen-scale data/unseen --train 1 --tests 0.5 1 2 4 8 --canvas 112"
    add = kind("unseen-scale", _run_unseen_scale, "Train at one scale, test at others", "folder", example)
    _add_source(add, "50000 10000 10000")
    add("--train", type=_span, default=1.0, metavar="SCALE", help="of the images trained with; LOW-HIGH for a range")
    add(
        "--tests",
        type=_span,
        nargs="+",
        default=[0.5, 1.0, 2.0, 4.0],
        metavar="SCALE",
        help="of each test set, relative to the source's pixels; LOW-HIGH for a range",
    )
    add("--canvas", type=_positive, metavar="N", help="side of the images (default: four times the source's)")
    add("--place", choices=("centre", "random"), default="centre", help="where on the canvas")
    add("--seed", type=_seed, default=0, metavar="N", help="of the split, the scales and the places")

    example = "example: scalespaces data make pcam data/synthetic-pcam --train 2000"
    add = kind("pcam", _run_make_pcam, "Synthetic patches in PCam's HDF5 files", "folder", example)
    for split, number in (("train", 512), ("valid", 128), ("test", 128)):
        add(f"--{split}", type=_positive, default=number, metavar="N", help="number of patches")
    add("--gzip", action="store_true", help="compress the patches in the files")
    add("--seed", type=_seed, default=0, metavar="N", help="of the patches")

    example = "example: scalespaces data make cityscapes data/synthetic-cityscapes --size 256 512"
    add = kind("cityscapes", _run_make_cityscapes, "Synthetic scenes in Cityscapes' tree", "folder", example)
    for split, number in (("train", 16), ("val", 4), ("test", 4)):
        add(f"--{split}", type=_positive, default=number, metavar="N", help="number of scenes")
    add("--size", type=_positive, nargs=2, default=[1024, 2048], metavar=("H", "W"), help="of the scenes")
    add("--seed", type=_seed, default=0, metavar="N", help="of the scenes")


def _add_source(add: Any, counts: str) -> None:
    add("--source", default="digits", metavar="FOLDER", help="MNIST's files, or digits for scikit-learn's")
    add(
        "--counts",
        type=_positive,
        nargs=3,
        metavar=("TRAIN", "VALID", "TEST"),
        help=f"images of each split (default: {counts}, or in these proportions of a smaller source)",
    )


def _run_mnist_scale(args: argparse.Namespace) -> None:
    folders = [Path(args.out, f"seed_{seed}") for seed in args.seeds]
    refuse_existing(folders, args.force)
    images, labels = data.source_images(args.source)
    for seed, folder in zip(args.seeds, folders, strict=True):
        sets = data.mnist_scale(images, labels, seed, counts=args.counts, scales=tuple(args.scales))
        _say_written(data.write_sets(folder, sets, force=args.force))


def _run_unseen_scale(args: argparse.Namespace) -> None:
    refuse_existing(list(Path(args.out).glob("*-images-idx3-ubyte*")), args.force)
    images, labels = data.source_images(args.source)
    canvas = args.canvas or 4 * images.shape[-1]
    options: dict[str, Any] = {"place": args.place, "counts": args.counts, "seed": args.seed}
    sets = data.unseen_scales(images, labels, args.train, args.tests, canvas=canvas, **options)
    _say_written(data.write_sets(args.out, sets, force=args.force))


def _run_make_pcam(args: argparse.Namespace) -> None:
    counts = {split: getattr(args, split) for split in ("train", "valid", "test")}
    _say_written(data.make_pcam(args.out, counts, seed=args.seed, compress=args.gzip, force=args.force))


def _run_make_cityscapes(args: argparse.Namespace) -> None:
    counts = {split: getattr(args, split) for split in ("train", "val", "test")}
    _say_written(data.make_cityscapes(args.out, counts, size=tuple(args.size), seed=args.seed, force=args.force))


def _say_written(files: Sequence[Path]) -> None:
    print(f"wrote {len(files)} files, from {files[0]} to {files[-1]}")


def _add_data_check(tasks: Any) -> None:
    parser = tasks.add_parser(
        "check",
        help="say what a dataset holds, and what is wrong where",
        description="Read all of a dataset and say what it holds and what is wrong where: files that are missing or "
        "cannot be read, sizes that do not fit, labels out of range. Known are PCam's HDF5 files, Cityscapes' tree, "
        "IDX files, a folder images beside a folder masks, images with a CSV file (columns id and label), a folder for "
        "each class, and single files. The exit code is 2 if anything is wrong.",
        epilog="example: scalespaces data check data/pcam",
    )
    parser.set_defaults(run=_run_data_check)
    add = parser.add_argument
    add("path", metavar="PATH", help="file or folder")
    add("--labels", metavar="CSV", help="labels of the images in the folder (default: a CSV file in it or beside it)")
    add("--classes", type=_positive, metavar="N", help="number of classes; labels must be below")


def _run_data_check(args: argparse.Namespace) -> None:
    report = data.check(args.path, table=args.labels, num_classes=args.classes)
    print(report)
    if report.problems:
        problems = "1 problem" if len(report.problems) == 1 else f"{len(report.problems)} problems"
        raise ValueError(f"{problems} in {args.path}")


def _add_data_repack(tasks: Any) -> None:
    parser = tasks.add_parser(
        "repack",
        help="rewrite PCam's patches plain, to be read at random faster",
        description="Rewrite the patches of an HDF5 file plain: reading one of many that are compressed together "
        "unpacks them all.",
    )
    parser.set_defaults(run=_run_data_repack)
    parser.add_argument("file", metavar="FILE", help="camelyonpatch_level_2_split_*_x.h5")
    parser.add_argument("out", metavar="OUT", help="what to write")
    parser.add_argument("--force", action="store_true", help="overwrite it")


def _run_data_repack(args: argparse.Namespace) -> None:
    data.repack(args.file, args.out, force=args.force)
    print(f"wrote {args.out}")


def _span(text: str) -> float | tuple[float, float]:
    low, dash, high = text.partition("-")
    try:
        return (float(low), float(high)) if dash else float(low)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, or two with a dash between, got {text!r}") from None


# --- small things ----------------------------------------------------------------------------------------------------


class _progress:
    """Say on stderr what is going on, and how long it took."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        self.start = time.perf_counter()
        print(f"{self.what} ...", file=sys.stderr, flush=True)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            print(f"{self.what}: {time.perf_counter() - self.start:.1f} s", file=sys.stderr, flush=True)


def _write_json(path: str, document: dict[str, Any]) -> None:
    with replacing(path) as draft:
        draft.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    print(f"\nwrote {path}")


def _plural(layers: int) -> str:
    return f"{layers} layer{'' if layers == 1 else 's'}"


def _positive(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def _seed(text: str) -> int:
    if not text.strip().isdecimal() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 to 2**63 - 1, got {text!r}")
    return int(text)


def _sampling(text: str) -> str | float:
    if text in ("dense", "pyramid"):
        return text
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected dense, pyramid or a number >= 1, got {text!r}") from None
