"""Lines of progress come when work takes long, and then not too often."""

import sys
from types import SimpleNamespace

import pytest

from scalespaces._progress import Progress, progress


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(sys.modules[Progress.__module__], "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def work(clock, seconds: float) -> None:
    for _ in progress(range(100), "counting"):
        clock[0] += seconds / 100


@pytest.mark.parametrize(("seconds", "shown"), [(20, ()), (100, (30, 60, 90))])
def test_long_work_writes_lines_to_a_file(clock, capsys, seconds, shown):
    work(clock, seconds)
    assert capsys.readouterr() == ("", "".join(f"counting: {n} of 100\n" for n in shown))


def test_a_terminal_has_one_line_that_goes_away(clock, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    work(clock, 1.0)
    err = capsys.readouterr().err
    assert "\n" not in err
    assert 3 <= err.count(" of 100") <= 5
    assert err.endswith("\r\x1b[K")


def test_units(clock, capsys):
    for total in (5_000_000, None):
        with Progress("loading", total, " MB", 1e6) as line:
            clock[0] += 31
            line.add(2_000_000)
    assert capsys.readouterr().err == "loading: 2 of 5 MB\nloading: 2 MB\n"


def test_the_remaining_time(clock, capsys):
    with Progress("predicting", 100, " windows", left=True) as line:
        clock[0] += 40
        line.add(10)
    assert capsys.readouterr().err == "predicting: 10 of 100 windows, 0:06:00 left\n"
