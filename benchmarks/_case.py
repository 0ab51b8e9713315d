"""Cases: contenders that take turns, and how they are measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from scalespaces._measure import Step, peak_memory, take_turns
from scalespaces.bench._counts import counts
from scalespaces.bench._report import Curve, Growth, Result, Row
from scalespaces.space import ScaleSpace

DTYPES = {name: getattr(torch, name) for name in ("float32", "float64", "bfloat16", "float16")}
FORMATS = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}
_TURN = 0.02  # seconds that a turn lasts at least


@dataclass(frozen=True)
class Settings:
    """How contenders are built and measured, the same for all.

    Args:
        runs: rounds that count.
        quick: small cases, for a look.
        dtype: of images and weights, such as ``"float32"``.
        device: ``"cpu"`` or ``"cuda"``.
        format: in which images and weights lie, ``"channels_last"`` or ``"contiguous"``.
        compile: measure what torch.compile makes of each contender, too.
    """

    runs: int = 5
    quick: bool = False
    dtype: str = "float32"
    device: str = "cpu"
    format: str = "channels_last"
    compile: bool = False

    def tensor(self, *shape: int, requires_grad: bool = False) -> Tensor:
        """A random image."""
        image = torch.randn(*shape, dtype=DTYPES[self.dtype], device=self.device)
        return image.contiguous(memory_format=FORMATS[self.format]).requires_grad_(requires_grad)

    def volume(self, *shape: int, requires_grad: bool = False) -> Tensor:
        """A random tensor ``(B, C, S, H, W)``."""
        volume = torch.randn(*shape, dtype=DTYPES[self.dtype], device=self.device)
        if self.format == "channels_last":
            volume = volume.contiguous(memory_format=torch.channels_last_3d)
        return volume.requires_grad_(requires_grad)

    def module(self, module: nn.Module) -> nn.Module:
        """The module as the images are."""
        placed: Any = module.to(self.device, DTYPES[self.dtype])
        return placed.to(memory_format=FORMATS[self.format])

    def wait(self) -> None:
        """Wait for the device."""
        if self.device == "cuda":
            torch.cuda.synchronize()


@dataclass(frozen=True)
class Contender:
    """A module and what it is called with, or a function that runs and no more.

    Args:
        name: of the row.
        work: what is measured.
        inputs: of a module; those that require gradients get them in training.
        limit: by arithmetic, of the ratio.
        folded: the same for folded filters.
        rival: the contender that computes the same by the paper's algorithm.
        baseline: the contender it is compared with; the first one of the case when left out.
    """

    name: str
    work: nn.Module | Callable[..., Any]
    inputs: tuple[Any, ...] = ()
    limit: float | None = None
    folded: float | None = None
    rival: str | None = None
    baseline: str | None = None


@dataclass(frozen=True)
class Case:
    """Contenders for one task; others are compared with the first one."""

    suite: str
    title: str
    contenders: tuple[Contender, ...]
    training: bool = True


def measure(case: Case, settings: Settings) -> Result:
    """Measure time, memory and operations of all contenders of a case."""
    contenders = [*case.contenders, *(_compiled(case.contenders) if settings.compile else ())]
    seconds: dict[str, dict[str, list[float]]] = {c.name: {} for c in contenders}
    memory: dict[str, dict[str, int]] = {c.name: {} for c in contenders}
    for phase in ("forward", "training") if case.training else ("forward",):
        times, peaks = _measure_phase(contenders, phase, settings)
        for name in seconds:
            seconds[name][phase] = times[name]
        for name, peak in peaks.items():
            memory[name][phase] = peak
    rows = []
    for c in contenders:
        counted = counts(c.work, *c.inputs) if isinstance(c.work, nn.Module) and not _is_compiled(c.work) else None
        about = {"rival": c.rival, "limit": c.limit, "folded": c.folded, "counts": counted}
        baseline = c.baseline or case.contenders[0].name
        rows.append(Row(c.name, baseline, seconds=seconds[c.name], memory=memory[c.name], **about))
    return Result(case.suite, case.title, rows)


@dataclass(frozen=True)
class Axis:
    """Cases along one axis, by the value of what grows."""

    suite: str
    title: str
    name: str
    cases: Mapping[int, Callable[[], Case]]


def measure_growth(axis: Axis, settings: Settings) -> Growth:
    """Measure a training step of the case at each value of what grows."""
    curves: dict[str, tuple[list[float], list[int]]] = {}
    for make in axis.cases.values():
        contenders = make().contenders
        times, peaks = _measure_phase(contenders, "training", settings)
        for c in contenders:
            seconds, memory = curves.setdefault(c.name, ([], []))
            seconds.append(statistics.median(times[c.name]))
            memory.append(peaks[c.name])
    lines = [Curve(name, *both) for name, both in curves.items()]
    return Growth(axis.suite, axis.title, axis.name, list(axis.cases), lines)


def _measure_phase(
    contenders: Iterable[Contender], phase: str, settings: Settings
) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Seconds of each round, and the peak memory of modules."""
    build = training_step if phase == "training" else forward_step
    if settings.compile:
        torch.compiler.reset()  # or the modules of all cases together are too many versions of one function
    steps = {c.name: build(c) for c in contenders}
    at_least = 0.0 if settings.quick else _TURN
    times = take_turns(steps, settings.runs, wait=settings.wait, at_least=at_least)
    modules = [c.name for c in contenders if isinstance(c.work, nn.Module)]
    return times, {name: peak_memory(steps[name], settings.device) for name in modules}


def forward_step(contender: Contender) -> Step:
    """Inference: in evaluation, without gradients. A function runs as it is."""
    work, inputs = contender.work, contender.inputs
    if not isinstance(work, nn.Module):
        return lambda: work(*inputs)
    work.eval()

    def step() -> Any:
        with torch.no_grad():
            return work(*inputs)

    return step


def training_step(contender: Contender) -> Step:
    """Forward and backward, from a given gradient of the output: no loss is computed, and no weight changed."""
    module, inputs = contender.work, contender.inputs
    if not isinstance(module, nn.Module):
        raise TypeError(f"only modules are trained, and {contender.name!r} is none")
    module.train()
    leaves = [*module.parameters(), *(t for x in inputs for t in tensors(x) if t.requires_grad)]
    gradients = [torch.randn_like(output) for output in tensors(module(*inputs))]

    def step() -> None:
        torch.autograd.backward(tensors(module(*inputs)), gradients)
        for leaf in leaves:
            leaf.grad = None

    return step


def tensors(x: Any) -> list[Tensor]:
    """The tensors that a module takes or gives: one, those of the levels, or those of a sequence."""
    if isinstance(x, Tensor):
        return [x]
    return list(x.levels if isinstance(x, ScaleSpace) else x)


def _compiled(contenders: Iterable[Contender]) -> Iterator[Contender]:
    """The modules again, compiled, and compared with the compiled baseline; that one with the plain baseline."""
    modules = [c for c in contenders if isinstance(c.work, nn.Module)]
    for c in modules:
        baseline = None if c is modules[0] else f"{c.baseline or modules[0].name}, compiled"
        rival = c.rival and f"{c.rival}, compiled"
        # All in one graph, or an error: a part that runs as it is would not be told apart.
        work: Any = torch.compile(c.work, fullgraph=True)
        yield replace(c, name=f"{c.name}, compiled", work=work, baseline=baseline, rival=rival)


def _is_compiled(module: nn.Module) -> bool:
    return hasattr(module, "_orig_mod")
