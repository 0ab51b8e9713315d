"""What lets torchvision be imported, and the table at the end of a run."""

from importlib import import_module
from typing import Any

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
    terminalreporter.section("relative errors of converted models")
    width = max(map(len, rows))
    terminalreporter.line(f"{'':{width}} " + " ".join(f"{column:>16}" for column in [*columns, "seconds"]))
    for model, row in sorted(rows.items()):
        cells = [f"{row[column]:.1e}" if column in row else "" for column in columns]
        terminalreporter.line(
            f"{model:{width}} " + " ".join(f"{cell:>16}" for cell in [*cells, f"{row['seconds']:.1f}"])
        )
