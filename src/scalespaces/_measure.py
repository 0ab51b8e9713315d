"""Times of things that take turns, peak memory, exponents of growth, and facts about the machine."""

from __future__ import annotations

import gc
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scalespaces.theory._arguments import check_integer

Step = Callable[[], Any]


@dataclass(frozen=True)
class Spread:
    """The median and the quartiles of some numbers."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The quartiles, interpolated between values.

        Example:
            >>> Spread.of([4, 1, 3, 2, 5])
            Spread(low=2.0, median=3.0, high=4.0)
        """
        low, median, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
        return cls(low, median, high)


def take_turns(
    steps: Mapping[str, Step],
    runs: int,
    *,
    warmup: int = 1,
    at_least: float = 0.0,
    wait: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds that one call of each step takes, in every round: all steps have their turn, then all again.

    What else the machine does in a round, all of its steps feel: ratios within a round are steadier than times.

    Args:
        steps: by name, in their order.
        runs: rounds that count.
        warmup: rounds before them that do not.
        at_least: seconds that a turn should last; a step that takes less is called several times in it.
        wait: for the device, before the clock is read.
        clock: in seconds.

    Example:
        >>> sorted(take_turns({"sum": lambda: sum(range(99)), "list": lambda: [*range(99)]}, runs=3))
        ['list', 'sum']
    """
    check_integer("runs", runs, 1)
    check_integer("warmup", warmup, 1)
    calls: dict[str, int] = {}
    seconds: dict[str, list[float]] = {name: [] for name in steps}

    def turn(step: Step, times: int) -> float:
        wait()
        start = clock()
        for _ in range(times):
            step()
        wait()
        return (clock() - start) / times

    with _no_collection():
        for _ in range(warmup):
            for name, step in steps.items():
                calls[name] = min(100, max(1, math.ceil(at_least / max(turn(step, 1), 1e-9))))
        for _ in range(runs):
            for name, step in steps.items():
                seconds[name].append(turn(step, calls[name]))
    return seconds


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection inside, as in ``timeit``."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def ratios(seconds: Sequence[float], of_plain: Sequence[float]) -> Spread:
    """The ratio of two steps, round by round."""
    return Spread.of([ours / plain for ours, plain in zip(seconds, of_plain, strict=True)])


def peak_memory(step: Step, device: torch.device | str = "cpu") -> int:
    """Bytes that PyTorch's allocator holds at the highest during a step, above what was there before.

    On the CPU from the memory events of ``torch.profiler``: deterministic, and temporaries inside PyTorch's kernels
    count. What others allocate by themselves, oneDNN's scratch pads or OpenCV's images, does not.

    Example:
        >>> peak_memory(lambda: torch.ones(1000).sum())
        4004
    """
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler writes to stderr whenever it starts and stops
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = step()  # so that what it returns counts to the end
    del kept
    events: Any = profiler.profiler
    changes = [event for event in events.kineto_results.events() if event.name() == "[memory]"]
    held = np.cumsum([0, *(event.nbytes() for event in sorted(changes, key=lambda event: event.start_ns()))])
    return int(held.max())


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    r"""The exponent :math:`p` of the power law :math:`v \propto n^p` that fits best: least squares of logarithms.

    Example:
        >>> round(exponent([1, 2, 4, 8], [3, 12, 48, 192]), 6)
        2.0
    """
    if len(set(sizes)) < 2 or min(*sizes, *values) <= 0:
        raise ValueError(f"an exponent needs two sizes or more, and all above 0, got {sizes} and {values}")
    return statistics.linear_regression([math.log(n) for n in sizes], [math.log(v) for v in values]).slope


@contextmanager
def threads(number: int | None) -> Iterator[int]:
    """So many threads of PyTorch inside; as many as it has when left out."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if number is None else number)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def environment(device: torch.device | str = "cpu") -> dict[str, Any]:
    """What a time depends on beside the code: versions, processor, threads, and how busy the machine is."""
    device = torch.device(device)
    packages = {
        "scalespaces": "scalespaces",
        "torch": "torch",
        "numpy": "numpy",
        "opencv": "opencv-python-headless",
        "h5py": "h5py",
    }
    return {
        "python": platform.python_version(),
        **{name: _version(package) for name, package in packages.items()},
        "system": platform.platform(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
