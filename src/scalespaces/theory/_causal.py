"""Blurs that use only the past: cascades of truncated exponentials on the integers."""

import math

import numpy as np
from scipy import special

from scalespaces.theory._arguments import Array, check_choice, check_integer, check_real
from scalespaces.theory._padding import PaddingMode


def causal_kernel(t: float, stages: int = 4, *, tail: float = 1e-8) -> Array:
    r"""Return the taps of a causal blur of variance t, at delays 0, 1, 2 ...; they sum to one.

    It is a cascade of K equal stages, each a truncated exponential on the integers of mean :math:`\mu`:

    .. math:: h = h_\mu^{*K}, \qquad h_\mu(n) = (1 - r) r^n, \quad n \ge 0, \qquad r = \frac{\mu}{1 + \mu}, \qquad
        K (\mu^2 + \mu) = t

    The blur creates no new extrema. Its mean delay is :math:`K \mu` samples, so level k of a causal scale-space lags by
    :math:`K \mu (c^k - 1) / (c - 1)` samples of the signal. Variances and delays of two kernels add, but their
    convolution belongs to another number of stages.

    More ``stages`` K give a kernel closer to a Gaussian, and more delay. The mass beyond the last tap, before
    normalizing, is at most ``tail``; with n taps, the mean is off by about ``n * tail``, the variance ``n**2 * tail``.
    """
    part = check_real("t", t, ">= 0", lambda t: t >= 0) / check_integer("stages", stages, 1)
    check_real("tail", tail, "in (0, 1)", lambda mass: 0 < mass < 1)
    mean = 2 * part / (1 + math.sqrt(1 + 4 * part))  # the root of mu^2 + mu = part, without cancellation
    if mean == 0:
        return np.ones(1)
    r = mean / (1 + mean)
    reach = 1
    while special.betainc(reach, stages, r) > tail:  # the mass at delays of at least reach
        reach *= 2
    reach = 1 + int((special.betainc(np.arange(1, reach + 1), stages, r) > tail).sum())
    # Each tap is a multiple of the one before. In logarithms, because the first may be too small for a float.
    n = np.arange(reach - 1)
    logs = np.append(0.0, np.cumsum(np.log(r * (n + stages) / (n + 1))))
    taps = np.exp(logs - logs.max())
    return taps / taps.sum()


def check_causal_base(base: object) -> float:
    """Return the base as a float if it is a whole number of at least 2, so that nothing needs interpolation."""
    if isinstance(base, float) and base >= 2 and base.is_integer():  # the common case first: every layer calls this
        return base
    rule = "that is whole and >= 2 in a causal scale-space, which does not interpolate"
    return check_real("base", base, rule, lambda c: c >= 2 and c.is_integer())


def check_causal_padding(padding_mode: PaddingMode) -> PaddingMode:
    """Return the padding mode if the values it puts before a record are known when the record begins."""
    if padding_mode in ("reflect", "circular"):
        came = f"padding_mode={padding_mode!r} would put samples of the future before the record"
        raise ValueError(f"{came}; use zeros or replicate in a causal scale-space")
    return check_choice("padding_mode", padding_mode, ("zeros", "replicate"))
