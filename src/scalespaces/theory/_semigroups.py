"""The scale-translation semigroup and its actions on images and on lifted functions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from scalespaces.theory._anisotropic import gaussian_blur
from scalespaces.theory._arguments import Array, PaddingMode, check_integer, check_padding_mode, check_real
from scalespaces.theory._scale import blur_covariance, check_dilation

Value = TypeVar("Value")

_SCIPY = {"zeros": "grid-constant", "reflect": "mirror", "replicate": "nearest", "circular": "grid-wrap"}


@dataclass(frozen=True, eq=False)
class ScaleTranslation:
    r"""An element (A, z): shrink by A and shift by z, for the action of :func:`act`.

    .. math:: S_{A,z}[f](x) = [G_A * f](A^{-1} x + z), \qquad (A, z)(B, y) = (AB, B^{-1} z + y)

    The law follows from :math:`f(B^{-1}(A^{-1} x + z) + y)`; the paper prints a different law, see docs/errata.md.
    Every zero-scale needs :math:`0 < |\det A| \le 1`, which is checked here; :func:`act` checks the rest.

    Args:
        A: Matrix of shape (d, d), or a number a in (0, 1] for a times the identity.
        z: Vector of length d; a number for d = 1.

    Example:
        >>> ScaleTranslation(0.5, [1, 0]) @ ScaleTranslation(0.5, [0, 3])
        ScaleTranslation(A=[[0.25, 0.0], [0.0, 0.25]], z=[2.0, 3.0])
    """

    A: Array
    z: Array

    def __init__(self, A: ArrayLike, z: ArrayLike) -> None:
        shift = np.atleast_1d(np.array(z, dtype=np.float64)) + 0.0  # + 0.0: no negative zeros, so equal means equal
        if shift.ndim != 1 or shift.size == 0 or not np.isfinite(shift).all():
            raise ValueError(f"z must be a finite vector, got {z!r}; pass one number per axis")
        if np.ndim(A) == 0:
            a = check_real("A", np.asarray(A, dtype=np.float64)[()], "in (0, 1]", lambda a: 0 < a <= 1)
            A = a * np.eye(shift.size)
        matrix = check_dilation(A) + 0.0
        if len(matrix) != shift.size:
            raise ValueError(f"A and z must agree on the dimension, got {matrix.shape} and {shift.shape}; match them")
        if abs(np.linalg.det(matrix)) > 1 + 1e-9:
            values = np.linalg.svd(matrix, compute_uv=False).tolist()
            raise ValueError(f"A must not upscale (|det A| <= 1), got singular values {values}; use an A that shrinks")
        matrix.flags.writeable = shift.flags.writeable = False
        object.__setattr__(self, "A", matrix)
        object.__setattr__(self, "z", shift)

    def compose(self, other: "ScaleTranslation") -> "ScaleTranslation":
        """Return (A, z)(B, y) = (AB, B^-1 z + y): act by ``other`` first, then by ``self``; also ``self @ other``."""
        if self.z.size != other.z.size:
            raise ValueError(f"elements must have the same dimension, got {self.z.size} and {other.z.size}; match them")
        return ScaleTranslation(self.A @ other.A, np.linalg.solve(other.A, self.z) + other.z)

    __matmul__ = compose

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ScaleTranslation):
            return NotImplemented
        return np.array_equal(self.A, other.A) and np.array_equal(self.z, other.z)

    def __hash__(self) -> int:
        return hash((self.A.tobytes(), self.z.tobytes()))

    def __repr__(self) -> str:
        return f"ScaleTranslation(A={self.A.tolist()}, z={self.z.tolist()})"


def act(
    f: ArrayLike,
    element: ScaleTranslation,
    Sigma0: ArrayLike,
    *,
    shape: Sequence[int] | None = None,
    padding_mode: PaddingMode = "reflect",
    truncation: float = 4.0,
) -> Array:
    r"""Act on a d-dimensional array: blur, then sample at :math:`A^{-1} x + z`.

    .. math:: S_{A,z}[f](x) = [G(\cdot, A^{-1} \Sigma_0 A^{-\top} - \Sigma_0) * f](A^{-1} x + z)

    Interpolation is linear, so translations by whole pixels are exact. In the continuum :math:`S_s S_t = S_{st}`; on
    the grid this holds up to the aliasing that the zero-scale lets pass and the blur that interpolation adds.

    Args:
        f: The image.
        element: (A, z).
        Sigma0: Zero-scale: a covariance matrix, or a number s0 for s0 times the identity.
        shape: Shape of the output. By default it covers all :math:`x \ge 0` up to the last position inside the image,
            which needs a diagonal A with positive entries.
        padding_mode: What lies outside the image, and outside its blurred version, as in :func:`gaussian_blur`.
        truncation: Half the width of the kernel in standard deviations.

    Example:
        >>> act(np.arange(5.0), ScaleTranslation(0.5, 0), 0.0)
        array([0., 2., 4.])
    """
    f = np.asarray(f, dtype=np.float64)
    check_padding_mode(padding_mode)
    if f.ndim != element.z.size:
        raise ValueError(f"f must have {element.z.size} axes for this element, got shape {f.shape}; match them")
    if shape is None:
        diagonal = element.A.diagonal()
        if not np.array_equal(element.A, np.diag(diagonal)) or (diagonal <= 0).any():
            raise ValueError(f"shape is only known for a diagonal A > 0, got A = {element.A.tolist()}; pass shape")
        sizes = np.floor((np.array(f.shape) - 1 - element.z) * diagonal + 1e-9).astype(int) + 1
        shape = [int(n) for n in sizes]
        if min(shape) < 1:
            raise ValueError(f"z must leave some of the image, got z = {element.z.tolist()} for {f.shape}; pass shape")
    shape = [check_integer("shape", n, 1) for n in shape]
    if len(shape) != f.ndim:
        raise ValueError(f"shape must have {f.ndim} entries, got {shape}; pass one per axis")
    blurred = gaussian_blur(f, blur_covariance(element.A, Sigma0), padding_mode=padding_mode, truncation=truncation)
    x = np.indices(shape).reshape(f.ndim, -1)
    positions = np.linalg.solve(element.A, x) + element.z[:, None]
    whole = np.round(positions)
    positions = np.where(np.abs(positions - whole) < 1e-9, whole, positions)  # weights exactly 0 and 1
    from scipy import ndimage  # slow to import

    return ndimage.map_coordinates(blurred, positions, order=1, mode=_SCIPY[padding_mode]).reshape(shape)


def act_lifted(f: Callable[[ScaleTranslation], Value], t: ScaleTranslation) -> Callable[[ScaleTranslation], Value]:
    r"""Act on a function on the semigroup: :math:`L_t[f](s) = f(st)`.

    After a lift :math:`f^\uparrow(s) = S_s[f](0)` this shift is the action on images.
    """
    return lambda s: f(s @ t)
