"""The image downscaled and moved, and what becomes of the outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scalespaces._extras import require
from scalespaces.functional import downscale, scale_shift
from scalespaces.functional._sampling import pad, sample
from scalespaces.semigroups import causal_downscale
from scalespaces.space import ScaleSpace
from scalespaces.space._numbers import as_integer
from scalespaces.testing._compare import Found, Pair, columns, find
from scalespaces.testing._table import EquivarianceTable
from scalespaces.testing._watch import (
    CAUSAL_ARGUMENTS,
    LIFT_ARGUMENTS,
    Watched,
    cut_out,
    level_numbers,
    levels_outside,
    other_image,
    same_values,
)
from scalespaces.theory._arguments import check_choice, check_integer

DOWNSCALINGS = ("cascade", "direct", "pillow")


def downscaled(
    watched: Watched,
    image: Tensor,
    downscaling: str | Callable[[Tensor, int], Tensor],
    shifts: Sequence[int] | None,
    arguments: dict[str, Any],
) -> tuple[Found, str, Tensor | None]:
    """What was found, how levels differ in what they see, and the least downscaled image."""
    if not image.isfinite().all():
        raise ValueError("the image has values that are not finite, which no network can be judged by; replace them")
    whole, again = watched(image), watched(image)
    if not all(map(_alike, whole.levels, again.levels)):
        raise ValueError(
            "the network is random: two runs on one image differ in evaluation mode; fix its random numbers"
        )
    shrink = _downscaling(watched, whole, downscaling, arguments, image.ndim - 2)
    small, runs, failed = {}, {}, {}
    for n in range(1, whole.num_levels) if shifts is None else [check_integer("shifts", n, 1) for n in shifts]:
        expected, small[n] = scale_shift(whole, n), shrink(image, n)
        try:
            runs[n] = expected, watched(small[n]), watched(other_image(small[n]))
        except (ValueError, RuntimeError) as error:
            if shifts is not None or not runs or isinstance(error, torch.OutOfMemoryError):
                error.add_note(f"for the image downscaled by base**{n}, {tuple(small[n].shape)}; use a larger image")
                raise
            failed[n] = str(error)
    left_out, uneven = levels_outside(watched, cut_out(watched, small[max(runs)])) if runs else ({}, "")
    table, pairs = _empty(runs, level_numbers(whole), "l", left_out, failed), []
    for i, (n, (expected, got, other)) in enumerate(runs.items()):
        for k in sorted({*level_numbers(expected)} & {*level_numbers(got)}):
            outputs = expected.level(k), got.level(k), other.level(k)
            same_size = outputs[0].shape == outputs[1].shape
            if not {k, k + n} & left_out.keys():
                _check_shapes(*outputs[:2], got.axes)
            for axis in got.axes:
                size = min(x.shape[axis] for x in outputs)
                outputs = tuple(x.narrow(axis, 0, size) for x in outputs)
            a, b, c = (columns(x, got.axes) for x in outputs)
            size = tuple(outputs[0].shape[axis] for axis in got.axes)
            pairs.append(Pair((i, k - whole.first_level), a, b, c, same_size, size))
    return find(pairs, table, image, whole), uneven, small[min(runs)] if runs else None


def _alike(x: Tensor, y: Tensor) -> bool:
    """Whether two runs agree, but for the order of sums on a GPU."""
    return x.shape == y.shape and torch.allclose(x, y, 1e-3, 1e-3 * float(x.abs().nan_to_num().amax()), equal_nan=True)


def _empty(
    rows: Iterable[int], levels: Iterable[int], what: str, left_out: dict[int, str], failed: dict[int, str]
) -> EquivarianceTable:
    rows, levels = tuple(rows), tuple(levels)
    errors, largest = np.full((2, len(rows), len(levels)), math.nan)
    return EquivarianceTable(errors, largest, rows, levels, what, left_out, failed)


def _check_shapes(expected: Tensor, got: Tensor, axes: tuple[int, ...]) -> None:
    apart = [abs(m - n) for m, n in zip(expected.shape, got.shape, strict=False)]
    if expected.ndim != got.ndim or any(d > (a in axes) for a, d in enumerate(apart)):
        raise ValueError(f"levels to compare have shapes {tuple(expected.shape)} and {tuple(got.shape)}")


def _downscaling(
    watched: Watched,
    whole: ScaleSpace,
    downscaling: str | Callable[[Tensor, int], Tensor],
    arguments: dict[str, Any],
    dims: int,
) -> Callable[[Tensor, int], Tensor]:
    if callable(downscaling):
        return downscaling
    check_choice("downscaling", downscaling, DOWNSCALINGS)
    names = CAUSAL_ARGUMENTS if whole.causal else LIFT_ARGUMENTS
    if unknown := sorted(arguments.keys() - {"base", *names}):
        raise TypeError(f"there is no argument {unknown[0]!r}; those of the downscaling are base, {', '.join(names)}")
    lift = next((module for module, _ in watched.lifts if hasattr(module, names[1])), None)
    arguments = {"base": whole.base, **({name: getattr(lift, name) for name in names} if lift else {}), **arguments}
    if whole.causal:
        if downscaling != "cascade":
            raise ValueError(f'a causal space has no downscaling but "cascade", got {downscaling!r}; pass a function')
        return lambda signal, n: causal_downscale(signal, n, **arguments)
    if downscaling == "pillow":
        return lambda image, n: _resize(image, arguments["base"] ** n)
    return lambda image, n: downscale(image, n, method=downscaling, dims=dims, **arguments)


def translated(
    watched: Watched, image: Tensor, translations: Sequence[int] | None, margin: float | None, axis: int
) -> Found:
    if axis not in range(2 - image.ndim, 0):
        raise ValueError(f"axis is one of the image's last {image.ndim - 2}, counted from -1 down, got {axis}")
    if translations is None:
        space = watched(image)
        base = space.base if isinstance(space.base, float) else 2.0
        translations = sorted({max(round(base**k), 1) for k in range(level_numbers(space)[-1] + 1)})
    widest = max(translations)
    width = image.shape[axis] - widest
    if width < 2:
        raise ValueError(f"an image {image.shape[axis]} wide cannot be moved by {widest} pixels; use a larger one")
    window = image.narrow(axis, 0, width)
    still, lifts, other = watched(window), watched.lifts, watched(other_image(window))
    _check_positions(still, image)
    stretch = max(float(np.max(np.abs(x.expansion(x.num_levels - 1)))) for x in (still, *(x for _, x in lifts)))
    border = math.ceil(stretch * still.unit[axis])  # pixels between taps, or else they could step over it
    free = None if margin is not None else _free(watched, window, still, axis, border)
    pairs, left_out = [], {}
    for i, move in enumerate(translations):
        window = image.narrow(axis, move, width)
        moved = watched(window)
        free_too = None if free is None else _free(watched, window, moved, axis, border)
        for j, level in enumerate(still.levels):
            place, size = still.axes[axis], level.shape[still.axes[axis]]
            offset = move / (still.steps[j] * still.unit[axis])
            first = math.ceil((margin or 0.0) * size)
            length = size - math.ceil((margin or 0.0) * size + offset) - first
            if length <= 0:
                continue
            outputs = [sample(level, place, 1.0, offset, size), moved.levels[j], other.levels[j]]
            a, b, c = (columns(x.narrow(place, first, length), still.axes) for x in outputs)
            if free is not None and free_too is not None:
                both = sample(free[j], place, 1.0, offset, size) * free_too[j]
                inside = columns(both.narrow(place, first, length), still.axes)[:, 0] == 1
                a, b, c = a[inside], b[inside], c[inside]
            if len(a):
                pairs.append(Pair((i, j), a, b, c))
    numbers = level_numbers(still)
    if free is not None:
        compared = {pair.entry[1] for pair in pairs}
        left_out = {k: "every sample sees a border" for j, k in enumerate(numbers) if j not in compared}
    return find(pairs, _empty(translations, numbers, "translation", left_out, {}), image, still)


def _check_positions(x: ScaleSpace, image: Tensor) -> ScaleSpace:
    if x.causal:
        raise ValueError("a causal space is counted back from its end, which moves with the window")
    if x.dims != image.ndim - 2:
        raise ValueError(
            f"translations need levels with positions, got shapes {x.shapes}; measure the network before space is "
            "pooled or flattened away"
        )
    return x


def _free(watched: Watched, window: Tensor, out: ScaleSpace, axis: int, border: int) -> list[Tensor]:
    """1 at the samples of each level that see no border, else 0: those that stay when the pixels there change."""
    index = torch.arange(window.shape[axis], device=window.device)
    inner = (index >= border) & (index < len(index) - border)
    changed = watched(torch.where(inner.reshape([-1] + [1] * (-1 - axis)), window, other_image(window)))
    channels = [a for a in range(1, out.ndim) if a not in out.axes]
    free = [same_values(y, x).to(x) for x, y in zip(out.levels, changed.levels, strict=True)]
    return [x.amin(channels, keepdim=True) for x in free] if channels else free


def whole_moves(watched: Watched, image: Tensor, moves: Sequence[int] | None, axis: int) -> Sequence[int]:
    """The translations, if they are whole samples at every level; the smallest one that is, if there are none."""
    out = _check_positions(watched(image), image)
    pixels = {step * out.unit[axis] for x in (out, *(x for _, x in watched.lifts)) for step in x.steps}

    def is_whole(move: int) -> bool:
        return move > 0 and all(as_integer(move / step) is not None for step in pixels)

    found = list(filter(is_whole, moves or range(1, image.shape[axis] // 2)))
    if not found or (moves and len(found) < len(moves)):
        came = f"{list(moves)} pixels" if moves else f"an image of only {image.shape[axis]} pixels"
        raise ValueError(
            f"the image moves by whole samples of every level, which are {sorted(pixels)} pixels apart, got {came}; "
            "use common multiples and a larger image (bases such as the square root of 2 have none)"
        )
    return found if moves else found[:1]


def _resize(image: Tensor, factor: float) -> Tensor:
    """Pillow's antialiased bicubic resize, onto samples at multiples of ``factor``."""
    pillow = require("PIL.Image", "plot")
    if image.ndim != 4:
        raise ValueError(f"Pillow resizes images (B, C, H, W), got shape {tuple(image.shape)}")
    size = [math.floor((n - 1) / factor + 1e-9) + 1 for n in image.shape[2:]]
    # Pillow's pixels are squares, ours are points in their middle: a square around the first point, as large as a
    # pixel of the result, starts outside the image.
    edge = math.ceil(factor) + 1
    array = pad(image.float().cpu(), [(edge, edge)] * 2, "reflect").numpy()
    start = edge + 0.5 - factor / 2
    box = (start, start, start + factor * size[1], start + factor * size[0])
    out = np.empty((*image.shape[:2], *size))
    for index in np.ndindex(*image.shape[:2]):
        plane = pillow.fromarray(array[index])
        out[index] = np.asarray(plane.resize((size[1], size[0]), pillow.Resampling.BICUBIC, box=box))
    return torch.as_tensor(out).to(image)
