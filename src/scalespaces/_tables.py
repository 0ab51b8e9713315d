"""Tables of text, as the commands and the benchmarks print them."""

from collections.abc import Sequence


def text_table(rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Rows of cells as aligned lines, the header first. The first ``left`` columns align left, the others right.

    Example:
        >>> print(text_table([["network", "time"], ["CNN", "1.00x"], ["scale-space", "1.33x"]]))
        network       time
        CNN          1.00x
        scale-space  1.33x
    """
    columns = enumerate(zip(*rows, strict=True))
    formats = [f"{'<' if index < left else '>'}{max(map(len, column))}" for index, column in columns]
    return "\n".join("  ".join(map(format, row, formats)).rstrip() for row in rows)
