"""What training takes on many devices, computed from the networks: python benchmarks/scaling.py [--model NAME ...].

Memory and communication of the recipes' networks, at the recipes' batch sizes, for some numbers of devices. Nothing
runs on a GPU: activations are counted on tensors without data, bytes are arithmetic, and times are those bytes at the
speeds that --links and --latency say. With --measure, what can be had on this machine is measured and compared: the
memory of a step, and every collective of a real training step of two processes.
"""

import argparse
import json
import math
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from scalespaces.models import create_model, summarize
from scalespaces.models._registry import entry
from scalespaces.nn import ScaleBatchNorm
from scalespaces.space import ScaleSpace
from scalespaces.train._data import num_classes
from scalespaces.train._levels import supervise
from scalespaces.train._recipe import Recipe, load_recipe

RECIPES = Path(__file__).parents[1] / "recipes"
MODELS = ("densenet", "s_densenet", "resnet", "s_resnet")
STATES = {"sgd": 1, "adam": 2, "adamw": 2}  # numbers that an optimizer keeps for each parameter
PRESETS = ("paper", "recommended")  # of networks with levels: dense, and as a pyramid
MEASURED = ("memory", "communication")
MEBI, FLOAT = 2**20, 4


def find_recipe(model: str, overrides: Sequence[str] = ()) -> Recipe:
    """The first recipe with that network."""
    for file in sorted(RECIPES.glob("*.yaml")):
        if yaml.safe_load(file.read_text())["model"].get("name") == model:
            return load_recipe(file, overrides)
    raise SystemExit(f"no recipe has the network {model!r}")


@dataclass
class Cost:
    """What one network takes: numbers of parameters and buffers, its normalizations, and bytes for each sample."""

    name: str
    batch_size: int
    states: int
    parameters: int
    float_buffers: int
    whole_buffers: int
    norms: list[tuple[int, bool]]
    """Channels of each batch normalization, and whether a gradient goes through its statistics."""
    multiply_adds: int
    outputs: float
    """Outputs of all layers, as scalespaces info counts them."""
    kept: float
    """What autograd keeps until the backward pass."""

    def samples(self, devices: int) -> int:
        """Of a device; of as many devices as samples or more, one each."""
        return max(1, self.batch_size // devices)

    def memory(self, devices: int) -> float:
        """Bytes of a device: parameters, gradients, DDP's copy of these, the optimizer's numbers, and activations."""
        copies = 2 + self.states + (devices > 1)
        return copies * self.parameters * FLOAT + self.samples(devices) * self.kept

    def sent(self, devices: int) -> float:
        """Bytes of gradients that a device sends in a step, and receives: those of a ring."""
        return 2 * (devices - 1) / devices * self.parameters * FLOAT

    def gathered(self) -> list[int]:
        """How many numbers each batch normalization gathers in a step: moments, batch and number of values."""
        return [2 * channels + 2 for channels, _ in self.norms]

    def reduced(self) -> list[int]:
        """How many numbers each all-reduce of their gradients has in a step, and the last one, of the loss."""
        return [*(2 * channels + 2 for channels, differentiated in self.norms if differentiated), 1]

    def small(self) -> list[int]:
        """All of these."""
        return self.gathered() + self.reduced()


def build(recipe: Recipe, preset: str, device: str) -> nn.Module:
    options, classes = recipe.model, num_classes(recipe.data)
    network = create_model(
        str(options.name), preset=preset, num_classes=classes, lift=options.lift, **options.arguments
    )
    return network.to(device).train()


def sample_shape(recipe: Recipe) -> tuple[int, int, int]:
    channels, height, width = entry(str(recipe.model.name)).input_shape
    return (channels, *(recipe.data.crop or (height, width)))


def make_batch(recipe: Recipe, shape: Sequence[int], number: int, device: str) -> tuple[Tensor, Tensor]:
    images = torch.rand(number, *shape, device=device)
    pixels = shape[1:] if recipe.data.segmentation else ()
    return images, torch.zeros(number, *pixels, dtype=torch.int64, device=device)


def kept_bytes(network: nn.Module, images: Tensor, target: Tensor) -> int:
    """Bytes that autograd keeps for the backward pass, parameters aside; each storage once."""
    own = {parameter.untyped_storage()._cdata for parameter in network.parameters()}
    kept: dict[int, tuple[int, Tensor]] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = supervise(network, images, target, "answer")
    del loss
    return sum(size for size, _ in kept.values())


def cost(model: str, preset: str) -> Cost:
    recipe = find_recipe(model)
    shape = sample_shape(recipe)
    network: Any = build(recipe, preset, "meta")
    norms: list[tuple[int, bool]] = []

    def see(module: Any, inputs: tuple[Any, ...]) -> None:
        first = inputs[0].level(0) if isinstance(inputs[0], ScaleSpace) else inputs[0]
        norms.append((module.num_features, first.requires_grad))

    for module in network.modules():
        if isinstance(module, ScaleBatchNorm):
            module.register_forward_pre_hook(see)
    kept = kept_bytes(network, *make_batch(recipe, shape, 2, "meta")) / 2
    buffers = list(network.buffers())
    summary = summarize(create_model(model, preset=preset), shape)
    return Cost(
        name_case(model, preset),
        recipe.data.batch_size,
        STATES[recipe.optimizer.name],
        sum(parameter.numel() for parameter in network.parameters()),
        sum(buffer.numel() for buffer in buffers if buffer.is_floating_point()),
        sum(buffer.numel() for buffer in buffers if not buffer.is_floating_point()),
        norms,
        summary.multiply_adds,
        summary.activations_mib * MEBI,
        kept,
    )


def cases(models: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each network with its presets; without levels these are the same."""
    for model in models:
        for preset in PRESETS if create_model(model).lift.num_levels > 1 else PRESETS[:1]:
            yield model, preset


def name_case(model: str, preset: str) -> str:
    lift = create_model(model, preset=preset).lift
    return f"{model}, {lift.sampling}" if lift.num_levels > 1 else model


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print("\n| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)


def mebibytes(number: float) -> str:
    return f"{number / MEBI:,.1f}" if number < 1000 * MEBI else f"{number / MEBI:,.0f}"


def report(costs: list[Cost], devices: list[int], links: list[float], latency: float) -> None:
    print("MiB are float32. Activations: outputs of all layers, and what is kept for the backward pass, of a sample.")
    table(
        ["network", "parameters", "their MiB", "optimizer MiB", "outputs MiB", "kept MiB", "multiply-adds"],
        [
            [
                c.name,
                f"{c.parameters:,}",
                mebibytes(c.parameters * FLOAT),
                mebibytes(c.states * c.parameters * FLOAT),
                mebibytes(c.outputs),
                mebibytes(c.kept),
                f"{c.multiply_adds / 1e9:.2f}e9",
            ]
            for c in costs
        ],
    )
    print("\nMemory of a device at the recipe's batch size, MiB (samples of a device; * needs a larger batch size)")
    table(
        ["network", "batch size", *(f"{n} devices" if n > 1 else "1 device" for n in devices)],
        [[c.name, str(c.batch_size), *(_memory(c, n) for n in devices)] for c in costs],
    )
    print(
        "\nCommunication of a step: MiB of gradients that a device sends (a ring); collectives of batch normalization "
        "and the loss, and KiB in them; KiB of buffers sent out before a step"
    )
    table(
        ["network", *(f"gradients, {n} devices" for n in devices if n > 1), "collectives", "their KiB", "buffers KiB"],
        [
            [
                c.name,
                *(f"{c.sent(n) / MEBI:.2f}" for n in devices if n > 1),
                str(len(c.small())),
                f"{sum(c.small()) * FLOAT / 1024:.1f}",
                f"{(c.float_buffers * FLOAT + c.whole_buffers * 8) / 1024:.1f}",
            ]
            for c in costs
        ],
    )
    most = max(devices)
    print(f"\nTime of these at {most} devices, ms: bytes at a link's speed; {latency:g} us for each small collective")
    table(
        ["network", *(f"gradients at {speed:g} GB/s" for speed in links), "collectives"],
        [
            [
                c.name,
                *(f"{1e3 * c.sent(most) / (speed * 1e9):.3g}" for speed in links),
                f"{len(c.small()) * latency / 1e3:.3g}",
            ]
            for c in costs
        ],
    )


def _memory(c: Cost, devices: int) -> str:
    return f"{mebibytes(c.memory(devices))} ({c.samples(devices)}{'*' * (c.batch_size % devices > 0)})"


# --- what can be measured here ---------------------------------------------------------------------------------------


def kept_growth(network: nn.Module, recipe: Recipe, shape: Sequence[int], device: str) -> float:
    """Bytes that are kept for each sample more: autocast keeps copies of the parameters besides."""
    few, more = (kept_bytes(network, *make_batch(recipe, shape, number, device)) for number in (2, 4))
    return (more - few) / 2


def peak_growth(model: str, preset: str, shape: Sequence[int]) -> float:
    """Bytes of memory that a training step takes for each sample: what the peak of a process of its own grows by."""
    peaks = []
    for number in (4, 20):
        queue: Any = multiprocessing.get_context("spawn").SimpleQueue()
        process = multiprocessing.get_context("spawn").Process(target=_peak, args=(model, preset, shape, number, queue))
        process.start()
        peaks.append(queue.get())
        process.join()
    return (peaks[1] - peaks[0]) / 16


def _peak(model: str, preset: str, shape: Sequence[int], number: int, queue: Any) -> None:
    torch.set_num_threads(1)
    recipe = find_recipe(model)
    network = build(recipe, preset, "cpu")
    images, target = make_batch(recipe, shape, number, "cpu")
    supervise(network, images, target, "answer").backward()
    # Linux counts in a process's getrusage the peak of the one that started it, but not here.
    (peak,) = (line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    queue.put(int(peak) * 1024)


def measure_memory(shape: tuple[int, int, int]) -> None:
    print(
        f"\nMemory of a sample of {' x '.join(map(str, shape))} on the CPU, MiB: kept for the backward pass, counted on"
    )
    print("tensors without data and on real ones, with bfloat16 by autocast, and what the peak of a process grows by")
    rows = []
    for model, preset in cases(("densenet", "s_densenet", "s_resnet")):
        recipe = find_recipe(model)
        network = build(recipe, preset, "cpu")
        counted = kept_growth(build(recipe, preset, "meta"), recipe, shape, "meta")
        real = kept_growth(network, recipe, shape, "cpu")
        with torch.autocast("cpu", torch.bfloat16):
            mixed = kept_growth(network, recipe, shape, "cpu")
        peak = peak_growth(model, preset, shape)
        numbers = [f"{number / MEBI:.2f}" for number in (counted, real, mixed, peak)]
        ratios = [f"{number / counted:.3f}" for number in (real, mixed, peak)]
        rows.append([name_case(model, preset), *numbers, *ratios])
    table(["network", "counted", "real", "mixed", "peak", "real / counted", "mixed / counted", "peak / counted"], rows)


def measure_communication() -> None:
    """Every collective of a real training step of two processes, against what was computed."""
    from scalespaces.data._make import make_cityscapes, make_pcam

    print("\nCollectives of one training step of two processes (gloo), as computed / as torch.profiler saw them")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        make_pcam(Path(folder) / "pcam", {"train": 16, "valid": 2})
        make_cityscapes(Path(folder) / "cityscapes", {"train": 16, "val": 2}, size=(64, 64))
        for model in ("s_densenet", "s_resnet"):
            expected = cost(model, "recommended")
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            command = [sys.executable, __file__, "--worker", model, folder]
            world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            environment = os.environ | world | {"OMP_NUM_THREADS": "1"}
            runs = [
                subprocess.Popen(
                    command,
                    env=environment | {"RANK": rank, "LOCAL_RANK": rank},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
                for rank in "01"
            ]
            said = [run.communicate()[0] for run in runs]
            if any(run.returncode for run in runs):
                raise SystemExit("\n".join(said))
            seen = json.loads(next(line for line in said[0].splitlines() if line.startswith("{")))
            small = expected.reduced()
            numbers = sum(small) + expected.parameters, sum(seen["all_reduce"])
            gathered = expected.gathered(), seen["all_gather"]
            sent = expected.float_buffers + expected.whole_buffers, sum(seen["broadcast"])
            rows.append(
                [
                    expected.name,
                    f"{len(small)} and the gradients' / {len(seen['all_reduce'])}",
                    f"{numbers[0]:,} / {numbers[1]:,}",
                    f"{sum(gathered[0]):,} in {len(gathered[0])} / {sum(gathered[1]):,} in {len(gathered[1])}",
                    f"{sent[0]:,} / {sent[1]:,}",
                ]
            )
    table(["network", "all-reduces", "numbers in them", "numbers in all-gathers", "numbers in broadcasts"], rows)


def work(model: str, folder: str) -> None:
    """One of the two: four steps of the recipe, of which the third is watched: DDP sets up its buckets before."""
    from scalespaces.train._run import train
    from scalespaces.train._tasks import Task

    kind = find_recipe(model).data.kind
    overrides = [f"--data.root={folder}/{kind}", "--data.batch_size=4", "--data.workers=0", "--trainer.accelerator=cpu"]
    overrides += ["--trainer.max_steps=4", "--model.preset=recommended"]
    overrides += ["--data.crop=[64, 64]"] if kind == "cityscapes" else []
    profile, seen = torch.profiler.profile(record_shapes=True), {"all_reduce": [], "all_gather": [], "broadcast": []}
    begin: Any = Task.on_train_batch_start

    def watch(self: Task, batch: Any, batch_idx: int) -> None:
        begin(self, batch, batch_idx)
        if batch_idx == 2:
            profile.start()

    def count(self: Task, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 2:
            profile.stop()
            for event in profile.events() or []:
                if event.name.startswith("gloo:"):
                    seen.setdefault(event.name.removeprefix("gloo:"), []).append(math.prod(event.input_shapes[0]))

    Task.on_train_batch_start, Task.on_train_batch_end = watch, count
    train(find_recipe(model, overrides), Path(folder) / f"out_{model}", quiet=True)
    print(json.dumps(seen))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=list(MODELS), help=f"networks (default: {' '.join(MODELS)})")
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 4, 32], help="numbers of them (default: 1 4 32)")
    parser.add_argument("--links", type=float, nargs="+", default=[100, 12.5, 1.25], help="GB/s of a device's link")
    parser.add_argument("--latency", type=float, default=30, help="of a small collective, in us (default: 30)")
    parser.add_argument("--measure", nargs="+", choices=MEASURED, default=[], help="what to measure on this machine")
    parser.add_argument("--side", type=int, default=96, help="of the images whose memory is measured (default: 96)")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(*arguments.worker)
        return
    torch.set_num_threads(1)
    report([cost(*case) for case in cases(arguments.model)], arguments.devices, arguments.links, arguments.latency)
    if "memory" in arguments.measure:
        measure_memory((3, arguments.side, arguments.side))
    if "communication" in arguments.measure:
        measure_communication()


if __name__ == "__main__":
    main()
