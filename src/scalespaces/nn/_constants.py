"""Buffers that are computed from a layer's arguments."""

from collections.abc import Callable
from typing import Self

import torch
from numpy.typing import NDArray
from torch import Tensor, nn


class Constants(nn.Module):
    """A layer with constant buffers: they follow ``.to()``, at no less than float32, and stay out of checkpoints."""

    def register_constant(
        self, name: str, value: NDArray, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
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


def _tensor(value: NDArray, device: torch.device | str | None, dtype: torch.dtype) -> Tensor:
    lowest = torch.float32 if dtype.is_floating_point else dtype
    return torch.tensor(value, device=device, dtype=torch.promote_types(dtype, lowest))
