"""Outputs that ought to agree: compared channel by channel, and judged.

What a difference is relative to: the table divides by the norm of the level, as the paper does. The verdict divides the
largest difference in a channel by the *spread* of that channel, a standard deviation over images, so that neither a
bias nor a fixed pattern hides an error. A channel that does not vary must agree up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from scalespaces.space import ScaleSpace
from scalespaces.testing._table import EquivarianceTable
from scalespaces.testing._watch import ROUNDINGS, level_numbers
from scalespaces.theory._arguments import check_real

_EXACT = {
    "l": 'Exact are lifts with method="cascade" that blur as the downscaling does, layers that are the same at all '
    "levels, and filters and windows that are dilated with the levels. ",
    "translation": "Exact are layers that are the same at all positions. ",
}


class Pair(NamedTuple):
    """Two outputs that ought to agree, and the output for another image: rows are samples, columns are channels."""

    entry: tuple[int, int]
    expected: Tensor
    got: Tensor
    other: Tensor
    same_size: bool = True
    size: tuple[int, ...] = ()


class Found(NamedTuple):
    """A table, the largest difference in each channel of its entries, and what these are judged by.

    ``spread`` is how much a channel varies from image to image, ``noise`` what rounding may do to it, and ``varies``
    whether the spread is more than that. ``thin``: only single samples along an axis were compared.
    """

    table: EquivarianceTable
    difference: dict[tuple[int, int], Tensor]
    precision: float
    spread: Tensor
    noise: Tensor
    varies: Tensor
    thin: bool


def columns(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Samples by channels, in float64: axes that are neither the batch nor space are channels."""
    channels = [a for a in range(1, x.ndim) if a not in axes]
    return x.permute(0, *axes, *channels).reshape(math.prod(x.shape[a] for a in (0, *axes)), -1).double()


def compare(pairs: list[Pair], image: Tensor, out: ScaleSpace, rows: Sequence[int], what: str, **notes: Any) -> Found:
    """Make a table with these rows, the levels of ``out`` as columns, and these notes: ``left_out``, ``failed``."""
    errors, relative = np.full((2, len(rows), out.num_levels), math.nan)
    table = EquivarianceTable(errors, relative, tuple(rows), tuple(level_numbers(out)), what, **notes)
    precision = max(torch.finfo(x.dtype).eps for x in (image, *out.levels) if x.is_floating_point())
    if len({pair.got.shape[1] for pair in pairs}) > 1:  # flattened levels differ in their number of channels
        names = ("expected", "got", "other")
        pairs = [pair._replace(**{name: getattr(pair, name).reshape(-1, 1) for name in names}) for pair in pairs]
    differences = {}
    for pair in pairs:
        difference = pair.expected - pair.got
        error = difference.norm() / pair.expected.norm().clamp_min(torch.finfo(torch.float64).tiny)
        # Outputs that are not finite agree with nothing; NaN would say that there is no such level.
        errors[pair.entry] = error.nan_to_num(math.inf, math.inf)
        largest = difference.abs().amax(0).nan_to_num(math.inf, math.inf)
        differences[pair.entry] = largest if pair.same_size else torch.full_like(largest, math.inf)
    kept = table._kept()
    pairs = [pair for pair in pairs if kept[pair.entry]] or pairs
    if not pairs:
        return Found(table, differences, precision, *[torch.zeros(0)] * 3, thin=False)

    values = torch.cat([pair.expected for pair in pairs]).nan_to_num(0.0, 0.0, 0.0)
    # Half the mean square of the difference of two images' values is their variance.
    squares = [(pair.got - pair.other).nan_to_num(0.0, 0.0, 0.0).square().mean(0) / 2 for pair in pairs]
    spread = torch.stack(squares).mean(0).sqrt()
    noise = ROUNDINGS * precision * values.abs().amax(0)
    varies = spread > noise
    if any(len(pair.got) > len(image) for pair in pairs):  # there are positions
        varies &= values.amax(0) - values.amin(0) > noise
    for entry, largest in differences.items():
        constant = torch.where(largest <= noise, 0.0, math.inf)
        relative[entry] = torch.where(varies, largest / spread, constant).amax()
    sides = zip(out.sizes(0), *(pair.size for pair in pairs), strict=False)
    thin = any(max(sizes) == 1 < whole for whole, *sizes in sides if sizes)
    return Found(table, differences, precision, spread, noise, varies, thin)


def judge(found: Found, tolerance: float | None, advice: str = "") -> None:
    """Return if the outputs agree; raise an AssertionError if they do not, a ValueError if one cannot tell."""
    table, differences, precision, spread, noise, varies, thin = found
    default, double = (1e-9, "") if precision < 1e-12 else (1e-4, "float64 (model.double(), image.double()), ")
    tolerance = default if tolerance is None else check_real("tolerance", tolerance, ">= 0", lambda x: x >= 0)
    entries = [(int(i), int(j)) for i, j in np.argwhere(table._kept())]
    if not entries:
        raise ValueError(
            f"no level is left to compare, of {len(table.levels)}; left out: {', '.join(table._reasons()) or 'none'}. "
            'Lift to more levels, use scale_padding="valid" or a larger image'
        )
    bound = torch.where(varies, tolerance * spread, 0.0).maximum(noise)
    wrong = [entry for entry in entries if (differences[entry] > bound).any()]
    if wrong:
        worst = max(wrong, key=lambda entry: table.largest[entry])
        channel = int((differences[worst] - bound).div(bound).nan_to_num(-1.0, math.inf).argmax())
        raise AssertionError(
            f"not equivariant: {_describe(table, worst)} (channel {channel}, tolerance {tolerance:g}). "
            f"{_EXACT[table.what]}{advice}"
            f"{'In float64 rounding is no cause: model.double(), image.double(). ' if double else ''}"
            f"Relative L2 errors:\n{table}"
        )
    if not varies.any():
        raise ValueError(
            "no channel of the output depends on the image, so nothing can be seen: all ReLUs are dead, the output is "
            f"constant, or a bias is so large that rounding hides the rest; use {double}other weights or another image"
        )
    if thin:
        raise ValueError(
            "the levels that are compared have a single sample along an axis, which shows little; use a larger image"
        )
    typical = torch.where(varies, spread, spread[varies].median())
    rounding = noise / ROUNDINGS
    if (rounding > tolerance * typical).any():
        channel = int((rounding / typical).argmax())
        raise ValueError(
            f"rounding hides the answer: channel {channel} has values up to {rounding[channel] / precision:.3g} "
            f"and a spread of {typical[channel]:.3g}, too little for a tolerance of {tolerance:g}; use {double}"
            "a larger tolerance, a smaller bias or an image of more contrast"
        )


def _describe(table: EquivarianceTable, entry: tuple[int, int]) -> str:
    row, level, size = table.rows[entry[0]], table.levels[entry[1]], table.largest[entry]
    what = f"level {level} of the image moved by {row} pixels differs from level {level}, moved,"
    if table.what == "l":
        what = f"level {level} of the image downscaled by base**{row} differs from level {level + row} of the image"
    reason = "values that are not finite, sizes that differ, or a channel that does not depend on the image"
    return f"{what} by {size:.3g}" + (f": {reason}" if math.isinf(size) else " times the channel's spread")
