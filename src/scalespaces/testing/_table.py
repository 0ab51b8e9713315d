"""The table of errors: how outputs that should agree are compared, printed and judged."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scalespaces.space import ScaleSpace
from scalespaces.testing._watch import ROUNDINGS, level_numbers
from scalespaces.theory._arguments import check_real


@dataclass(frozen=True, repr=False)
class EquivarianceTable:
    r"""Relative L2 errors: row :math:`\ell` (or translation), column level :math:`k`; NaN where there is no level.

    Attributes:
        errors: the errors.
        largest: the largest difference in any channel, relative to its spread, as in :func:`assert_equivariant`.
        rows: the downscalings :math:`\ell`, or the translations.
        levels: the numbers of the columns.
        what: ``"l"`` or ``"translation"``.
        left_out: levels that cannot be exact, and why. Entries that compare one of them are left out.
        failed: downscalings without a row, because the network rejects such a small image, and its error.
    """

    errors: NDArray
    largest: NDArray
    rows: tuple[int, ...]
    levels: tuple[int, ...]
    what: str
    left_out: Mapping[int, str] = field(default_factory=dict)
    failed: Mapping[int, str] = field(default_factory=dict)

    @property
    def boundary(self) -> int:
        """One past the last level that is not left out, the truncation boundary."""
        return max(set(self.levels) - set(self.left_out), default=self.levels[0] - 1) + 1

    def before(self, boundary: int | None = None) -> NDArray:
        r"""The errors of the entries that are not left out; or of those whose top level :math:`k + \ell` is lower."""
        return self.errors[self._kept() if boundary is None else ~np.isnan(self.errors) & ~self.past(boundary)]

    def past(self, boundary: int | None = None) -> NDArray:
        r"""Where entries see past the last level: their top level :math:`k + \ell` is the boundary or higher."""
        return ~np.isnan(self.errors) & (self._tops() >= (self.boundary if boundary is None else boundary))

    def _tops(self) -> NDArray:
        """The higher of the two levels that an entry compares; translations compare a level with itself."""
        return np.add.outer([row if self.what == "l" else 0 for row in self.rows], self.levels)

    def _kept(self) -> NDArray:
        absent = [*self.left_out]
        return ~(np.isnan(self.errors) | np.isin(self._tops(), absent) | np.isin(self.levels, absent))

    def to_json(self) -> dict[str, Any]:
        """Plain lists; entries without a level are None."""
        return {
            "what": self.what,
            "rows": [*self.rows],
            "levels": [*self.levels],
            "errors": [[None if math.isnan(e) else float(e) for e in row] for row in self.errors],
            "left_out": {str(level): reason for level, reason in self.left_out.items()},
            "failed": {str(row): reason for row, reason in self.failed.items()},
        }

    def __str__(self) -> str:
        rows = [(f"{row:>12}", errors) for row, errors in zip(self.rows, self.errors, strict=True)]
        lines = [error_text(f"{self.what:>12}", [f"k={k}" for k in self.levels], rows)]
        lines += [f"left out: {reason}" for reason in self._reasons()]
        lines += [f"too small for the network: l = {row} ({reason})" for row, reason in self.failed.items()]
        return "\n".join(lines)

    __repr__ = __str__

    def _reasons(self) -> list[str]:
        levels: dict[str, list[int]] = {}
        for level, reason in self.left_out.items():
            levels.setdefault(reason, []).append(level)
        return [f"level{'s' * (len(ks) > 1)} {', '.join(map(str, ks))} ({reason})" for reason, ks in levels.items()]


def error_text(corner: str, columns: Iterable[str], rows: Iterable[tuple[str, Sequence[float] | NDArray]]) -> str:
    """A header and named rows of errors as lines of text; NaN is blank."""
    head = f"{corner} | " + " ".join(f"{name:>9}" for name in columns)
    cells = [(name, " ".join(" " * 9 if math.isnan(e) else f"{e:9.2e}" for e in errors)) for name, errors in rows]
    return "\n".join([head, "-" * len(head), *(f"{name} | {text}".rstrip() for name, text in cells)])


class Pair(NamedTuple):
    """Two outputs that should agree, and the output for another image: rows are samples, columns are channels."""

    entry: tuple[int, int]
    expected: Tensor
    got: Tensor
    other: Tensor
    same_size: bool = True
    size: tuple[int, ...] = ()


def columns(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Samples by channels, in float64: axes that are neither the batch nor space are channels."""
    channels = [a for a in range(1, x.ndim) if a not in axes]
    return x.permute(0, *axes, *channels).reshape(math.prod(x.shape[a] for a in (0, *axes)), -1).double()


class Comparison:
    """A table with the levels of ``out`` as columns, and how it is judged.

    ``noise`` is what rounding may do to a channel; it ``varies`` if its ``spread``, a deviation over images, is
    more than that. A channel that does not vary must agree up to rounding.
    """

    def __init__(self, pairs: list[Pair], image: Tensor, out: ScaleSpace, rows: Sequence[int], **table: Any) -> None:
        errors, relative = np.full((2, len(rows), out.num_levels), math.nan)
        self.table = EquivarianceTable(errors, relative, tuple(rows), tuple(level_numbers(out)), **table)
        self.precision = max(torch.finfo(x.dtype).eps for x in (image, *out.levels) if x.is_floating_point())
        self.differences: dict[tuple[int, int], Tensor] = {}
        if len({pair.got.shape[1] for pair in pairs}) > 1:  # flattened levels differ in their number of channels
            names = ("expected", "got", "other")
            pairs = [pair._replace(**{name: getattr(pair, name).reshape(-1, 1) for name in names}) for pair in pairs]
        for pair in pairs:
            difference = pair.expected - pair.got
            error = difference.norm() / pair.expected.norm().clamp_min(torch.finfo(torch.float64).tiny)
            # Outputs that are not finite agree with nothing; NaN would say that there is no such level.
            errors[pair.entry] = error.nan_to_num(math.inf, math.inf)
            largest = difference.abs().amax(0).nan_to_num(math.inf, math.inf)
            self.differences[pair.entry] = largest if pair.same_size else torch.full_like(largest, math.inf)
        self.kept = self.table._kept()
        pairs = [pair for pair in pairs if self.kept[pair.entry]] or pairs
        if not pairs:
            return

        values = torch.cat([pair.expected for pair in pairs]).nan_to_num(0.0, 0.0, 0.0)
        # Half the mean square of the difference of two images' values is their variance.
        squares = [(pair.got - pair.other).nan_to_num(0.0, 0.0, 0.0).square().mean(0) / 2 for pair in pairs]
        self.spread = torch.stack(squares).mean(0).sqrt()
        self.noise = ROUNDINGS * self.precision * values.abs().amax(0)
        self.varies = self.spread > self.noise
        if any(len(pair.got) > len(image) for pair in pairs):  # there are positions
            self.varies &= values.amax(0) - values.amin(0) > self.noise
        for entry, largest in self.differences.items():
            constant = torch.where(largest <= self.noise, 0.0, math.inf)
            relative[entry] = torch.where(self.varies, largest / self.spread, constant).amax()
        sides = zip(out.sizes(0), *(pair.size for pair in pairs), strict=False)
        self.thin = any(max(sizes) == 1 < whole for whole, *sizes in sides if sizes)

    def judge(self, tolerance: float | None, advice: str) -> None:
        """Return if the outputs agree; raise an AssertionError if they do not, a ValueError if it is unclear."""
        table, differences, precision = self.table, self.differences, self.precision
        default, double = (1e-9, "") if precision < 1e-12 else (1e-4, "float64 (model.double(), image.double()), ")
        tolerance = default if tolerance is None else check_real("tolerance", tolerance, ">= 0", lambda x: x >= 0)
        if not self.kept.any():
            left_out = ", ".join(table._reasons()) or "none"
            remedy = 'Lift to more levels, use scale_padding="valid" or a larger image'
            raise ValueError(f"no level is left to compare, of {len(table.levels)}; left out: {left_out}. {remedy}")
        spread, noise, varies = self.spread, self.noise, self.varies
        bound = torch.where(varies, tolerance * spread, 0.0).maximum(noise)
        if wrong := [entry for entry, found in differences.items() if self.kept[entry] and (found > bound).any()]:
            worst = max(wrong, key=lambda entry: table.largest[entry])
            row, level, size = table.rows[worst[0]], table.levels[worst[1]], table.largest[worst]
            above = level + row if table.what == "l" else f"{level}, moved"
            how = f"downscaled by base**{row}" if table.what == "l" else f"moved by {row} pixels"
            unit = " times the channel's spread"
            if math.isinf(size):
                unit = ": values that are not finite, sizes that differ, or a channel that does not depend on the image"
            channel = int((differences[worst] - bound).div(bound).nan_to_num(-1.0, math.inf).argmax())
            what = f"level {level} of the image {how} differs from level {above} of the image by {size:.3g}{unit}"
            advice += "To rule out rounding, use float64: model.double(), image.double(). " if double else ""
            found = f"(channel {channel}, tolerance {tolerance:g}). {advice}Relative L2 errors:\n{table}"
            raise AssertionError(f"not equivariant: {what} {found}")
        if not varies.any():
            why = "ReLUs are dead, the output is constant, or rounding hides the rest behind a large bias"
            remedy = f"use {double}other weights or another image"
            raise ValueError(f"no channel of the output depends on the image: {why}; {remedy}")
        if self.thin:
            raise ValueError("the levels to compare have a single sample along an axis; use a larger image")
        typical, rounding = torch.where(varies, spread, spread[varies].median()), noise / ROUNDINGS
        if (rounding > tolerance * typical).any():
            channel = int((rounding / typical).argmax())
            came = f"values up to {rounding[channel] / precision:.3g} and a spread of {typical[channel]:.3g}"
            ways = f"use {double}a larger tolerance, a smaller bias or an image with more contrast"
            rule = f"rounding hides the answer: channel {channel} has {came}"
            raise ValueError(f"{rule}, too little for a tolerance of {tolerance:g}; {ways}")
