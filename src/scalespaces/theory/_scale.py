"""Dilations and the blur that goes with them.

The zero-scale s0 (or Sigma0) is a variance: the blur that the pixels of an image are assumed to have. Subsampling
shrinks it; blurring first, by the variances given here, restores it.
"""

import math
from numbers import Real
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike

from scalespaces.theory._anisotropic import check_covariance
from scalespaces.theory._arguments import Array, check_integer, check_matrix, check_real
from scalespaces.theory._kernels import Kernel, check_zero_scale, discrete_gaussian, get_kernel

Base = float | tuple[tuple[float, ...], ...]
"""The expansion from one level to the next: a number c > 1, or a square matrix C whose inverse is a contraction."""

_CLOSEST = 1 + 1e-9  # numbers closer to 1 than this differ from it by rounding


def check_base(base: Any) -> Base:
    """Return the base, a number > 1 or a matrix that expands, as a float or as a tuple of rows."""
    if isinstance(base, float) and _CLOSEST < base < math.inf:  # the common case first: every layer calls this
        return base
    if isinstance(base, Real):
        return check_real("base", base, "> 1", lambda c: c > _CLOSEST)
    C = check_matrix("base", base, "a number > 1 or a finite square matrix")
    singular = np.linalg.svd(C, compute_uv=False)
    if singular[-1] < 1 - 1e-9 or singular[0] <= 1 + 1e-9:
        rule = "a base matrix must expand (singular values >= 1, not all of them 1)"
        raise ValueError(f"{rule}, got singular values {singular.tolist()} from {C.tolist()}; scale it up")
    return tuple(tuple(float(x) for x in row) for row in C)


@overload
def expansion(base: float, k: int) -> float: ...
@overload
def expansion(base: tuple[tuple[float, ...], ...], k: int) -> Array: ...
@overload
def expansion(base: Base, k: int) -> float | Array: ...
def expansion(base: Base, k: int) -> float | Array:
    r"""Return :math:`c^k`, or the matrix power :math:`C^k`; k may be negative.

    A result within a relative 1e-9 of an integer is rounded to it, so that every second level of base :math:`\sqrt 2`
    lies on whole pixels. Negative powers are inverses of such rounded powers.

    Example:
        >>> expansion(2**0.5, 2), expansion(2**0.5, -4)
        (2.0, 0.25)
    """
    return power(check_base(base), check_integer("k", k))


def power(base: Base, k: int) -> Any:
    """:func:`expansion` without its checks, which are slow to repeat in every layer."""
    if isinstance(base, float):  # no NumPy here: torch.compile traces this
        number = base ** abs(k)
        number = float(round(number)) if abs(number - round(number)) <= 1e-9 * number else number
        return number if k >= 0 else 1 / number
    matrix = np.linalg.matrix_power(np.array(base), abs(k))
    nearest = np.round(matrix)
    matrix = np.where(np.abs(matrix - nearest) <= 1e-9 * np.maximum(1.0, np.abs(matrix)), nearest, matrix)
    return matrix if k >= 0 else np.linalg.inv(matrix)


def blur_variance(dilation: float, zero_scale: float) -> float:
    r"""Return the variance of the blur that goes with a dilation.

    .. math:: t(a, s_0) = s_0 / a^2 - s_0, \qquad \mathrm{dilation} = 1/a \ge 1
    """
    return discrete_gaussian.scale(dilation, zero_scale)


def blur_covariance(A: ArrayLike, Sigma0: ArrayLike) -> Array:
    r"""Return the covariance of the blur that goes with a linear map A.

    .. math:: T(A, \Sigma_0) = A^{-1} \Sigma_0 A^{-\top} - \Sigma_0

    It exists if T is positive semi-definite; for :math:`\Sigma_0 = s_0 I` that is when no singular value of A exceeds
    1. T may be singular: it is zero for a rotation, and of rank one for diag(1, 1/2).

    Args:
        A: Invertible matrix of shape (d, d), or a number for d = 1.
        Sigma0: Zero-scale, a covariance matrix; a number s0 means s0 times the identity.

    Example:
        >>> blur_covariance([[1, 0], [0, 0.5]], 0.25)
        array([[0.  , 0.  ],
               [0.  , 0.75]])
    """
    A = check_dilation(A)
    number = np.ndim(Sigma0) == 0
    S = check_zero_scale(np.asarray(Sigma0)[()]) * np.eye(len(A)) if number else check_covariance(Sigma0)
    if S.shape != A.shape:
        raise ValueError(f"Sigma0 must have the shape of A, got {S.shape} and {A.shape}; pass equal sizes")
    inverse = np.linalg.inv(A)
    before = inverse @ S @ inverse.T
    T = before - S
    T = (T + T.T) / 2
    eigenvalues, vectors = np.linalg.eigh(T)
    size = max(np.abs(before).max(), np.abs(S).max())
    if eigenvalues[0] < -1e-9 * size:
        rule = f"A^-1 Sigma0 A^-T - Sigma0 must be positive semi-definite, got eigenvalues {eigenvalues.tolist()}"
        why = f"A, of singular values {np.linalg.svd(A, compute_uv=False).tolist()}, is upscaling somewhere"
        way = "use an A that shrinks every ellipse of Sigma0: if Sigma0 is a number, singular values of at most 1"
        raise ValueError(f"{rule}: {why}; {way}")
    noise = eigenvalues < 1e-12 * size  # zeros up to rounding, of either sign
    if noise.any():
        T = (vectors * np.where(noise, 0.0, eigenvalues)) @ vectors.T
    return (T + T.T) / 2 + 0.0  # no negative zeros


def check_dilation(A: ArrayLike) -> Array:
    """Return A as a finite invertible matrix; a number is a matrix of one entry."""
    matrix = check_matrix("A", np.atleast_2d(np.asarray(A, dtype=np.float64)))
    singular = np.linalg.svd(matrix, compute_uv=False)
    if singular[-1] <= 1e-12 * singular[0]:
        raise ValueError(f"A must be invertible, got singular values {singular.tolist()}; none may be zero")
    return matrix


def level_variances(
    num_levels: int, base: float, zero_scale: float, kernel: str | Kernel = "discrete_gaussian"
) -> Array:
    r"""Return the scale of each level, :math:`t_k = s_0 (c^{2 \alpha k} - 1)`.

    Example:
        >>> level_variances(4, 2, 0.25)
        array([ 0.  ,  0.75,  3.75, 15.75])
    """
    num_levels = check_integer("num_levels", num_levels, 1)
    c = check_real("base", base, "> 1", lambda c: c > 1)
    family = get_kernel(kernel)
    return np.array([family.scale(expansion(c, k), zero_scale) for k in range(num_levels)])
