"""Run a network on an image and on the image downscaled or moved, and pair the levels that should agree."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scalespaces._choices import DOWNSCALINGS
from scalespaces._extras import require
from scalespaces.functional import downscale, scale_shift
from scalespaces.functional._sampling import pad, sample
from scalespaces.semigroups import causal_downscale
from scalespaces.space import ScaleSpace
from scalespaces.space._numbers import as_integer, count
from scalespaces.testing import _watch as watch
from scalespaces.testing._table import Comparison, EquivarianceTable, Pair, columns
from scalespaces.testing._watch import Watched, level_numbers
from scalespaces.theory._arguments import check_choice, check_integer

Downscaling = str | Callable[[Tensor, int], Tensor]
Model = Callable[[Tensor], Any]
Rows = Sequence[int] | None  # of a table; None takes all that make sense
_EXACT = 'Lifts with method="cascade" are exact, as are layers that are the same at all levels, dilated with them. '
_NO_LIFT = "No nn.Lift ran, so levels whose filters reach past the last one were not found, and were compared. "
_EXACT_MOVES = "Layers that are the same at all positions are exact. "


@torch.no_grad()
def equivariance_error(
    model: Model, image: Tensor, *, downscaling: Downscaling = "cascade", shifts: Rows = None, **lift_arguments: Any
) -> EquivarianceTable:
    r"""The paper's equation "error" for a network :math:`\Phi` from images to scale-spaces.

    .. math:: L(c^{-\ell}, k) = \frac{\|\Phi[f](k+\ell, c^\ell \cdot) - \Phi[S_{c^{-\ell}}[f]](k, \cdot)\|_2}
                                     {\|\Phi[f](k+\ell, c^\ell \cdot)\|_2}

    The *image* is downscaled and lifted again. Every level is measured; ``left_out`` of the table names those that
    cannot be exact: their filters reach past the last lifted level, or they see levels finer than the image
    (``first_level < 0``). They are found by hiding the levels of the lift one by one, if it is a module,
    :class:`~scalespaces.nn.Lift` or :class:`~scalespaces.nn.CausalLift`.

    Args:
        model: a network with a method ``scores(image)``, whose levels' scores are measured; or any function from
            ``(B, C, *spatial)`` to a ScaleSpace. Its modules run in evaluation mode on the image :math:`f`.
        downscaling: ``"cascade"`` is :math:`D^\ell`, the generator; ``"direct"`` the paper's :math:`S_{c^{-\ell}}`;
            ``"pillow"`` Pillow's antialiased bicubic resize; or a function of the image and :math:`\ell`.
        shifts: the :math:`\ell` of the rows. Default: all that leave a level and an image large enough for the network.
        **lift_arguments: base, zero_scale, kernel and padding_mode of the downscaling. Default: those of the lift.

    Example:
        >>> image = torch.rand(1, 1, 64, 64, dtype=torch.float64)
        >>> equivariance_error(scalespaces.nn.Lift(3), image)
                   l |       k=0       k=1       k=2
        --------------------------------------------
                   1 |  0.00e+00  0.00e+00
                   2 |  0.00e+00
    """
    with Watched(model) as watched:
        return _downscaled(watched, image, downscaling, shifts, lift_arguments)[0].table


@torch.no_grad()
def translation_error(
    model: Model, image: Tensor, *, translations: Rows = None, margin: float | None = 0.25, axis: int = -1
) -> EquivarianceTable:
    r"""How far the network is from commuting with translations along an axis.

    Level :math:`k` of the moved image is compared with that of the image, interpolated linearly at the moved position.

    Args:
        model, image: as in :func:`equivariance_error`; the levels must have positions, so no score vectors.
        translations: in pixels. Default: powers of the base up to the last level's.
        margin: part of each side of a level that is left out because of the borders; levels that see more of the image
            than that also measure its borders. None leaves out exactly the samples that see a border.
        axis: the axis of the image along which it moves, counted from the last, -1.
    """
    with Watched(model) as watched:
        return _translated(watched, image, _moves(watched, image, translations, axis), margin, axis).table


@torch.no_grad()
def assert_equivariant(
    model: Model,
    image: Tensor,
    *,
    tolerance: float | None = None,
    shifts: Rows = None,
    translations: bool | Sequence[int] = False,
    **lift_arguments: Any,
) -> None:
    r"""Fail unless the network commutes with downscaling: at every level, in every channel, at every sample.

    Level :math:`k + \ell` of the image is *compared* with level :math:`k` of the image downscaled by :math:`D^\ell`,
    borders included. The largest difference in a channel is divided by the channel's spread, a standard deviation over
    images: how much its values differ between the downscaled image and its flipped negative. So neither a bias nor a
    fixed pattern hides an error. Levels are *left out* as by :func:`equivariance_error`.

    Tests that prove nothing are *refused* with a ValueError: no level is left to compare, or only single samples along
    an axis; the image is constant; no channel of the output depends on it, as when all ReLUs are dead; or rounding is
    larger than the tolerance, because a channel's values are many times larger than its spread. Then use float64.

    Args:
        model, shifts, lift_arguments: as in :func:`equivariance_error`.
        image: the image. Noise is best: it has all frequencies.
        tolerance: the largest difference, relative to the channel's spread. Default: 1e-9 in float64, else 1e-4. A
            difference of 16 roundings of the channel's largest value is always allowed.
        translations: also move the image along each axis by these numbers of pixels, which must be whole samples of
            every level; True takes the smallest such number. Samples that see a border are left out. This finds
            networks that treat samples by their index, which may commute with scaling: the first pixel stays.

    Example:
        >>> net = torch.nn.Sequential(scalespaces.nn.Lift(4), scalespaces.nn.ScaleConv2d(3, 8, (2, 3, 3)))
        >>> assert_equivariant(net, torch.rand(1, 3, 64, 48))
    """
    with Watched(model) as watched:
        found, uneven, smaller = _downscaled(watched, image, "cascade", shifts, lift_arguments)
        if _is_flat(image) or _is_flat(smaller):
            size = tuple(image.shape)
            raise ValueError(f"an image that is constant, or is when downscaled, proves nothing; use noise, got {size}")
        if uneven:
            raise AssertionError(f"not equivariant: {uneven}; use the same layers at all levels.\n{found.table}")
        found.judge(tolerance, _EXACT + ("" if watched.lifts else _NO_LIFT))
        for axis in range(2 - image.ndim, 0) if translations else ():
            given = None if isinstance(translations, bool) else translations
            moves = _moves(watched, image, given, axis, whole=True)
            _translated(watched, image, moves, None, axis).judge(tolerance, _EXACT_MOVES)


def _is_flat(image: Tensor) -> bool:
    x = image.flatten(2)
    return bool((x.amax(2) - x.amin(2) <= watch.ROUNDINGS * torch.finfo(x.dtype).eps * x.abs().amax(2)).all())


def _downscaled(
    watched: Watched, image: Tensor, downscaling: Downscaling, shifts: Rows, arguments: dict[str, Any]
) -> tuple[Comparison, str, Tensor]:
    """The comparison, how levels differ in the lifted levels they see, if they do, and the least downscaled image."""
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
            a, b = (tuple(x.shape) for x in outputs[:2])
            apart = any(abs(p - q) > (axis in got.axes) for axis, (p, q) in enumerate(zip(a, b, strict=False)))
            if (len(a) != len(b) or apart) and not {k, k + n} & left_out.keys():
                raise ValueError(f"levels to compare have shapes {a} and {b}")
            size = tuple(min(x.shape[axis] for x in outputs) for axis in got.axes)
            for axis, length in zip(got.axes, size, strict=True):
                outputs = tuple(x.narrow(axis, 0, length) for x in outputs)
            samples = (columns(x, got.axes) for x in outputs)
            pairs.append(Pair((i, k - whole.first_level), *samples, same_size=a == b, size=size))
    found = Comparison(pairs, image, whole, [*runs], what="l", left_out=left_out, failed=failed)
    return found, uneven, small[min(runs)] if runs else image


def _shrinking(
    watched: Watched, whole: ScaleSpace, downscaling: Downscaling, arguments: dict[str, Any], dims: int
) -> Callable[[Tensor, int], Tensor]:
    """The downscaling as a function, by default with the arguments of the model's lift."""
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
            raise ValueError(f'a causal space has only the downscaling "cascade", got {downscaling!r}; pass a function')
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


def extended(image: Tensor, period: int, rest: int = 1) -> Tensor:
    """An image, extended by reflection until its sides leave ``rest`` when divided by ``period``."""
    # For base ** (levels - 1) reflected borders (circular ones, if the rest is 0) look the same at all levels.
    return pad(image, [(0, (rest - n) % period) for n in image.shape[2:]], "reflect")


def cropped(image: Tensor, period: int, side: int) -> Tensor:
    """The middle of an image, with sides of at most ``side`` that leave 1 when divided by the period."""
    for axis, n in enumerate(image.shape[2:], 2):
        new = min(n, side) - (min(n, side) - 1) % period
        image = image.narrow(axis, (n - new) // 2, new)
    return image


def _moves(watched: Watched, image: Tensor, translations: Rows, axis: int, *, whole: bool = False) -> list[int]:
    """The translations, checked; ``whole`` takes whole samples of every level only, by default the smallest one."""
    if axis not in range(2 - image.ndim, 0):
        raise ValueError(f"axis must be one of the image's last {image.ndim - 2}, counted from -1 down, got {axis}")
    space, side = watched(image), image.shape[axis]
    if space.causal:
        raise ValueError("a causal space is counted back from its end, which moves with the window")
    if space.dims != image.ndim - 2:
        raise ValueError(f"translations need levels with positions, got shapes {space.shapes}; measure before pooling")
    if whole:
        pixels = {step * space.unit[axis] for x in (space, *(x for _, x in watched.lifts)) for step in x.steps}
        tried = translations or range(1, side // 2)
        found = [n for n in tried if n > 0 and all(as_integer(n / step) is not None for step in pixels)]
        if len(found) < len(translations or [1]):
            rule = f"the image must move by whole samples of every level, {sorted(pixels)} pixels apart"
            got = f"{translations or 'no move'} within {side} pixels; use common multiples, or a larger image"
            raise ValueError(f"{rule}, got {got} (bases such as the square root of 2 have none)")
        return found if translations else found[:1]
    if translations is None:
        base = space.base if isinstance(space.base, float) else 2.0
        translations = sorted({max(round(base**k), 1) for k in range(level_numbers(space)[-1] + 1)})
    return list(translations)


def _translated(watched: Watched, image: Tensor, moves: list[int], margin: float | None, axis: int) -> Comparison:
    """Compare level k of the moved image with level k of the image, read at the moved position."""
    width = image.shape[axis] - max(moves)
    if width < 2:
        raise ValueError(f"an image {image.shape[axis]} wide cannot be moved by {max(moves)} pixels; use a larger one")
    window = image.narrow(axis, 0, width)
    still, lifts, other = watched(window), watched.lifts, watched(watch.other_image(window))
    stretch = max(float(np.max(np.abs(x.expansion(x.num_levels - 1)))) for x in (still, *(x for _, x in lifts)))
    border = math.ceil(stretch * still.unit[axis])  # pixels between taps, or else they could step over it
    index = torch.arange(width, device=image.device).reshape([-1] + [1] * (-1 - axis))
    inner, place, part = (index >= border) & (index < width - border), still.axes[axis], margin or 0.0

    def free_of_borders(window: Tensor, out: ScaleSpace) -> list[Tensor]:
        """1 at the samples that stay when the pixels along the borders change, else 0; all 1 if there is a margin."""
        changed = out if margin is not None else watched(torch.where(inner, window, watch.other_image(window)))
        return [watch.same_values(y, x).to(x) for x, y in zip(out.levels, changed.levels, strict=True)]

    free, pairs = free_of_borders(window, still), []
    for i, move in enumerate(moves):
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
            both, *samples = (columns(x.narrow(place, first, length), still.axes) for x in outputs)
            if (rows := (both == 1).all(1)).any():
                expected, got, another = (x[rows] for x in samples)
                pairs.append(Pair((i, j), expected, got, another))
    lost = {*level_numbers(still)} - {pair.entry[1] + still.first_level for pair in pairs} if margin is None else ()
    left_out = dict.fromkeys(sorted(lost), "every sample sees a border")
    return Comparison(pairs, image, still, moves, what="translation", left_out=left_out)
