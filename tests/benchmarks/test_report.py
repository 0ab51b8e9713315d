"""Reports: ratios by rounds, tables that align, JSON there and back, and the figure."""

import json

import numpy as np
import pytest
from scalespaces.bench._plot import plot
from scalespaces.bench._report import Curve, Growth, Report, Result, Row

from scalespaces._measure import environment

MIB = 2**20
RESULT = Result(
    "layers",
    "a layer",
    [
        Row(
            "plain",
            "plain",
            None,
            None,
            None,
            {"forward": [1.0, 2.0, 4.0], "training": [2.0, 2.0, 2.0]},
            {"training": MIB},
        ),
        Row(
            "dense",
            "plain",
            "paper",
            4.0,
            None,
            {"forward": [3.0, 8.0, 8.0], "training": [4.0, 6.0, 10.0]},
            {"training": 3 * MIB},
            {"kernels": 7, "copies": 2, "synchronizations": 0},
        ),
        Row(
            "paper",
            "plain",
            None,
            4.0,
            3.5,
            {"forward": [6.0, 16.0, 16.0], "training": [8.0, 6.0, 10.0]},
            {"training": 6 * MIB},
        ),
    ],
)
GROWTH = Growth("layers", "a layer", "levels", [1, 2, 4], [Curve("dense", [1.0, 2.0, 4.0], [5, 5, 5])])


def report() -> Report:
    return Report(environment(), {"runs": 3}, [RESULT], [GROWTH])


def test_ratios_are_medians_over_rounds():
    dense = RESULT.row("dense")
    forward, training = (RESULT.ratio(dense, phase) for phase in ("forward", "training"))
    assert forward is not None
    assert training is not None
    assert (forward.low, forward.median, forward.high) == (2.5, 3.0, 3.5)
    assert (training.low, training.median, training.high) == (2.5, 3.0, 4.0)
    assert RESULT.memory_ratio(dense, "training") == 3
    assert RESULT.memory_ratio(dense, "training", "paper") == 0.5
    assert RESULT.memory_ratio(dense, "forward") is None
    assert RESULT.ratio(dense, "sleep") is None


def test_the_table():
    lines = str(RESULT).splitlines()
    assert lines[0] == "layers: a layer"
    head = "limit  forward, ms  ratio  quartiles  training, ms  ratio  quartiles  MiB  ratio  kernels  copies  waits"
    assert lines[1].split() == head.split()
    assert set(lines[2]) == {"-"}
    assert lines[3].split() == ["plain", "2000", "1.00", "2000", "1.00", "1.0", "1.00"]
    dense = "dense 4.00 8000 3.00 [2.50, 3.50] 6000 3.00 [2.50, 4.00] 3.0 3.00 7 2 0"
    assert lines[4].split() == dense.split()
    assert "4.00 (3.50)" in lines[5]
    ends = [line.index("3.00") + 4 for line in lines[4:5]] + [lines[1].index("ratio") + 5]
    assert len(set(ends)) == 1  # numbers end where their head ends
    assert lines[6] == "dense against paper, forward: 2.00 times as fast"
    assert lines[7] == "dense against paper, training: 1.00 times as fast, 0.50 of the memory"
    assert max(map(len, lines)) == len(lines[2])


def test_the_table_of_growth():
    assert GROWTH.exponents(GROWTH.curves[0]) == pytest.approx((1, 0))
    lines = str(GROWTH).splitlines()
    assert lines[0] == "layers, growth with levels: a layer"
    assert lines[1].split() == ["levels", "1", "2", "4", "exponent"]
    assert lines[3].split() == ["dense,", "ms", "1000", "2000", "4000", "1.00"]


def test_json_there_and_back():
    document = json.loads(json.dumps(report().to_json(), allow_nan=False))
    assert Report.from_json(document) == report()
    assert Report.from_json(document).to_json() == document
    dense = document["results"][0]["rows"][1]
    assert dense["ratios"]["training"] == {"low": 2.5, "median": 3.0, "high": 4.0}
    assert dense["memory_ratios"] == {"training": 3.0}
    assert document["growth"][0]["curves"][0]["exponents"]["seconds"] == pytest.approx(1)
    assert {"torch", "python", "opencv", "cpu", "threads", "scalespaces"} <= set(document["environment"])


def test_the_figure(tmp_path):
    pytest.importorskip("matplotlib")
    figure = plot(report(), tmp_path / "bench.svg")
    assert (tmp_path / "bench.svg").read_text().startswith("<?xml")
    bars, time, memory, empty = figure.axes
    widths = sorted(patch.get_width() for patch in bars.patches)
    np.testing.assert_allclose(widths, sorted([3.0, 3.0, 6.0, 4.0]))
    marks = [line.get_xdata()[0] for line in bars.lines if line.get_color() == "black"]
    assert {4.0, 3.5} <= set(marks)
    assert [line.get_label() for line in time.lines] == ["dense: exponent 1.00"]
    np.testing.assert_allclose(time.lines[0].get_ydata(), [1e3, 2e3, 4e3])
    np.testing.assert_allclose(memory.lines[0].get_ydata(), [5 / MIB] * 3)
    assert not empty.axison
    with pytest.raises(ValueError, match="nothing to draw"):
        plot(Report({}, {}, []))
