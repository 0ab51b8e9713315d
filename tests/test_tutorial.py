"""The pages that are scripts: they run, and what they print and draw is what they say."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pyplot = pytest.importorskip("matplotlib.pyplot")

DOCS = Path(__file__).parents[1] / "docs"
FEWER = {"EPOCHS": 1, "counts": [100, 20, 20]}
Run = Callable[..., tuple[str, int]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Run a page, and return what it prints and how many figures it leaves to be shown."""
    pyplot.switch_backend("Agg")

    def page(name: str, *arguments: str, **constants: Any) -> tuple[str, int]:
        file = DOCS / name
        source = file.read_text(encoding="utf-8")
        for constant, value in constants.items():
            source, found = re.subn(rf"^{constant} = .*$", f"{constant} = {value}", source, flags=re.MULTILINE)
            assert found == 1
        monkeypatch.setattr("sys.argv", [str(file), *arguments])
        exec(compile(source, str(file), "exec"), {"__name__": "__main__"})
        return capsys.readouterr().out, len(pyplot.get_fignums())

    yield page
    pyplot.close("all")


def numbers(pattern: str, text: str) -> list[float]:
    return [float(number) for number in re.findall(pattern + r"\s*([\d.e+-]+)", text)]


def test_first_page_shows_aliasing_and_an_exact_shift(run: Run):
    printed, figures = run("tutorial/1_scale_spaces.py")
    assert figures == 3
    (naive,), (correct,) = numbers("every eighth pixel:", printed), numbers("blurred before that:", printed)
    assert naive > 5 * correct
    direct, dense, pyramid = numbers("largest difference", printed)
    assert direct > 1e-3 < dense
    assert pyramid == 0


def test_second_page_is_exact_but_for_the_boundary(run: Run):
    printed, figures = run("tutorial/2_correlation.py")
    assert figures == 4
    assert numbers("differs from the plain convolution by", printed) == pytest.approx([0] * 4, abs=1e-5)
    valid, zero = re.findall(r"^ +1 \|(.*)$", printed, re.MULTILINE)
    assert max(map(float, valid.split())) < 1e-5
    assert min(map(float, zero.split()[-2:])) > 0.1


@pytest.mark.parametrize("constants", [FEWER, pytest.param({}, marks=pytest.mark.slow)])
def test_third_page_trains(run: Run, constants: dict[str, Any]):
    printed, figures = run("tutorial/3_training.py", **constants)
    assert (figures, len(set(re.findall(r"([\d,]+) parameters", printed)))) == (3, 1)
    plain, _, levels = (numbers("px:", line) for line in printed.splitlines() if "px:" in line)
    assert len(plain) == len(levels) == 5
    if not constants:
        assert plain[2] > 0.9 < levels[2]
        assert levels[0] > plain[0] + 0.2
        assert min(levels[1:]) > 0.8 > max(plain[0], plain[-1])


@pytest.mark.parametrize("constants", [FEWER, pytest.param({}, marks=pytest.mark.slow)])
def test_fourth_page_goes_from_a_folder_to_onnx(run: Run, constants: dict[str, Any]):
    printed, figures = run("tutorial/4_practice.py", **constants)
    assert figures == 1
    assert "model.safetensors" in printed.splitlines()
    assert max(numbers("ONNX differs from PyTorch by", printed)) < 1e-4
    rows = [re.search(rf"^{name} +(.*) \S+x$", printed, re.MULTILINE) for name in ("CNN", "S-CNN")]
    plain, levels = (list(map(float, row[1].split())) for row in rows if row is not None)
    assert len(plain) == len(levels) == 3
    if not constants:
        assert min(plain[1], levels[1]) > 0.85
        assert levels[0] > plain[0] + 0.2
        assert levels[2] > plain[2] + 0.5


@pytest.mark.parametrize(
    ("name", "drawn"), [("figure_1_downsampling", 1), ("figure_2_scale_space", 1), ("figure_3_correlation", 2)]
)
def test_figures_are_drawn(run: Run, tmp_path: Path, name: str, drawn: int):
    path = tmp_path / "figure.png"
    assert run(f"figures/{name}.py", *([] if drawn == 2 else [str(path)]))[1] == drawn
    assert path.exists() == (drawn == 1)


@pytest.mark.slow
def test_equivariance_is_as_the_paper_says_and_ours_exact(run: Run, tmp_path: Path):
    path = tmp_path / "figure.png"
    printed, figures = run("figures/figure_4_equivariance.py", str(path))
    assert figures == 1
    assert path.stat().st_size > 10_000
    means = numbers("mean error", printed.replace(",", " "))
    assert max(means[:3]) < 0.01
    assert means[3:] == [0, 0, 0]
