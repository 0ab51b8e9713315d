"""Semigroups and how they act: translations, p4, p4m, scalings, affine maps, causal shifts, occlusions, light."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Hashable, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from scalespaces._torch import constant, full_precision
from scalespaces.functional._conv import scale_conv
from scalespaces.functional._correlate import correlate
from scalespaces.functional._lift import METHODS, LiftPlan, apply_lift, plan_lift
from scalespaces.functional._sampling import Corners, corners, fold, pad, read_corners, sample_lattice, take
from scalespaces.semigroups._p4 import Group, matrices, order, products
from scalespaces.semigroups._semigroup import Lifted, Semigroup, rounded
from scalespaces.space._numbers import per_axis
from scalespaces.space._space import ScaleSpace
from scalespaces.space._window import window_of
from scalespaces.theory import ScaleTranslation, anisotropic_gaussian, blur_covariance
from scalespaces.theory._arguments import check_choice, check_integer
from scalespaces.theory._padding import PaddingMode, check_padding_mode
from scalespaces.theory._scale import check_zero_scale

Shift = tuple[int, ...]


class _OnGrid:
    """Signals on a grid, what lies outside them, and the shifts by ``first + i`` for ``i`` in a box."""

    def __init__(self, shape: Sequence[int], first: int | Sequence[int], padding_mode: PaddingMode) -> None:
        self.shape = tuple(check_integer("shape", n, 1) for n in shape)
        self.first = per_axis(first, len(self.shape), "first")
        self.padding_mode: PaddingMode = check_padding_mode(padding_mode)

    @property
    def dims(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def starts(self) -> list[range]:
        """The shifts along each axis."""
        return [range(a, a + n) for a, n in zip(self.first, self.shape, strict=True)]

    def shifts(self) -> list[Shift]:
        """All shifts, the last axis fastest."""
        return list(itertools.product(*self.starts()))

    def check(self, shift: Sequence[int]) -> None:
        """Refuse a shift of another number of axes."""
        if not isinstance(shift, Sequence) or len(shift) != self.dims:
            raise ValueError(f"a shift has an integer for each of {self.dims} axes, got {shift!r}")

    def wrap(self, shift: Sequence[int]) -> Shift:
        """The shift itself; on a circular grid, its representative among :meth:`shifts`."""
        if self.padding_mode != "circular":
            return tuple(shift)
        return tuple((z - a) % n + a for z, a, n in zip(shift, self.first, self.shape, strict=True))

    def read(self, f: Tensor, starts: Sequence[range], taps: Sequence[range]) -> Tensor:
        """The signal at every start plus every tap, axis by axis: ``(B, C, *starts, *taps)``."""
        if f.ndim != self.dims + 2:
            raise ValueError(f"signals are (B, C, *X) with {self.dims} axes of space, got shape {tuple(f.shape)}")
        if self.padding_mode == "circular" and any(m % n for m, n in zip(self.shape, f.shape[2:], strict=True)):
            raise ValueError(
                f"on a circular grid the size of a signal divides the number of shifts, {self.shape}, got "
                f"{tuple(f.shape[2:])}"
            )
        for axis in reversed(range(self.dims)):
            index = _places(starts[axis], f)[:, None] + _places(taps[axis], f)
            f = _take_padded(f, axis + 2, index.flatten(), self.padding_mode).unflatten(axis + 2, index.shape)
        axes = range(2, 2 + 2 * self.dims)
        return f.permute(0, 1, *axes[::2], *axes[1::2])

    def read_all(self, f: Tensor, taps: Sequence[range]) -> Tensor:
        """The signal around every shift: ``(B, C, number of shifts, *taps)``."""
        return self.read(f, self.starts(), taps).flatten(2, 1 + self.dims)


def _places(positions: range, f: Tensor) -> Tensor:
    return torch.arange(positions.start, positions.stop, positions.step, device=f.device)


def _take_padded(f: Tensor, axis: int, index: Tensor, mode: PaddingMode) -> Tensor:
    if mode != "zeros":
        return take(f, axis, fold(index, f.shape[axis], mode))
    inside = ((index >= 0) & (index < f.shape[axis])).reshape([-1] + [1] * (f.ndim - axis - 1))
    return torch.where(inside, take(f, axis, index.clip(0, f.shape[axis] - 1)), 0.0)


class Translations(_OnGrid, Semigroup[Shift]):
    r"""Translations of :math:`\mathbb{Z}^d`, :math:`L_z[f](x) = f(x + z)`; their correlation is that of CNNs.

    With ``padding_mode="circular"`` they are the group :math:`\mathbb{Z}_n^d` and everything is exact. With zeros the
    law is exact as long as no sample that left the grid is asked back: for shifts of one sign.

    Args:
        shape: how many shifts along each axis. ``(H - h + 1, W - w + 1)`` is an unpadded convolution.
        first: the first of them, minus the padding of a convolution.
        padding_mode: what lies outside the signal.
    """

    def __init__(
        self, shape: Sequence[int], first: int | Sequence[int] = 0, padding_mode: PaddingMode = "zeros"
    ) -> None:
        super().__init__(shape, first, padding_mode)

    def compose(self, s: Shift, t: Shift) -> Shift:
        """The sum."""
        return self.wrap([a + b for a, b in zip(s, t, strict=True)])

    def act(self, s: Shift, f: Tensor) -> Tensor:
        """The signal shifted, on the same grid."""
        self.check(s)
        return self.read(f, [range(z, z + 1) for z in s], [range(n) for n in f.shape[2:]]).reshape(f.shape)

    def elements(self) -> Sequence[Shift]:
        """All shifts."""
        return self.shifts()

    def orbit(self, f: Tensor, shape: Sequence[int], elements: Sequence[Shift] | None = None) -> Tensor:
        """All windows at once."""
        if elements is not None:
            return super().orbit(f, shape, elements)
        return self.read_all(f, [range(n) for n in shape])


class CausalShifts(Semigroup[int]):
    r"""Shifts of a time series into the past, :math:`L_s[f](t) = f(t - s)` with :math:`s \ge 0`.

    The record ``(B, C, T)`` ends now: what is delayed beyond its end is gone, and zeros enter at its beginning. A
    filter lives on the past, :math:`\psi(x)` weighing what came x samples before the newest one.

    Args:
        num_shifts: the shifts are 0 to ``num_shifts - 1``.
    """

    def __init__(self, num_shifts: int) -> None:
        self.num_shifts = check_integer("num_shifts", num_shifts, 1)

    def compose(self, s: int, t: int) -> int:
        """The sum."""
        return s + t

    def act(self, s: int, f: Tensor) -> Tensor:
        """The record as it was s samples ago."""
        self._check(f)
        return pad(f, [(check_integer("a causal shift", s, 0), -s)])

    def elements(self) -> Sequence[int]:
        """All shifts."""
        return range(self.num_shifts)

    def window(self, f: Tensor, shape: Sequence[int]) -> Tensor:
        """The newest samples, newest first."""
        self._check(f)
        return super().window(f.flip(-1), shape)

    def orbit(self, f: Tensor, shape: Sequence[int], elements: Sequence[int] | None = None) -> Tensor:
        """All windows at once."""
        if elements is not None:
            return super().orbit(f, shape, elements)
        self._check(f)
        past = pad(f.flip(-1), [(0, self.num_shifts + shape[0] - 1 - f.shape[-1])])
        return past.unfold(-1, shape[0], 1)

    def _check(self, f: Tensor) -> None:
        if f.ndim != 3:
            raise ValueError(f"a record is (B, C, T), got shape {tuple(f.shape)}")


class _SquareSymmetries(_OnGrid, Semigroup[tuple[int, Shift]]):
    group: Group

    def __init__(
        self, shape: Sequence[int], first: int | Sequence[int] = 0, padding_mode: PaddingMode = "zeros"
    ) -> None:
        super().__init__(shape, first, padding_mode)
        if len(set(self.shape)) > 1 or self.dims != 2:
            raise ValueError(f"a quarter turn needs a square grid, got shape {self.shape}")
        # Axis i of f runs along axis j of x, forwards or backwards, where R_h has its entry (i, j).
        self._along = [np.abs(matrix).argmax(1).tolist() for matrix in matrices(self.group)]
        self._signs = [matrix.sum(1).tolist() for matrix in matrices(self.group)]

    def compose(self, s: tuple[int, Shift], t: tuple[int, Shift]) -> tuple[int, Shift]:
        """(h, z)(g, y) = (gh, R_g z + y)."""
        (h, z), (g, y) = s, t
        turned = [sign * z[j] + shift for sign, j, shift in zip(self._signs[g], self._along[g], y, strict=True)]
        return products(self.group)[g][h], self.wrap(turned)

    def act(self, s: tuple[int, Shift], f: Tensor) -> Tensor:
        """The signal turned about its first pixel and shifted, on the same grid."""
        h, z = s
        self.check(z)
        if not 0 <= h < order(self.group):
            raise ValueError(f"the symmetries of {self.group} are numbered 0 to {order(self.group) - 1}, got {h}")
        return self._turned(f, h, [range(shift, shift + 1) for shift in z], f.shape[2:])[:, :, 0, 0]

    def elements(self) -> Sequence[tuple[int, Shift]]:
        """All shifts of the first symmetry, then of the second, and so on."""
        return [(h, z) for h in range(order(self.group)) for z in self.shifts()]

    def orbit(self, f: Tensor, shape: Sequence[int], elements: Sequence[tuple[int, Shift]] | None = None) -> Tensor:
        """All windows of each symmetry at once."""
        if elements is not None:
            return super().orbit(f, shape, elements)
        turned = [self._turned(f, h, self.starts(), shape) for h in range(order(self.group))]
        return torch.cat(turned, 2).flatten(2, 3)

    def _turned(self, f: Tensor, h: int, starts: Sequence[range], shape: Sequence[int]) -> Tensor:
        """f(R_h x + z)."""
        sizes = [shape[j] for j in self._along[h]]
        taps = [range(0, sign * n, sign) for sign, n in zip(self._signs[h], sizes, strict=True)]
        windows = self.read(f, starts, taps)
        return windows if self._along[h][0] == 0 else windows.transpose(-1, -2)


class P4(_SquareSymmetries):
    r"""Quarter turns with translations, :math:`L_{h,z}[f](x) = f(R_h x + z)`.

    :class:`~scalespaces.nn.P4Conv2d` is its fast layer.

    Arguments as in :class:`Translations`. Exact for ``padding_mode="circular"``.
    """

    group = "p4"


class P4M(_SquareSymmetries):
    """Quarter turns and mirrors with translations; see :class:`P4`."""

    group = "p4m"


class ScaleTranslations(_OnGrid, Semigroup[tuple[int, Shift]]):
    r"""The paper's scalings with translations: blur, then read at :math:`c^k x + z`.

    .. math:: S_{k,z}[f](x) = f_k(c^k x + z), \qquad (k, z)(l, y) = (k + l, c^l z + y)

    :math:`f_k` is level k of the lift, densely sampled. With ``method="cascade"`` and ``padding_mode="circular"`` the
    law holds exactly when :math:`c^k` divides the size; with ``"direct"``, the paper's blur, up to the aliasing that
    the zero-scale lets pass; with other paddings, away from the borders.

    Args:
        shape: the shifts along each axis, one per pixel.
        num_levels: the scalings are :math:`c^0` to :math:`c^{-(S-1)}`.
        base: the integer c.
        zero_scale: as in :func:`~scalespaces.functional.lift`, like ``method`` and ``padding_mode``.
    """

    def __init__(
        self,
        shape: Sequence[int],
        num_levels: int = 4,
        base: int = 2,
        zero_scale: float = 0.25,
        method: str = "cascade",
        padding_mode: PaddingMode = "circular",
    ) -> None:
        super().__init__(shape, 0, padding_mode)
        self.num_levels, self.base = check_integer("num_levels", num_levels, 1), check_integer("base", base, 2)
        self.zero_scale, self.method = check_zero_scale(zero_scale), check_choice("method", method, METHODS)
        self._plan = self._plan_of(num_levels)
        self._taps = [torch.as_tensor(stage.taps) for stage in self._plan.stages]

    def _plan_of(self, num_levels: int) -> LiftPlan:
        family = "discrete_gaussian"
        return plan_lift(
            num_levels, self.base, 0, self.zero_scale, "dense", self.method, family, self.padding_mode, 4.0
        )

    def levels(self, f: Tensor) -> ScaleSpace:
        """The lift: evaluation at x = 0 of every element."""
        return apply_lift(f, self._plan, self._taps)

    def compose(self, s: tuple[int, Shift], t: tuple[int, Shift]) -> tuple[int, Shift]:
        """(k, z)(l, y) = (k + l, c^l z + y)."""
        (k, z), (el, y) = s, t
        return k + el, self.wrap([self.base**el * a + b for a, b in zip(z, y, strict=True)])

    def act(self, s: tuple[int, Shift], f: Tensor) -> Tensor:
        """The signal downscaled, on a grid c^k times as coarse."""
        (k, z), zoom = s, self.base ** s[0]
        if self.padding_mode == "circular" and any(n % zoom for n in f.shape[2:]):
            raise ValueError(f"on a circular grid {self.base}^{k} must divide the size, got {tuple(f.shape[2:])}")
        if k < self.num_levels:
            return self._thin(self.levels(f).levels[k], zoom, z)
        plan = self._plan_of(k + 1)
        space = apply_lift(f, plan, [torch.as_tensor(stage.taps) for stage in plan.stages])
        return self._thin(space.levels[k], zoom, z)

    def total(self, f: Tensor, elements: Sequence[tuple[int, Shift]]) -> Tensor:
        """One lift for all."""
        if any(k >= self.num_levels for k, _ in elements):
            return super().total(f, elements)
        levels = self.levels(f).levels
        return torch.stack([self._thin(levels[k], self.base**k, z).flatten(2).sum(2) for k, z in elements], 2)

    def _thin(self, level: Tensor, zoom: int, shift: Shift) -> Tensor:
        self.check(shift)
        for axis, (n, z) in enumerate(zip(level.shape[2:], shift, strict=True), 2):
            level = _take_padded(level, axis, _places(range(0, n, zoom), level) + z, self.padding_mode)
        return level

    def elements(self) -> Sequence[tuple[int, Shift]]:
        """All shifts of level 0, then of level 1, and so on."""
        return [(k, z) for k in range(self.num_levels) for z in self.shifts()]

    def orbit(self, f: Tensor, shape: Sequence[int], elements: Sequence[tuple[int, Shift]] | None = None) -> Tensor:
        """One lift, and all windows of each level at once."""
        if elements is not None:
            return super().orbit(f, shape, elements)
        windows = [
            self.read_all(level, [range(0, self.base**k * n, self.base**k) for n in shape])
            for k, level in enumerate(self.levels(f).levels)
        ]
        return torch.cat(windows, 2)

    def lifted(self, kernel_size: Sequence[int]) -> LiftedScaleTranslations:
        """The action on lifted signals, for the paper's filters corr[k,h,w]: centered, over k levels."""
        if self.padding_mode not in ("zeros", "circular"):
            raise ValueError(
                "outside the truncation a lifted signal reads zero, or it is circular, got "
                f"padding_mode={self.padding_mode!r}; scale_conv has the other paddings"
            )
        return LiftedScaleTranslations(self, kernel_size)


class LiftedScaleTranslations(Lifted[tuple[int, Shift]]):
    """Scale-translations on lifted signals; the correlation is :func:`~scalespaces.functional.scale_conv`.

    Filters are ``(C_out, C_in, k * h * w)``: the taps of each level, centered, one level after the other.
    """

    def __init__(self, semigroup: ScaleTranslations, kernel_size: Sequence[int]) -> None:
        self.kernel_size = tuple(check_integer("kernel_size", n, 1) for n in kernel_size)
        if len(self.kernel_size) != semigroup.dims + 1:
            raise ValueError(f"kernel_size is (levels, *taps) with {semigroup.dims} axes of taps, got {kernel_size}")
        taps = [range(-((n - 1) // 2), n // 2 + 1) for n in self.kernel_size[1:]]
        super().__init__(semigroup, itertools.product(range(self.kernel_size[0]), itertools.product(*taps)))
        self.scalings = semigroup

    def correlate(self, f: Tensor, psi: Tensor, elements: Sequence[tuple[int, Shift]] | None = None) -> Tensor:
        """The fast path, where all elements are asked for."""
        if elements is not None:
            return super().correlate(f, psi, elements)
        here = self.scalings
        space = ScaleSpace.unstack(f.unflatten(2, (here.num_levels, *here.shape)), here.base)
        weight = psi.unflatten(2, self.kernel_size)
        return torch.stack(scale_conv(space, weight, padding_mode=here.padding_mode).levels, 2).flatten(2)


class AffineContractions(Semigroup[ScaleTranslation]):
    r"""Affine maps that shrink: blur with the full covariance, then read at :math:`A^{-1} x + z`.

    .. math:: S_{A,z}[f](x) = [G(\cdot, A^{-1} \Sigma_0 A^{-\top} - \Sigma_0) * f](A^{-1} x + z)

    Elements are :class:`~scalespaces.theory.ScaleTranslation`, composed by :math:`(A, z)(B, y) = (AB, B^{-1} z + y)`. A
    may be any matrix that leaves a covariance, :math:`\Sigma_0 \succeq A \Sigma_0 A^\top`: where the zero-scale is a
    number, any whose singular values are at most 1, like anisotropic scalings, shears that shrink, and rotations. On
    the grid the law holds up to aliasing and interpolation: within a few percent on a smooth image, worse on noise and
    for a small zero-scale (``python -m benchmarks semigroups``). Whole shifts are exact.

    For the powers of one matrix :func:`~scalespaces.functional.lift` takes it as ``base`` and feeds ``ScaleConv2d``.

    Args:
        matrices: the A of the truncation, ``(d, d)`` each.
        shifts: the z of the truncation, vectors.
        zero_scale: :math:`\Sigma_0`, a covariance or a variance.
        padding_mode: what lies outside the image when it is blurred; what is read outside is zero.
        truncation: radius of the kernels in standard deviations.
    """

    def __init__(
        self,
        matrices: Sequence[ArrayLike],
        shifts: Sequence[Sequence[float]],
        zero_scale: ArrayLike = 0.25,
        padding_mode: PaddingMode = "zeros",
        truncation: float = 4.0,
    ) -> None:
        self._elements = [ScaleTranslation(A, z) for A in matrices for z in shifts]
        if not self._elements:
            raise ValueError(f"at least one matrix and one shift are needed, got {len(matrices)} and {len(shifts)}")
        self.zero_scale, self.truncation = zero_scale, truncation
        self.padding_mode: PaddingMode = check_padding_mode(padding_mode)
        for s in self._elements:
            blur_covariance(s.A, zero_scale)  # says so if a matrix does not shrink

    def compose(self, s: ScaleTranslation, t: ScaleTranslation) -> ScaleTranslation:
        """(A, z)(B, y) = (AB, B^-1 z + y)."""
        return s @ t

    def act(self, s: ScaleTranslation, f: Tensor) -> Tensor:
        """The image shrunk, on the same grid."""
        self._check(f)
        (taps,) = self._taps(s)
        return sample_lattice(self._blur(taps, f), np.linalg.inv(s.A), s.z, f.shape[2:])

    def key(self, s: ScaleTranslation) -> Hashable:
        """The entries of A and z."""
        return rounded((*s.A.ravel().tolist(), *s.z.tolist()))

    def elements(self) -> Sequence[ScaleTranslation]:
        """All shifts of the first matrix, then of the second, and so on."""
        return self._elements

    def orbit(self, f: Tensor, shape: Sequence[int], elements: Sequence[ScaleTranslation] | None = None) -> Tensor:
        """One blur per matrix, all its shifts at once; only the windows are read."""
        if elements is not None:
            return super().orbit(f, shape, elements)
        self._check(f)
        # So that torch.compile takes them for constants.
        window, size = ([operator.index(n) for n in axes] for axes in (shape, f.shape[2:]))
        windows = []
        for taps, number, places in self._reads(tuple(window), tuple(size)):
            windows.append(read_corners(self._blur(taps, f), places, (number, *window)))
        return torch.cat(windows, 2)

    @constant
    def _reads(self, shape: tuple[int, ...], size: tuple[int, ...]) -> tuple[tuple[Tensor, int, Corners], ...]:
        """For every matrix: its blur, how many shifts it has, and what its windows read."""
        reads = []
        for _, same in itertools.groupby(self._elements, lambda s: s.A.tobytes()):
            group = list(same)
            x = np.tensordot(np.linalg.inv(group[0].A), np.indices(shape), 1)[:, None]
            shifts = np.stack([s.z for s in group], 1).reshape([len(size), -1] + [1] * len(shape))
            reads.append((*self._taps(group[0]), len(group), corners(x + shifts, size)))
        return tuple(reads)

    @constant
    def _taps(self, s: ScaleTranslation) -> tuple[Tensor]:
        covariance = blur_covariance(s.A, self.zero_scale)
        return (torch.as_tensor(anisotropic_gaussian(covariance, truncation=self.truncation)),)

    def _blur(self, taps: Tensor, f: Tensor) -> Tensor:
        weight = taps.to(f).expand(f.shape[1], 1, *taps.shape)
        with full_precision(f):
            window = window_of(taps.shape, padding="same")
            return correlate(f, weight, window=window, groups=f.shape[1], padding_mode=self.padding_mode)

    def _check(self, f: Tensor) -> None:
        if f.ndim - 2 != self._elements[0].z.size:
            raise ValueError(f"matrices act on (B, C, *X) with as many axes X as they have, got {tuple(f.shape)}")


class Occlusions(Semigroup[int]):
    r"""Nested masks, :math:`L_s[f] = m_s f`: each hides what those before it hide, and more.

    Hiding twice is hiding once and the order does not matter: :math:`st = \max(s, t)`. An occlusion is self-adjoint, so
    here, as in a group, transforming the filter is equivariant too.

    Args:
        masks: ``(number of masks, *X)``, true or 1 where the signal is seen.
    """

    def __init__(self, masks: Tensor) -> None:
        if masks.ndim < 2 or not ((masks == 0) | (masks == 1)).all():
            raise ValueError(f"masks are (number, *X) of zeros and ones, got {masks.dtype} of {tuple(masks.shape)}")
        self.masks = masks.bool()
        if (self.masks[1:] & ~self.masks[:-1]).any():
            raise ValueError("masks are nested, each inside the one before; got one that shows what an earlier one hid")

    def compose(self, s: int, t: int) -> int:
        """The one that hides more."""
        return max(s, t)

    def act(self, s: int, f: Tensor) -> Tensor:
        """The signal where it is seen, zero elsewhere, whatever is hidden."""
        if not 0 <= s < len(self.masks):
            raise ValueError(f"masks are numbered 0 to {len(self.masks) - 1}, got {s}")
        return torch.where(self._masks_for(f)[s], f, 0.0)

    def elements(self) -> Sequence[int]:
        """The numbers of the masks."""
        return range(len(self.masks))

    def orbit(self, f: Tensor, shape: Sequence[int], elements: Sequence[int] | None = None) -> Tensor:
        """All masks at once."""
        if elements is not None:
            return super().orbit(f, shape, elements)
        masks = self._masks_for(f)[(slice(None), *map(slice, shape))]
        return torch.where(masks, self.window(f, shape).unsqueeze(2), 0.0)

    def _masks_for(self, f: Tensor) -> Tensor:
        if f.shape[2:] != self.masks.shape[1:]:
            raise ValueError(f"signals are (B, C, *{tuple(self.masks.shape[1:])}) as the masks, got {tuple(f.shape)}")
        return self.masks.to(f.device)


Light = tuple[float, float, bool]


class Lighting(Semigroup[Light]):
    r"""Changes of light, and the normalization that undoes them: :math:`L[f] = a f + b` or :math:`a N[f] + b`, a > 0.

    :math:`N[f] = (f - \text{mean}) / \text{deviation}` forgets all earlier light, :math:`N[a f + b] = N[f]`, so that

    .. math:: (a, b, n)(a', b', n') = (a a', a b' + b, n')\ \text{without}\ n, \qquad (a, b, N)\,t = (a, b, N)

    A constant has no deviation; its normalization is zero.

    Args:
        gains: the a of the truncation.
        offsets: the b of the truncation.
        over: ``"space"`` normalizes each channel of an image, ``"channels"`` each pixel.
    """

    def __init__(self, gains: Sequence[float] = (1.0,), offsets: Sequence[float] = (0.0,), over: str = "space") -> None:
        if not gains or not offsets or min(gains) <= 0:
            raise ValueError(f"gains are positive, and there is an offset, got gains {gains} and offsets {offsets}")
        self.gains, self.offsets = tuple(map(float, gains)), tuple(map(float, offsets))
        self.over = check_choice("over", over, ("space", "channels"))

    def compose(self, s: Light, t: Light) -> Light:
        """Light after light multiplies and adds; normalization forgets what came before it."""
        (a, b, normalize), (gain, offset, normalized) = s, t
        return s if normalize else (a * gain, a * offset + b, normalized)

    def act(self, s: Light, f: Tensor) -> Tensor:
        """The signal in that light."""
        gain, offset, normalize = s
        return gain * (self._normalize(f) if normalize else f) + offset

    def elements(self) -> Sequence[Light]:
        """All lights without normalization, then all with it."""
        return [(a, b, n) for n in (False, True) for a in self.gains for b in self.offsets]

    def orbit(self, f: Tensor, shape: Sequence[int], elements: Sequence[Light] | None = None) -> Tensor:
        """One normalization for all."""
        raw, normal = self.window(f, shape), self.window(self._normalize(f), shape)
        lights = self.elements() if elements is None else elements
        return torch.stack([gain * (normal if normalize else raw) + offset for gain, offset, normalize in lights], 2)

    def _normalize(self, f: Tensor) -> Tensor:
        axes = [1] if self.over == "channels" else list(range(2, f.ndim))
        wide = f.float() if f.dtype in (torch.float16, torch.bfloat16) else f
        variance, mean = torch.var_mean(wide, axes, correction=0, keepdim=True)
        rounding = 16 * torch.finfo(wide.dtype).eps * wide.detach().abs().amax(axes, keepdim=True)
        varies = variance > rounding**2
        # Where nothing varies the root must not be of zero, or its gradient is not a number.
        deviation = torch.where(varies, variance, 1.0).sqrt()
        return torch.where(varies, (wide - mean) / deviation, 0.0).to(f.dtype)
