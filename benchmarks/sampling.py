"""Measure what each sampling, method and zero-scale costs, on the bundled photograph in float64. Errors are relative
L2, means included; exact is at most 1e-12. It takes a few minutes."""

import argparse
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks._tables import Table, grid
from scalespaces import equivariance_error
from scalespaces.data import photograph
from scalespaces.nn import Lift, ScaleAvgPool, ScaleConv2d
from scalespaces.testing import translation_error

SAMPLINGS = {"dense": "dense", "oversampled 2": 2, "oversampled 3": 3, "pyramid": "pyramid"}
MAIN_SAMPLINGS = ("dense", "oversampled 2", "pyramid")
METHODS = ("direct", "cascade")
ZERO_SCALES = {"1/4": 0.25, "1/2": 0.5, "1": 1.0}
BASES = {"2": 2.0, "3": 3.0, "sqrt(2)": math.sqrt(2), "1.5": 1.5}
PADDINGS = ("zeros", "reflect")
LEVELS = range(4)  # of lifts on their own
MOVES = range(1, 9)  # pixels: up to the step of the last level

# Networks lift to 6 levels, and three filters of 2 levels leave 3, so images are downscaled by c and c^2. Reflection
# commutes with that where n - 1 is a multiple of c^2: 144 is one for the bases 2 and 3, 143 for neither.
NETWORK_LEVELS = 6
FITTING, OTHER = 145, 144


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = f"side of the crop that is lifted, 128 to 512; networks see {FITTING} and {OTHER}"
    parser.add_argument("--size", type=int, default=512, help=text)


@torch.no_grad()
def run(args: argparse.Namespace) -> Iterator[Table]:
    if not 128 <= args.size <= 512:
        raise ValueError(f"--size is from 128 to 512, the photograph's side, got {args.size}")
    yield from lifts(photograph(args.size).double())
    yield gains()
    yield from networks()


def difference(expected: Tensor, got: Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


def lift(sampling: str, s0: str, method: str, num_levels: int = len(LEVELS), **more: Any) -> Lift:
    return Lift(num_levels, sampling=SAMPLINGS[sampling], zero_scale=ZERO_SCALES[s0], method=method, **more).double()


def lifts(image: Tensor) -> Iterator[Table]:
    keys = {"sampling": MAIN_SAMPLINGS, "s0": ZERO_SCALES}

    def cost(sampling: str) -> list[str]:
        steps = lift(sampling, "1/4", "cascade").plan.steps
        spacings, pixels = [2.0**k / step for k, step in enumerate(steps)], [step**-2 for step in steps]
        grids = [", ".join(f"{number:.3g}" for number in numbers) for numbers in (steps, spacings)]
        return [*grids, f"{sum(pixels):.2f}x", f"{sum(pixels) + sum(pixels[:-1]):.2f}x"]

    caption = "By arithmetic, in multiplications of a plain convolution at full resolution: 4 levels of base 2."
    head = ["steps", "tap spacing", "k = 1", "k = 2"]
    yield grid("Cost of a layer", caption, {"sampling": SAMPLINGS}, head, cost)

    def translation(sampling: str, s0: str) -> list[tuple[float, float]]:
        tables = [translation_error(lift(sampling, s0, method), image, translations=MOVES) for method in METHODS]
        return [(float(t.errors[0, k]), float(t.errors[: 2**k, k].max())) for t in tables for k in LEVELS]

    caption = "Error of level k, read by linear interpolation: moved by one pixel / by the worst of 1 to 2^k pixels."
    head = [f"{method}, k = {k}" for method in METHODS for k in LEVELS]
    yield grid("Translation error of the lift", caption, keys, head, translation, exact=-1)

    half = image.shape[-1] // 32 * 16  # every level divides the sides of the mirrored image, which is periodic
    quarter = image[..., :half, :half]
    upper = torch.cat([quarter, quarter.flip(-1)], -1)
    periodic = torch.cat([upper, upper.flip(-2)], -2)

    def worst_aliasing(lift: Lift, k: int) -> float:
        level, step = lift(periodic).levels[k], lift.plan.steps[k]
        frequencies = 2 * math.pi * torch.fft.rfftfreq(level.shape[-1], dtype=level.dtype)
        errors = []
        for move in MOVES[: 2**k]:
            spectrum = torch.fft.rfft(level) * torch.exp(1j * move / step * frequencies)
            expected = torch.fft.irfft(spectrum, level.shape[-1])
            errors.append(difference(expected, lift(periodic.roll(-move, -1)).levels[k]))
        return max(errors)

    def aliasing(sampling: str, s0: str) -> list[float]:
        circular = [lift(sampling, s0, method, padding_mode="circular") for method in METHODS]
        return [worst_aliasing(each, k) for each in circular for k in LEVELS[1:]]

    caption = "The same, worst of 1 to 2^k pixels, with Fourier interpolation on the mirrored image."
    head = [f"{method}, k = {k}" for method in METHODS for k in LEVELS[1:]]
    yield grid("Aliasing alone", caption, keys | {"sampling": MAIN_SAMPLINGS[1:]}, head, aliasing, exact=-1)

    size = (image.shape[-1] - 1) // 32 * 32 + 1

    def distance(sampling: str, s0: str) -> list[float]:
        spaces = [lift(sampling, s0, method, 6)(image[..., :size, :size]) for method in METHODS]
        return [difference(*pair) for pair in zip(*(space.levels[1:] for space in spaces), strict=True)]

    caption = f"On the same grid; n = {size}, where the borders that the grids of all levels reflect at coincide."
    head = [f"k = {k}" for k in range(1, 6)]
    yield grid("Distance between the cascade and the direct lift", caption, keys, head, distance, exact=-1)


def gains(num_levels: int = 5, size: int = 2049) -> Table:
    impulse = torch.zeros(1, 1, size, dtype=torch.float64)
    impulse[..., size // 2] = 1
    position = torch.arange(size, dtype=torch.float64) - size // 2

    def gain(response: Tensor, frequency: float) -> float:
        """The absolute transfer function of a symmetric impulse response."""
        return abs(float((response * torch.cos(frequency * position)).sum()))

    def cells(s0: str, kernel: str) -> list[tuple[float, float]]:
        method, truncation = kernel.split()
        more: dict[str, Any] = {"padding_mode": "zeros", "truncation": float(truncation), "dims": 1}
        levels = lift("dense", s0, method, num_levels, **more)(impulse).levels
        return [(gain(levels[k], math.pi), gain(levels[k], math.pi / 2**k)) for k in range(1, num_levels)]

    caption = "Dense, at the Nyquist frequency of the image's grid, pi, / of a pyramid's grid at that level, pi / 2^k."
    keys = {"s0": ZERO_SCALES, "method, truncation": ("direct 4", "direct 12", "cascade 4")}
    head = [f"k = {k}" for k in range(1, num_levels)]
    return grid("Gain at the Nyquist frequency", caption, keys, head, cells, exact=-1)


def network(
    sampling: str, padding: Any = "zeros", scale_padding: str = "valid", pool: str = "", seed: int = 0, **lift: Any
) -> nn.Module:
    """Three layers with filters of 2 levels; ``pool`` puts an average pooling with such windows after the first."""
    torch.manual_seed(seed)
    first = Lift(NETWORK_LEVELS, sampling=SAMPLINGS[sampling], padding_mode=padding, **lift)
    convs = [ScaleConv2d(n, 4, (2, 3, 3), padding_mode=padding, scale_padding=scale_padding) for n in (3, 4, 4)]
    pools = [ScaleAvgPool(2, window=pool)] if pool else []
    return nn.Sequential(first, convs[0], *pools, nn.ReLU(), convs[1], nn.ReLU(), convs[2]).double()


def worst(model: nn.Module, size: int = FITTING, downscaling: str = "cascade") -> float:
    """The largest error of any level that has a counterpart."""
    return float(np.nanmax(equivariance_error(model, photograph(size).double(), downscaling=downscaling).errors))


def networks() -> Iterator[Table]:
    columns = [(m, p, n) for m in METHODS for p in PADDINGS for n in (FITTING, OTHER)]
    yield grid(
        "Equivariance error of networks",
        "Three layers of k = 2 filters: the largest error of the levels left, downscaled by the method's own action.",
        {"sampling": SAMPLINGS, "base": BASES},
        [f"{m}, {p}, n = {n}" for m, p, n in columns],
        lambda s, base: [worst(network(s, p, base=BASES[base], method=m), n, m) for m, p, n in columns],
    )

    def of_other_weights(case: str) -> list[float]:
        sampling, base, method = case.split(", ")
        models = [network(sampling, base=BASES[base], method=method, seed=seed) for seed in range(5)]
        errors = [worst(model, downscaling=method) for model in models]
        return [min(errors), float(np.median(errors)), max(errors)]

    rows = ("pyramid, 2, cascade", "pyramid, 2, direct", "oversampled 3, 2, cascade", "dense, sqrt(2), cascade")
    caption = f"Some rows of that table (zeros, n = {FITTING}) for 5 random networks."
    head = ["smallest", "median", "largest"]
    yield grid("Other weights", caption, {"sampling, base, method": rows}, head, of_other_weights)

    def of_other_downscalings(sampling: str, method: str, s0: str) -> list[float]:
        model = network(sampling, "reflect", method=method, zero_scale=ZERO_SCALES[s0])
        return [worst(model, downscaling=how) for how in head]

    caption, head = f"The same networks (base 2, reflect, n = {FITTING}).", ["cascade", "direct", "pillow"]
    keys = {"sampling": ("dense", "pyramid"), "method": METHODS, "s0": ZERO_SCALES}
    yield grid("Other downscalings", caption, keys, head, of_other_downscalings)
    caption = f"The same networks (cascade, base 2, n = {FITTING}) with a 2x2 average pooling after the first layer."
    keys, of = {"sampling": ("dense", "pyramid"), "window": ("dilated", "plain")}, PADDINGS
    yield grid("Pooling windows", caption, keys, of, lambda s, pool: [worst(network(s, p, pool=pool)) for p in of])

    def by_level(scale_padding: str) -> list[float | None]:
        model, image = network("pyramid", scale_padding=scale_padding), photograph(FITTING).double()
        errors = equivariance_error(model, image, shifts=(1,)).errors[0]
        measured = [float(error) for error in errors if not math.isnan(error)]
        return [*measured, *[None] * (NETWORK_LEVELS - 1 - len(measured))]

    caption = f"The same networks (cascade, pyramid, base 2, zeros, n = {FITTING}) on an image downscaled by 2."
    head = [f"k = {k}" for k in range(NETWORK_LEVELS - 1)]
    yield grid("Scale padding", caption, {"scale_padding": ("zeros", "replicate", "valid")}, head, by_level)
