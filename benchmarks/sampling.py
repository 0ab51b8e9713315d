"""What each sampling, method and zero-scale costs: python benchmarks/tradeoffs.py [--size 512].

Measured on the bundled photograph in float64; prints Markdown tables. Errors are relative L2, means included.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import scalespaces
from scalespaces.data import photograph
from scalespaces.nn import Lift, ScaleAvgPool, ScaleConv2d
from scalespaces.testing import translation_error
from scalespaces.theory._padding import PaddingMode

SAMPLINGS = {"dense": "dense", "oversampled 2": 2, "oversampled 3": 3, "pyramid": "pyramid"}
MAIN_SAMPLINGS = ("dense", "oversampled 2", "pyramid")
METHODS = ("direct", "cascade")
ZERO_SCALES = {"1/4": 0.25, "1/2": 0.5, "1": 1.0}
BASES = {"2": 2.0, "3": 3.0, "sqrt(2)": math.sqrt(2), "1.5": 1.5}
PADDINGS: list[PaddingMode] = ["zeros", "reflect"]
EXACT = 1e-12

# Networks lift to 6 levels, and three filters of 2 levels leave 3, so images are downscaled by c and c^2. Reflection
# commutes with that where n - 1 is a multiple of c^2: 144 is one for the bases 2 and 3, 143 for neither.
NETWORK_LEVELS = 6
FITTING, OTHER = 145, 144

Cell = str | float | tuple[float, float] | None


@dataclass
class Table:
    """Rows of text, numbers and pairs of numbers; None where there is nothing to measure.

    Numbers up to ``exact`` are printed as that word; JSON has them all.
    """

    name: str
    caption: str
    columns: list[str]
    rows: list[list[Cell]]
    exact: float = -1.0

    def markdown(self) -> str:
        lines = [f"### {self.name}", "", self.caption, "", _line(self.columns), _line(["---"] * len(self.columns))]
        return "\n".join(lines + [_line([self._text(cell) for cell in row]) for row in self.rows]) + "\n"

    def _text(self, cell: Cell) -> str:
        if cell is None or isinstance(cell, str):
            return cell or ""
        if isinstance(cell, tuple):
            return " / ".join(map(self._text, cell))
        return "exact" if cell <= self.exact else f"{cell:.2g}"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def difference(expected: Tensor, got: Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


# --- the cost of a layer ---------------------------------------------------------------------------------------------


def cost_of_a_layer(num_levels: int = 4) -> Table:
    rows: list[list[Cell]] = []
    for name, sampling in SAMPLINGS.items():
        plan = Lift(num_levels, sampling=sampling).plan
        steps = ", ".join(f"{step:.3g}" for step in plan.steps)
        spacings = ", ".join(f"{2.0**k / step:.3g}" for k, step in enumerate(plan.steps))
        pixels = [step**-2 for step in plan.steps]
        rows.append([name, steps, spacings, f"{sum(pixels):.2f}x", f"{sum(pixels) + sum(pixels[:-1]):.2f}x"])
    caption = (
        f"By arithmetic, in multiplications of a plain convolution at full resolution: {num_levels} levels of base 2. "
        "The last level meets only the first level of a k = 2 filter."
    )
    return Table("Cost of a layer", caption, ["sampling", "steps", "tap spacing", "k = 1", "k = 2"], rows)


# --- translations ----------------------------------------------------------------------------------------------------


def translation_of_the_lift(image: Tensor, num_levels: int = 4) -> Table:
    rows: list[list[Cell]] = []
    moves = range(1, 2 ** (num_levels - 1) + 1)
    for sampling in MAIN_SAMPLINGS:
        for text, s0 in ZERO_SCALES.items():
            progress(f"translation of the lift: {sampling}, s0 = {text}")
            row: list[Cell] = [sampling, text]
            for method in METHODS:
                lift = Lift(num_levels, zero_scale=s0, method=method, sampling=SAMPLINGS[sampling]).double()
                errors = translation_error(lift, image, translations=moves).errors
                row += [(float(errors[0, k]), float(errors[: 2**k, k].max())) for k in range(num_levels)]
            rows.append(row)
    caption = (
        "Error of level k when the image moves by one pixel / by the worst of 1 to 2^k pixels; the unmoved level is "
        "read between its samples by linear interpolation, as the layers do."
    )
    columns = ["sampling", "s0", *(f"{method}, k = {k}" for method in METHODS for k in range(num_levels))]
    return Table("Translation error of the lift", caption, columns, rows)


def aliasing_of_the_lift(image: Tensor, num_levels: int = 4) -> Table:
    rows: list[list[Cell]] = []
    periodic = mirrored(image)
    for sampling in ("oversampled 2", "pyramid"):
        for text, s0 in ZERO_SCALES.items():
            progress(f"aliasing of the lift: {sampling}, s0 = {text}")
            row: list[Cell] = [sampling, text]
            for method in METHODS:
                lift = Lift(
                    num_levels, zero_scale=s0, method=method, sampling=SAMPLINGS[sampling], padding_mode="circular"
                )
                row += worst_aliasing(lift.double(), periodic)[1:]
            rows.append(row)
    caption = (
        "The same, worst of 1 to 2^k pixels, with the unmoved level moved by its Fourier series instead (circular "
        "padding, the image mirrored): what is left is aliasing, the rest of the table above is linear interpolation."
    )
    columns = ["sampling", "s0", *(f"{method}, k = {k}" for method in METHODS for k in range(1, num_levels))]
    return Table("Aliasing alone", caption, columns, rows)


def mirrored(image: Tensor) -> Tensor:
    """A periodic image without seams, whose sides every level divides."""
    half = min(image.shape[-2:]) // 32 * 16
    image = image[..., :half, :half]
    image = torch.cat([image, image.flip(-1)], -1)
    return torch.cat([image, image.flip(-2)], -2)


def worst_aliasing(lift: Lift, periodic: Tensor) -> list[float]:
    still = lift(periodic)
    worst = [0.0] * still.num_levels
    for move in range(1, 2 ** (still.num_levels - 1) + 1):
        moved = lift(periodic.roll(-move, -1))
        for k, level in enumerate(still.levels):
            if move <= 2**k:
                error = difference(fourier_shift(level, move / still.steps[k]), moved.levels[k])
                worst[k] = max(worst[k], error)
    return worst


def fourier_shift(x: Tensor, samples: float) -> Tensor:
    n = x.shape[-1]
    angles = 2 * math.pi * samples * torch.fft.rfftfreq(n, dtype=x.dtype)
    return torch.fft.irfft(torch.fft.rfft(x) * torch.exp(1j * angles), n)


# --- cascade and direct ----------------------------------------------------------------------------------------------


def cascade_from_direct(image: Tensor, num_levels: int = 6) -> Table:
    rows: list[list[Cell]] = []
    step = 2 ** (num_levels - 1)
    size = (image.shape[-1] - 1) // step * step + 1
    image = image[..., :size, :size]
    for sampling in MAIN_SAMPLINGS:
        for text, s0 in ZERO_SCALES.items():
            progress(f"distance of cascade and direct: {sampling}, s0 = {text}")
            direct, cascade = (
                scalespaces.lift(image, num_levels, zero_scale=s0, method=method, sampling=SAMPLINGS[sampling])
                for method in METHODS
            )
            row = [difference(a, b) for a, b in zip(direct.levels[1:], cascade.levels[1:], strict=True)]
            rows.append([sampling, text, *row])
    caption = f"On the same grid; n = {size}, where the borders that the grids of all levels reflect at coincide."
    columns = ["sampling", "s0", *(f"k = {k}" for k in range(1, num_levels))]
    return Table("Distance between the cascade and the direct lift", caption, columns, rows)


def gains(num_levels: int = 5, size: int = 2049) -> Table:
    progress("gains at the Nyquist frequencies")
    impulse = torch.zeros(1, 1, size, dtype=torch.float64)
    impulse[..., size // 2] = 1
    rows: list[list[Cell]] = []
    for text, s0 in ZERO_SCALES.items():
        for method, truncation in (("direct", 4.0), ("direct", 12.0), ("cascade", 4.0)):
            lift = Lift(
                num_levels,
                zero_scale=s0,
                sampling="dense",
                method=method,
                padding_mode="zeros",
                truncation=truncation,
                dims=1,
            )
            space = lift(impulse)
            row = [(gain(level, math.pi), gain(level, math.pi / 2**k)) for k, level in enumerate(space.levels) if k > 0]
            rows.append([text, method, f"{truncation:g}", *row])
    caption = (
        "Dense sampling, from impulse responses: gain of level k at the Nyquist frequency of the image's grid, pi, / "
        "of a pyramid's grid at that level, pi / 2^k. Truncation is the radius of the kernels in standard deviations; "
        "4 is the default."
    )
    columns = ["s0", "method", "truncation", *(f"k = {k}" for k in range(1, num_levels))]
    return Table("Gain at the Nyquist frequency", caption, columns, rows)


def gain(response: Tensor, frequency: float) -> float:
    """The absolute transfer function of a symmetric impulse response."""
    position = torch.arange(response.shape[-1], dtype=response.dtype) - response.shape[-1] // 2
    return abs(float((response * torch.cos(frequency * position)).sum()))


# --- equivariance of networks ----------------------------------------------------------------------------------------


def network(
    *,
    sampling: str = "dense",
    base: float = 2.0,
    method: str = "cascade",
    zero_scale: float = 0.25,
    padding: PaddingMode = "zeros",
    scale_padding: str = "valid",
    pool: str | None = None,
    seed: int = 0,
) -> nn.Module:
    """Three layers with filters of 2 levels; ``pool`` puts an average pooling with such windows after the first."""
    torch.manual_seed(seed)
    lift = Lift(
        NETWORK_LEVELS,
        base,
        zero_scale=zero_scale,
        sampling=SAMPLINGS[sampling],
        method=method,
        padding_mode=padding,
    )
    layers = [
        ScaleConv2d(channels, 4, (2, 3, 3), padding_mode=padding, scale_padding=scale_padding) for channels in (3, 4, 4)
    ]
    pools = [] if pool is None else [ScaleAvgPool(2, window=pool)]
    return nn.Sequential(lift, layers[0], *pools, nn.ReLU(), layers[1], nn.ReLU(), layers[2]).double()


def worst_equivariance(model: nn.Module, size: int, downscaling: str = "cascade") -> float:
    """The largest error of any level that has a counterpart."""
    image = photograph(size).double()
    return float(np.nanmax(scalespaces.equivariance_error(model, image, downscaling=downscaling).errors))


def equivariance_of_networks() -> Table:
    rows: list[list[Cell]] = []
    largest_exact = 0.0
    settings: list[tuple[str, PaddingMode, int]] = [
        (method, padding, size) for method in METHODS for padding in PADDINGS for size in (FITTING, OTHER)
    ]
    for sampling in SAMPLINGS:
        for text, base in BASES.items():
            progress(f"equivariance of networks: {sampling}, base {text}")
            errors = [
                worst_equivariance(network(sampling=sampling, base=base, method=m, padding=p), n, m)
                for m, p, n in settings
            ]
            largest_exact = max([largest_exact, *(e for e in errors if e <= EXACT)])
            rows.append([sampling, text, *errors])
    caption = (
        f'Lift to {NETWORK_LEVELS} levels (s0 = 1/4), three layers of k = 2 filters with scale_padding="valid": the '
        "largest error of the 3 levels left, image downscaled by c and c^2 by the method's own action, borders "
        f"included; one random network throughout. Exact: at most {EXACT:g} (largest here {largest_exact:.1e}). "
        f"With reflection, n - 1 is a multiple of c^2 for n = {FITTING} and the bases 2 and 3."
    )
    columns = ["sampling", "base", *(f"{m}, {p}, n = {n}" for m, p, n in settings)]
    return Table("Equivariance error of networks", caption, columns, rows, EXACT)


def equivariance_of_other_weights(num_seeds: int = 5) -> Table:
    rows: list[list[Cell]] = []
    for sampling, base, method in (
        ("pyramid", "2", "cascade"),
        ("pyramid", "2", "direct"),
        ("oversampled 3", "2", "cascade"),
        ("dense", "sqrt(2)", "cascade"),
    ):
        progress(f"other weights: {sampling}, base {base}, {method}")
        models = [network(sampling=sampling, base=BASES[base], method=method, seed=seed) for seed in range(num_seeds)]
        errors = [worst_equivariance(model, FITTING, method) for model in models]
        rows.append([sampling, base, method, min(errors), float(np.median(errors)), max(errors)])
    caption = f"Some rows of that table (zeros, n = {FITTING}) for {num_seeds} random networks."
    return Table("Other weights", caption, ["sampling", "base", "method", "smallest", "median", "largest"], rows, EXACT)


def equivariance_to_other_downscalings() -> Table:
    rows: list[list[Cell]] = []
    downscalings = ("cascade", "direct", "pillow")
    for sampling in ("dense", "pyramid"):
        for method in METHODS:
            progress(f"other downscalings: {sampling}, {method}")
            for text, s0 in ZERO_SCALES.items():
                model = network(sampling=sampling, method=method, padding="reflect", zero_scale=s0)
                rows.append([sampling, method, text, *(worst_equivariance(model, FITTING, d) for d in downscalings)])
    caption = (
        f"The same networks (base 2, reflect, n = {FITTING}) on images that were downscaled by the cascade's step, "
        "by the paper's action or by Pillow's antialiased bicubic resize."
    )
    return Table("Other downscalings", caption, ["sampling", "method", "s0", *downscalings], rows, EXACT)


def equivariance_of_pooling() -> Table:
    rows: list[list[Cell]] = []
    for sampling in ("dense", "pyramid"):
        for window in ("dilated", "plain"):
            progress(f"equivariance of pooling: {sampling}, {window} windows")
            models = [network(sampling=sampling, padding=padding, pool=window) for padding in PADDINGS]
            rows.append([sampling, window, *(worst_equivariance(model, FITTING) for model in models)])
    caption = f"The same networks (cascade, base 2, n = {FITTING}) with a 2x2 average pooling after the first layer."
    return Table("Pooling windows", caption, ["sampling", "window", *PADDINGS], rows, EXACT)


def equivariance_of_scale_padding() -> Table:
    rows: list[list[Cell]] = []
    for scale_padding in ("zeros", "replicate", "valid"):
        progress(f"equivariance of scale padding: {scale_padding}")
        model = network(sampling="pyramid", scale_padding=scale_padding)
        image = photograph(FITTING).double()
        errors = scalespaces.equivariance_error(model, image, shifts=(1,)).errors[0]
        measured = [float(error) for error in errors if not math.isnan(error)]
        rows.append([scale_padding, *measured, *[None] * (NETWORK_LEVELS - 1 - len(measured))])
    caption = (
        f"The same networks (cascade, pyramid, base 2, zeros, n = {FITTING}) on an image downscaled by 2, level by "
        'level. With "valid", three of the six levels come out, two of which have a counterpart.'
    )
    columns = ["scale_padding", *(f"k = {k}" for k in range(NETWORK_LEVELS - 1))]
    return Table("Scale padding", caption, columns, rows, EXACT)


# --- the command -----------------------------------------------------------------------------------------------------


def measure(size: int) -> Iterator[Table]:
    image = photograph(size).double()
    yield cost_of_a_layer()
    yield translation_of_the_lift(image)
    yield aliasing_of_the_lift(image)
    yield cascade_from_direct(image)
    yield gains()
    yield equivariance_of_networks()
    yield equivariance_of_other_weights()
    yield equivariance_to_other_downscalings()
    yield equivariance_of_pooling()
    yield equivariance_of_scale_padding()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--size",
        type=int,
        default=512,
        help=f"side of the crop that is lifted, 128 to 512 (default: %(default)s); networks see {FITTING} and {OTHER}",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the tables as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the tables as Markdown")
    arguments = parser.parse_args()
    if not 128 <= arguments.size <= 512:
        parser.error(f"--size is from 128 to 512, the photograph's side, got {arguments.size}")
    for path in (arguments.json, arguments.markdown):
        if path is not None and not path.resolve().parent.is_dir():
            parser.error(f"{path} lies in a folder that does not exist; create it first")
    return arguments


@torch.no_grad()
def main() -> None:
    arguments = parse_arguments()
    start = time.perf_counter()
    tables = []
    for table in measure(arguments.size):
        tables.append(table)
        print(table.markdown(), flush=True)
    if arguments.markdown is not None:
        arguments.markdown.write_text("\n".join(table.markdown() for table in tables))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(table) for table in tables], indent=1) + "\n")
    progress(f"done in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
