"""The page about conversion, with timm's own model."""

import re
from pathlib import Path

import pytest

pyplot = pytest.importorskip("matplotlib.pyplot")
PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "5_conversion.py"


def test_fifth_page_converts_and_fine_tunes(capsys: pytest.CaptureFixture[str]):
    pyplot.switch_backend("Agg")
    exec(compile(PAGE.read_text(encoding="utf-8"), str(PAGE), "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert len(pyplot.get_fignums()) == 1
    pyplot.close("all")
    before, after = re.findall(r"([\d,]+) parameters", printed)
    assert before == after
    assert "deit_tiny_patch16_224: 3 levels of (1, 1000)" in printed
    assert "vit_tiny_patch16_224 is refused" in printed
    small, large = re.findall(r"level 0: ([\d.]+), level 1: ([\d.]+)", printed)
    assert float(small[0]) > 0.7
    assert float(large[1]) > float(large[0]) + 0.3  # level 1 sees at twice the size what level 0 saw before
