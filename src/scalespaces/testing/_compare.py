"""Comparing outputs that ought to agree, channel by channel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from scalespaces.space import ScaleSpace
from scalespaces.testing._table import EquivarianceTable
from scalespaces.testing._watch import ROUNDINGS
from scalespaces.theory._arguments import check_real

_EXACT = {
    "l": 'Exact are lifts with method="cascade" that blur as the downscaling does, layers that are the same at all '
    "levels, and filters and windows that are dilated with the levels. ",
    "translation": "Exact are layers that are the same at all positions. ",
}


class Pair(NamedTuple):
    """Outputs that ought to agree, and the output for another image: rows are samples, columns are channels."""

    entry: tuple[int, int]
    expected: Tensor
    got: Tensor
    other: Tensor
    same_size: bool = True
    size: tuple[int, ...] = ()


@dataclass
class Found:
    """A table and what it says of the channels: how much they differ, spread and round, and which vary at all."""

    table: EquivarianceTable
    precision: float
    difference: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    spread: Tensor = field(default_factory=lambda: torch.zeros(0))
    noise: Tensor = field(default_factory=lambda: torch.zeros(0))
    varies: Tensor = field(default_factory=lambda: torch.zeros(0))
    thin: bool = False


def columns(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Samples by channels, in float64: axes that are neither the batch nor space are channels."""
    channels = [a for a in range(1, x.ndim) if a not in axes]
    return x.permute(0, *axes, *channels).reshape(math.prod(x.shape[a] for a in (0, *axes)), -1).double()


def find(pairs: list[Pair], table: EquivarianceTable, image: Tensor, out: ScaleSpace) -> Found:
    """Fill in the table."""
    found = Found(table, max(torch.finfo(x.dtype).eps for x in (image, *out.levels) if x.is_floating_point()))
    if len({pair.got.shape[1] for pair in pairs}) > 1:  # flattened levels differ in their number of channels
        names = ("expected", "got", "other")
        pairs = [pair._replace(**{name: getattr(pair, name).reshape(-1, 1) for name in names}) for pair in pairs]
    for pair in pairs:
        difference = pair.expected - pair.got
        error = difference.norm() / pair.expected.norm().clamp_min(torch.finfo(torch.float64).tiny)
        # Outputs that are not finite agree with nothing; NaN would say that there is no such level.
        table.errors[pair.entry] = error.nan_to_num(math.inf, math.inf)
        largest = difference.abs().amax(0).nan_to_num(math.inf, math.inf)
        found.difference[pair.entry] = largest if pair.same_size else torch.full_like(largest, math.inf)
    entries = set(table._entries())
    kept = [pair for pair in pairs if pair.entry in entries] or pairs
    if not kept:
        return found

    sides = zip(out.sizes(0), *(pair.size for pair in kept), strict=False)
    found.thin = any(max(sizes) == 1 < whole for whole, *sizes in sides if sizes)
    values = torch.cat([pair.expected for pair in kept]).nan_to_num(0.0, 0.0, 0.0)
    # Half the mean square of the difference of two images' values is their variance.
    squares = [(pair.got - pair.other).nan_to_num(0.0, 0.0, 0.0).square().mean(0) / 2 for pair in kept]
    found.spread = torch.stack(squares).mean(0).sqrt()
    found.noise = ROUNDINGS * found.precision * values.abs().amax(0)
    found.varies = found.spread > found.noise
    if any(len(pair.got) > len(image) for pair in kept):  # there are positions
        found.varies &= values.amax(0) - values.amin(0) > found.noise
    for entry, largest in found.difference.items():
        constant = torch.where(largest <= found.noise, 0.0, math.inf)
        table.largest[entry] = torch.where(found.varies, largest / found.spread, constant).amax()
    return found


def judge(found: Found, tolerance: float | None, advice: str = "") -> None:
    """Fail, refuse or pass."""
    table, entries, is_double = found.table, list(found.table._entries()), found.precision < 1e-12
    default, double = (1e-9, "") if is_double else (1e-4, "float64 (model.double(), image.double()), ")
    tolerance = default if tolerance is None else check_real("tolerance", tolerance, ">= 0", lambda x: x >= 0)
    if not entries:
        raise ValueError(
            f"no level is left to compare, of {len(table.levels)}; left out: {', '.join(table._reasons()) or 'none'}. "
            'Lift to more levels, use scale_padding="valid" or a larger image'
        )
    bound = torch.where(found.varies, tolerance * found.spread, 0.0).maximum(found.noise)
    wrong = [entry for entry in entries if (found.difference[entry] > bound).any()]
    if wrong:
        worst = max(wrong, key=lambda entry: table.largest[entry])
        channel = int((found.difference[worst] - bound).div(bound).nan_to_num(-1.0, math.inf).argmax())
        raise AssertionError(
            f"not equivariant: {_describe(table, worst)} (channel {channel}, tolerance {tolerance:g}). "
            f"{_EXACT[table.what]}{advice}"
            f"{'' if is_double else 'In float64 rounding is no cause: model.double(), image.double(). '}"
            f"Relative L2 errors:\n{table}"
        )
    if not found.varies.any():
        raise ValueError(
            "no channel of the output depends on the image, so that nothing can be seen: all ReLUs are dead, the "
            "output is constant, or a bias is so large that rounding hides the rest; use "
            f"{double}other weights or another image"
        )
    if found.thin:
        raise ValueError(
            "the levels that are compared have a single sample along an axis, which shows little; use a larger image"
        )
    typical = torch.where(found.varies, found.spread, found.spread[found.varies].median())
    rounding = found.noise / ROUNDINGS
    if (rounding > tolerance * typical).any():
        channel = int((rounding / typical).argmax())
        raise ValueError(
            f"rounding hides the answer: channel {channel} has values up to {rounding[channel] / found.precision:.3g} "
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
