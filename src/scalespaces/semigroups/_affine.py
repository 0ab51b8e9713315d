"""Affine maps that shrink."""

import itertools
import operator
from collections.abc import Hashable, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from scalespaces._torch import constant, full_precision
from scalespaces.functional._correlate import correlate
from scalespaces.functional._sampling import Corners, corners, read_corners, sample_lattice
from scalespaces.semigroups._semigroup import Semigroup, rounded
from scalespaces.space._grid import window_of
from scalespaces.theory import ScaleTranslation, anisotropic_gaussian, blur_covariance
from scalespaces.theory._arguments import PaddingMode, check_padding_mode


class AffineContractions(Semigroup[ScaleTranslation]):
    r"""Affine maps that shrink: blur with the full covariance, then read at :math:`A^{-1} x + z`.

    .. math:: S_{A,z}[f](x) = [G(\cdot, A^{-1} \Sigma_0 A^{-\top} - \Sigma_0) * f](A^{-1} x + z)

    Elements are :class:`~scalespaces.theory.ScaleTranslation`, composed by :math:`(A, z)(B, y) = (AB, B^{-1} z + y)`. A
    may be any matrix with :math:`\Sigma_0 \succeq A \Sigma_0 A^\top`, so that the blur has a covariance: if the
    zero-scale is a number, those whose singular values are at most 1. On the grid the law holds up to aliasing and
    interpolation: within a few percent on a smooth image, worse on noise and for a small zero-scale. For the powers of
    one matrix, use it as the ``base`` of :func:`~scalespaces.functional.lift`.

    Args:
        matrices, shifts: the matrices A, ``(d, d)`` each, and the vectors z; the elements are all pairs.
        zero_scale: :math:`\Sigma_0`, a covariance or a variance.
        padding_mode, truncation: of the blur, as in :func:`~scalespaces.functional.lift`; reading outside gives zero.
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
            blur_covariance(s.A, zero_scale)  # raises an error if a matrix does not shrink

    def compose(self, s: ScaleTranslation, t: ScaleTranslation) -> ScaleTranslation:
        """(A, z)(B, y) = (AB, B^-1 z + y)."""
        return s @ t

    def act(self, s: ScaleTranslation, f: Tensor) -> Tensor:
        """The image, shrunk, on the same grid."""
        return sample_lattice(self._blur(self._taps(s)[0], f), np.linalg.inv(s.A), s.z, f.shape[2:])

    def key(self, s: ScaleTranslation) -> Hashable:
        return rounded((*s.A.ravel().tolist(), *s.z.tolist()))

    def elements(self) -> Sequence[ScaleTranslation]:
        """All shifts of the first matrix, then of the second, and so on."""
        return self._elements

    def full_orbit(self, f: Tensor, shape: Sequence[int]) -> Tensor:
        self._check(f)
        # As plain integers, which torch.compile treats as constants.
        window, size = (tuple(operator.index(n) for n in axes) for axes in (shape, f.shape[2:]))
        reads = self._reads(window, size)
        return torch.cat([read_corners(self._blur(taps, f), places, (n, *window)) for taps, n, places in reads], 2)

    @constant
    def _reads(self, shape: tuple[int, ...], size: tuple[int, ...]) -> tuple[tuple[Tensor, int, Corners], ...]:
        """For every matrix: its blur, its number of shifts, and the samples its windows read."""
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
        self._check(f)
        weight, window = taps.to(f).expand(f.shape[1], 1, *taps.shape), window_of(taps.shape, padding="same")
        with full_precision(f):
            return correlate(f, weight, window=window, groups=f.shape[1], padding_mode=self.padding_mode)

    def _check(self, f: Tensor) -> None:
        if f.ndim - 2 != self._elements[0].z.size:
            raise ValueError(f"matrices of d rows act on (B, C, *X) with d axes X, got {tuple(f.shape)}")
