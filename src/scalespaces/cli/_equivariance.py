"""``scalespaces equivariance``: how far random networks are from commuting with downscaling."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from torch import Tensor, nn

import scalespaces
from scalespaces._files import prepare
from scalespaces.cli._arguments import Help, Parser, positive, sampling, seed
from scalespaces.cli._output import progress, write_json
from scalespaces.data import photograph, read_image
from scalespaces.functional._conv import SCALE_PADDINGS
from scalespaces.functional._lift import METHODS, most_levels
from scalespaces.functional._sampling import pad
from scalespaces.models._random import random_network
from scalespaces.models._registry import PRESETS
from scalespaces.nn._lift import ARGUMENTS, PAPER
from scalespaces.plotting import check_writable, plot_equivariance
from scalespaces.testing import EquivarianceTable, equivariance_error, translation_error
from scalespaces.testing._moves import DOWNSCALINGS
from scalespaces.theory._kernels import KERNELS
from scalespaces.theory._padding import PaddingMode
from scalespaces.theory._scale import check_base

_LIFTS = {"recommended": {name: ARGUMENTS[name] for name in PAPER}, "paper": PAPER}
_DOWNSCALED_BY = {"cascade": "D^l, the generator", "direct": "the paper's S", "pillow": "Pillow's bicubic resize"}


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments."""
    parser = Parser(
        prog="scalespaces equivariance",
        description="Measure how far networks with random weights are from commuting with downscaling: the paper's "
        'figure "Equivariance quality". The lift is the recommended one; --preset paper draws the paper\'s figure.',
        formatter_class=Help,
    )
    parser.set_defaults(run=_run)
    add = parser.add_argument_group("image").add_argument
    add("--image", metavar="FILE", help="any image Pillow reads (default: a photograph that comes with the package)")
    add("--size", type=positive, metavar="N", help="side of the center crop, in pixels (default: all of the image)")
    add("--no-fit", action="store_true", help="do not extend the image to a size at which padding suits all scales")
    add = parser.add_argument_group("network").add_argument
    add("--layers", type=positive, nargs="+", default=[1, 2, 3], metavar="L", help="one network for each number")
    add("--channels", type=positive, default=16, metavar="N", help="channels of each layer")
    add("--filter-levels", type=positive, default=2, metavar="N", help="levels of each filter")
    add(
        "--padding-mode",
        choices=get_args(PaddingMode),
        nargs="+",
        default=["reflect", "zeros"],
        help="what lies outside the image, for lift and layers; one or several",
    )
    add("--scale-padding", choices=SCALE_PADDINGS, default="zeros", help="past the last level")
    add("--seed", type=seed, default=0, metavar="N", help="of the weights")
    add("--double", action="store_true", help="compute in float64 instead of float32")
    add = parser.add_argument_group("lift").add_argument
    add("--levels", type=positive, default=8, metavar="N", help="number of levels")
    add("--base", type=float, default=2.0, metavar="C", help="dilation between levels")
    add("--zero-scale", type=float, default=0.25, metavar="S0", help="blur the image comes with, a variance")
    add("--kernel", default="discrete_gaussian", metavar="NAME", help=f"one of {', '.join(KERNELS)}")
    add("--preset", choices=PRESETS, default="recommended", help="recommended: cascade, pyramid; paper: direct, dense")
    add("--method", choices=METHODS, help="the exact lift, or the paper's (default: as --preset)")
    add(
        "--sampling",
        type=sampling,
        metavar="MODE",
        help="pyramid, dense or oversampling, a number (default: as --preset)",
    )
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
    return parser.parse_args(words)


@dataclass
class _Result:
    """One network, measured with one downscaling."""

    layers: int
    padding_mode: str
    downscaling: str
    table: EquivarianceTable

    @property
    def boundary(self) -> int:
        return self.table.boundary

    @property
    def mean_before(self) -> float:
        return float(np.mean(self.table.before()))

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


def _run(args: argparse.Namespace) -> None:
    # Whatever can be wrong is found before the work begins.
    for name, value in _LIFTS[args.preset].items():
        setattr(args, name, value if getattr(args, name) is None else getattr(args, name))
    downscalings = list(dict.fromkeys(getattr(args, "downscaling", [args.method])))
    _check_reach(args)
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
            with progress(f"{what}, image downscaled by {downscaling}"):
                table = equivariance_error(network, image, downscaling=downscaling)
            results.append(_Result(layers, mode, downscaling, table))
            print(f"\n{results[-1]}", end="", flush=True)
        if args.translations:
            with progress(f"{what}, image moved"):
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
        write_json(args.json, document)
    if args.plot is not None:
        rows = {
            f"{mode} padding, {name}": [r.table for r in results if (r.padding_mode, r.downscaling) == (mode, name)]
            for mode in paddings
            for name in downscalings
        }
        columns = [_plural(layers) for layers in args.layers]
        title = f"Equivariance errors, {args.method} lift, sampling {args.sampling}"
        plot_equivariance(rows, args.plot, columns=columns, title=title)
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


def _check_reach(args: argparse.Namespace) -> None:
    """Two levels must see nothing past the last one, to be compared."""
    layers = max(args.layers)
    needed = 2 + layers * (args.filter_levels - 1)
    if args.levels < needed:
        raise ValueError(
            f"{_plural(layers)} of filters of {args.filter_levels} levels leave nothing to compare before the "
            f"truncation boundary of {args.levels} levels; use --levels {needed} or more"
        )


def _headline(args: argparse.Namespace, image: Tensor) -> str:
    name = "the bundled photograph" if args.image is None else args.image
    precision = "float64" if args.double else "float32"
    return (
        f"{name}, {image.shape[3]} x {image.shape[2]} pixels, {precision}\n"
        f"{args.method} lift to {args.levels} levels of base {args.base:g}, {args.kernel}, zero-scale "
        f"{args.zero_scale:g}, sampling {args.sampling}; layers of {args.channels} channels, filters of "
        f"{args.filter_levels} levels; scale padding {args.scale_padding}, seed {args.seed}"
    )


def _check_size(args: argparse.Namespace, image: Tensor) -> None:
    """The last level must have two samples left along each axis; moved images, a pixel more to move by."""
    moved = [n - 1 if args.translations else n for n in image.shape[2:]]
    levels = most_levels(tuple(moved), check_base(args.base))
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


def _plural(layers: int) -> str:
    return f"{layers} layer{'' if layers == 1 else 's'}"
