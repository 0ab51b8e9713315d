"""What a network costs, layer by layer: the paper's tables of shapes, with the costs added."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from scalespaces._tables import text_table
from scalespaces.models._network import NamedNetwork, size_label
from scalespaces.nn._conv import ScaleConv
from scalespaces.space import ScaleSpace

_COSTS = ("parameters", "multiply_adds", "activations_mib")
# What the paper's tables call modules that have no label of their own.
_LABELS = {"Lift": "lift", "ScaleAvgPool": "average pooling", "ScalePool": "scale-pool", "Linear": "linear"}
_LABELS |= {"GlobalPool": "global average pooling", "P4Pool": "group pool", "P4MPool": "group pool"}


@dataclass(frozen=True)
class Layer:
    """One row: ``shape`` is [levels, height, width, channels] of the output, with the height and width of level 0."""

    layer: str
    shape: tuple[int, ...]
    parameters: int
    multiply_adds: int
    activations_mib: float


@dataclass(frozen=True)
class Summary(Layer):
    """The rows of a network's table; its own numbers are their sums, for one image."""

    layers: tuple[Layer, ...]

    @property
    def total(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in _COSTS}

    def to_json(self) -> dict[str, object]:
        """Plain lists and numbers."""
        return {"layers": [asdict(layer) | {"shape": list(layer.shape)} for layer in self.layers], "total": self.total}

    def table(self, name: str = "total", others: dict[str, Summary] | None = None) -> str:
        """The table as text; below it the sums of other networks, and this network's sums divided by theirs."""
        rows = [["layer", "shape", "parameters", "multiply-adds", "MiB"]]
        rows += [[x.layer, str(list(x.shape)), *_costs(x)] for x in self.layers]
        rows.append([name, "", *_costs(self)])
        for other, summary in (others or {}).items():
            rows.append([other, "", *_costs(summary)])
            rows.append([f"times {other}", "", *(f"{self.total[key] / of:.2f}" for key, of in summary.total.items())])
        lines = text_table(rows, left=2).splitlines()
        rule, end = "-" * len(lines[0]), len(self.layers) + 1
        return "\n".join([lines[0], rule, *lines[1:end], rule, *lines[end:]])

    __str__ = table


def _costs(x: Layer) -> tuple[str, str, str]:
    return f"{x.parameters:,}", f"{x.multiply_adds:,}", f"{x.activations_mib:,.1f}"


def summarize(model: NamedNetwork, input_shape: Sequence[int]) -> Summary:
    """Count what a network costs for one image. Nothing is computed, so images of any size take no memory.

    Multiply-adds are those of correlations, of the blurs of the lift and of linear layers. Activations are the
    outputs of all layers, in the data type of the parameters: about what training keeps.

    Args:
        model: the network; it is not changed.
        input_shape: channels, height and width.

    Example:
        >>> summary = summarize(scalespaces.models.create_model("s_densenet"), (3, 96, 96))
        >>> summary.parameters, summary.layers[1].shape
        (262743, (4, 96, 96, 39))
    """
    from torch.utils.flop_counter import FlopCounterMode  # slow to import

    if len(input_shape) != 3 or min(input_shape) < 1:
        raise ValueError(f"an input needs channels, height and width, got {tuple(input_shape)}")
    model = copy.deepcopy(model).to("meta").eval()
    image = torch.zeros(1, *input_shape, device="meta", dtype=next(model.parameters()).dtype)
    counter, layers = FlopCounterMode(display=False), list[Layer]()
    seen: list[Tensor] = [image]  # level 0 of the lift is the image itself
    started: dict[str, int] = {}

    def start(*_: object) -> None:
        started.update(flops=counter.get_total_flops(), seen=len(seen))

    def keep(module: nn.Module, args: object, output: Tensor | ScaleSpace) -> None:
        tensors = output.levels if isinstance(output, ScaleSpace) else (output,)
        seen.extend(tensor for tensor in tensors if not any(tensor is old for old in seen))

    def finish(module: nn.Module, args: object, output: Tensor | ScaleSpace) -> None:
        memory = sum(tensor.numel() * tensor.element_size() for tensor in seen[started["seen"] :])
        parameters = sum(p.numel() for p in module.parameters())
        multiply_adds = (counter.get_total_flops() - started["flops"]) // 2
        levels, first = (output.num_levels, output.level(0)) if isinstance(output, ScaleSpace) else (1, output)
        shape = (levels, *first.shape[2:], first.shape[1])
        kind, label = type(module).__name__, getattr(module, "label", None)
        label = f"corr{size_label(module.kernel_size)}" if isinstance(module, ScaleConv) else label
        layers.append(Layer(label or _LABELS.get(kind, kind), shape, parameters, multiply_adds, memory / 2**20))

    children = [list(child) if isinstance(child, nn.ModuleList) else [child] for child in model.children()]
    for row in (row for rows in children for row in rows if not isinstance(row, nn.Identity)):
        row.register_forward_pre_hook(start)
        for module in row.modules():
            module.register_forward_hook(keep)
        row.register_forward_hook(finish)
    with counter, torch.no_grad():
        model(image)
    sums: dict[str, Any] = {name: sum(getattr(layer, name) for layer in layers) for name in _COSTS}
    return Summary("total", layers[-1].shape, **sums, layers=tuple(layers))
