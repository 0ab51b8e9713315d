"""Measure what layers, lift, networks and loading cost, each as a ratio to a plain counterpart: PyTorch's own layers
and the same networks written with them, OpenCV's filters, h5py. docs/performance.md explains rows and columns, and how
they are measured.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import fields, replace

import torch

from benchmarks import _data, _layers, _lift, _models
from benchmarks._case import DTYPES, FORMATS, Case, Settings, measure
from benchmarks._growth import Growth
from benchmarks._plot import plot
from benchmarks._tables import progress
from scalespaces._extras import require
from scalespaces._measure import environment
from scalespaces.cli._arguments import positive
from scalespaces.plotting import check_writable

SUITES: dict[str, Callable[[Settings], Iterator[Case]]] = {
    "layers": _layers.cases,
    "lift": _lift.cases,
    "models": _models.cases,
    "data": _data.cases,
}
GROWTH: dict[str, Callable[[Settings], Iterator[Growth]]] = {"layers": _layers.growths, "models": _models.growths}
ON_THE_CPU = {"lift": ("cv2", "bench"), "data": ("h5py", "train")}  # their counterparts, and the extras with them


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--suite", nargs="+", choices=SUITES, help="one or several (default: all that compute on the device)")
    add("--growth", action="store_true", help="also how costs grow with image size, levels and channels")
    add("--compile", action="store_true", help="also what torch.compile makes of both sides")
    add("--quick", action="store_true", help="small sizes and two rounds, for a first look")
    add("--side", type=positive, metavar="N", help="side of the images of layers and models (default: 128, 256, 96)")
    add("--runs", type=positive, metavar="N", help="rounds that count (default: 5; quick: 2)")
    add("--dtype", choices=DTYPES, default="float32", help="of images and weights")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="where layers and models compute")
    add("--format", choices=FORMATS, default="channels_last", help="memory format of both sides")
    add("--plot", metavar="FILE", help="draw ratios and growth there: .png, .svg ...")


def run(args: argparse.Namespace) -> Iterator[Case | Growth]:
    suites = check(args)  # find errors before the work begins
    args.runs = args.runs or (2 if args.quick else 5)
    settings = Settings(**{field.name: getattr(args, field.name) for field in fields(Settings)})
    facts = environment()
    title = f"{facts['cpu']}, {facts['threads']} threads, torch {facts['torch']}"
    print(f"{title}, {args.dtype}, {args.format}, {args.runs} runs, load average {facts['load_average']}")
    cases, growths = [], []
    for suite in suites:
        for case in SUITES[suite](settings):
            progress(f"{suite}: {case.title} ...")
            cases.append(measure(case, settings))
            yield case
    few = replace(settings, runs=min(args.runs, 3), compile=False)
    for suite in [suite for suite in suites if suite in GROWTH and args.growth]:
        for growth in GROWTH[suite](few):
            growths.append(growth)
            yield growth
    if args.plot is not None:
        plot(cases, growths, title, args.plot)


def check(args: argparse.Namespace) -> list[str]:
    """The suites that are run, each once."""
    if args.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda needs a GPU that PyTorch can use, and there is none; use --device cpu")
    fitting = [suite for suite in SUITES if args.device == "cpu" or suite not in ON_THE_CPU]
    suites = list(dict.fromkeys(args.suite or fitting))
    if not set(suites) <= set(fitting):
        raise ValueError(f"only {' and '.join(fitting)} run with --device {args.device}, got {' '.join(suites)}")
    if "lift" in suites and args.dtype not in ("float32", "float64"):
        rest = " ".join(suite for suite in SUITES if suite != "lift")
        raise ValueError(f"OpenCV filters float32 and float64, got --dtype {args.dtype}; use --suite {rest}")
    if args.growth and not set(suites) & set(GROWTH):
        raise ValueError(f"--growth is measured in the suites {' and '.join(GROWTH)}, got --suite {' '.join(suites)}")
    for suite in set(suites) & set(ON_THE_CPU):
        require(*ON_THE_CPU[suite])
    if args.plot is not None:
        check_writable(args.plot)
    return suites
