"""Compute what training takes on many devices: memory and communication of the recipes' networks, at the recipes' batch
sizes. Nothing runs on a GPU: activations are counted on tensors without data, and bytes are arithmetic. With --measure,
the memory of a step is also measured on this CPU."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from benchmarks._tables import Table
from scalespaces._measure import peak_memory
from scalespaces.models import create_model, summarize
from scalespaces.models._registry import entry
from scalespaces.nn import ScaleBatchNorm
from scalespaces.space import ScaleSpace
from scalespaces.train._data import num_classes
from scalespaces.train._levels import supervise
from scalespaces.train._recipe import Recipe, load_recipe

ROOT = Path(__file__).parents[1]
CASES = {
    "densenet": ("densenet", "paper"),
    "s_densenet, dense": ("s_densenet", "paper"),
    "s_densenet, pyramid": ("s_densenet", "recommended"),
    "resnet": ("resnet", "paper"),
    "s_resnet, dense": ("s_resnet", "paper"),
    "s_resnet, pyramid": ("s_resnet", "recommended"),
}
DEVICES = (1, 4, 32)
MEASURED = (3, 96, 96)  # images whose memory is measured
STATES = {"sgd": 1, "adam": 2, "adamw": 2}  # numbers that an optimizer keeps for each parameter
MEBI, FLOAT = 2**20, 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--measure", action="store_true", help="also measure the memory of a step on this CPU")


def run(args: argparse.Namespace) -> Iterator[Table]:
    yield from report({name: cost(*case) for name, case in CASES.items()})
    if args.measure:
        yield measured_memory()


def find_recipe(model: str, overrides: Sequence[str] = ()) -> Recipe:
    """The first recipe with that network."""
    files = sorted((ROOT / "recipes").glob("*.yaml"))
    return load_recipe(next(f for f in files if yaml.safe_load(f.read_text())["model"].get("name") == model), overrides)


@dataclass
class Cost:
    """What a network takes: numbers of parameters and buffers, its normalizations, and bytes for each sample."""

    batch_size: int
    states: int
    parameters: int
    buffers: list[Tensor]
    norms: list[tuple[int, bool]]  # channels, and whether a gradient goes through the statistics
    multiply_adds: int
    outputs: float  # of all layers, as scalespaces info counts them
    kept: float  # by autograd, until the backward pass

    def memory(self, devices: int) -> str:
        """MiB of a device: parameters, gradients, DDP's copy of these, the optimizer's numbers, and activations."""
        samples, copies = max(1, self.batch_size // devices), 2 + self.states + (devices > 1)
        total = copies * self.parameters * FLOAT + samples * self.kept
        return f"{mebibytes(total)} ({samples}{'*' * (self.batch_size % devices > 0)})"

    def gathered(self) -> list[int]:
        """How many numbers each batch normalization gathers in a step: moments, batch and number of values."""
        return [2 * channels + 2 for channels, _ in self.norms]

    def reduced(self) -> list[int]:
        """How many numbers each all-reduce of their gradients has in a step, and the last one, of the loss."""
        return [*(2 * channels + 2 for channels, differentiated in self.norms if differentiated), 1]


def cost(model: str, preset: str) -> Cost:
    recipe = find_recipe(model)
    channels, height, width = entry(model).input_shape
    shape = (channels, *(recipe.data.crop or (height, width)))
    network, norms = build(recipe, preset, "meta"), []

    def see(module: Any, inputs: tuple[ScaleSpace]) -> None:
        norms.append((module.num_features, inputs[0].level(0).requires_grad))

    for module in network.modules():
        if isinstance(module, ScaleBatchNorm):
            module.register_forward_pre_hook(see)
    summary = summarize(create_model(model, preset=preset), shape)
    return Cost(
        batch_size=recipe.data.batch_size,
        states=STATES[recipe.optimizer.name],
        parameters=sum(p.numel() for p in network.parameters()),
        buffers=list(network.buffers()),
        norms=norms,
        multiply_adds=summary.multiply_adds,
        outputs=summary.activations_mib * MEBI,
        kept=kept_bytes(network, recipe, shape, 2, "meta") / 2,
    )


def build(recipe: Recipe, preset: str, device: str) -> nn.Module:
    options, classes = recipe.model, num_classes(recipe.data)
    arguments = {"preset": preset, "num_classes": classes, "lift": options.lift, **options.arguments}
    return create_model(str(options.name), **arguments).to(device).train()


def loss(network: nn.Module, recipe: Recipe, shape: Sequence[int], number: int, device: str) -> Tensor:
    images = torch.rand(number, *shape, device=device)
    pixels = shape[1:] if recipe.data.segmentation else ()
    return supervise(network, images, torch.zeros(number, *pixels, dtype=torch.int64, device=device), "answer")


def kept_bytes(network: nn.Module, recipe: Recipe, shape: Sequence[int], number: int, device: str) -> int:
    """Bytes that autograd keeps for the backward pass, without the parameters; each storage once."""
    own = {parameter.untyped_storage()._cdata for parameter in network.parameters()}
    kept: dict[int, tuple[int, Tensor]] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss(network, recipe, shape, number, device)
    return sum(size for size, _ in kept.values())


def mebibytes(number: float) -> str:
    return f"{number / MEBI:,.1f}" if number < 1000 * MEBI else f"{number / MEBI:,.0f}"


def report(costs: dict[str, Cost]) -> Iterator[Table]:
    networks, memory, communication = [], [], []
    for name, c in costs.items():
        weights = c.parameters * FLOAT
        bytes_of = (weights, c.states * weights, c.outputs, c.kept)
        networks.append([name, f"{c.parameters:,}", *map(mebibytes, bytes_of), f"{c.multiply_adds / 1e9:.2f}e9"])
        memory.append([name, str(c.batch_size), *map(c.memory, DEVICES)])
        small = c.gathered() + c.reduced()
        gradients = [f"{2 * (n - 1) / n * weights / MEBI:.2f}" for n in DEVICES[1:]]  # sent and received, in a ring
        sizes = [f"{size / 1024:.1f}" for size in (sum(small) * FLOAT, sum(x.nbytes for x in c.buffers))]
        communication.append([name, *gradients, str(len(small)), *sizes])
    caption = "MiB of float32. Activations: outputs of all layers, and what is kept for the backward pass, of a sample."
    head = ["network", "parameters", "their MiB", "optimizer MiB", "outputs MiB", "kept MiB", "multiply-adds"]
    yield Table("Networks", caption, head, networks)
    caption = "MiB of a device at the recipe's batch size (samples of a device; * needs a larger batch size)"
    yield Table("Memory", caption, ["network", "batch size", *(f"{n} device{'s' * (n > 1)}" for n in DEVICES)], memory)
    caption = "In a step, of a device: MiB of gradients; collectives of batch normalization and loss; KiB of buffers"
    head = [f"gradients MiB, {n} devices" for n in DEVICES[1:]]
    yield Table("Communication", caption, ["network", *head, "collectives", "their KiB", "buffers KiB"], communication)


def measured_memory() -> Table:
    """Memory for each sample more, on this machine."""

    def measured(model: str, preset: str) -> list[str]:
        recipe = find_recipe(model)
        network = build(recipe, preset, "cpu")

        def peak(number: int) -> int:
            network.zero_grad(set_to_none=False)
            return peak_memory(lambda: loss(network, recipe, MEASURED, number, "cpu").backward())

        def more(size: Callable[[int], int]) -> float:
            return (size(4) - size(2)) / 2

        kept = partial(kept_bytes, network, recipe, MEASURED, device="cpu")
        plain, highest = more(kept), more(peak)
        with torch.autocast("cpu", torch.bfloat16):  # which keeps copies of the parameters as well
            mixed = more(kept)
        numbers = [f"{number / MEBI:.2f}" for number in (plain, mixed, highest)]
        return [*numbers, f"{mixed / plain:.3f}", f"{highest / plain:.3f}"]

    caption = f"MiB for each sample of {' x '.join(map(str, MEASURED))} more: kept for the backward pass, in float32 "
    caption += "and in bfloat16 by autocast, and the peak of PyTorch's allocator in a step"
    head = ["network", "kept", "mixed", "peak", "mixed / kept", "peak / kept"]
    return Table("Measured memory", caption, head, [[name, *measured(*case)] for name, case in CASES.items()])
