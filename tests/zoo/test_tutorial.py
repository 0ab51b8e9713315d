"""The page about conversion, with the weights of a published network."""

import re
from pathlib import Path

import pytest

pyplot = pytest.importorskip("matplotlib.pyplot")
PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "5_conversion.py"


def test_fifth_page_converts_and_calibrates(capsys: pytest.CaptureFixture[str]):
    pyplot.switch_backend("Agg")
    exec(compile(PAGE.read_text(encoding="utf-8"), str(PAGE), "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert len(pyplot.get_fignums()) == 2
    pyplot.close("all")
    before, after = re.findall(r"([\d,]+) parameters", printed)
    assert before == after
    counts = [tuple(map(int, pair)) for pair in re.findall(r"before calibration: (\d) of 8, after: (\d) of 8", printed)]
    assert counts[0] == (8, 8)
    assert counts[1][1] >= counts[1][0]
    assert counts[2][1] > counts[2][0]
    assert "deit_tiny_patch16_224: 3 levels of (1, 1000)" in printed
    assert "vit_tiny_patch16_224 is refused" in printed
    losses = [float(loss) for loss in re.findall(r"step \d: loss ([\d.]+)", printed)]
    assert losses[-1] < losses[0] / 2
    assert "loaded: 4 levels, combined by trust" in printed
