"""Blurs that look only back in time: cascades of truncated exponentials on the integers."""

import math
from typing import Any

import numpy as np
from scipy import special

from scalespaces.theory._arguments import Array, check_choice, check_integer, check_real
from scalespaces.theory._padding import PaddingMode

CAUSAL_PADDINGS = ("zeros", "replicate")


def causal_kernel(t: float, stages: int = 4, *, tail: float = 1e-8) -> Array:
    r"""Return the taps of a causal blur of variance t, at delays 0, 1, 2 ...; they sum to one.

    It is a cascade of K equal stages, each a truncated exponential on the integers of mean :math:`\mu`:

    .. math:: h = h_\mu^{*K}, \qquad h_\mu(n) = (1 - r) r^n, \quad n \ge 0, \qquad r = \frac{\mu}{1 + \mu}, \qquad
        K (\mu^2 + \mu) = t

    It creates no new extrema. Variances add, though two of these in a row are not one of these: that takes another
    number of stages. Every stage delays: see ``causal_delay``.

    Args:
        t: the variance.
        stages: K; more of them come closer to a Gaussian, and delay more.
        tail: the mass beyond the last tap is at most this, before renormalization. With n taps the mean is then off by
            less than ``n * tail`` or so, the variance by the square of n.

    Example:
        >>> causal_kernel(2.0, stages=1)[:4]  # mean 1
        array([0.5   , 0.25  , 0.125 , 0.0625])
    """
    mean = _mean_of_stage(t, stages)
    check_real("tail", tail, "in (0, 1)", lambda mass: 0 < mass < 1)
    if mean == 0:
        return np.ones(1)
    r = mean / (1 + mean)
    reach = 1
    while special.betainc(reach, stages, r) > tail:  # the mass at delays of reach and more
        reach *= 2
    reach = 1 + int((special.betainc(np.arange(1, reach + 1), stages, r) > tail).sum())
    # Each tap is a multiple of the one before. In logarithms: the first may be too small for a float.
    n = np.arange(reach - 1)
    logs = np.append(0.0, np.cumsum(np.log(r * (n + stages) / (n + 1))))
    taps = np.exp(logs - logs.max())
    return taps / taps.sum()


def causal_delay(t: float, stages: int = 4) -> float:
    r"""Return the mean delay :math:`K \mu` of :func:`causal_kernel`, in samples.

    Level k of a causal scale-space is late by :math:`(c^k - 1) / (c - 1)` times that of one step, in samples of the
    signal.

    Example:
        >>> causal_delay(2.0, stages=1)
        1.0
    """
    return stages * _mean_of_stage(t, stages)


def _mean_of_stage(t: float, stages: int) -> float:
    t = check_real("t", t, ">= 0", lambda t: t >= 0)
    part = t / check_integer("stages", stages, 1)
    return 2 * part / (1 + math.sqrt(1 + 4 * part))  # the root of mu^2 + mu = part, without cancellation


def check_causal_base(base: Any) -> float:
    """Return the base as a float if it is a whole number of at least 2: samples are kept, never made between others.

    Example:
        >>> check_causal_base(2)
        2.0
    """
    if isinstance(base, float) and base >= 2 and base.is_integer():  # at once: every layer asks
        return base
    rule = "that is whole and >= 2 in a causal scale-space, which reads samples and interpolates none"
    return check_real("base", base, rule, lambda c: c >= 2 and c.is_integer())


def check_causal_padding(padding_mode: PaddingMode) -> PaddingMode:
    """Return the padding mode if what it puts before a record is known when the record begins."""
    if padding_mode in ("reflect", "circular"):
        raise ValueError(
            f"padding_mode={padding_mode!r} would put samples of the future before the record; in a causal "
            "scale-space it is zeros or replicate"
        )
    check_choice("padding_mode", padding_mode, CAUSAL_PADDINGS)
    return padding_mode
