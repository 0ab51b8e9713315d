"""Times of steps that take turns, peak memory, and facts about the machine."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from time import perf_counter
from timeit import timeit
from typing import Any, NamedTuple

import numpy as np
import torch

from scalespaces.theory._arguments import check_integer

Step = Callable[[], object]
Clock = Callable[[], float]


class Spread(NamedTuple):
    """The median and the quartiles of some numbers."""

    low: float
    median: float
    high: float


def take_turns(
    steps: Mapping[str, Step], runs: int, *, at_least: float = 0, wait: Step = lambda: None, clock: Clock = perf_counter
) -> dict[str, list[float]]:
    """Seconds per call of each step, for every round; in a round, all steps take their turn."""
    # Other work on the machine slows down all steps of a round, so ratios within a round are steadier than times. An
    # extra first round warms up. A step that is shorter than at_least seconds is called several times in its turn. The
    # clock is read after waiting for the device.
    check_integer("runs", runs, 1)

    def read_clock() -> float:
        wait()
        return clock()

    def turn(step: Step, calls: int) -> float:
        return timeit(step, timer=read_clock, number=calls) / calls

    calls = {n: min(100, math.ceil(at_least / max(turn(step, 1), 1e-9))) or 1 for n, step in steps.items()}
    rounds = [{name: turn(step, calls[name]) for name, step in steps.items()} for _ in range(runs)]
    return {name: [seconds[name] for seconds in rounds] for name in steps}


def ratios(seconds: Sequence[float], of_plain: Sequence[float]) -> Spread:
    """The ratio of two steps, round by round, with quartiles interpolated between rounds."""
    of_rounds = [ours / plain for ours, plain in zip(seconds, of_plain, strict=True)]
    return Spread(*np.quantile(of_rounds, (0.25, 0.5, 0.75)).tolist())


def peak_memory(step: Step, device: torch.device | str = "cpu") -> int:
    """The most bytes that PyTorch's allocator holds during a step, above what it held before."""
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        return torch.cuda.max_memory_allocated(device) - before
    # The profiler's events are deterministic and include temporaries inside PyTorch's kernels. Memory that others
    # allocate (oneDNN's scratch pads, OpenCV's images) is not counted.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler writes to stderr whenever it starts and stops
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        _kept = step()  # so that its result counts to the end
    finished: Any = profiler.profiler
    changes = [event for event in finished.kineto_results.events() if event.name() == "[memory]"]
    held = np.cumsum([0, *(event.nbytes() for event in sorted(changes, key=lambda event: event.start_ns()))])
    return int(held.max())


def environment() -> dict[str, str | float | None]:
    """What times depend on apart from the code: versions, processor, threads, and how busy the machine is."""
    info = Path("/proc/cpuinfo")
    names = [line for line in (info.read_text() if info.is_file() else "").splitlines() if "model name" in line]
    return {
        **{name: import_module(name).__version__ for name in ("scalespaces", "torch", "numpy")},
        "python": platform.python_version(),
        "cpu": names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }
