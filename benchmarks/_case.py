"""Cases: contenders that take turns, what was measured of them, and tables of that."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks._counts import counts
from scalespaces._measure import Spread, Step, peak_memory, ratios, take_turns
from scalespaces._tables import text_table
from scalespaces.space import ScaleSpace

PHASES = ("forward", "training")
DTYPES = {name: getattr(torch, name) for name in ("float32", "float64", "bfloat16", "float16")}
FORMATS = {  # of images and of volumes
    "channels_last": (torch.channels_last, torch.channels_last_3d),
    "contiguous": (torch.contiguous_format, torch.contiguous_format),
}
TURN = 0.02  # seconds that a turn lasts at least
MEBI = 2**20


@dataclass(frozen=True)
class Settings:
    """How contenders are built and measured, the same for all. The options of ``cost`` explain them."""

    runs: int = 5
    quick: bool = False
    side: int | None = None
    dtype: str = "float32"
    device: str = "cpu"
    format: str = "channels_last"
    compile: bool = False

    def tensor(self, *shape: int, requires_grad: bool = False) -> Tensor:
        """A random image ``(B, C, H, W)`` or volume ``(B, C, S, H, W)``."""
        x = torch.randn(*shape, dtype=DTYPES[self.dtype], device=self.device)
        return x.contiguous(memory_format=FORMATS[self.format][len(shape) - 4]).requires_grad_(requires_grad)

    def module(self, module: nn.Module) -> nn.Module:
        """The module, in the data type and format of the images."""
        placed: Any = module.to(self.device, DTYPES[self.dtype])
        return placed.to(memory_format=FORMATS[self.format][0])

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


@dataclass
class Contender:
    """A module and its inputs, or a function; once measured, seconds of a call in every round and peak bytes, by phase.

    Args:
        limit, folded: limits of the ratio by arithmetic, the second one with folded filters.
        rival: the contender that computes the same by the paper's algorithm.
        baseline: the contender it is compared with; by default the first one of the case.
        counts: of operations in one forward pass, see :func:`~benchmarks._counts.counts`.
    """

    name: str
    work: Any
    inputs: tuple[Any, ...] = ()
    limit: float | None = None
    folded: float | None = None
    rival: str | None = None
    baseline: str | None = None
    seconds: dict[str, list[float]] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)


@dataclass
class Case:
    """Contenders for one task. The others are compared with the first one."""

    suite: str
    title: str
    contenders: list[Contender]

    def __getitem__(self, name: str) -> Contender:
        return next(c for c in self.contenders if c.name == name)

    def baseline(self, c: Contender) -> Contender:
        return self[c.baseline] if c.baseline else self.contenders[0]

    def phases(self) -> list[str]:
        """The phases that were measured, of all contenders alike."""
        return list(self.contenders[0].seconds)

    def ratio(self, c: Contender, phase: str, to: Contender | None = None) -> Spread:
        """Time divided by that of the baseline, or of another contender, round by round."""
        return ratios(c.seconds[phase], (to or self.baseline(c)).seconds[phase])

    def memory_ratio(self, c: Contender, phase: str, to: Contender | None = None) -> float | None:
        """Peak memory divided by that of the baseline, or of another contender; None for functions."""
        ours, theirs = c.memory.get(phase), (to or self.baseline(c)).memory.get(phase)
        return ours / theirs if ours is not None and theirs else None

    def __str__(self) -> str:
        phases, rivalries = self.phases(), []
        memory, counted = any(c.memory for c in self.contenders), any(c.counts for c in self.contenders)
        head = ["", "limit"]
        for phase in phases:
            head += [f"{phase}, ms" if len(phases) > 1 else "ms", "ratio", "quartiles"]
        rows = [head + ["MiB", "ratio"] * memory + ["kernels", "copies", "waits"] * counted]
        for c in self.contenders:
            row = [c.name, "" if c.limit is None else f"{c.limit:.2f}"]
            if c.limit and c.folded and c.limit - c.folded > 0.005:
                row[1] += f" ({c.folded:.2f})"
            for phase in phases:
                ratio = self.ratio(c, phase)
                quartiles = "" if c is self.baseline(c) else f"[{number(ratio.low)}, {number(ratio.high)}]"
                row += [f"{1e3 * statistics.median(c.seconds[phase]):.4g}", number(ratio.median), quartiles]
                if c.rival:
                    faster, less = self.ratio(c, phase, self[c.rival]), self.memory_ratio(c, phase, self[c.rival])
                    words = f"{1 / faster.median:.2f} times as fast, {less:.2f} of the memory"
                    rivalries.append(f"{c.name} against {c.rival}, {phase}: {words}")
            if memory:
                held, times = c.memory.get(phases[-1]), self.memory_ratio(c, phases[-1])
                row += ["" if held is None else f"{held / MEBI:.1f}", "" if times is None else f"{times:.2f}"]
            names = ("kernels", "copies", "synchronizations") if counted else ()
            rows.append(row + [str(c.counts.get(name, "")) for name in names])
        return "\n".join([f"{self.suite}: {self.title}", ruled(rows), *rivalries])

    def to_json(self) -> dict[str, Any]:
        """Plain data, with the ratios."""
        document = asdict(self)
        for c, row in zip(self.contenders, document["contenders"], strict=True):
            row["ratios"] = {phase: self.ratio(c, phase) for phase in c.seconds}
            row["memory_ratios"] = {phase: self.memory_ratio(c, phase) for phase in c.memory}
        return document


def number(ratio: float) -> str:
    """A ratio as tables and figures have it."""
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def ruled(rows: Sequence[Sequence[str]]) -> str:
    """A table with a line below the header."""
    head, *lines = text_table(rows).splitlines()
    return "\n".join([head, "-" * len(head), *lines])


def measure(case: Case, settings: Settings, phases: Sequence[str] = PHASES) -> Case:
    """Measure time, memory and operations of all contenders; functions are timed in the phase "forward" only."""
    if settings.compile:
        case.contenders += list(_compiled(case))
    modules = [c for c in case.contenders if isinstance(c.work, nn.Module)]
    for phase in phases if len(modules) == len(case.contenders) else PHASES[:1]:
        if settings.compile:
            torch.compiler.reset()  # or the modules of all cases together are too many versions of one function
        steps = {c.name: (training_step if phase == "training" else forward_step)(c) for c in case.contenders}
        times = take_turns(steps, settings.runs, wait=settings.wait, at_least=0.0 if settings.quick else TURN)
        for c in case.contenders:
            c.seconds[phase] = times[c.name]
        for c in modules:
            c.memory[phase] = peak_memory(steps[c.name], settings.device)
    for c in modules:
        if not hasattr(c.work, "_orig_mod"):  # which compiled modules have
            c.counts = counts(c.work, *c.inputs)
    for c in case.contenders:
        c.work, c.inputs = None, ()  # so that no two cases are in memory at once
    return case


def forward_step(c: Contender) -> Step:
    """Inference: in evaluation mode, without gradients. A function runs as it is."""
    if not isinstance(c.work, nn.Module):
        return c.work
    module, inputs = c.work.eval(), c.inputs

    def step() -> Any:
        with torch.no_grad():
            return module(*inputs)

    return step


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


def _compiled(case: Case) -> Iterator[Contender]:
    """The modules again, compiled, and compared with the compiled baseline; that one with the plain baseline."""
    modules = [c for c in case.contenders if isinstance(c.work, nn.Module)]
    for c in modules:
        baseline = None if c is modules[0] else f"{c.baseline or modules[0].name}, compiled"
        rival = c.rival and f"{c.rival}, compiled"
        work = torch.compile(c.work, fullgraph=True)  # one graph or an error: no part may run uncompiled unnoticed
        yield Contender(f"{c.name}, compiled", work, c.inputs, c.limit, c.folded, rival, baseline)
