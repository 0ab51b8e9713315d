"""Measure what layers, lift, networks and loading cost, each as a ratio to a plain counterpart: PyTorch's own layers
and the same networks written with them, OpenCV's filters, h5py. docs/performance.md explains rows and columns."""

import argparse
from collections.abc import Iterator

import torch

from benchmarks import _suites
from benchmarks._case import FORMATS, Case, Settings, measure
from benchmarks._tables import progress
from scalespaces._extras import require
from scalespaces._measure import environment
from scalespaces.cli._arguments import positive

SUITES = {"layers": _suites.layers, "lift": _suites.lift, "models": _suites.models, "data": _suites.data}
ON_THE_CPU = {"lift": ("cv2", "bench"), "data": ("h5py", "train")}  # their counterparts, and the extras with them


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--suite", nargs="+", choices=SUITES, help="one or several (default: all that compute on the device)")
    add("--quick", action="store_true", help="small sizes and two rounds, for a first look")
    add("--side", type=positive, metavar="N", help="side of the images of layers and models (default: 128, 256, 96)")
    add("--runs", type=positive, metavar="N", help="rounds that count (default: 5; quick: 2)")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="where layers and models compute")
    add("--format", choices=FORMATS, default="channels_last", help="memory format of both sides")


def run(args: argparse.Namespace) -> Iterator[Case]:
    # Find errors before the work begins.
    if args.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda needs a GPU that PyTorch can use, and there is none; use --device cpu")
    fitting = [suite for suite in SUITES if args.device == "cpu" or suite not in ON_THE_CPU]
    suites = list(dict.fromkeys(args.suite or fitting))
    if not set(suites) <= set(fitting):
        raise ValueError(f"only {' and '.join(fitting)} run with --device {args.device}, got {' '.join(suites)}")
    for suite in set(suites) & set(ON_THE_CPU):
        require(*ON_THE_CPU[suite])
    runs = args.runs or (2 if args.quick else 5)
    settings = Settings(runs, args.quick, args.side, args.device, args.format)
    facts = environment()
    machine = f"{facts['cpu']}, {facts['threads']} threads, torch {facts['torch']}"
    print(f"{machine}, float32, {args.format}, {runs} runs, load average {facts['load_average']}")
    for suite in suites:
        for case in SUITES[suite](settings):
            progress(f"{suite}: {case.title} ...")
            yield measure(case, settings)
