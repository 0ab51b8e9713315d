"""The errors of a network, as a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
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
        failed: downscalings without a row, because the network does not take an image so small, and its error.
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
        """The first of the last levels that are left out, or one past the last level."""
        kept = [level for level in self.levels if level not in self.left_out]
        return max(kept, default=self.levels[0] - 1) + 1

    def before(self, boundary: int | None = None) -> NDArray:
        r"""The errors of the entries that are not left out; or of those whose top level :math:`k + \ell` is lower."""
        return np.array([self.errors[i, j] for i, j in self._entries(boundary)])

    def _entries(self, boundary: int | None = None) -> Iterator[tuple[int, int]]:
        for i, row in enumerate(self.rows):
            for j, level in enumerate(self.levels):
                top = level + row if self.what == "l" else level
                kept = not {level, top} & set(self.left_out) if boundary is None else top < boundary
                if kept and not math.isnan(self.errors[i, j]):
                    yield i, j

    def to_json(self) -> dict[str, Any]:
        """Plain lists; entries without a level are None."""
        errors = [[None if math.isnan(e) else float(e) for e in row] for row in self.errors]
        left_out = {str(level): reason for level, reason in self.left_out.items()}
        numbers = {"rows": list(self.rows), "levels": list(self.levels), "errors": errors}
        failed = {str(row): reason for row, reason in self.failed.items()}
        return {"what": self.what, **numbers, "left_out": left_out, "failed": failed}

    def __str__(self) -> str:
        head = f"{self.what:>12} | " + " ".join(f"{f'k={k}':>9}" for k in self.levels)
        lines = [head, "-" * len(head)]
        for row, errors in zip(self.rows, self.errors, strict=True):
            cells = (" " * 9 if math.isnan(e) else f"{e:9.2e}" for e in errors)
            lines.append((f"{row:>12} | " + " ".join(cells)).rstrip())
        lines += [f"left out: {reason}" for reason in self._reasons()]
        lines += [f"too small for the network: l = {row} ({reason})" for row, reason in self.failed.items()]
        return "\n".join(lines)

    __repr__ = __str__

    def _reasons(self) -> list[str]:
        levels = {
            reason: [k for k, other in self.left_out.items() if other == reason] for reason in self.left_out.values()
        }
        return [f"level{'s' * (len(ks) > 1)} {', '.join(map(str, ks))} ({reason})" for reason, ks in levels.items()]
