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
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [
        [
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in rows
    ]
    return "\n".join("  ".join(row).rstrip() for row in cells)
