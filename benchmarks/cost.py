"""Measure what layers, lift, networks, inference and loading cost, each as a ratio to a plain counterpart: PyTorch's
own layers and the same networks written with them, the paper's algorithm, OpenCV's filters, h5py. docs/performance.md
explains rows and columns."""

import argparse
import copy
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import scalespaces
from benchmarks._case import CLOCKS, FORMATS, Case, Contender, Settings, measure, training_step
from benchmarks._counts import limits
from benchmarks._rivals import Conv, Network, rival
from benchmarks._tables import progress
from scalespaces._extras import require
from scalespaces._measure import environment
from scalespaces.cli import positive
from scalespaces.data import PCam, to_unit
from scalespaces.data._augment import PCamAugment, move, recolor
from scalespaces.data._pcam import pcam_file
from scalespaces.models import create_model, prepare
from scalespaces.nn import Lift, ScaleAvgPool, ScaleBatchNorm, ScaleConv2d

PRESETS = {"pyramid": "recommended", "dense": "paper"}  # by sampling
ON_THE_CPU = {"lift": ("cv2", "bench"), "data": ("h5py", "train")}  # their counterparts, and the extras with them


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--suite", nargs="+", choices=SUITES, help="one or several (default: all that compute on the device)")
    add("--quick", action="store_true", help="small sizes and two rounds, for a first look")
    add("--side", type=positive, metavar="N", help="side of the images of layers and models (default: 128, 256, 96)")
    add("--runs", type=positive, metavar="N", help="rounds that count (default: 5; quick: 2)")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="where layers and models compute")
    add("--format", choices=FORMATS, default="channels_last", help="memory format of both sides")
    add("--clock", choices=CLOCKS, default="wall", help="cpu: processor time, on a busy machine, with --threads 1")
    add("--compile", action="store_true", help="add networks compiled by torch.compile, plain and ours")


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
    how: Any = {"clock": args.clock, "compile": args.compile}
    settings = Settings(runs, args.quick, args.side, args.device, args.format, **how)
    facts = environment()
    machine = f"{facts['cpu']}, {facts['threads']} threads, torch {facts['torch']}"
    print(f"{machine}, float32, {args.format}, {runs} runs, {args.clock} time, load average {facts['load_average']}")
    for suite in suites:
        for case in SUITES[suite](settings):
            progress(f"{suite}: {case.title} ...")
            yield measure(case, settings)


def layers(settings: Settings) -> Iterator[Case]:
    """Correlation, batch normalization and average pooling."""
    batch, n, side, levels = (1, 4, 16, 3) if settings.quick else (4, 64, settings.side or 128, 4)

    def tensor(*size: int) -> Tensor:
        return settings.tensor(batch, n, *size, requires_grad=True)

    inputs: dict[str, Any] = {"plain": tensor(side, side), "paper": tensor(levels, side, side)}
    for sampling in PRESETS:
        space = scalespaces.lift(torch.zeros(1, 1, side, side), levels, sampling=sampling)
        inputs[sampling] = space.replace(tuple(tensor(*level.shape[2:]) for level in space.levels))

    def case(title: str, plain: nn.Module, ours: Mapping[str, Callable], paper: Callable) -> Case:
        title = f"{title}, {n} channels, {side} x {side}, batch {batch}, {levels} levels"
        return Case("layers", title, contenders(settings, plain, ours, paper, inputs))

    convs = {f", k = {k}": lambda _, k=k: ScaleConv2d(n, n, (k, 3, 3)) for k in (1, 2)}
    yield case("3 x 3 correlation", nn.Conv2d(n, n, 3, padding=1), convs, Conv)
    norms, pools = {"": lambda _: ScaleBatchNorm(n)}, {"": lambda _: ScaleAvgPool(2, window="plain")}
    yield case("batch normalization", nn.BatchNorm2d(n), norms, lambda _: nn.BatchNorm3d(n))
    yield case("average pooling, 2 x 2", nn.AvgPool2d(2), pools, lambda _: nn.AvgPool3d((1, 2, 2)))


def models(settings: Settings) -> Iterator[Case]:
    """ResNet [1,1,N], S-ResNet [1,4,N] and [2,4,N]; DenseNet and S-DenseNet."""

    def case(title: str, baseline: str, names: dict[str, str], side: int, batch: int, **arguments: Any) -> Case:
        def make(name: str, sampling: str) -> nn.Module:
            return create_model(name, preset=PRESETS[sampling], **arguments)

        inputs = dict.fromkeys(("plain", "paper", *PRESETS), settings.tensor(batch, 3, side, side))
        ours = {f", {k}": partial(make, name) for k, name in names.items()}
        title = f"{title}, {side} x {side}, batch {batch}, 4 levels"
        return Case("models", title, contenders(settings, rival(make(baseline, "dense")), ours, rival, inputs))

    width, side, batch = (4, 64, 1) if settings.quick else (16, settings.side or 256, 4)
    names = {"k = 1": "s_resnet_no_interaction", "k = 2": "s_resnet"}
    yield case(f"ResNet, N = {width}", "resnet", names, side, batch, width=width)
    growth, side, batch = ((2, 4, 8), 48, 2) if settings.quick else ((12, 24, 48), settings.side or 96, 32)
    yield case("DenseNet", "densenet", {"k = 3": "s_densenet"}, side, batch, growth=growth)


def contenders(
    settings: Settings, plain: nn.Module, ours: Mapping[str, Callable], paper: Callable, inputs: Mapping[str, Any]
) -> list[Contender]:
    """The plain module, ours by sampling and levels of filters and, as rivals of dense ones, the paper's algorithm."""
    found, papers = [Contender("plain", settings.module(plain), (inputs["plain"],))], []
    for sampling in PRESETS:
        x = inputs[sampling]
        for k, make in ours.items():
            module, theirs = settings.module(make(sampling)), f"paper{k}" if sampling == "dense" else None
            limit, folded = limits(module, x)
            found.append(Contender(f"{sampling}{k}", module, (x,), limit, folded, theirs))
            if theirs:
                papers.append(Contender(theirs, settings.module(paper(module)), (inputs["paper"],), limit))
            if theirs and isinstance(plain, Network) and settings.format != "contiguous":
                twin = replace(settings, format="contiguous").module(paper(module))  # whose poolings are faster
                papers.append(Contender(f"{theirs}, contiguous", twin, (x.contiguous(),), limit))
        if isinstance(plain, Network):
            k, make = next(iter(ours.items()))
            again = settings.module(make(sampling))
            again.recompute = True
            found.append(Contender(f"{sampling}{k}, recomputed", again, (x,)))
    if isinstance(plain, Network):
        found += compiled(settings, found)
    return found + papers


def compiled(settings: Settings, found: Sequence[Contender]) -> list[Contender]:
    """With ``--compile``, the plain network and those on pyramids once more, each as one graph."""
    own = [c for c in found if c.name == "plain" or (c.name.startswith("pyramid") and c.limit is not None)]
    return [
        Contender(f"{c.name}, compiled", torch.compile(copy.deepcopy(c.work), fullgraph=True), c.inputs, c.limit)
        for c in (own if settings.compile else ())
    ]


def inference(settings: Settings) -> Iterator[Case]:
    """Networks as they are and prepared, forward only; on small images, where calls take more time than arithmetic."""

    def case(title: str, baseline: str, names: dict[str, str], side: int, batch: int, **arguments: Any) -> Case:
        x = settings.tensor(batch, 3, side, side)
        found = [Contender("plain", settings.module(rival(create_model(baseline, **arguments))), (x,))]
        for k, name in names.items():
            module = settings.module(create_model(name, **arguments)).eval()
            found.append(Contender(f"pyramid, {k}", module, (x,), *limits(module, x)))
            found.append(Contender(f"pyramid, {k}, prepared", prepare(module), (x,)))
        title = f"{title}, {side} x {side}, batch {batch}, 4 levels"
        return Case("inference", title, found + compiled(settings, found), ("forward",))

    names = {"k = 1": "s_resnet_no_interaction", "k = 2": "s_resnet"}
    small, width = settings.side or 64, 4 if settings.quick else 16
    for side, batch in [(small, 1)] if settings.quick else [(small, 1), (small, 4), (256, 4)]:
        yield case(f"ResNet, N = {width}", "resnet", names, side, batch, width=width)
    growth, side, batch = ((2, 4, 8), 48, 2) if settings.quick else ((12, 24, 48), settings.side or 96, 32)
    yield case("DenseNet", "densenet", {"k = 3": "s_densenet"}, side, batch, growth=growth)


def lift(settings: Settings) -> Iterator[Case]:
    """One image. OpenCV gets as many threads as PyTorch has."""
    cv2 = require("cv2", "bench")
    height, width = (48, 64) if settings.quick else (1024, 2048)
    image, shape = settings.tensor(1, 3, height, width), f"4 levels of 3 x {height} x {width}"
    pixels = np.ascontiguousarray(image[0].movedim(0, -1).numpy())  # as OpenCV has them

    def blur(level: NDArray, kernel: NDArray) -> NDArray:
        return cv2.sepFilter2D(level, -1, kernel, kernel, borderType=cv2.BORDER_REFLECT_101)  # which the lift does

    def downscale(level: NDArray, kernel: NDArray) -> NDArray:
        return np.ascontiguousarray(blur(level, kernel)[::2, ::2])

    direct, cascade = Lift.paper(4), Lift(4)
    wide, narrow = ([np.asarray(s.taps, pixels.dtype) for s in lift.plan.stages] for lift in (direct, cascade))
    before = cv2.getNumThreads()
    cv2.setNumThreads(torch.get_num_threads())
    try:
        theirs = Contender("OpenCV sepFilter2D", lambda: [blur(pixels, kernel) for kernel in wide])
        ours = Contender("ours", settings.module(direct), (image,), 1.0)
        yield Case("lift", f"dense, direct, {shape}", [theirs, ours])
        few = Contender("OpenCV pyrDown", lambda: [*accumulate(narrow, lambda x, _: cv2.pyrDown(x), initial=pixels)])
        same = Contender("OpenCV sepFilter2D, every 2nd", lambda: [*accumulate(narrow, downscale, initial=pixels)])
        ours = Contender("ours", settings.module(cascade), (image,), len(narrow[0]) / 5)  # pyrDown has 5 taps
        yield Case("lift", f"pyramid, cascade, {shape}", [few, same, ours])
    finally:
        cv2.setNumThreads(before)


class _PlainPatches(Dataset):
    """Patches of an open HDF5 file and their labels: no checks, and one process only."""

    def __init__(self, patches: Any, labels: Tensor) -> None:
        self.patches, self.labels = patches, labels

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self.patches[index]).permute(2, 0, 1), self.labels[index]


def data(settings: Settings) -> Iterator[Case]:
    """Loading, and the parts of a training step with it."""
    number, batch = (16, 4) if settings.quick else (1024, 32)
    order = np.random.default_rng(0).permutation(number).tolist()

    def epoch(dataset: Dataset, sampler: list[int] = order) -> Any:
        """Reading in this process, in that order."""
        return lambda: sum(len(images) for images, _ in DataLoader(dataset, batch, sampler=sampler))

    with tempfile.TemporaryDirectory() as folder:
        h5py: Any = require("h5py", "train")
        patches = np.random.default_rng(0).integers(0, 256, (number, 96, 96, 3), dtype=np.uint8)
        for part, values in (("x", patches), ("y", np.arange(number, dtype=np.uint8).reshape(-1, 1, 1, 1) % 2)):
            with h5py.File(Path(folder) / pcam_file("train", part), "w") as file:
                file[part] = values
        ours = PCam(folder)
        with h5py.File(Path(folder) / pcam_file("train", "x")) as file:
            theirs = _PlainPatches(file["x"], ours.labels)
            contenders = [Contender("plain: h5py", epoch(theirs)), Contender("ours: PCam", epoch(ours), limit=1.0)]
            yield Case("data", f"reading {number} PCam patches at random, batches of {batch}", contenders)
        images = torch.stack([ours[index][0] for index in range(batch)])
        plain = rival(create_model("densenet", growth=(2, 4, 8) if settings.quick else (12, 24, 48)))
        step = training_step(Contender("", settings.module(plain), (settings.tensor(*images.shape),)))
        augment, indices = PCamAugment(), range(batch)
        places, colors = augment.draw(indices, 0)
        moved = move(images, places)
        unit = to_unit(moved)
        columns = colors.to(unit).unbind(1)
        contenders = [
            Contender("plain: DenseNet, training step", step),
            Contender("ours: reading", epoch(ours, order[:batch])),
            Contender("ours: augmentation", lambda: augment(images, indices, 0)),
            Contender("- draw", lambda: augment.draw(indices, 0)),
            Contender("- move", lambda: move(images, places)),
            Contender("- to_unit", lambda: to_unit(moved)),
            Contender("- color", lambda: recolor(unit, *columns)),
        ]
        yield Case("data", f"the parts of a training step with {batch} patches", contenders)


SUITES = {"layers": layers, "lift": lift, "models": models, "inference": inference, "data": data}
