"""``scalespaces bench``: what the library costs compared with plain PyTorch, OpenCV and the paper's algorithm."""

from __future__ import annotations

import argparse
from typing import Any

import torch

from scalespaces._extras import require
from scalespaces._files import prepare
from scalespaces._measure import environment, threads
from scalespaces.bench._case import DTYPES, FORMATS, Case, Settings, measure, measure_growth
from scalespaces.bench._plot import plot
from scalespaces.bench._report import Report, Result
from scalespaces.bench.suites import GROWTH, ON_THE_CPU, SUITES
from scalespaces.cli._arguments import Help, positive
from scalespaces.cli._output import progress, write_json
from scalespaces.plotting import check_writable

_RUNS, _QUICK_RUNS, _GROWTH_RUNS = 5, 2, 3
_DESCRIPTION = """\
Measure what layers, lift, networks and loading cost, each as a ratio to a plain counterpart: PyTorch's own layers and
the same networks written with them, OpenCV's filters, h5py. Rows called pyramid are what the library recommends. Rows
called dense are what the paper does (networks with preset="paper"), and rows called paper compute the same by the
paper's algorithm. All rows of a table take turns in one process, so that other work on the machine slows all of them
down; the ratio is the median over rounds, followed by its quartiles. The limit is what the ratio would be if only
multiplications took time; in brackets, with folded filters. Forward is inference without gradients, training is
forward and backward without loss or optimizer. MiB is the peak of PyTorch's allocator in a training step above what
was there before. On the CPU it comes from the memory events of torch.profiler, which are deterministic: temporaries
inside PyTorch's kernels count, oneDNN's scratch pads do not. Kernels, the copies among them, and how often the host
waits for the device are counted in one forward pass.
"""


def add(commands: Any) -> None:
    """Add the parser."""
    parser = commands.add_parser(
        "bench",
        help="measure time and memory, compared with plain PyTorch, OpenCV and the paper's algorithm",
        description=_DESCRIPTION,
        formatter_class=Help,
    )
    parser.set_defaults(run=_run)
    add = parser.add_argument_group("what").add_argument
    add(
        "--suite",
        nargs="+",
        choices=tuple(SUITES),
        help="one or several (default: all; with cuda those that compute there)",
    )
    add("--growth", action="store_true", help="also how costs grow with image size, levels and channels")
    add("--compile", action="store_true", help="also what torch.compile makes of either side")
    add("--quick", action="store_true", help="small sizes and few runs, for a look")
    add = parser.add_argument_group("how").add_argument
    add("--threads", type=positive, metavar="N", help="of PyTorch and OpenCV (default: as many as PyTorch takes)")
    add("--runs", type=positive, metavar="N", help=f"rounds that count (default: {_RUNS}; quick: {_QUICK_RUNS})")
    add("--dtype", choices=tuple(DTYPES), default="float32", help="of images and weights")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="where layers and models compute")
    add("--format", choices=tuple(FORMATS), default="channels_last", help="memory format, the same on either side")
    add = parser.add_argument_group("output").add_argument
    add("--json", metavar="FILE", help="write all times, settings and versions there")
    add("--plot", metavar="FILE", help="draw ratios and growth there: .png, .svg ...")


def _run(args: argparse.Namespace) -> None:
    # Whatever can be wrong is found before the work begins.
    suites = _suites(args)
    if args.json is not None:
        prepare(args.json)
    if args.plot is not None:
        check_writable(args.plot)
    runs = args.runs or (_QUICK_RUNS if args.quick else _RUNS)
    settings = Settings(runs, args.quick, args.dtype, args.device, args.format, args.compile)
    with threads(args.threads):
        facts = environment(args.device)
        print(_headline(facts, settings))
        results = []
        for suite in suites:
            for case in SUITES[suite](settings):
                with progress(f"{suite}: {case.title}"):
                    results.append(_measure(case, settings))
                print(f"\n{results[-1]}", flush=True)
        growth = []
        few = Settings(min(runs, _GROWTH_RUNS), args.quick, args.dtype, args.device, args.format)
        for suite in suites if args.growth else ():
            for axis in GROWTH[suite](few) if suite in GROWTH else ():
                with progress(f"{suite}, growth with {axis.name}"):
                    growth.append(measure_growth(axis, few))
                print(f"\n{growth[-1]}", flush=True)
    names = ("quick", "growth", "compile", "dtype", "device", "format")
    about = {"suite": suites, "runs": runs, **{name: getattr(args, name) for name in names}}
    report = Report(facts, about, results, growth)
    if args.json is not None:
        write_json(args.json, report.to_json())
    if args.plot is not None:
        plot(report, args.plot)
        print(f"wrote {args.plot}")


def _measure(case: Case, settings: Settings) -> Result:
    try:
        return measure(case, settings)
    except RuntimeError as error:
        odd = [] if settings.dtype == "float32" else [f"--dtype {settings.dtype}"]
        odd += ["--compile"] if settings.compile else []
        if not odd:
            raise
        reason = " ".join(str(error).split("\n\n")[0].split())
        raise ValueError(f"with {' and '.join(odd)}, {case.title} fails: {reason}; leave that out") from error


def _suites(args: argparse.Namespace) -> list[str]:
    """The suites that are run, each once, after all that they need was looked for."""
    if args.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda needs a GPU that PyTorch can use, and there is none; use --device cpu")
    fitting = [suite for suite in SUITES if args.device == "cpu" or suite not in ON_THE_CPU]
    suites = list(dict.fromkeys(args.suite or fitting))
    for suite in suites:
        if suite not in fitting:
            raise ValueError(
                f"the suite {suite} compares with what computes on the CPU, got --device {args.device}; "
                f"use --suite {' '.join(fitting)}, or --device cpu"
            )
    if "lift" in suites and args.dtype not in ("float32", "float64"):
        raise ValueError(
            f"OpenCV filters float32 and float64, got --dtype {args.dtype}; leave the suite lift out with "
            f"--suite {' '.join(suite for suite in SUITES if suite != 'lift')}"
        )
    if args.growth and not set(suites) & set(GROWTH):
        raise ValueError(f"--growth is measured in the suites {' and '.join(GROWTH)}, got --suite {' '.join(suites)}")
    if "lift" in suites:
        require("cv2", "bench")
    if "data" in suites:
        require("h5py", "train")
    return suites


def _headline(facts: dict[str, Any], settings: Settings) -> str:
    versions = ", ".join(
        f"{name} {facts[name]}" for name in ("scalespaces", "torch", "python", "opencv") if facts[name]
    )
    where = facts["cpu"] if settings.device == "cpu" else facts["device"]
    how = f"{facts['threads']} threads, {settings.dtype}, {settings.format}, {settings.runs} runs"
    return f"{versions}\n{where}, {how}, load average {facts['load_average']}"
