"""Measure how far networks with random weights are from exact scale equivariance, as in the paper's figure
"Equivariance quality". The lift (from the image to its levels) is the recommended one; --preset paper measures as the
paper does.

example: scalespaces equivariance --preset paper --plot equivariance.png
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, get_args

import scalespaces
from scalespaces._choices import DOWNSCALINGS, METHODS, PAPER, PRESETS, SCALE_PADDINGS
from scalespaces._files import prepare, write_json
from scalespaces.cli import Parser, positive, progress, sampling, seed
from scalespaces.theory._arguments import PaddingMode
from scalespaces.theory._kernels import KERNELS
from scalespaces.theory._scale import check_base

if TYPE_CHECKING:
    from torch import Tensor

_NETWORK = ("channels", "filter_levels", "scale_padding", "seed", "base", "zero_scale", "kernel", "method", "sampling")
_DOWNSCALED_BY = {"cascade": "D^l, the generator", "direct": "the paper's S", "pillow": "Pillow's bicubic resize"}


def add_arguments(parser: Parser) -> None:
    add = parser.add_argument_group("image").add_argument
    about = "PNG, JPEG, TIFF, BMP, WebP or PPM (default: a photograph that comes with scalespaces)"
    add("--image", metavar="FILE", help=about)
    add("--size", type=positive, metavar="N", help="side of the center crop, in pixels (default: the whole image)")
    add("--no-fit", action="store_true", help="do not extend the image to a size that suits the padding at all scales")
    add = parser.add_argument_group("network").add_argument
    add("--layers", type=positive, nargs="+", default=[1, 2, 3], metavar="L", help="number of layers of each network")
    add("--channels", type=positive, default=16, metavar="N", help="channels of each layer")
    add("--filter-levels", type=positive, default=2, metavar="N", help="levels that each filter spans")
    modes, default = get_args(PaddingMode), ["reflect", "zeros"]
    about = f"padding outside the image, one or more of {', '.join(modes)}"
    add("--padding-mode", choices=modes, nargs="+", default=default, metavar="MODE", help=about)
    add("--scale-padding", choices=SCALE_PADDINGS, default="zeros", help="padding past the last level")
    add("--seed", type=seed, default=0, metavar="N", help="random seed for the weights")
    add("--double", action="store_true", help="compute in float64 instead of float32")
    add = parser.add_argument_group("lift").add_argument
    add("--num-levels", type=positive, default=8, metavar="N", help="number of levels")
    add("--base", type=float, default=2.0, metavar="C", help="scale factor from one level to the next")
    add("--zero-scale", type=float, default=0.25, metavar="S0", help="blur that the image already has, as a variance")
    add("--kernel", default="discrete_gaussian", metavar="NAME", help=f"blur kernel, one of {', '.join(KERNELS)}")
    about = "method and sampling; recommended: cascade, pyramid; paper: direct, dense"
    add("--preset", choices=PRESETS, default="recommended", help=about)
    add("--method", choices=METHODS, help="cascade: the exact lift; direct: the paper's (default: as --preset)")
    about = "pyramid, dense, or a number of at least 1 for oversampling (default: as --preset)"
    add("--sampling", type=sampling, metavar="MODE", help=about)
    add = parser.add_argument_group("measurement and output").add_argument
    about = "how images are downscaled, one or more of cascade (repeated steps of the lift), direct (the paper's), "
    about += "pillow (Pillow's resize) (default: as --method)"
    add("--downscaling", choices=DOWNSCALINGS, nargs="+", default=argparse.SUPPRESS, metavar="HOW", help=about)
    add("--translations", action="store_true", help="also measure equivariance to translations")
    add("--json", metavar="FILE", help="write the errors and settings to this file")
    add("--plot", metavar="FILE", help="draw the figure into this file: .png, .pdf, .svg ...")


def run(args: argparse.Namespace) -> None:
    import torch

    from scalespaces.data import photograph, read_image
    from scalespaces.models._convnet import random_network
    from scalespaces.nn._lift import ARGUMENTS
    from scalespaces.plotting import check_writable, plot_equivariance
    from scalespaces.testing import equivariance_error, translation_error
    from scalespaces.testing._table import error_text

    # Everything that can be wrong is found before the work begins.
    for name, value in PAPER.items():
        if getattr(args, name) is None:
            setattr(args, name, value if args.preset == "paper" else ARGUMENTS[name])
    args.downscaling = list(dict.fromkeys(getattr(args, "downscaling", [args.method])))
    image = photograph(args.size) if args.image is None else read_image(args.image, args.size)
    _check_levels(args, image)
    if args.json is not None:
        prepare(args.json)
    if args.plot is not None:
        check_writable(args.plot)
    dtype = torch.float64 if args.double else torch.float32
    settings = {name: getattr(args, name) for name in _NETWORK} | {"num_levels": args.num_levels}
    networks = {
        (mode, layers): random_network(layers, in_channels=image.shape[1], padding_mode=mode, **settings).to(dtype)
        for mode in args.padding_mode
        for layers in args.layers
    }
    image, note = _fit(args, image.to(dtype))
    print(
        f"{args.image or 'the bundled photograph'}, {image.shape[3]} x {image.shape[2]} pixels, {str(dtype)[6:]}\n"
        f"{args.method} lift to {args.num_levels} levels of base {args.base:g}, {args.kernel}, zero-scale "
        f"{args.zero_scale:g}, sampling {args.sampling}; layers of {args.channels} channels, filters of "
        f"{args.filter_levels} levels; scale padding {args.scale_padding}, seed {args.seed}"
    )
    if note:
        print(f"note: {note}", file=sys.stderr)

    means, results, moves, drawn = {}, [], [], {}
    for (mode, layers), network in networks.items():
        what, key = f"{_plural(layers)}, {mode} padding", {"layers": layers, "padding_mode": mode}
        for downscaling in args.downscaling:
            with progress(f"{what}, image downscaled by {downscaling}"):
                table = equivariance_error(network, image, downscaling=downscaling)
            mean, past = float(table.before().mean()), table.errors[table.past()]
            behind = float(past.max()) if past.size else None
            print(
                f"\n{what}, image downscaled by {downscaling} ({_DOWNSCALED_BY[downscaling]})\n{table}\n"
                f"mean error before the truncation boundary (k + l < {table.boundary}): {mean:.3e}; "
                f"largest behind it: {'nothing' if behind is None else f'{behind:.3e}'}",
                flush=True,
            )
            means.setdefault(f"{what:30}", []).append(mean)
            drawn.setdefault(f"{mode} padding, {downscaling}", []).append(table)
            numbers = {"boundary": table.boundary, "mean_before": mean, "largest_behind": behind}
            results.append({**key, "downscaling": downscaling, **numbers, **table.to_json()})
        if args.translations:
            with progress(f"{what}, image moved"):
                table = translation_error(network, image)
            print(f"\n{what}, image moved by pixels\n{table}", flush=True)
            moves.append({**key, **table.to_json()})

    if len(results) > 1:
        print("\n" + error_text(f"{'mean error before the boundary':30}", args.downscaling, means.items()))
    if args.json is not None:
        document = {
            "scalespaces": scalespaces.__version__,
            "settings": {n: v for n, v in vars(args).items() if n not in ("run", "command", "json", "plot")},
            "image_shape": list(image.shape),
            "equivariance": results,
            "translation": moves,
        }
        write_json(args.json, document)
        print(f"\nwrote {args.json}")
    if args.plot is not None:
        title = f"Equivariance errors, {args.method} lift, sampling {args.sampling}"
        plot_equivariance(drawn, args.plot, columns=[*map(_plural, args.layers)], title=title)
        print(f"wrote {args.plot}")


def _check_levels(args: argparse.Namespace, image: Tensor) -> None:
    """Two levels must see nothing past the last one; the last must have two samples along each axis, also if moved."""
    from scalespaces.functional._lift import most_levels

    needed = 2 + max(args.layers) * (args.filter_levels - 1)
    if args.num_levels < needed:
        cause = f"{_plural(max(args.layers))} of filters of {args.filter_levels} levels leave nothing to compare"
        way = f"before the truncation boundary of {args.num_levels} levels; use --num-levels {needed} or more"
        raise ValueError(f"{cause} {way}")
    most = most_levels(tuple(n - args.translations for n in image.shape[2:]), check_base(args.base))
    if most < args.num_levels:
        size = f"{image.shape[3]} x {image.shape[2]} pixels; use --num-levels {most} at most, or a larger image"
        raise ValueError(f"{args.num_levels} levels of base {args.base:g} are too many for an image of {size}")


def _fit(args: argparse.Namespace, image: Tensor) -> tuple[Tensor, str]:
    """The image, extended to a size at which borders look the same at all scales if that is near; and a note."""
    from scalespaces.testing._equivariance import extended

    rests = {int(mode != "circular") for mode in args.padding_mode if mode != "zeros"}
    if not rests or (args.method, args.sampling) == ("cascade", "pyramid") or not args.base.is_integer():
        return image, ""
    rest, period = max(rests), int(args.base) ** (args.num_levels - 1)
    larger, side = extended(image, period, rest), min(image.shape[2:])
    if len(rests) == 1 and larger.shape == image.shape:
        return image, ""
    near = all(8 * new <= 9 * n for new, n in zip(larger.shape, image.shape, strict=True))
    if near and len(rests) == 1 and not args.no_fit:
        sizes = [f"{x.shape[3]} x {x.shape[2]}" for x in (image, larger)]
        why = f"so that its borders are the same at all scales (side {rest} modulo {period})"
        how = f"extended by reflection from {' to '.join(sizes)} pixels, {why}"
        return larger, f"the image is {how}; --no-fit keeps the original"
    smaller = side - (side - rest) % period
    note = "padding adds errors at the borders, because the levels end at different pixels; they vanish for sides "
    note += f"that leave {rest} when divided by {period}"
    return image, note + (f": try --size {smaller}" if smaller >= period else "")


def _plural(layers: int) -> str:
    return f"{layers} layer{'s' * (layers > 1)}"
