"""Tables of text and numbers, printed as Markdown."""

import itertools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

Cell = str | float | tuple[float, float] | None  # None where nothing was measured
Cells = Callable[..., Sequence[Cell]]
Keys = Mapping[str, Iterable[str]]


@dataclass
class Table:
    """A header, and rows of text, numbers and pairs of numbers."""

    title: str
    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    exact: float = -1.0  # numbers up to this are printed as that word

    def __str__(self) -> str:
        cells = [self.head, *([self._text(cell) for cell in row] for row in self.rows)]
        head, *body = ("| " + " | ".join(row) + " |" for row in cells)
        return "\n".join([f"### {self.title}\n\n{self.caption}\n", head, "|" + "---|" * len(self.head), *body])

    def _text(self, cell: Cell) -> str:
        if cell is None or isinstance(cell, str):
            return cell or ""
        if isinstance(cell, tuple):
            return " / ".join(map(self._text, cell))
        return "exact" if cell <= self.exact else f"{cell:.2g}"


def grid(title: str, caption: str, keys: Keys, head: Iterable[str], cells: Cells, exact: float = 1e-12) -> Table:
    """A table with a row for each combination of keys: the keys, and the cells measured for them."""
    rows = []
    for key in itertools.product(*keys.values()):
        progress(f"{title}: {', '.join(key)}")
        rows.append([*key, *cells(*key)])
    return Table(title, caption, [*keys, *head], rows, exact)


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
