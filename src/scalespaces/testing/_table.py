"""The errors of a network as a table: as text, as JSON, and which entries see past the last level."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, repr=False)
class EquivarianceTable:
    r"""Relative L2 errors: row :math:`\ell` (or translation), column level :math:`k`; NaN where there is no level.

    Attributes:
        errors: the errors.
        largest: the largest difference at any sample of any channel, relative to the channel's spread, as in
            :func:`assert_equivariant`.
        rows: the downscalings :math:`\ell`, or the translations.
        levels: the numbers of the columns.
        what: ``"l"`` or ``"translation"``.
        left_out: levels that cannot be exact, and why. An entry is left out if level :math:`k` or level
            :math:`k + \ell` is.
        failed: downscalings without a row, because the network rejects an image so small, and its error.
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
        """The truncation boundary: one past the last level that is not left out."""
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
        """Where entries are not left out."""
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
