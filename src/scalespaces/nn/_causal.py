"""The causal lift as a layer."""

import torch
from torch import Tensor

from scalespaces.nn._constants import Constants
from scalespaces.semigroups._causal import CAUSAL_SAMPLINGS, apply_causal_lift, step_taps
from scalespaces.space import ScaleSpace
from scalespaces.theory._arguments import check_choice, check_integer
from scalespaces.theory._causal import check_causal_base, check_causal_padding
from scalespaces.theory._kernels import check_zero_scale
from scalespaces.theory._padding import PaddingMode


class CausalLift(Constants):
    """Lift signals to scale-spaces that use no future samples; arguments as in
    :func:`~scalespaces.semigroups.causal_lift`.

    On its output :class:`ScaleConv1d`, the poolings and :class:`ScalePool` are causal; batch normalization is causal in
    eval mode. The kernel is a buffer: it follows ``.to()``, though not to half precision, and stays out of checkpoints.

    Args:
        device: of the kernel.
        dtype: of the kernel; signals of a higher precision are lifted in their own.

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
        self.register_constant("taps", step_taps(self.base, self.zero_scale, self.stages), device, dtype)

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
        names = ("num_levels", "base", "zero_scale", "stages", "sampling", "padding_mode")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
