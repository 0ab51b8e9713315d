"""A share of `make fuzz`: damaged files of every format are refused, or what is read is valid."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("PIL.Image")
pytest.importorskip("h5py")
pytest.importorskip("imagecodecs")
pytest.importorskip("lightning")


def test_damaged_files_are_refused_or_read_right():
    """In a process of its own, whose memory is limited."""
    code = "from tests.fuzz.campaign import *; import sys; be_quiet(); sys.exit(alone(1000, 1))"
    root = Path(__file__).parents[2]
    found = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = [{str(root)!r}, {str(root / 'tests')!r}]; {code}"],
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stdout
    assert "0 faults" in found.stdout


def test_the_campaign_sees_faults(tmp_path, monkeypatch):
    """Every kind of fault is counted as such."""
    from tests.fuzz.campaign import attempt
    from tests.fuzz.readers import Reader, expect

    file, canary = tmp_path / "a.txt", tmp_path / "canary"

    def outcome(read) -> str:
        return attempt(Reader("a", file, read), canary)[0]

    def refuse(text: str) -> None:
        raise ValueError(text)

    assert outcome(lambda: None) == "read"
    assert outcome(lambda: refuse(f"{file} is damaged")) == "refused"
    assert outcome(lambda: refuse("damaged")) == "unnamed"
    assert outcome(lambda: {}["key"]) == "foreign"
    assert outcome(lambda: expect(False)) == "wrong"
    assert outcome(canary.touch) == "executed"
    assert outcome(lambda: bytes(b"1" * (3 * 2**29))) == "large"
    monkeypatch.setattr("tests.fuzz.campaign.SECONDS", -1)
    assert outcome(lambda: None) == "slow"
