"""A first look at scalespaces: lift a photograph, run a network on it, and see how equivariant it is.

Run it with ``python examples/demo.py --out out``; it takes about half a minute and writes two pictures.
"""

import argparse
import time
from pathlib import Path

import torch
from torch import nn

from scalespaces import ScaleSpace, equivariance_error, lift
from scalespaces.data import photograph
from scalespaces.nn import Lift, ScaleConv2d
from scalespaces.plotting import plot_equivariance, plot_scale_space

LEVELS = 8  # of the scale-spaces, as in the paper's figure
WIDTH = 16  # channels of each layer


def network(layers: int, method: str, sampling: str = "dense") -> nn.Sequential:
    """A lift, then scale-space correlations with filters of 2 levels and ReLUs; the weights are random."""
    torch.manual_seed(0)
    modules: list[nn.Module] = [Lift(LEVELS, method=method, sampling=sampling)]
    for channels in [3, *[WIDTH] * (layers - 1)]:
        modules += [ScaleConv2d(channels, WIDTH, (2, 3, 3), bias=False, padding_mode="reflect"), nn.ReLU()]
    return nn.Sequential(*modules)


def draw_scale_spaces(path: Path) -> None:
    """The levels of the photograph, at every pixel (the paper) and on a pyramid of ever coarser grids."""
    image = photograph()
    spaces = {
        "dense": lift(image, num_levels=5),
        "pyramid": lift(image, num_levels=5, sampling="pyramid"),
    }
    plot_scale_space(spaces, path, zero_scale=0.25, title="One photograph, five levels of scale")


def run_network(sampling: str) -> tuple[ScaleSpace, float]:
    """What a network of three layers makes of the photograph, and how many seconds it takes."""
    model, image = network(3, "cascade", sampling), photograph()
    start = time.perf_counter()
    with torch.no_grad():
        return model(image), time.perf_counter() - start


def draw_equivariance(path: Path) -> None:
    """The paper's figure: downscale the image or its features, and compare, for 1, 2 and 3 layers."""
    # Reflected borders look the same at all scales if the side is 1 more than a multiple of 2^7: 513, not 512.
    image = nn.functional.pad(photograph(), (0, 1, 0, 1), mode="reflect")
    depths = (1, 2, 3)
    # A layer with filters of 2 levels looks one level up; past the last level there is nothing left to see.
    boundaries = [LEVELS - layers for layers in depths]
    rows = {"direct, dense (the paper)": [], "cascade, pyramid (exact)": []}
    for name, tables in rows.items():
        method, sampling = name.split(" (")[0].split(", ")
        dtype = torch.float64 if method == "cascade" else torch.float32  # rounding is all that can be left of an error
        for layers, boundary in zip(depths, boundaries, strict=True):
            model = network(layers, method, sampling).to(dtype)
            tables.append(equivariance_error(model, image.to(dtype), downscaling=method))
            mean, largest = tables[-1].before(boundary).mean(), tables[-1].before(boundary).max()
            print(f"  {name:25}  {layers} layer(s): mean error {mean:.1e}, largest {largest:.1e}", flush=True)
    plot_equivariance(rows, path, boundaries=boundaries, title="Equivariance quality")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the pictures (default: out)")
    out = parser.parse_args().out

    print("Lifting a photograph to its scale-space ...", flush=True)
    draw_scale_spaces(out / "scale_space.png")

    print(f"\nRunning a network of 3 layers on it, {LEVELS} levels ...", flush=True)
    for sampling in ("dense", "pyramid"):
        features, seconds = run_network(sampling)
        samples = sum(level[0, 0].numel() for level in features.levels)
        print(f"  {sampling:8} sampling: {samples:9,} samples per channel, {seconds:5.2f} s", flush=True)

    print("\nMeasuring the equivariance errors (levels before the truncation boundary) ...", flush=True)
    draw_equivariance(out / "equivariance.png")

    print(f"\nNow look at\n  {out / 'scale_space.png'}\n  {out / 'equivariance.png'}")


if __name__ == "__main__":
    main()
