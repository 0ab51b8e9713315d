"""What layers share: their repr, constant buffers, and learned filters."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from scalespaces.nn import init
from scalespaces.theory._arguments import check_integer

Device = torch.device | str | None
Dtype = torch.dtype | None


def arguments_of(layer: type[nn.Module]) -> dict[str, Any]:
    """The arguments of a layer and their defaults, in order, without device and dtype."""
    parameters = inspect.signature(layer).parameters.values()
    return {argument.name: argument.default for argument in parameters if argument.name not in ("device", "dtype")}


class Layer(nn.Module):
    """A layer whose repr shows the arguments it was built with."""

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in arguments_of(type(self)))


class Constants(Layer):
    """A layer with constant buffers: they follow ``.to()``, in at least float32, and stay out of checkpoints."""

    def register_constant(self, name: str, value: NDArray, device: Device = None, dtype: Dtype = None) -> None:
        """Register an array as a buffer; floating-point numbers have the default dtype unless one is given."""
        number = dtype or torch.get_default_dtype() if value.dtype.kind == "f" else torch.int64
        self.register_buffer(name, _tensor(value, device, number), persistent=False)
        vars(self).setdefault("_sources", {})[name] = value

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        for name, value in vars(self).get("_sources", {}).items():
            buffer: Tensor = getattr(self, name)
            if not buffer.is_meta:  # cast from the source: the buffer may be rounded, or what to_empty() left
                setattr(self, name, _tensor(value, buffer.device, buffer.dtype))
        return self


def _tensor(value: NDArray, device: Device, dtype: torch.dtype) -> Tensor:
    lowest = torch.float32 if dtype.is_floating_point else dtype
    return torch.tensor(value, device=device, dtype=torch.promote_types(dtype, lowest))


class Filters(Layer):
    """A layer with a weight, and a bias unless ``bias=False``; its repr omits arguments that have their default."""

    kernel_size: Any
    bias: nn.Parameter | None

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.in_channels = check_integer("in_channels", in_channels, 1)
        self.out_channels = check_integer("out_channels", out_channels, 1)

    def make_filters(self, shape: Sequence[int], bias: bool, device: Device, dtype: Dtype) -> None:
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
        for name, default in arguments_of(type(self)).items():
            if name not in ("kernel_size", "bias") and default not in (inspect.Parameter.empty, getattr(self, name)):
                text += f", {name}={getattr(self, name)!r}"
        return text + ("" if self.bias is not None else ", bias=False")
