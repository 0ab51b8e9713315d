"""The causal lift: from a signal up to now to its scale-space."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scalespaces._torch import constant, full_precision
from scalespaces.functional._constants import at_least
from scalespaces.functional._correlate import correlate
from scalespaces.functional._sampling import lead
from scalespaces.space._space import ScaleSpace
from scalespaces.space._window import window_of
from scalespaces.theory import blur_variance, causal_kernel
from scalespaces.theory._arguments import check_choice, check_integer
from scalespaces.theory._causal import check_causal_base, check_causal_padding
from scalespaces.theory._padding import PaddingMode

CAUSAL_SAMPLINGS = ("pyramid", "dense")


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
    r"""Lift a signal to a scale-space that looks only back in time.

    .. math:: f_{k+1} = D f_k, \qquad [D f](t) = \sum_{n \ge 0} h(n)\, f(c t - n), \qquad t = 0, -1, -2, \ldots

    Now is :math:`t = 0`, the newest sample. :math:`h` is a causal blur of variance :math:`s_0 (c^2 - 1)`, see
    :func:`~scalespaces.theory.causal_kernel`. Layers read off the result that it is causal: they look back too, and no
    output depends on samples newer than itself. Equivariance is exact for the records' downscaling by
    :func:`causal_downscale`: on a pyramid at every length and with either padding; in dense sampling with zeros, and
    with replicate for downscalings by :math:`c^n` at lengths of 1 modulo :math:`c^n`.

    Args:
        signal: ``(B, C, time)``, of any length.
        num_levels: how many levels.
        base: :math:`c`, an integer of at least 2.
        zero_scale: :math:`s_0`, the variance of the blur the signal comes with.
        stages: of the blur; more of them come closer to a Gaussian, and delay more.
        sampling: ``"pyramid"`` keeps every :math:`c^k`-th sample at level :math:`k`, counted back from the newest;
            ``"dense"`` keeps all, so that what comes out for a moment stays as it is when the record grows.
        padding_mode: what came before the record: ``"zeros"``, or its first sample with ``"replicate"``.

    Example:
        >>> causal_lift(torch.rand(1, 3, 40), num_levels=3)
        ScaleSpace(3 levels, base 2, causal, torch.float32, cpu)
          level 0: (1, 3, 40), step 1
          level 1: (1, 3, 20), step 2
          level 2: (1, 3, 10), step 4
    """
    (taps,) = causal_taps(base, zero_scale, stages)
    return apply_causal_lift(signal, taps, num_levels, base, zero_scale, stages, sampling, padding_mode)


@constant
def causal_taps(base: float, zero_scale: float, stages: int) -> tuple[Tensor]:
    """The blur of one step, in float64; its last tap meets the present."""
    return (torch.as_tensor(causal_kernel(blur_variance(check_causal_base(base), zero_scale), stages)[::-1].copy()),)


def apply_causal_lift(
    signal: Tensor,
    taps: Tensor,
    num_levels: int,
    base: float,
    zero_scale: float,
    stages: int,
    sampling: str,
    padding_mode: PaddingMode,
) -> ScaleSpace:
    """Lift by a blur that is at hand as a tensor."""
    if not isinstance(signal, Tensor) or signal.ndim != 3 or not signal.is_floating_point() or 0 in signal.shape[2:]:
        came = f"{signal.dtype} of shape {tuple(signal.shape)}" if isinstance(signal, Tensor) else type(signal).__name__
        raise ValueError(f"a signal is a floating-point tensor (B, C, time) of at least one sample, got {came}")
    dense = check_choice("sampling", sampling, CAUSAL_SAMPLINGS) == "dense"
    check_causal_padding(padding_mode)
    c, channels = int(check_causal_base(base)), signal.shape[1]
    window = window_of(taps.shape, 1 if dense else c, "same", causal=True)
    levels, real = [signal], torch.promote_types(signal.dtype, torch.float32)  # half precision is for storage
    with full_precision(signal):
        weight = at_least(taps, signal.to(real), causal_taps, base, zero_scale, stages).expand(channels, 1, -1)
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
    r"""Downscale a signal by :math:`c^n` without looking ahead: :math:`D^n`, with arguments as in :func:`causal_lift`.

    The newest sample stays.

    Example:
        >>> causal_downscale(torch.rand(1, 3, 66), 2).shape
        torch.Size([1, 3, 17])
    """
    n = check_integer("n", n, 0)
    settings: Any = {"zero_scale": zero_scale, "stages": stages, "padding_mode": padding_mode}
    return causal_lift(signal, n + 1, base, **settings).levels[n]
