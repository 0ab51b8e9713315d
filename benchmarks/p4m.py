"""What turning the filters costs, and how exact it is together with scale: python benchmarks/p4m.py [--runs 40].

A p4m layer of fields against one F.conv2d whose parameter is the expanded bank: the same outputs, so all that differs
is the expansion, which shows on few and small images. Runs alternate; a cell has the median and, in brackets, the
quartiles. Then a network on scale and p4m: its largest relative errors under downscalings and under the eight
symmetries of the square, at any level.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scalespaces.functional import scale_shift
from scalespaces.nn import Lift, P4MBatchNorm, P4MConv2d
from scalespaces.semigroups import transform_field, transform_image
from scalespaces.semigroups._p4 import expand_filters
from scalespaces.space import ScaleSpace

LAYOUTS = {"contiguous": torch.contiguous_format, "channels last": torch.channels_last}
WARM_UP = 5


def forward(layer: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], None]:
    def run() -> None:
        with torch.no_grad():
            layer(x)

    return run


def training_step(layer: Callable[[Tensor], Tensor], x: Tensor, parameters: list[nn.Parameter]) -> Callable[[], None]:
    """Gradients of the filters and of the input, as in the middle of a network."""
    optimizer = torch.optim.SGD(parameters, 1e-6)
    x = x.detach().requires_grad_()

    def run() -> None:
        optimizer.zero_grad()
        x.grad = None
        layer(x).square().mean().backward()
        optimizer.step()

    return run


def alternate(ours: Callable[[], None], plain: Callable[[], None], runs: int) -> tuple[list[float], list[float]]:
    times: tuple[list[float], list[float]] = ([], [])
    for run in range(WARM_UP + runs):
        # Whichever comes second finds warmer caches: take turns.
        for which in (0, 1) if run % 2 else (1, 0):
            start = time.perf_counter()
            (ours, plain)[which]()
            if run >= WARM_UP:
                times[which].append(time.perf_counter() - start)
    return times


def spread(values: list[float], digits: int) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def measure(fields: int, kernel: int, size: int, batch: int, runs: int) -> Iterator[list[str]]:
    for name, layout in LAYOUTS.items():
        torch.manual_seed(0)
        layer = P4MConv2d(fields, fields, kernel, padding=kernel // 2, bias=False)
        with torch.no_grad():
            bank = nn.Parameter(expand_filters(layer.weight, "p4m").contiguous(memory_format=layout))
        x = torch.rand(batch, 8 * fields, size, size).contiguous(memory_format=layout)

        def plain(x: Tensor, bank: Tensor = bank) -> Tensor:
            return F.conv2d(x, bank, padding=kernel // 2)

        torch.testing.assert_close(layer(x), plain(x), rtol=1e-4, atol=1e-4)
        pairs = {
            "forward": (forward(layer, x), forward(plain, x)),
            "training step": (training_step(layer, x, [layer.weight]), training_step(plain, x, [bank])),
        }
        for what, (ours, theirs) in pairs.items():
            times = alternate(ours, theirs, runs)
            ratios = [a / b for a, b in zip(*times, strict=True)]
            yield [name, what, *(spread([1e3 * t for t in column], 2) for column in times), spread(ratios, 3)]


def errors(sampling: str, dtype: torch.dtype) -> tuple[float, float]:
    """Largest equivariance errors of a network, to scale and to the square."""
    torch.manual_seed(0)
    lift = Lift(5, sampling=sampling, padding_mode="zeros")
    network = nn.Sequential(
        lift,
        P4MConv2d(3, 4, (2, 3, 3), scale_padding="valid", lifting=True),
        P4MBatchNorm(4),
        nn.ReLU(),
        P4MConv2d(4, 4, (2, 3, 3), scale_padding="valid"),
    ).to(dtype)
    image = torch.rand(1, 3, 129, 129, dtype=dtype)
    with torch.no_grad():
        out = network.eval()(image)
        scale = [worst(network(lift.downscale(image, n)), scale_shift(out, n).levels) for n in range(1, out.num_levels)]
        square = [
            worst(network(transform_image(image, n)), [transform_field(level, n, group="p4m") for level in out.levels])
            for n in range(8)
        ]
    return max(scale), max(square)


def worst(got: ScaleSpace, expected: Sequence[Tensor]) -> float:
    """The largest difference at any level, relative to the level's largest value."""
    pairs = zip(got.levels, expected, strict=False)
    return max(float((ours - theirs).abs().max() / theirs.abs().max()) for ours, theirs in pairs)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default, text in (
        ("fields", 8, "fields in and out, of 8 channels each"),
        ("kernel", 3, "height and width of the filters, an odd number"),
        ("size", 64, "height and width of the images"),
        ("batch", 8, "number of images"),
        ("runs", 40, "timed runs of each, at least 2"),
        ("threads", 2, "threads of torch"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{text} (default: %(default)s)")
    arguments = parser.parse_args()
    if min(vars(arguments).values()) < 1 or arguments.runs < 2 or arguments.kernel % 2 == 0:
        parser.error(f"numbers are positive, --runs at least 2 and --kernel odd, got {vars(arguments)}")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    print("| layout | what | p4m layer, ms | F.conv2d, ms | ratio |")
    print("| --- | --- | --- | --- | --- |")
    for row in measure(arguments.fields, arguments.kernel, arguments.size, arguments.batch, arguments.runs):
        print("| " + " | ".join(row) + " |", flush=True)
    print("\n| scale x p4m, 5 levels, 129 x 129 | type | scale | square |")
    print("| --- | --- | --- | --- |")
    for sampling in ("pyramid", "dense"):
        for dtype in (torch.float32, torch.float64):
            scale, square = errors(sampling, dtype)
            print(f"| {sampling} | {str(dtype).removeprefix('torch.')} | {scale:.1e} | {square:.1e} |", flush=True)


if __name__ == "__main__":
    main()
