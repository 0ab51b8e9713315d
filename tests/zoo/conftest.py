"""What lets torchvision be imported, and the table at the end of a run."""

from importlib import import_module
from typing import Any

from scalespaces._tables import text_table

import_module("zoo.torchvision_stub")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what the tests measured: one row per model, one column per measurement, the worst where there are more."""
    rows: dict[str, dict[str, float]] = {}
    for report in (report for reports in terminalreporter.stats.values() for report in reports):
        measured = dict(getattr(report, "user_properties", ()))
        if getattr(report, "when", None) == "call" and "model" in measured:
            row = rows.setdefault(measured.pop("model"), {"seconds": 0.0})
            row["seconds"] += report.duration
            for column, error in measured.items():
                row[column] = max(error, row.get(column, 0.0))
    if not rows:
        return
    columns = sorted({column for row in rows.values() for column in row} - {"seconds"})
    table = [["", *columns, "seconds"]]
    for model, row in sorted(rows.items()):
        errors = [f"{row[column]:.1e}" if column in row else "" for column in columns]
        table.append([model, *errors, f"{row['seconds']:.1f}"])
    terminalreporter.section("relative errors of converted models")
    terminalreporter.line(text_table(table))
