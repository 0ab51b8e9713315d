"""Moving levels between grids, and the semigroup's action on lifted functions."""

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from scalespaces._torch import is_channels_last
from scalespaces.functional._sampling import hold, sample, sample_lattice
from scalespaces.space._numbers import Ints, as_integer, count, floor, per_axis
from scalespaces.space._space import ScaleSpace, check_space
from scalespaces.theory._scale import expansion


def on_grid_of(x: ScaleSpace, index: int, source: int) -> Tensor:
    """``x.levels[source]`` on the grid of ``x.levels[index]``, as a filter of level ``index`` sees it."""
    spacing = x.expansion(index) / x.steps[source]
    apart = 1.0 if isinstance(spacing, np.ndarray) else spacing
    return read_level(x, source, [x.steps[index]] * x.dims, x.origins[index], x.sizes(index), apart)


def read_level(
    x: ScaleSpace, index: int, steps: Sequence[float], origin: Sequence[float], size: Sequence[int], apart: float = 1.0
) -> Tensor:
    """``x.levels[index]`` at ``origin + step * i``, one step per axis, positions in samples of level 0."""
    out = x.levels[index]
    if x.causal and x.dims:
        return hold(out, 2, steps[0] / x.steps[index], size[0])
    axes = list(enumerate(zip(x.axes, size, steps, strict=True)))
    for axis, (place, n, step) in reversed(axes) if is_channels_last(out) else axes:  # long runs of memory come last
        offset = (origin[axis] - x.origins[index][axis]) / x.steps[index]
        out = sample(out, place, step / x.steps[index], offset, n, apart)
    return out


def resample(x: ScaleSpace, size: Ints | None = None) -> ScaleSpace:
    r"""Bring all levels to one grid, by linear interpolation.

    A causal level holds its last sample until the next one instead, and is zero before its first one.

    Args:
        x: levels on grids.
        size: how many pixels of the lifted image the result lies on, from the first one (in a causal space, back from
            the newest): the image's own size aligns strided features with it. By default, the grid of level 0.

    Example:
        >>> x = scalespaces.lift(torch.rand(1, 3, 32, 32), num_levels=4)
        >>> resample(x).stack().shape
        torch.Size([1, 3, 4, 32, 32])
    """
    check_space(x)
    if x.dims == 0:
        return x
    if size is None:
        size, unit, origin = [x.level(0).shape[a] for a in x.axes], x.unit, x.origins[-x.first_level]
    else:
        size, unit, origin = per_axis(size, x.dims, "size"), (1.0,) * x.dims, (0.0,) * x.dims
        if any(n < 1 for n in size):
            raise ValueError(f"size must be one positive number for each of {x.dims} axes, got {size}")
    steps = [to / now for to, now in zip(unit, x.unit, strict=True)]
    levels = tuple(read_level(x, k, steps, origin, size) for k in range(x.num_levels))
    return x.on(levels, x.grid.align(unit, origin))


def on_image(x: ScaleSpace, size: Sequence[int] | None) -> ScaleSpace:
    """All levels at every pixel of an image of that size, by way of the grid of level 0, on which they are combined."""
    return resample(resample(x), size)


def feature_pyramid(x: ScaleSpace) -> dict[str, Tensor]:
    r"""The levels as a feature pyramid: level :math:`k` with step :math:`c^k`, keyed by its number.

    Detection and segmentation heads take such pyramids. It works for every sampling.
    """
    check_space(x)
    if not isinstance(x.base, float):
        raise ValueError(f"a feature pyramid needs a scalar base, got the matrix {x.base}")
    levels = {}
    for index in range(x.num_levels):
        step = x.expansion(index)
        size = [count(n, step / x.steps[index]) for n in x.sizes(index)]
        levels[str(index + x.first_level)] = read_level(x, index, [step] * x.dims, x.origins[index], size)
    return levels


def scale_shift(x: ScaleSpace, n: int = 1) -> ScaleSpace:
    r"""The semigroup's action on lifted functions, :math:`f_k(z) \mapsto f_{k+n}(c^n z)`.

    This is what happens to the levels of an image when the image is downscaled by :math:`c^n`, so a network is
    equivariant if it commutes with this. The last ``n`` levels are lost.

    Example:
        >>> x = scalespaces.lift(torch.rand(1, 1, 16, 16), num_levels=3)
        >>> [tuple(level.shape[2:]) for level in scale_shift(x, 1).levels]
        [(8, 8), (4, 4)]
    """
    check_space(x)
    if not 0 <= n < x.num_levels:
        raise ValueError(f"a space of {x.num_levels} levels can be shifted by 0 to {x.num_levels - 1}, got {n}")
    kept = x.num_levels - n
    zoom = expansion(x.base, n)
    if isinstance(zoom, np.ndarray):
        return _shift_lattice(x, n, zoom)
    return x.on([_read_shifted(x, index, n, zoom) for index in range(kept)], x.grid.keep(kept))


def _read_shifted(x: ScaleSpace, index: int, n: int, zoom: float) -> Tensor:
    out, source = x.levels[index + n], index + n
    ratio = zoom * x.steps[index] / x.steps[source]
    if x.causal and x.dims:
        return hold(out, 2, ratio, count(out.shape[2], ratio))
    for axis, place in enumerate(x.axes):
        offset = (zoom * x.origins[index][axis] - x.origins[source][axis]) / x.steps[source]
        first, samples = as_integer(offset), out.shape[place]
        size = count(samples - first, ratio) if first is not None else floor((samples - 1 - offset) / ratio) + 1
        out = sample(out, place, ratio, offset, size)
    return out


def _shift_lattice(x: ScaleSpace, n: int, zoom: NDArray) -> ScaleSpace:
    levels, origins = [], []
    for here, there, level in zip(x.origins, x.origins[n:], x.levels[n:], strict=False):
        # Sample i of level k sits at o_k + i and reads sample zoom (o_k + i) - o_{k+n} of level k + n.
        out, low = subsample(level, zoom, zoom @ np.array(here) - np.array(there))
        levels.append(out)
        origins.append(tuple((np.array(here) + low).tolist()))
    return x.on(levels, x.grid.keep(len(levels)).replace(origins=tuple(origins)))


def subsample(image: Tensor, matrix: NDArray, offset: NDArray) -> tuple[Tensor, NDArray]:
    """The image at ``offset + matrix @ i`` for every ``i`` of the smallest box that holds it, and the box's first."""
    corners = np.array(list(itertools.product(*((0, n - 1) for n in image.shape[2:]))))
    preimage = (corners - offset) @ np.linalg.inv(matrix).T
    low = np.ceil(preimage.min(0) - 1e-9).astype(int)
    high = np.floor(preimage.max(0) + 1e-9).astype(int)
    return sample_lattice(image, matrix, offset + matrix @ low, (high - low + 1).tolist()), low
