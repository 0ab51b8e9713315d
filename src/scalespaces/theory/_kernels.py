"""Blurring kernels on the integer grid, each a one-parameter semigroup or an approximation of one; and a causal one.

A family is a small frozen object; calling it with the scale ``t`` gives normalized taps. ``t`` is a variance, never a
standard deviation; for :class:`Alpha` it is the multiplier in the exponent.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from scalespaces.theory._arguments import Array, PaddingMode, check_choice, check_integer, check_real, did_you_mean

_ALPHA_REACH = 4096  # the cost of the quadrature grows with the square of the number of taps
_FEW = 2**16  # factors of the binomial's central coefficient that are multiplied individually


def _check_scale(t: float) -> float:
    return check_real("t", t, ">= 0", lambda t: t >= 0)


def check_zero_scale(zero_scale: object) -> float:
    """Return the zero-scale s0 as a float if it is a finite variance >= 0."""
    return check_real("zero_scale", zero_scale, ">= 0, a variance", lambda s0: s0 >= 0)


def _split(offsets: ArrayLike) -> tuple[Array, float]:
    """Write offsets as n + phi, with integers n and the one phi in [0, 1] that they share."""
    x = np.asarray(offsets, dtype=np.float64)
    if not np.isfinite(x).all():
        raise ValueError(f"offsets must be finite, got {x}; remove NaN and inf")
    if x.size == 0:
        return x, 0.0
    nearest = float(x.flat[np.abs(x).argmin()])  # the offset with the least rounding in its fractional part
    phi = nearest - math.floor(nearest)
    n = np.round(x - phi)
    if np.abs(x - phi - n).max() > 1e-9 * max(1.0, float(np.abs(x).max())):
        raise ValueError(f"offsets must share one fractional part, got {x}; evaluate each phase on its own")
    return n, phi


@dataclass(frozen=True)
class Kernel(ABC):
    r"""A family of blurring kernels :math:`g(\cdot, t)` on the integers, :math:`t \ge 0`.

    A level of dilation :math:`1/a` takes :math:`t = s_0 (a^{-2\alpha} - 1)` and the width of the kernel grows as
    :math:`t^{1/2\alpha}`; :math:`\alpha = 1` in every family except :class:`Alpha`.

    Example:
        >>> discrete_gaussian(0.75, radius=1).round(4)
        array([0.2062, 0.5876, 0.2062])
    """

    alpha: float = field(default=1.0, init=False, repr=False)

    @abstractmethod
    def values(self, offsets: ArrayLike, t: float) -> Array:
        """Evaluate the infinite kernel, neither truncated nor renormalized, at offsets that share a fractional part."""

    def radius(self, t: float, truncation: float = 4.0) -> int:
        r"""Return :math:`\lceil \mathrm{truncation} \cdot t^{1/2\alpha} \rceil`; 0 for ``t = 0``."""
        t = _check_scale(t)
        check_real("truncation", truncation, "> 0", lambda x: x > 0)
        # The factor forgives rounding: a radius of 16 stays 16 when 4 sigma is computed as 16.000000000000004.
        return math.ceil(truncation * t ** (0.5 / self.alpha) * (1 - 1e-12))

    def scale(self, dilation: float, zero_scale: float) -> float:
        r"""Return the level's parameter, :math:`t = s_0 (\mathrm{dilation}^{2\alpha} - 1)`."""
        dilation = check_real("dilation", dilation, ">= 1", lambda x: x >= 1)
        return check_zero_scale(zero_scale) * (dilation ** (2 * self.alpha) - 1)

    def __call__(self, t: float, *, radius: int | None = None, truncation: float = 4.0, phase: float = 0.0) -> Array:
        """Return the taps, normalized to sum to one.

        Args:
            t: Scale of the kernel.
            radius: Half the width; by default it follows from ``truncation``.
            truncation: Half the width in units of the kernel's own width, four standard deviations by default.
            phase: Center of the kernel, in [0, 1). The taps are at offsets ``-r..r`` for phase 0, and otherwise at
                ``m - phase`` for ``m = -r..r+1``.
        """
        t = _check_scale(t)
        phase = check_real("phase", phase, "in [0, 1)", lambda p: 0 <= p < 1)
        # Between two pixels even t = 0 reads neighbors: an interpolating kernel has four taps.
        r = max(self.radius(t, truncation), phase != 0) if radius is None else check_integer("radius", radius, 0)
        taps = self.values(np.arange(-r, r + 1 + (phase != 0)) - phase, t)
        if not taps.sum() > 0:
            came = f"{taps} from {self} at t = {t}, phase = {phase}"
            raise ValueError(f"the taps of a kernel must have positive mass, got {came}; use a larger t or radius")
        return taps / taps.sum()


@dataclass(frozen=True)
class DiscreteGaussian(Kernel):
    r"""Lindeberg's discrete Gaussian, the heat kernel of the second difference on the integers; variance t.

    .. math:: G(n, t) = e^{-t} I_{|n|}(t), \qquad G(\cdot, s) * G(\cdot, t) = G(\cdot, s + t)

    Between the integers it is interpolated linearly, from a kernel that is narrower by the variance it adds:

    .. math:: g(n + \varphi, t) = (1 - \varphi) G(n, \tau) + \varphi\, G(n + 1, \tau), \quad
        \tau = t - \varphi (1 - \varphi)

    so that mass 1, mean 0 and variance t are exact at every phase. Where :math:`\tau < 0` (only if t < 1/4) the taps
    :math:`[\tau/2, 1 - \tau, \tau/2]` of that variance replace G; at t = 0 this interpolation reproduces quadratics.
    """

    def values(self, offsets: ArrayLike, t: float) -> Array:
        n, phi = _split(offsets)
        tau = _check_scale(t) - phi * (1 - phi)
        if tau >= 0:
            here, there = special.ive(np.abs(n), tau), special.ive(np.abs(n + 1), tau)
        else:
            here, there = (np.where(m == 0, 1 - tau, np.where(np.abs(m) == 1, tau / 2, 0.0)) for m in (n, n + 1))
        return (1 - phi) * here + phi * there


@dataclass(frozen=True)
class SampledGaussian(Kernel):
    r"""The continuous Gaussian, sampled at the grid points: what most code calls a Gaussian filter.

    .. math:: g(x, t) = (2 \pi t)^{-1/2} e^{-x^2 / 2t}

    It is only approximately a semigroup: the largest tap of g(t) * g(t) - g(2t), kernels normalized, is 7.7e-2 at
    t = 1/4, 5.7e-3 at t = 1/2, 2.9e-5 at t = 1, 1.1e-9 at t = 2. At t = 0 it is linear interpolation.
    """

    def values(self, offsets: ArrayLike, t: float) -> Array:
        n, phi = _split(offsets)
        x = n + phi
        if _check_scale(t) == 0:
            return np.maximum(0.0, 1.0 - np.abs(x))
        with np.errstate(over="ignore"):  # exp(-inf) = 0 is the right value
            return np.exp(-x * x / (2 * t)) / math.sqrt(2 * math.pi * t)


@dataclass(frozen=True)
class Binomial(Kernel):
    r"""Binomial coefficients, a Gaussian with finitely many taps; variance t.

    .. math:: B(n, N) = 2^{-N} \binom{N}{N/2 + n}, \quad N = 4t, \qquad B(\cdot, N) * B(\cdot, M) = B(\cdot, N + M)

    N is the order, one less than the number of taps (the paper's N + M - 1 counts taps). A kernel centered on a pixel
    has an even order, so t is a multiple of 1/2: ``zero_scale=1/2`` with base 2 gives such levels. It has no phases.

    Example:
        >>> binomial(0.5)
        array([0.25, 0.5 , 0.25])
    """

    def values(self, offsets: ArrayLike, t: float) -> Array:
        half = self._half_order(t)
        n, phi = _split(offsets)
        if phi != 0:
            raise ValueError(f"the binomial kernel needs integer offsets (phase 0), got {offsets}; use another family")
        # The central coefficient is a product of odd over even numbers; each tap is a multiple of the one before.
        reach = min(half, int(np.abs(n).max(initial=0)))
        k = np.arange(reach)
        central = np.prod(1 - 0.5 / np.arange(1, min(half, _FEW) + 1))
        if half > _FEW:  # the remaining factors of Wallis's product, by its expansion in 1 / half
            central *= math.sqrt(_FEW / half) * math.exp((1 / _FEW - 1 / half) / 8)
        taps = np.append(central * np.cumprod(np.append(1.0, (half - k) / (half + k + 1))), 0.0)
        return taps[np.minimum(np.abs(n), reach + 1).astype(int)]

    def radius(self, t: float, truncation: float = 4.0) -> int:
        return min(self._half_order(t), super().radius(t, truncation))

    @staticmethod
    def _half_order(t: float) -> int:
        half = 2 * _check_scale(t)
        if abs(half - round(half)) > 1e-9 * max(1.0, half):
            near = f"{math.floor(half) / 2} and {math.ceil(half) / 2} (zero_scale=1/2 with base 2 works)"
            rule = f"the binomial kernel needs 4t to be an even integer, got t = {t}"
            raise ValueError(f"{rule}; the nearest valid t are {near}")
        return round(half)


@dataclass(frozen=True)
class Alpha(Kernel):
    r"""The alpha-scale-space, a fractional diffusion, :math:`0 < \alpha \le 1`; by default 1/2 (Poisson).

    .. math:: g(x, t) = \frac{1}{2\pi} \int_{-\pi}^{\pi} e^{-|\omega|^{2\alpha} t / 2} \cos(\omega x)\, d\omega

    The semigroup law is exact for the transfer function, and so for the infinite kernel on the integers.
    :math:`\alpha = 1` gives the band-limited Gaussian of variance t. For :math:`\alpha < 1` there is no variance: taps
    decay as :math:`|x|^{-1-2\alpha}`, and truncation loses mass: 8 % for 1/2 at the default radius.
    """

    alpha: float = 0.5

    def __post_init__(self) -> None:
        check_real("alpha", self.alpha, "in (0, 1]", lambda a: 0 < a <= 1)

    def radius(self, t: float, truncation: float = 4.0) -> int:
        too_wide = _check_scale(t) > _ALPHA_REACH ** (2 * self.alpha)  # tested first: t^(1/2 alpha) might overflow
        if too_wide or super().radius(t, truncation) > _ALPHA_REACH:
            came = f"more from t = {t} and alpha = {self.alpha}; pass a radius or a smaller truncation"
            raise ValueError(f"alpha kernels go up to radius {_ALPHA_REACH}, got {came}")
        return super().radius(t, truncation)

    def transfer(self, w: ArrayLike, t: float) -> Array:
        r"""Return :math:`e^{-|\omega|^{2\alpha} t / 2}`, continued with period :math:`2\pi`."""
        w = np.asarray(w, dtype=np.float64)
        w = w - 2 * math.pi * np.round(w / (2 * math.pi))
        return np.exp(-0.5 * _check_scale(t) * np.abs(w) ** (2 * self.alpha))

    def values(self, offsets: ArrayLike, t: float) -> Array:
        """Evaluate the integral by Gauss-Legendre quadrature, to about 1e-13, at offsets up to 4096."""
        n, phi = _split(offsets)
        x, inverse = np.unique(np.abs(n + phi), return_inverse=True)
        reach = x.max(initial=0.0)
        if reach > _ALPHA_REACH + 1:
            raise ValueError(f"alpha kernels go up to offset {_ALPHA_REACH}, got {reach:g}; pass a smaller radius")
        # Panels halve in length towards the singularity at 0, which makes it harmless. Each contains at most about
        # three periods of cos(w x), which 32 nodes integrate up to rounding.
        even = np.linspace(0, math.pi, 2 + int(math.pi * reach / 20))
        edges = np.union1d(math.pi * 0.5 ** np.arange(54), even)
        nodes, weights = special.roots_legendre(32)
        half = np.diff(edges)[:, None] / 2
        w = (edges[:-1, None] + half * (1 + nodes)).ravel()
        density = (half * weights).ravel() * self.transfer(w, t) / math.pi
        blocks = np.array_split(x, 1 + x.size // 256)  # bounds the memory
        return np.concatenate([np.cos(np.outer(block, w)) @ density for block in blocks])[inverse].reshape(n.shape)


discrete_gaussian = DiscreteGaussian()
sampled_gaussian = SampledGaussian()
binomial = Binomial()

KERNELS: dict[str, Kernel] = {
    "discrete_gaussian": discrete_gaussian,
    "sampled_gaussian": sampled_gaussian,
    "binomial": binomial,
    "alpha": Alpha(0.5),
}


def get_kernel(kernel: str | Kernel) -> Kernel:
    """Return the family of that name (``"alpha"`` means ``Alpha(0.5)``), or the family itself."""
    if isinstance(kernel, Kernel):
        return kernel
    if not isinstance(kernel, str) or kernel not in KERNELS:
        hint = did_you_mean(kernel, KERNELS)
        raise ValueError(f"kernel must be a Kernel or one of {list(KERNELS)}, got {kernel!r}{hint}")
    return KERNELS[kernel]


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
