"""Cases: contenders that take turns, what was measured of them, and tables of that."""

import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks._counts import counts, emitted
from scalespaces._measure import Step, peak_memory, ratios, take_turns
from scalespaces._tables import text_table
from scalespaces._torch import uncompiled
from scalespaces.space import ScaleSpace

FORMATS = {  # of images and of volumes
    "channels_last": (torch.channels_last, torch.channels_last_3d),
    "contiguous": (torch.contiguous_format, torch.contiguous_format),
}
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
TURN = 0.02  # seconds that a turn lasts at least


@dataclass(frozen=True)
class Settings:
    """How contenders are built and measured, the same for all. The options of ``cost`` explain them."""

    runs: int = 5
    quick: bool = False
    side: int | None = None
    device: str = "cpu"
    format: str = "channels_last"
    dtype: torch.dtype = torch.float32
    clock: str = "wall"
    compile: bool = False

    def tensor(self, *shape: int, requires_grad: bool = False) -> Tensor:
        """A random image ``(B, C, H, W)`` or volume ``(B, C, S, H, W)``."""
        x = torch.randn(*shape, dtype=self.dtype, device=self.device)
        return x.contiguous(memory_format=FORMATS[self.format][len(shape) - 4]).requires_grad_(requires_grad)

    def module(self, module: Any) -> Any:
        """The module, in the data type and format of the images."""
        return module.to(self.device, self.dtype).to(memory_format=FORMATS[self.format][0])


@dataclass
class Contender:
    """A module and its inputs, or a function; and what was measured of it, by phase."""

    name: str
    work: Any
    inputs: tuple[Any, ...] = ()
    limit: float | None = None  # of the ratio, by arithmetic
    folded: float | None = None  # the same with folded filters
    rival: str | None = None  # the contender that computes the same by the paper's algorithm
    seconds: dict[str, list[float]] = field(default_factory=dict)  # of a call in every round
    memory: dict[str, int] = field(default_factory=dict)  # peak bytes
    counts: dict[str, int] = field(default_factory=dict)  # of operations in one forward pass


@dataclass
class Case:
    """Contenders for one task. The others are compared with the first one."""

    suite: str
    title: str
    contenders: list[Contender]
    phases: tuple[str, ...] = ("forward", "training")  # of which functions have the first only

    def __getitem__(self, name: str) -> Contender:
        return next(c for c in self.contenders if c.name == name)

    def __str__(self) -> str:
        plain, rivalries = self.contenders[0], []
        phases = list(plain.seconds)
        measured = any(c.memory for c in self.contenders)  # modules are, functions are not
        head = ["", "limit"]
        for phase in phases:
            head += [f"{phase}, ms" if len(phases) > 1 else "ms", "ratio", "quartiles"]
        rows = [head + ["MiB", "ratio", "kernels", "copies", "waits"] * measured]
        for c in self.contenders:
            row = [c.name, "" if c.limit is None else f"{c.limit:.2f}"]
            if c.limit and c.folded and c.limit - c.folded > 0.005:
                row[1] += f" ({c.folded:.2f})"
            for phase, seconds in c.seconds.items():
                low, median, high = map(number, ratios(seconds, plain.seconds[phase]))
                row += [f"{1e3 * statistics.median(seconds):.4g}", median, "" if c is plain else f"[{low}, {high}]"]
                if c.rival:
                    theirs = self[c.rival]
                    faster = 1 / ratios(seconds, theirs.seconds[phase]).median
                    words = f"{faster:.2f} times as fast, {c.memory[phase] / theirs.memory[phase]:.2f} of the memory"
                    rivalries.append(f"{c.name} against {c.rival}, {phase}: {words}")
            if c.memory:
                row += [f"{c.memory[phases[-1]] / 2**20:.1f}"]
                row += [f"{c.memory[phases[-1]] / plain.memory[phases[-1]]:.2f}" if plain.memory else ""]
                row += [str(c.counts.get(name, "")) for name in ("kernels", "copies", "synchronizations")]
            rows.append(row + [""] * (len(rows[0]) - len(row)))
        head, *lines = text_table(rows).splitlines()
        return "\n".join([f"{self.suite}: {self.title}", head, "-" * len(head), *lines, *rivalries])


def number(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def measure(case: Case, settings: Settings) -> Case:
    """Measure time, memory and operations of all contenders; functions are timed in the phase "forward" only."""
    modules = [c for c in case.contenders if isinstance(c.work, nn.Module)]
    makers = {"forward": forward_step, "training": training_step}
    wait = torch.cuda.synchronize if settings.device == "cuda" else lambda: None
    options: Any = {"wait": wait, "at_least": 0.0 if settings.quick else TURN, "clock": CLOCKS[settings.clock]}
    for phase in case.phases if len(modules) == len(case.contenders) else ("forward",):
        steps = {c.name: makers[phase](c) for c in case.contenders}
        times = take_turns(steps, settings.runs, **options)
        for c in case.contenders:
            c.seconds[phase] = times[c.name]
        for c in modules:
            c.memory[phase] = peak_memory(steps[c.name], settings.device)
    for c in modules:
        count = counts if uncompiled(c.work) is c.work else emitted
        c.counts = count(c.work, *c.inputs)
    for c in case.contenders:
        c.work, c.inputs = None, ()  # so that no two cases are in memory at once
    return case


def forward_step(c: Contender) -> Step:
    """Inference: in evaluation mode, without gradients. A function runs as it is."""
    if not isinstance(c.work, nn.Module):
        return c.work
    module, inputs = c.work.eval(), c.inputs
    return torch.no_grad()(lambda: module(*inputs))


def training_step(c: Contender) -> Step:
    """Forward and backward, from a given gradient of the output: no loss is computed, no weight changed."""
    module, inputs = c.work.train(), c.inputs
    leaves = [*module.parameters(), *(t for x in inputs for t in tensors(x) if t.requires_grad)]
    gradients = [torch.randn_like(output) for output in tensors(module(*inputs))]

    def step() -> None:
        torch.autograd.backward(tensors(module(*inputs)), gradients)
        for leaf in leaves:
            leaf.grad = None

    return step


def tensors(x: Tensor | ScaleSpace) -> list[Tensor]:
    """The tensor itself, or those of the levels."""
    return list(x.levels) if isinstance(x, ScaleSpace) else [x]
