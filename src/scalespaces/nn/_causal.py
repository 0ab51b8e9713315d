"""The causal lift as a layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from scalespaces.semigroups._causal import CAUSAL_SAMPLINGS, apply_causal_lift, causal_taps
from scalespaces.space import ScaleSpace
from scalespaces.theory._arguments import check_choice, check_integer
from scalespaces.theory._causal import check_causal_base, check_causal_padding
from scalespaces.theory._padding import PaddingMode
from scalespaces.theory._scale import check_zero_scale


class CausalLift(nn.Module):
    """Lift signals to scale-spaces that look only back in time; arguments as in
    :func:`~scalespaces.semigroups.causal_lift`.

    The layers for signals then are causal as they are: :class:`ScaleConv1d`, the poolings, :class:`ScalePool`. Batch
    normalization is in evaluation. The kernel is a buffer: it follows ``.to()``, and stays out of checkpoints.

    Args:
        device: of the kernel.
        dtype: of the kernel; signals in a higher precision are lifted in theirs.

    Shape:
        - Input: :math:`(B, C, T)`
        - Output: ``num_levels`` levels of :math:`(B, C, T_k)`

    Example:
        >>> net = torch.nn.Sequential(CausalLift(3), scalespaces.nn.ScaleConv1d(1, 4, (2, 5), stride=2))
        >>> net(torch.zeros(1, 1, 64))
        ScaleSpace(3 levels, base 2, causal, torch.float32, cpu)
          level 0: (1, 4, 32), step 1
          level 1: (1, 4, 16), step 2
          level 2: (1, 4, 8), step 4
    """

    taps: Tensor

    def __init__(
        self,
        num_levels: int = 4,
        base: float = 2.0,
        *,
        zero_scale: float = 0.25,
        stages: int = 4,
        sampling: str = "pyramid",
        padding_mode: PaddingMode = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_levels, self.base = check_integer("num_levels", num_levels, 1), check_causal_base(base)
        self.zero_scale, self.stages = check_zero_scale(zero_scale), check_integer("stages", stages, 1)
        self.sampling = check_choice("sampling", sampling, CAUSAL_SAMPLINGS)
        self.padding_mode: PaddingMode = check_causal_padding(padding_mode)
        self.register_buffer("taps", self._taps(device, dtype or torch.get_default_dtype()), persistent=False)

    def _taps(self, device: torch.device | str | None, dtype: torch.dtype) -> Tensor:
        return causal_taps(self.base, self.zero_scale, self.stages)[0].to(device, dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        if not self.taps.is_meta:  # cast from float64, not from what the buffer was before
            self.taps = self._taps(self.taps.device, self.taps.dtype)
        return self

    def forward(self, signal: Tensor) -> ScaleSpace:
        """Lift."""
        return self._lift(signal, self.num_levels, self.sampling)

    def downscale(self, signal: Tensor, n: int = 1) -> Tensor:
        """Downscale a signal as this lift does: see :func:`~scalespaces.semigroups.causal_downscale`."""
        return self._lift(signal, check_integer("n", n, 0) + 1, "pyramid").levels[n]

    def _lift(self, signal: Tensor, num_levels: int, sampling: str) -> ScaleSpace:
        kernel = (self.base, self.zero_scale, self.stages)
        return apply_causal_lift(signal, self.taps, num_levels, *kernel, sampling, self.padding_mode)

    def extra_repr(self) -> str:
        """The arguments."""
        names = ("num_levels", "base", "zero_scale", "stages", "sampling", "padding_mode")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
