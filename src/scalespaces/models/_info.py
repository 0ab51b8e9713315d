"""What a network costs, layer by layer: the paper's tables, with numbers beside the shapes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from scalespaces.models._network import NamedNetwork
from scalespaces.nn import (
    GlobalPool,
    Lift,
    P4Conv2d,
    P4MConv2d,
    P4MPool,
    P4Pool,
    ScaleAvgPool,
    ScaleConv2d,
    ScalePool,
)
from scalespaces.space import ScaleSpace

_MEBI = 2**20


@dataclass(frozen=True)
class Layer:
    """One row: ``shape`` is [levels, height, width, channels] of the output, with the height and width of level 0."""

    layer: str
    shape: tuple[int, ...]
    parameters: int
    multiply_adds: int
    activations_mib: float


@dataclass(frozen=True)
class Summary:
    """The rows of a network's table, and their total."""

    layers: tuple[Layer, ...]

    @property
    def parameters(self) -> int:
        """All parameters."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def multiply_adds(self) -> int:
        """All multiply-adds for one image."""
        return sum(layer.multiply_adds for layer in self.layers)

    @property
    def activations_mib(self) -> float:
        """All activations of one image, in MiB."""
        return sum(layer.activations_mib for layer in self.layers)

    @property
    def total(self) -> dict[str, float]:
        """The three sums."""
        return {name: getattr(self, name) for name in ("parameters", "multiply_adds", "activations_mib")}

    def to_json(self) -> dict[str, Any]:
        """Plain lists and numbers."""
        return {"layers": [asdict(layer) | {"shape": list(layer.shape)} for layer in self.layers], "total": self.total}

    def __str__(self) -> str:
        return self.table()

    def table(self, name: str = "total", others: dict[str, Summary] | None = None) -> str:
        """The table as text, with the totals of other networks below, and how many times theirs this one's are."""
        rows = [
            _cells(x.layer, str(list(x.shape)), x.parameters, x.multiply_adds, x.activations_mib) for x in self.layers
        ]
        sums = [_cells(name, "", **self.total)]
        for other, summary in (others or {}).items():
            sums.append(_cells(other, "", **summary.total))
            sums.append((f"times {other}", "", *(f"{self.total[key] / of:.2f}" for key, of in summary.total.items())))
        head = ("layer", "shape", "parameters", "multiply-adds", "MiB")
        widths = [max(map(len, column)) for column in zip(head, *rows, *sums, strict=True)]

        def line(cells: Sequence[str]) -> str:
            left = (cell.ljust(width) for cell, width in zip(cells[:2], widths[:2], strict=True))
            right = (cell.rjust(width) for cell, width in zip(cells[2:], widths[2:], strict=True))
            return "  ".join((*left, *right)).rstrip()

        rule = "-" * (sum(widths) + 2 * len(widths) - 2)
        return "\n".join([line(head), rule, *map(line, rows), rule, *map(line, sums)])


def _cells(label: str, shape: str, parameters: float, multiply_adds: float, activations_mib: float) -> tuple[str, ...]:
    return label, shape, f"{parameters:,}", f"{multiply_adds:,}", f"{activations_mib:,.1f}"


def summarize(model: NamedNetwork, input_shape: Sequence[int]) -> Summary:
    """Count what a network costs for one image, without computing anything: any size takes no memory.

    Multiply-adds are those of correlations, of the blurs of the lift and of linear layers. Activations are the
    outputs of all layers, in the data type of the parameters: about what training keeps.

    Args:
        model: the network; it is left as it is.
        input_shape: channels, height and width.

    Example:
        >>> summary = summarize(scalespaces.models.create_model("s_densenet"), (3, 96, 96))
        >>> summary.parameters, summary.layers[1].shape
        (262743, (4, 96, 96, 39))
    """
    from torch.utils.flop_counter import FlopCounterMode  # slow to import

    if len(input_shape) != 3 or min(input_shape) < 1:
        raise ValueError(f"an input has channels, height and width, got {tuple(input_shape)}")
    model = copy.deepcopy(model).to("meta").eval()
    dtype = next(model.parameters()).dtype
    counter, layers, seen = FlopCounterMode(display=False), list[Layer](), list[Tensor]()
    started: dict[str, int] = {}

    def start(*_: Any) -> None:
        started.update(flops=counter.get_total_flops(), seen=len(seen))

    def keep(module: nn.Module, args: Any, output: Tensor | ScaleSpace) -> None:
        tensors = output.levels if isinstance(output, ScaleSpace) else (output,)
        seen.extend(tensor for tensor in tensors if not any(tensor is old for old in seen))

    def finish(module: nn.Module, args: Any, output: Tensor | ScaleSpace) -> None:
        memory = sum(tensor.numel() * tensor.element_size() for tensor in seen[started["seen"] :])
        parameters = sum(p.numel() for p in module.parameters())
        multiply_adds = (counter.get_total_flops() - started["flops"]) // 2
        layers.append(Layer(_label(module), _shape(output), parameters, multiply_adds, memory / _MEBI))

    for row in model.rows():
        row.register_forward_pre_hook(start)
        for module in row.modules():
            module.register_forward_hook(keep)
        row.register_forward_hook(finish)
    image = torch.zeros(1, *input_shape, device="meta", dtype=dtype)
    seen.append(image)  # level 0 of the lift is the image itself
    with counter, torch.no_grad():
        model(image)
    return Summary(tuple(layers))


_LABELS = {
    Lift: "lift",
    ScaleAvgPool: "average pooling",
    ScalePool: "scale-pool",
    GlobalPool: "global average pooling",
    P4Pool: "group pool",
    P4MPool: "group pool",
    nn.Linear: "linear",
}


def _label(module: Any) -> str:
    """What the paper's tables call a module, or the name of its class."""
    if isinstance(module, ScaleConv2d | P4Conv2d | P4MConv2d):
        return f"corr[{','.join(map(str, module.kernel_size))}]"
    return getattr(module, "label", None) or _LABELS.get(type(module), type(module).__name__)


def _shape(output: Tensor | ScaleSpace) -> tuple[int, ...]:
    levels = output.num_levels if isinstance(output, ScaleSpace) else 1
    first = output.level(0) if isinstance(output, ScaleSpace) else output
    return (levels, *first.shape[2:], first.shape[1])
