"""The lift as a layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from scalespaces.functional import ScaleSpace, downscale
from scalespaces.functional._lift import Sampling, apply_lift, plan_lift
from scalespaces.theory import Kernel
from scalespaces.theory._checks import PaddingMode
from scalespaces.theory._scale import Base, check_base


class Lift(nn.Module):
    """Lift images to scale-spaces; arguments as in :func:`~scalespaces.functional.lift`.

    The kernels are buffers: they follow ``.to()``, if not to half precision, and stay out of checkpoints.

    Shape:
        - Input: :math:`(B, C, *)` with one, two or three spatial axes
        - Output: ``num_levels`` levels of :math:`(B, C, *_k)`

    Example:
        >>> Lift(num_levels=4)(torch.zeros(1, 3, 32, 32)).stack().shape
        torch.Size([1, 3, 4, 32, 32])
    """

    def __init__(
        self,
        num_levels: int = 4,
        base: Base = 2.0,
        zero_scale: float = 0.25,
        kernel: str | Kernel = "discrete_gaussian",
        method: str = "direct",
        sampling: Sampling = "dense",
        padding_mode: PaddingMode = "reflect",
        first_level: int = 0,
        truncation: float = 4.0,
    ) -> None:
        super().__init__()
        self.num_levels, self.base, self.zero_scale, self.kernel = num_levels, check_base(base), zero_scale, kernel
        self.method, self.sampling = method, sampling
        self.padding_mode: PaddingMode = padding_mode
        self.first_level, self.truncation = first_level, truncation
        self.plan = plan_lift(
            num_levels,
            self.base,
            zero_scale,
            kernel,
            method,
            sampling,
            padding_mode,
            first_level,
            truncation,
        )
        for index, stage in enumerate(self.plan.stages):
            taps = None if stage.taps is None else _tensor(stage.taps, torch.get_default_dtype())
            self.register_buffer(f"taps{index}", taps, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        for index, stage in enumerate(self.plan.stages):  # cast from float64, not from what the buffer was before
            buffer = self._taps(index)
            if buffer is not None and not buffer.is_meta:
                setattr(self, f"taps{index}", _tensor(stage.taps, buffer.dtype, buffer.device))
        return self

    def _taps(self, index: int) -> Tensor | None:
        return getattr(self, f"taps{index}")

    def forward(self, image: Tensor) -> ScaleSpace:
        """Lift."""
        return apply_lift(image, self.plan, [self._taps(index) for index in range(len(self.plan.stages))])

    def downscale(self, image: Tensor, n: int = 1, method: str = "cascade") -> Tensor:
        """Downscale an image as this lift does: see :func:`~scalespaces.functional.downscale`."""
        return downscale(image, n, self.base, self.zero_scale, self.kernel, method, self.padding_mode, self.truncation)

    def extra_repr(self) -> str:
        """The arguments that matter."""
        names: list[str] = ["num_levels", "base", "zero_scale", "kernel", "method", "sampling", "padding_mode"]
        names += ["first_level"] if self.first_level else []
        values: dict[str, Any] = {name: getattr(self, name) for name in names}
        return ", ".join(f"{name}={value!r}" for name, value in values.items())


def _tensor(taps: Any, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """A kernel as a tensor, not coarser than what lifts compute in."""
    return torch.tensor(taps, dtype=torch.promote_types(dtype, torch.float32), device=device)
