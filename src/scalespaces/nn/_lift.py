"""The lifts of images and of causal signals as layers."""

from collections.abc import Mapping
from typing import Any, Self

from torch import Tensor

from scalespaces._choices import PAPER
from scalespaces.functional import downscale
from scalespaces.functional._lift import Sampling, apply_lift, check_dims, check_images, plan_lift
from scalespaces.functional._lift import warn_of_single_samples as warn
from scalespaces.nn._base import Constants, Device, Dtype, arguments_of
from scalespaces.semigroups._causal import CAUSAL_SAMPLINGS, apply_causal_lift, causal_taps
from scalespaces.space import ScaleSpace
from scalespaces.theory._arguments import PaddingMode, check_choice, check_integer
from scalespaces.theory._kernels import Kernel, check_causal_base, check_causal_padding, check_zero_scale
from scalespaces.theory._scale import Base, check_base

"""The arguments of the paper's lift that differ from ours."""


class Lift(Constants):
    """Lift images to scale-spaces; arguments as in :func:`~scalespaces.functional.lift`.

    ``Lift()`` has the recommended settings, :meth:`Lift.paper` the paper's. The kernels are buffers that follow
    ``.to()`` and stay out of checkpoints; they are never less precise than float32 or the images.

    Shape:
        - Input: :math:`(B, C, H, W)`; signals or volumes with ``dims=1`` or ``3``
        - Output: ``num_levels`` levels of :math:`(B, C, H_k, W_k)`

    Example:
        >>> Lift(num_levels=3)(torch.zeros(1, 3, 32, 32)).shapes
        ((1, 3, 32, 32), (1, 3, 16, 16), (1, 3, 8, 8))
    """

    def __init__(
        self,
        num_levels: int = 4,
        base: Base = 2.0,
        *,
        first_level: int = 0,
        zero_scale: float = 0.25,
        sampling: Sampling = "pyramid",
        method: str = "cascade",
        kernel: str | Kernel = "discrete_gaussian",
        padding_mode: PaddingMode = "reflect",
        truncation: float = 4.0,
        dims: int = 2,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__()
        base = check_base(base)
        self.dims = check_dims(dims, base)
        blur = (zero_scale, sampling, method, kernel, padding_mode, truncation)
        self.plan = plan_lift(num_levels, base, first_level, *blur)
        self.num_levels, self.base, self.first_level = int(num_levels), base, int(first_level)
        self.zero_scale, self.truncation = float(zero_scale), float(truncation)
        self.sampling, self.method, self.kernel = sampling, method, kernel
        self.padding_mode: PaddingMode = padding_mode
        for index, stage in enumerate(self.plan.stages):
            if stage.taps is not None:
                self.register_constant(f"taps{index}", stage.taps, device, dtype)

    @classmethod
    def paper(cls, num_levels: int = 4, base: Base = 2.0, **arguments: Any) -> Self:
        """The paper's lift: every level blurred once and sampled at every pixel."""
        return cls(num_levels, base, **PAPER | arguments)

    @property
    def config(self) -> dict[str, Any]:
        """Arguments that build the same lift again, as ``Lift(**lift.config)``."""
        return {name: getattr(self, name) for name in ARGUMENTS}

    def forward(self, image: Tensor) -> ScaleSpace:
        """Lift."""
        taps = [getattr(self, f"taps{index}", None) for index in range(len(self.plan.stages))]
        warn(check_images(image, self.dims), self.plan)
        return apply_lift(image, self.plan, taps)

    def downscale(self, image: Tensor, n: int = 1, method: str = "cascade") -> Tensor:
        """Downscale an image as this lift does: see :func:`~scalespaces.functional.downscale`."""
        names = ("zero_scale", "kernel", "padding_mode", "truncation", "dims")
        return downscale(image, n, self.base, method=method, **{name: getattr(self, name) for name in names})

    def extra_repr(self) -> str:
        shown = {k: v for k, v in self.config.items() if k in ("num_levels", "base") or v != ARGUMENTS[k]}
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())


ARGUMENTS = arguments_of(Lift)
"""The arguments of a lift and their defaults, in order."""


class CausalLift(Constants):
    """Lift signals without future samples; arguments as in :func:`~scalespaces.semigroups.causal_lift`.

    The kernel is a buffer like those of :class:`Lift`. On its output :class:`ScaleConv1d`, the poolings and
    :class:`ScalePool` are causal; batch normalization is causal in eval mode.

    Shape:
        - Input: :math:`(B, C, T)`
        - Output: ``num_levels`` levels of :math:`(B, C, T_k)`
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
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__()
        self.num_levels, self.base = check_integer("num_levels", num_levels, 1), check_causal_base(base)
        self.zero_scale, self.stages = check_zero_scale(zero_scale), check_integer("stages", stages, 1)
        self.sampling = check_choice("sampling", sampling, CAUSAL_SAMPLINGS)
        self.padding_mode: PaddingMode = check_causal_padding(padding_mode)
        self._kernel = (self.base, self.zero_scale, self.stages)
        self.register_constant("taps", causal_taps(*self._kernel)[0].numpy(), device, dtype)

    def forward(self, signal: Tensor) -> ScaleSpace:
        """Lift."""
        return apply_causal_lift(signal, self.taps, self._kernel, self.num_levels, self.sampling, self.padding_mode)

    def downscale(self, signal: Tensor, n: int = 1) -> Tensor:
        """Downscale a signal as this lift does: see :func:`~scalespaces.semigroups.causal_downscale`."""
        levels = check_integer("n", n, 0) + 1
        return apply_causal_lift(signal, self.taps, self._kernel, levels, "pyramid", self.padding_mode).levels[n]


def as_lift(value: Lift | Mapping[str, Any] | None, own: Mapping[str, Any]) -> Lift:
    """The lift itself, or one built from the network's ``own`` arguments and these."""
    if type(value) is Lift:
        return value
    if isinstance(value, Lift):
        raise TypeError(f"a network takes a Lift, not its subclass {type(value).__name__}")
    if value is not None and not isinstance(value, Mapping):
        raise TypeError(f"lift must be a Lift or a dict of its arguments, got {type(value).__name__}")
    arguments = {**own, **(value or {})}
    if unknown := sorted(map(str, arguments.keys() - ARGUMENTS.keys())):
        raise TypeError(f"a lift takes no {', '.join(unknown)}; it takes {', '.join(ARGUMENTS)}")
    return Lift(**arguments)
