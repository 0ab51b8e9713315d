"""Compute what training takes on many devices: memory and communication of the recipes' networks, at the recipes' batch
sizes. Nothing runs on a GPU: activations are counted on tensors without data, and bytes are arithmetic. With --measure,
the memory of a step is also measured on this CPU."""

import argparse
from collections.abc import Iterator, Sequence
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
from scalespaces.train._data import num_classes
from scalespaces.train._levels import supervise
from scalespaces.train._recipe import Recipe, load_recipe

ROOT = Path(__file__).parents[1]
CASES = {
    "densenet": ("densenet", "paper"),
    "s_densenet, dense": ("s_densenet", "paper"),
    "s_densenet, pyramid": ("s_densenet", "recommended"),
    "p4m_densenet": ("p4m_densenet", "paper"),
    "resnet": ("resnet", "paper"),
    "s_resnet, dense": ("s_resnet", "paper"),
    "s_resnet, pyramid": ("s_resnet", "recommended"),
}
DEVICES = (1, 4, 32)
IMAGES = {"pcam": 262_144, "cityscapes": 2_975}  # in the training sets
SUSTAINED = 10e12  # FLOP/s of a GPU: about half of an A100's peak in float32
MEASURED = (3, 96, 96)  # images whose memory is measured
STATES = {"sgd": 1, "adam": 2, "adamw": 2}  # numbers that an optimizer keeps for each parameter
MEBI, FLOAT = 2**20, 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--measure", action="store_true", help="also measure the memory of a step on this CPU")


def run(args: argparse.Namespace) -> Iterator[Table]:
    yield from report({name: Cost(*case) for name, case in CASES.items()})
    if args.measure:
        caption = f"MiB for each sample of {' x '.join(map(str, MEASURED))} more: kept for the backward pass, in "
        caption += "float32 and in bfloat16 by autocast, and the peak of PyTorch's allocator in a step"
        head = ["network", "kept", "mixed", "peak", "mixed / kept", "peak / kept"]
        yield Table("Measured memory", caption, head, [[name, *measure(*case)] for name, case in CASES.items()])


def find_recipe(model: str, overrides: Sequence[str] = ()) -> Recipe:
    """The first recipe with that network."""
    files = sorted((ROOT / "recipes").glob("*.yaml"))
    return load_recipe(next(f for f in files if yaml.safe_load(f.read_text())["model"].get("name") == model), overrides)


class Cost:
    """What training a network takes, at its recipe's batch size."""

    def __init__(self, model: str, preset: str) -> None:
        recipe = find_recipe(model)
        channels, *sides = entry(model).input_shape
        shape = (channels, *(recipe.data.crop or sides))
        network = build(recipe, preset, "meta")
        self.gathered: list[int] = []  # how many numbers each batch normalization gathers: moments, batch and values
        self.reduced: list[int] = []  # and how many each all-reduce of their gradients has; the last is of the loss

        def see(norm: Any, inputs: tuple[Any, ...]) -> None:
            numbers = 2 * norm.num_features + 2
            self.gathered.append(numbers)
            if inputs[0].level(0).requires_grad:
                self.reduced.append(numbers)

        for module in network.modules():
            if isinstance(module, ScaleBatchNorm):
                module.register_forward_pre_hook(see)
        self.kept = kept_bytes(network, recipe, shape, 2) / 2  # by autograd, for a sample, until the backward pass
        self.reduced.append(1)
        self.summary = summarize(create_model(model, preset=preset), shape)
        self.parameters = sum(p.numel() for p in network.parameters())
        self.buffers = list(network.buffers())
        self.batch_size, self.states = recipe.data.batch_size, STATES[recipe.optimizer.name]
        # A multiplication and an addition forward, twice as many backward.
        self.flops = 6 * self.summary.multiply_adds * IMAGES[recipe.data.kind] * recipe.trainer.epochs

    def memory(self, devices: int) -> str:
        """MiB of a device: parameters, gradients, DDP's copy of these, the optimizer's numbers, and activations."""
        samples, copies = max(1, self.batch_size // devices), 2 + self.states + (devices > 1)
        total = copies * self.parameters * FLOAT + samples * self.kept
        return f"{mebibytes(total)} ({samples}{'*' * (self.batch_size % devices > 0)})"


def build(recipe: Recipe, preset: str, device: str) -> nn.Module:
    options, classes = recipe.model, num_classes(recipe.data)
    arguments = {"preset": preset, "num_classes": classes, "lift": options.lift, **options.arguments}
    return create_model(str(options.name), **arguments).to(device).train()


def loss(network: nn.Module, recipe: Recipe, shape: Sequence[int], number: int) -> Tensor:
    images = torch.rand(number, *shape, device=next(network.parameters()).device)
    pixels = shape[1:] if recipe.data.segmentation else ()
    return supervise(network, images, images.new_zeros((number, *pixels), dtype=torch.int64), "answer")


def kept_bytes(network: nn.Module, recipe: Recipe, shape: Sequence[int], number: int) -> int:
    """Bytes that autograd keeps for the backward pass, without the parameters; each storage once."""
    own = {parameter.untyped_storage()._cdata for parameter in network.parameters()}
    kept: dict[int, tuple[int, Tensor]] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss(network, recipe, shape, number)
    return sum(size for size, _ in kept.values())


def mebibytes(number: float) -> str:
    return f"{number / MEBI:,.1f}" if number < 1000 * MEBI else f"{number / MEBI:,.0f}"


def report(costs: dict[str, Cost]) -> Iterator[Table]:
    networks, memory, communication, full = [], [], [], []
    for name, c in costs.items():
        weights, outputs = c.parameters * FLOAT, c.summary.activations_mib * MEBI
        sizes = map(mebibytes, (weights, c.states * weights, outputs, c.kept))
        networks.append([name, f"{c.parameters:,}", *sizes, f"{c.summary.multiply_adds / 1e9:.2f}e9"])
        memory.append([name, str(c.batch_size), *map(c.memory, DEVICES)])
        full.append([name, f"{c.flops / 1e18:.2f}e18", f"{c.flops / SUSTAINED / 3600:.1f}"])
        small = c.gathered + c.reduced
        gradients = [f"{2 * (n - 1) / n * weights / MEBI:.2f}" for n in DEVICES[1:]]  # sent and received, in a ring
        sizes = [f"{size / 1024:.1f}" for size in (sum(small) * FLOAT, sum(x.nbytes for x in c.buffers))]
        communication.append([name, *gradients, str(len(small)), *sizes])
    caption = "MiB of float32. Activations: outputs of all layers, and what is kept for the backward pass, of a sample."
    head = ["network", "parameters", "their MiB", "optimizer MiB", "outputs MiB", "kept MiB", "multiply-adds"]
    yield Table("Networks", caption, head, networks)
    caption = "MiB of a device at the recipe's batch size (samples of a device; * needs a larger batch size)"
    yield Table("Memory", caption, ["network", "batch size", *(f"{n} device{'s' * (n > 1)}" for n in DEVICES)], memory)
    caption = f"The recipe's schedule on the whole training set, on a GPU that sustains {SUSTAINED / 1e12:g} TFLOP/s."
    yield Table("Training", caption, ["network", "FLOP", "GPU-hours"], full)
    caption = "In a step, of a device: MiB of gradients; collectives of batch normalization and loss; KiB of buffers"
    head = [f"gradients MiB, {n} devices" for n in DEVICES[1:]]
    yield Table("Communication", caption, ["network", *head, "collectives", "their KiB", "buffers KiB"], communication)


def measure(model: str, preset: str) -> list[str]:
    """Memory for each sample more, on this machine."""
    recipe = find_recipe(model)
    network = build(recipe, preset, "cpu")

    kept = partial(kept_bytes, network, recipe, MEASURED)

    def peak(number: int) -> int:
        network.zero_grad(set_to_none=False)
        return peak_memory(lambda: loss(network, recipe, MEASURED, number).backward())

    plain, highest = ((size(4) - size(2)) / 2 for size in (kept, peak))
    with torch.autocast("cpu", torch.bfloat16):  # which keeps copies of the parameters as well
        mixed = (kept(4) - kept(2)) / 2
    return [*(f"{n / MEBI:.2f}" for n in (plain, mixed, highest)), f"{mixed / plain:.3f}", f"{highest / plain:.3f}"]
