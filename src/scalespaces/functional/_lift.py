"""The lift: from an image to its scale-space."""

import math
import operator
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scalespaces._choices import METHODS
from scalespaces._torch import constant, full_precision
from scalespaces.functional._constants import at_least, lasts, sent
from scalespaces.functional._correlate import correlate
from scalespaces.functional._fast._banded import Band, block_rows, fold_band, multiply, toeplitz_band
from scalespaces.functional._fast._choice import blurs_by_matrices, is_known
from scalespaces.functional._resample import subsample
from scalespaces.functional._sampling import sample
from scalespaces.space._grid import make_grid, window_of
from scalespaces.space._numbers import as_integer, count, floor
from scalespaces.space._space import ScaleSpace, place
from scalespaces.theory import Kernel, anisotropic_gaussian, blur_covariance
from scalespaces.theory._arguments import PaddingMode, check_choice, check_integer, check_padding_mode
from scalespaces.theory._kernels import check_zero_scale, get_kernel
from scalespaces.theory._scale import Base, check_base, expansion

Sampling = str | float


@dataclass(frozen=True, eq=False)
class Stage:
    """How one level is made: an earlier level, blurred and read at every ``ratio``-th sample."""

    source: int
    ratio: float
    spacing: int  # of the taps, in samples
    t: float
    taps: NDArray | None  # a fractional ratio has a kernel for every phase, hence none of its own


@dataclass(frozen=True, eq=False)
class LiftPlan:
    """Everything about a lift that does not depend on the image."""

    base: Base
    steps: tuple[float, ...]
    first_level: int
    kernel: Kernel
    padding_mode: PaddingMode
    truncation: float
    stages: tuple[Stage, ...]


@lru_cache(maxsize=64, typed=True)
def plan_lift(
    num_levels: int,
    base: Base,
    first_level: int,
    zero_scale: float,
    sampling: Sampling,
    method: str,
    kernel: str | Kernel,
    padding_mode: PaddingMode,
    truncation: float,
) -> LiftPlan:
    """Check the arguments of :func:`lift` and compute its kernels, in float64."""
    base, zero_scale, family = check_base(base), check_zero_scale(zero_scale), get_kernel(kernel)
    check_padding_mode(padding_mode)
    check_choice("method", method, METHODS)
    num_levels, first_level = check_integer("num_levels", num_levels, 1), check_integer("first_level", first_level)
    if not -num_levels < first_level <= 0:
        rule = f"first_level must be 0, or negative with level 0 still among the {num_levels} levels"
        raise ValueError(f"{rule}, got {first_level!r}")
    if not (math.isfinite(truncation) and truncation > 0):
        raise ValueError(f"truncation is a positive number of standard deviations, got {truncation}")
    oversampling = _oversampling(sampling)
    if not isinstance(base, float):
        if sampling != "dense" or first_level or family != get_kernel("discrete_gaussian"):
            rule = 'a matrix base needs sampling="dense", first_level=0 and the discrete Gaussian'
            raise ValueError(f"{rule}, got sampling={sampling!r}, first_level={first_level}, kernel={kernel!r}")
        stages = _matrix_stages(num_levels, base, zero_scale, method, truncation)
        return LiftPlan(base, (1.0,) * num_levels, 0, family, padding_mode, truncation, stages)
    dilations = [expansion(base, k) for k in range(first_level, first_level + num_levels)]
    steps = [min(c, max(1.0, c / oversampling)) for c in dilations]
    stages = []
    for index in range(1 - first_level, num_levels):
        if method == "direct":
            source, spacing, t = -first_level, 1.0, family.scale(dilations[index], zero_scale)
        else:
            source, spacing = index - 1, dilations[index - 1] / steps[index - 1]
            t = family.scale(base, zero_scale)
        ratio = steps[index] / steps[source]
        stages.append(_stage(source, ratio, spacing, t, family, truncation))
    return LiftPlan(base, tuple(steps), first_level, family, padding_mode, truncation, tuple(stages))


def _oversampling(sampling: Sampling) -> float:
    if sampling in ("dense", "pyramid"):
        return math.inf if sampling == "dense" else 1.0
    if isinstance(sampling, bool) or not isinstance(sampling, float | int) or not 1 <= sampling < math.inf:
        raise ValueError(f'sampling is "dense", "pyramid", or a number >= 1 (oversampling), got {sampling!r}')
    return float(sampling)


def _stage(source: int, ratio: float, spacing: float, t: float, kernel: Kernel, truncation: float) -> Stage:
    whole_ratio, whole_spacing = as_integer(ratio), as_integer(spacing)
    if whole_ratio is None or whole_spacing is None:
        # Taps between samples would need interpolation, which blurs: a wider kernel on the samples does not.
        whole_spacing, t = 1, t * spacing ** (2 * kernel.alpha)
    taps = kernel(t, truncation=truncation) if whole_ratio is not None else None
    return Stage(source, whole_ratio or ratio, whole_spacing, t, taps)


def _matrix_stages(num_levels: int, base: Base, zero_scale: float, method: str, truncation: float) -> tuple:
    stages = []
    for k in range(1, num_levels):
        whole, before = expansion(base, k), expansion(base, k - 1)
        total = blur_covariance(np.linalg.inv(whole), zero_scale)
        if method == "direct":
            taps = anisotropic_gaussian(total, truncation=truncation)
        elif np.allclose(before, np.rint(before)):
            one = blur_covariance(np.linalg.inv(expansion(base, 1)), zero_scale)
            taps = _dilate(anisotropic_gaussian(one, truncation=truncation), np.rint(before).astype(int))
        else:
            rest = total - blur_covariance(np.linalg.inv(before), zero_scale)
            taps = anisotropic_gaussian(rest, truncation=truncation)
        stages.append(Stage(0 if method == "direct" else k - 1, 1, 1, math.nan, taps))
    return tuple(stages)


def _dilate(taps: NDArray, matrix: NDArray) -> NDArray:
    """The taps moved from ``y`` to ``matrix @ y``."""
    radii = np.array(taps.shape) // 2
    places = (np.indices(taps.shape).reshape(taps.ndim, -1).T - radii) @ matrix.T
    reach = np.abs(places).max(0)
    out = np.zeros(2 * reach + 1)
    out[tuple((places + reach).T)] = taps.ravel()
    return out


def lift(
    image: Tensor,
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
) -> ScaleSpace:
    r"""Lift an image to its scale-space, the paper's equation "lifting".

    .. math:: f_k = G(\cdot, t_k) * f_0, \qquad t_k = s_0 (c^{2k} - 1)

    The defaults are recommended. The paper's lift is ``sampling="dense", method="direct"``.

    Args:
        image: ``(B, C, H, W)``, of any size; ``(B, C, time)`` with ``dims=1``, ``(B, C, D, H, W)`` with ``dims=3``.
        num_levels: how many levels, upsampled ones included; a warning says if the image has room for fewer.
        base: dilation :math:`c > 1` between levels; or an expansion matrix, in dense sampling.
        first_level: number of the first level; if negative, the first levels are finer than the image (by linear
            interpolation, and not exact). Level 0 is always the image itself, not a copy of it.
        zero_scale: :math:`s_0`, the variance (not the standard deviation) of the blur that the image already has.
        sampling: ``"pyramid"`` keeps every :math:`c^k`-th sample at level :math:`k`, ``"dense"`` all of them, a number
            :math:`r \ge 1` something between (steps :math:`\max(1, c^k / r)`).
        method: ``"cascade"`` takes one step :math:`D` (blur by :math:`s_0 (c^2 - 1)`, resample by :math:`c`) from each
            level to the next, so that level :math:`k` of :math:`D f` *is* level :math:`k + 1` of :math:`f`:
            equivariance becomes exact. ``"direct"`` blurs the image once for each level, as the paper does.
        kernel: family of blurs, by name or as a :class:`~scalespaces.theory.Kernel`.
        padding_mode: what lies outside the image: ``"zeros"``, ``"reflect"``, ``"replicate"`` or ``"circular"``.
        truncation: radius of the kernels in standard deviations.
        dims: number of spatial axes: 1 for signals, 2 for images, 3 for volumes.

    A pixel that is not finite spoils more of the coarser levels than the kernels reach: mask such pixels first.

    Example:
        >>> lift(torch.rand(1, 3, 40, 30), num_levels=3)
        ScaleSpace(3 levels, base 2, torch.float32, cpu)
          level 0: (1, 3, 40, 30), step 1
          level 1: (1, 3, 20, 15), step 2
          level 2: (1, 3, 10, 8), step 4
    """
    base = base if isinstance(base, float | int) else check_base(base)
    check_dims(dims, base)
    kernel = get_kernel(kernel)
    plan = plan_lift(num_levels, base, first_level, zero_scale, sampling, method, kernel, padding_mode, truncation)
    warn_of_single_samples(check_images(image, dims), plan)
    return apply_lift(image, plan, plain_taps(plan))


_SHAPES = {1: "signals (B, C, time)", 2: "images (B, C, H, W)", 3: "volumes (B, C, D, H, W)"}


def check_dims(dims: int, base: Base = 2.0) -> int:
    """Return a number of spatial axes, 1 to 3, with which the base agrees."""
    if isinstance(dims, bool | float) or dims not in _SHAPES:
        raise ValueError(f"dims, the number of spatial axes, is 1, 2 or 3, got {dims!r}")
    if isinstance(base, tuple) and len(base) != dims:
        raise ValueError(f"a base matrix has a row for each of {dims} axes, got {len(base)}; pass dims={len(base)}")
    return int(dims)


def check_images(image: object, dims: int) -> Tensor:
    """Return a batch of images with that many spatial axes; the error for anything else says what to do."""
    if not isinstance(image, Tensor):
        raise ValueError(f"expected a tensor of {_SHAPES[dims]}, got {type(image).__name__}")
    if image.ndim != dims + 2:
        remedies = ["; add a batch axis with image[None]"] if image.ndim == dims + 1 else []
        if image.ndim - 2 in _SHAPES:
            remedies.append(f"{', or' if remedies else ';'} pass dims={image.ndim - 2} for {_SHAPES[image.ndim - 2]}")
        raise ValueError(f"expected {_SHAPES[dims]}, got shape {tuple(image.shape)}{''.join(remedies)}")
    if not image.is_floating_point():
        raise ValueError(f"an image needs floating-point numbers, got {image.dtype}; convert it with image.float()")
    if 0 in image.shape[2:]:
        raise ValueError(f"an image must have at least one sample along every axis, got shape {tuple(image.shape)}")
    return image


@lru_cache(maxsize=256)
def most_levels(size: tuple[int, ...], base: Base, first_level: int = 0) -> int:
    """How many levels an image has room for: those whose taps, :math:`c^k` apart, meet two samples along every axis."""
    # On a pyramid these are neighboring samples. Axes along which the image itself has a single sample are ignored.
    room, levels = min([n for n in size if n > 1], default=1), 1 - first_level
    stretch = base if isinstance(base, float) else float(np.linalg.norm(base, 2))
    while (room := count(room, stretch)) > 1:
        levels += 1
    return levels


def warn_of_single_samples(image: Tensor, plan: LiftPlan) -> None:
    """Warn when coarse levels have a single sample left; symbolic sizes (torch.export) are not checked."""
    size = tuple(image.shape[2:])
    if torch.compiler.is_compiling() or not all(map(is_known, size)):
        return
    most = most_levels(size, plan.base, plan.first_level)
    if len(plan.steps) > most:
        rule = f"{len(plan.steps)} levels of base {plan.base} are too many for an image of {' x '.join(map(str, size))}"
        why = "taps of the last ones are so far apart that a single sample is left"
        warnings.warn(f"{rule}: {why}; use num_levels={most} at most, or larger images", stacklevel=3)


def plain_taps(plan: LiftPlan) -> list[Tensor | None]:
    """The kernels of a plan as tensors, where no module keeps them."""
    return [None if stage.taps is None else torch.as_tensor(stage.taps) for stage in plan.stages]


def apply_lift(image: Tensor, plan: LiftPlan, taps: Sequence[Tensor | None]) -> ScaleSpace:
    """Lift by a plan, with its kernels as tensors."""
    grid = make_grid(len(plan.steps), image.ndim, plan.base, plan.steps, plan.first_level)
    return place(_levels(image, plan, taps), grid)


def _levels(image: Tensor, plan: LiftPlan, taps: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    with full_precision(image):
        levels = [*(_upsample(image, step) for step in plan.steps[: -plan.first_level]), image]
        for index, (stage, kernel) in enumerate(zip(plan.stages, taps, strict=True), 1 - plan.first_level):
            out = levels[stage.source]
            # Half precision is for storage: a sum of 33 taps in it would be off by many times its rounding.
            wide = out if out.dtype.itemsize >= 4 else out.float()
            out = _blur(wide, kernel, plan, stage).to(image.dtype)
            # Sizes follow from the level before, also for a direct lift: both lifts then have the same grids.
            ratio = plan.steps[index] / plan.steps[index - 1]
            if as_integer(ratio) is None:
                for axis, n in enumerate(levels[index - 1].shape[2:], 2):
                    out = out.narrow(axis, 0, count(n, ratio))
            levels.append(out)
    return tuple(levels)


def _upsample(image: Tensor, step: float) -> Tensor:
    for axis in range(2, image.ndim):
        image = sample(image, axis, step, 0.0, count(image.shape[axis], step))
    return image


def _blur(x: Tensor, taps: Tensor | None, plan: LiftPlan, stage: Stage) -> Tensor:
    """Blur and resample."""
    if taps is None:
        return multiply(x, [_fractional_band(x, n, plan, stage) for n in x.shape[2:]], plan.padding_mode)
    taps = at_least(taps, x, _exact_taps, stage)
    if taps.ndim > 1:
        return blur_by_convolution(x, taps, stage, plan.padding_mode, range(2, x.ndim))
    if blurs_by_matrices(x):
        return multiply(x, [_band(x, n, taps, plan.padding_mode, stage) for n in x.shape[2:]], plan.padding_mode)
    for axis in range(2, x.ndim):
        x = blur_by_convolution(x, taps, stage, plan.padding_mode, [axis])
    return x


@constant
def _exact_taps(stage: Stage) -> tuple[Tensor]:
    return (torch.as_tensor(stage.taps),)


def _band(x: Tensor, n: int, taps: Tensor, padding_mode: PaddingMode, stage: Stage) -> Band:
    if lasts(x):
        return Band(*sent(_folded_band, (n, x.dtype, padding_mode, stage), x))
    return toeplitz_band(taps, n, int(stage.ratio), stage.spacing)


def _folded_band(n: int, dtype: torch.dtype, padding_mode: PaddingMode, stage: Stage) -> Band:
    taps = torch.as_tensor(stage.taps, dtype=dtype)
    return fold_band(toeplitz_band(taps, n, int(stage.ratio), stage.spacing), n, padding_mode)


def blur_by_convolution(x: Tensor, taps: Tensor, stage: Stage, mode: PaddingMode, axes: Sequence[int]) -> Tensor:
    """Depthwise correlation with taps along some axes, read at every ``ratio``-th sample: slow, but for any size."""
    along = [axis in axes for axis in range(2, x.ndim)]
    shape = iter(taps.shape)
    size = tuple(next(shape) if here else 1 for here in along)
    window = window_of(size, [int(stage.ratio) if here else 1 for here in along], "same")
    weight = taps.reshape(1, 1, *size).expand(x.shape[1], 1, *size)
    return correlate(x, weight, window=window, spacing=stage.spacing, groups=x.shape[1], padding_mode=mode)


def _fractional_band(x: Tensor, n: int, plan: LiftPlan, stage: Stage) -> Band:
    """The band of a fractional ratio. One kernel blurs and resamples: interpolation would add a blur of its own."""
    if not isinstance(n, int):
        raise ValueError(f"base {plan.base} resamples at fractional steps, which needs a static image size, got {n}")
    n = operator.index(n)  # so that torch.compile treats it as a constant
    blocks, start, step = sent(_fractional_blocks, (plan, stage, n), x)
    return Band(blocks, count(n, stage.ratio), start, step)


@constant
def _fractional_blocks(plan: LiftPlan, stage: Stage, n: int) -> tuple[Tensor, int, int]:
    blocks, start, step = _blocks_of_kernels(plan, stage, n)
    return torch.as_tensor(blocks), start, step


@lru_cache(maxsize=64)
def _blocks_of_kernels(plan: LiftPlan, stage: Stage, n: int) -> tuple[NDArray, int, int]:
    """Row ``i`` is the kernel centered at ``ratio * i``, among the blocks of a :class:`~._banded.Band`."""
    radius, rows = max(plan.kernel.radius(stage.t, plan.truncation), 1), count(n, stage.ratio)
    b = block_rows(n, stage.ratio, radius + 1)
    number, step = -(-rows // b), round(stage.ratio * b)
    first = np.array([floor(stage.ratio * i) - radius for i in range(number * b)]).reshape(number, b)
    first -= step * np.arange(number)[:, None]
    start = int(first.min())
    blocks = np.zeros((number, b, int(first.max()) - start + 2 * radius + 2))
    for i, row in enumerate(blocks.reshape(number * b, -1)):
        phase = max(stage.ratio * i - floor(stage.ratio * i), 0.0)
        taps = plan.kernel(stage.t, radius=radius, phase=phase if phase > 1e-9 else 0.0)
        row[first.flat[i] - start :][: len(taps)] = taps
    same = np.allclose(blocks, blocks[:1], rtol=0, atol=1e-12)  # a fraction of small numbers repeats its phases
    return blocks[:1] if same else blocks, start, step


def downscale(
    image: Tensor,
    n: int = 1,
    base: Base = 2.0,
    *,
    zero_scale: float = 0.25,
    method: str = "cascade",
    kernel: str | Kernel = "discrete_gaussian",
    padding_mode: PaddingMode = "reflect",
    truncation: float = 4.0,
    dims: int = 2,
) -> Tensor:
    r"""Downscale an image by :math:`c^n`: the semigroup's action on images. Arguments as in :func:`lift`.

    ``method="cascade"`` is :math:`D^n`, the generator of the exact lift applied ``n`` times; ``method="direct"`` is the
    paper's :math:`S_{c^{-n}}`, one blur and one subsampling.

    Example:
        >>> downscale(torch.rand(1, 3, 65, 48), 2).shape
        torch.Size([1, 3, 17, 12])
    """
    n, base = check_integer("n", n, 0), check_base(base)
    check_dims(dims, base)
    sampling = "pyramid" if isinstance(base, float) else "dense"
    plan = plan_lift(n + 1, base, 0, zero_scale, sampling, method, get_kernel(kernel), padding_mode, truncation)
    level = _levels(check_images(image, dims), plan, plain_taps(plan))[n]
    return level if isinstance(base, float) else subsample(level, np.asarray(expansion(base, n)), np.zeros(dims))[0]
