"""The image downscaled or moved, and what becomes of the levels.

Each function runs the network on the image and on the changed image, pairs the levels that ought to agree, and compares
them. A third run, on another image, shows how much the channels vary at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scalespaces._extras import require
from scalespaces.functional import downscale, scale_shift
from scalespaces.functional._sampling import pad, sample
from scalespaces.semigroups import causal_downscale
from scalespaces.space import ScaleSpace
from scalespaces.space._numbers import as_integer, count
from scalespaces.testing import _watch as watch
from scalespaces.testing._compare import Found, Pair, columns, compare
from scalespaces.testing._watch import Watched, level_numbers
from scalespaces.theory._arguments import check_choice, check_integer

DOWNSCALINGS = ("cascade", "direct", "pillow")
Downscaling = str | Callable[[Tensor, int], Tensor]


def downscaled(
    watched: Watched, image: Tensor, downscaling: Downscaling, shifts: Sequence[int] | None, arguments: dict[str, Any]
) -> tuple[Found, str, Tensor | None]:
    """Compare level k of the downscaled image with level k + l of the image.

    Also returned: how levels differ in the levels they see, if they do, and the least downscaled image.
    """
    if not image.isfinite().all():
        raise ValueError("the image has values that are not finite, so no network can be judged by it; replace them")
    whole, again = watched(image), watched(image)
    for x, y in zip(whole.levels, again.levels, strict=True):  # sums on a GPU may differ in their order
        if not torch.allclose(x, y, 1e-3, 1e-3 * float(x.abs().nan_to_num().amax()), equal_nan=True):
            raise ValueError("the network is random: two runs on one image differ in evaluation mode; fix its seed")
    shrink = _shrinking(watched, whole, downscaling, arguments, image.ndim - 2)
    small, runs, failed = {}, {}, {}
    for n in range(1, whole.num_levels) if shifts is None else [check_integer("shifts", n, 1) for n in shifts]:
        expected, small[n] = scale_shift(whole, n), shrink(image, n)
        try:
            runs[n] = expected, watched(small[n]), watched(watch.other_image(small[n]))
        except (ValueError, RuntimeError) as error:
            if shifts is not None or not runs or isinstance(error, torch.OutOfMemoryError):
                error.add_note(f"for the image downscaled by base**{n}, {tuple(small[n].shape)}; use a larger image")
                raise
            failed[n] = str(error)
    left_out, uneven = watch.levels_outside(watched, small[max(runs)]) if runs else ({}, "")
    pairs = []
    for i, (n, (expected, got, other)) in enumerate(runs.items()):
        for k in sorted({*level_numbers(expected)} & {*level_numbers(got)}):
            outputs = expected.level(k), got.level(k), other.level(k)
            shapes = [tuple(x.shape) for x in outputs[:2]]
            apart = [abs(a - b) > (axis in got.axes) for axis, (a, b) in enumerate(zip(*shapes, strict=False))]
            if (len(shapes[0]) != len(shapes[1]) or any(apart)) and not {k, k + n} & left_out.keys():
                raise ValueError(f"levels to compare have shapes {shapes[0]} and {shapes[1]}")
            for axis in got.axes:
                size = min(x.shape[axis] for x in outputs)
                outputs = tuple(x.narrow(axis, 0, size) for x in outputs)
            size = tuple(outputs[0].shape[axis] for axis in got.axes)
            a, b, c = (columns(x, got.axes) for x in outputs)
            pairs.append(Pair((i, k - whole.first_level), a, b, c, shapes[0] == shapes[1], size))
    found = compare(pairs, image, whole, [*runs], "l", left_out=left_out, failed=failed)
    return found, uneven, small[min(runs)] if runs else None


def _shrinking(
    watched: Watched, whole: ScaleSpace, downscaling: Downscaling, arguments: dict[str, Any], dims: int
) -> Callable[[Tensor, int], Tensor]:
    """The downscaling as a function, with the arguments of the model's lift where none are given."""
    if callable(downscaling):
        return downscaling
    check_choice("downscaling", downscaling, DOWNSCALINGS)
    names = watch.CAUSAL_ARGUMENTS if whole.causal else watch.LIFT_ARGUMENTS
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


def _resize(image: Tensor, factor: float) -> Tensor:
    """Pillow's antialiased bicubic resize, onto samples at multiples of ``factor``."""
    pillow = require("PIL.Image", "plot")
    if image.ndim != 4:
        raise ValueError(f"Pillow resizes images (B, C, H, W), got shape {tuple(image.shape)}")
    height, width = (count(n, factor) for n in image.shape[2:])
    # Pillow's pixels are squares, ours are points in their middle: a square around the first point, as large as a
    # pixel of the result, starts outside the image.
    edge = math.ceil(factor) + 1
    start = edge + 0.5 - factor / 2
    box = (start, start, start + factor * width, start + factor * height)
    planes = pad(image.float().cpu(), [(edge, edge)] * 2, "reflect").flatten(0, 1).numpy()
    small = [pillow.fromarray(x).resize((width, height), pillow.Resampling.BICUBIC, box=box) for x in planes]
    return torch.as_tensor(np.stack(small)).unflatten(0, image.shape[:2]).to(image)


def translated(
    watched: Watched, image: Tensor, translations: Sequence[int] | None, margin: float | None, axis: int
) -> Found:
    """Compare level k of the moved image with level k of the image, read at the moved position."""
    if axis not in range(2 - image.ndim, 0):
        raise ValueError(f"axis is one of the image's last {image.ndim - 2}, counted from -1 down, got {axis}")
    if translations is None:
        space = watched(image)
        base = space.base if isinstance(space.base, float) else 2.0
        translations = sorted({max(round(base**k), 1) for k in range(level_numbers(space)[-1] + 1)})
    width = image.shape[axis] - max(translations)
    if width < 2:
        raise ValueError(
            f"an image {image.shape[axis]} wide cannot be moved by {max(translations)} pixels; use a larger one"
        )
    window = image.narrow(axis, 0, width)
    still, lifts, other = watched(window), watched.lifts, watched(watch.other_image(window))
    _check_positions(still, image)
    stretch = max(float(np.max(np.abs(x.expansion(x.num_levels - 1)))) for x in (still, *(x for _, x in lifts)))
    border = math.ceil(stretch * still.unit[axis])  # pixels between taps, or else they could step over it
    index = torch.arange(width, device=image.device).reshape([-1] + [1] * (-1 - axis))
    inner, place, part = (index >= border) & (index < width - border), still.axes[axis], margin or 0.0

    def free_of_borders(window: Tensor, out: ScaleSpace) -> list[Tensor]:
        """1 at the samples that stay when the pixels along the borders change, else 0; all 1 if there is a margin."""
        if margin is not None:
            return [torch.ones_like(x) for x in out.levels]
        changed = watched(torch.where(inner, window, watch.other_image(window)))
        return [watch.same_values(y, x).to(x) for x, y in zip(out.levels, changed.levels, strict=True)]

    free, pairs = free_of_borders(window, still), []
    for i, move in enumerate(translations):
        window = image.narrow(axis, move, width)
        moved = watched(window)
        free_too = free_of_borders(window, moved)
        for j, level in enumerate(still.levels):
            size = level.shape[place]
            offset = move / (still.steps[j] * still.unit[axis])
            first = math.ceil(part * size)
            length = size - math.ceil(part * size + offset) - first
            if length <= 0:
                continue
            both = sample(free[j], place, 1.0, offset, size) * free_too[j]
            outputs = both, sample(level, place, 1.0, offset, size), moved.levels[j], other.levels[j]
            both, a, b, c = (columns(x.narrow(place, first, length), still.axes) for x in outputs)
            if (rows := (both == 1).all(1)).any():
                pairs.append(Pair((i, j), a[rows], b[rows], c[rows]))
    compared = {pair.entry[1] for pair in pairs}
    lost = [k for j, k in enumerate(level_numbers(still)) if j not in compared and margin is None]
    left_out = dict.fromkeys(lost, "every sample sees a border")
    return compare(pairs, image, still, translations, "translation", left_out=left_out)


def _check_positions(x: ScaleSpace, image: Tensor) -> ScaleSpace:
    if x.causal:
        raise ValueError("a causal space is counted back from its end, which moves with the window")
    if x.dims != image.ndim - 2:
        raise ValueError(
            f"translations need levels with positions, got shapes {x.shapes}; measure the network before space is "
            "pooled or flattened away"
        )
    return x


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
