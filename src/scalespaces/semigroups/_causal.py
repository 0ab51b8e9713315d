"""Time: shifts into the past, and the lift of a signal without looking ahead."""

from collections.abc import Sequence

import torch
from torch import Tensor

from scalespaces._torch import constant, full_precision
from scalespaces.functional._constants import at_least
from scalespaces.functional._correlate import correlate
from scalespaces.functional._sampling import lead, pad
from scalespaces.semigroups._semigroup import Semigroup
from scalespaces.space._grid import window_of
from scalespaces.space._space import ScaleSpace
from scalespaces.theory import blur_variance, causal_kernel
from scalespaces.theory._arguments import PaddingMode, check_choice, check_integer
from scalespaces.theory._kernels import check_causal_base, check_causal_padding

CAUSAL_SAMPLINGS = ("pyramid", "dense")


class CausalShifts(Semigroup[int]):
    r"""Shifts of a time series into the past, :math:`L_s[f](t) = f(t - s)` with :math:`s \ge 0`.

    The record ``(B, C, T)`` ends now: samples delayed beyond its end are lost, and zeros enter at its beginning. A
    filter weighs the past: :math:`\psi(x)` is for the sample x before the newest. Shifts are 0 to ``num_shifts - 1``.
    """

    def __init__(self, num_shifts: int) -> None:
        self.num_shifts = check_integer("num_shifts", num_shifts, 1)

    def compose(self, s: int, t: int) -> int:
        """The sum."""
        return s + t

    def act(self, s: int, f: Tensor) -> Tensor:
        """The record as it was s samples ago."""
        return pad(self._check(f), [(check_integer("a causal shift", s, 0), -s)])

    def elements(self) -> Sequence[int]:
        return range(self.num_shifts)

    def window(self, f: Tensor, shape: Sequence[int]) -> Tensor:
        """The newest samples, newest first."""
        return super().window(self._check(f).flip(-1), shape)

    def full_orbit(self, f: Tensor, shape: Sequence[int]) -> Tensor:
        past = pad(self._check(f).flip(-1), [(0, self.num_shifts + shape[0] - 1 - f.shape[-1])])
        return past.unfold(-1, shape[0], 1)

    def _check(self, f: Tensor) -> Tensor:
        if f.ndim != 3:
            raise ValueError(f"a record is (B, C, T), got shape {tuple(f.shape)}")
        return f


def causal_lift(
    signal: Tensor,
    num_levels: int = 4,
    base: float = 2.0,
    *,
    zero_scale: float = 0.25,
    stages: int = 4,
    sampling: str = "pyramid",
    padding_mode: PaddingMode = "zeros",
) -> ScaleSpace:
    r"""Lift a signal to a scale-space that uses no future samples.

    .. math:: f_{k+1} = D f_k, \qquad [D f](t) = \sum_{n \ge 0} h(n)\, f(c t - n), \qquad t = 0, -1, -2, \ldots

    The newest sample is at :math:`t = 0`. :math:`h` is a causal blur of variance :math:`s_0 (c^2 - 1)`, see
    :func:`~scalespaces.theory.causal_kernel`. The result is marked as causal, so that the layers on it are causal too:
    no output depends on samples newer than itself. Equivariance to :func:`causal_downscale` is exact: on a pyramid at
    every length and with either padding; in dense sampling with zeros, and with replicate for downscalings by
    :math:`c^n` of lengths that are 1 modulo :math:`c^n`.

    Args:
        signal: ``(B, C, time)``, of any length, lifted to ``num_levels`` levels.
        base: :math:`c`, an integer of at least 2.
        zero_scale: :math:`s_0`, the variance of the blur that the signal already has.
        stages: number of stages of the blur.
        sampling: ``"pyramid"`` keeps every :math:`c^k`-th sample at level :math:`k`, counted back from the newest;
            ``"dense"`` keeps all, so that the output for a moment does not change as the record grows.
        padding_mode: what lies before the record: ``"zeros"``, or its first sample with ``"replicate"``.

    Example:
        >>> causal_lift(torch.rand(1, 3, 40), num_levels=3).shapes
        ((1, 3, 40), (1, 3, 20), (1, 3, 10))
    """
    kernel = (base, zero_scale, stages)
    return apply_causal_lift(signal, causal_taps(*kernel)[0], kernel, num_levels, sampling, padding_mode)


@constant
def causal_taps(base: float, zero_scale: float, stages: int) -> tuple[Tensor]:
    """The blur of one step; its last tap reads the newest sample."""
    return (torch.from_numpy(causal_kernel(blur_variance(check_causal_base(base), zero_scale), stages)[::-1].copy()),)


def apply_causal_lift(
    signal: Tensor, taps: Tensor, kernel: tuple, num_levels: int, sampling: str, padding_mode: PaddingMode
) -> ScaleSpace:
    """The lift, given the taps of its blur as a tensor, and the arguments they were computed from."""
    if not isinstance(signal, Tensor) or signal.ndim != 3 or not signal.is_floating_point() or 0 in signal.shape[2:]:
        got = f"{signal.dtype} of shape {tuple(signal.shape)}" if isinstance(signal, Tensor) else type(signal).__name__
        raise ValueError(f"a signal is a floating-point tensor (B, C, time) of at least one sample, got {got}")
    dense = check_choice("sampling", sampling, CAUSAL_SAMPLINGS) == "dense"
    check_causal_padding(padding_mode)
    c, channels = int(check_causal_base(kernel[0])), signal.shape[1]
    window = window_of(taps.shape, 1 if dense else c, "same", causal=True)
    levels, real = [signal], torch.promote_types(signal.dtype, torch.float32)  # half precision is for storage
    with full_precision(signal):
        weight = at_least(taps, signal.to(real), causal_taps, *kernel).expand(channels, 1, -1)
        for k in range(check_integer("num_levels", num_levels, 1) - 1):
            apart = c**k if dense else 1
            level, view = lead(window, levels[-1].to(real), apart, padding_mode)
            out = correlate(level, weight, window=view, spacing=apart, groups=channels)
            levels.append(out.to(signal.dtype))
    steps = tuple(1.0 if dense else float(c**k) for k in range(num_levels))
    return ScaleSpace(tuple(levels), float(c), steps, causal=True)


def causal_downscale(
    signal: Tensor,
    n: int = 1,
    base: float = 2.0,
    *,
    zero_scale: float = 0.25,
    stages: int = 4,
    padding_mode: PaddingMode = "zeros",
) -> Tensor:
    """Downscale by :math:`c^n` without looking ahead, by the :math:`D` of :func:`causal_lift`; arguments as there."""
    number = check_integer("n", n, 0) + 1
    return causal_lift(signal, number, base, zero_scale=zero_scale, stages=stages, padding_mode=padding_mode).levels[n]
