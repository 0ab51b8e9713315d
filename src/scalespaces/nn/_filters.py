"""The base of layers with learned filters."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from scalespaces.nn import init
from scalespaces.theory._arguments import check_integer


class Filters(nn.Module):
    """A layer with a weight, and a bias unless ``bias=False``; ``defaults`` are the arguments that its repr omits."""

    defaults: ClassVar[Mapping[str, Any]] = {}
    kernel_size: Any
    bias: nn.Parameter | None

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.in_channels = check_integer("in_channels", in_channels, 1)
        self.out_channels = check_integer("out_channels", out_channels, 1)

    def make_filters(
        self, shape: Sequence[int], bias: bool, device: torch.device | str | None, dtype: torch.dtype | None
    ) -> None:
        """Register the parameters; ``shape`` is that of the weight."""
        self.weight = nn.Parameter(torch.empty(*shape, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(shape[0], device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """He's initialization; the paper's is :func:`scalespaces.nn.init.paper_`."""
        init.he_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        for name, default in self.defaults.items():
            text += f", {name}={getattr(self, name)!r}" if getattr(self, name) != default else ""
        return text + ("" if self.bias is not None else ", bias=False")
