"""What the demonstration promises, and when it is kept."""

import json
import statistics

import pytest
from demo_results import errors

from scalespaces.demo._result import SIZES, Cost, Method, Result, verdicts


def method(key: str, *rows: tuple[float, ...], predict: float = 1.0) -> Method:
    return Method(key, key, "", rows, Cost(100, predict, 1.0, 1.0, 1.0))


def result(
    ours=(0.96, 0.97, 0.98, 0.97, 0.97, 0.96, 0.95),
    cnn=(0.2, 0.6, 0.98, 0.7, 0.2, 0.1, 0.1),
    tta=None,
    select=None,
    time=4,
):
    methods = (
        method("cnn", cnn),
        method("tta", tta or (0.1, 0.5, 0.9, 0.9, 0.9, 0.7, 0.3), predict=12.7),
        method("select", select or (0.4, 0.7, 0.9, 0.9, 0.95, 0.9, 0.7)),
        method("jitter", ours),
        method("ours", ours, predict=time),
    )
    return Result((0,), methods, {}, {}, {}, (errors("direct, dense", 1, 0.1, levels=3),), (), {"cpu": "one"})


def kept(**changes) -> list[bool]:
    return [verdict.kept for verdict in verdicts(result(**changes))]


def test_all_is_kept():
    assert kept() == [True] * 6


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"ours": (0.92, 0.97, 0.98, 0.97, 0.97, 0.96, 0.95)}, 0),  # 6 points below at half the size
        ({"cnn": (0.2, 0.6, 0.98, 0.7, 0.8, 0.1, 0.1)}, 1),  # 17 points above at twice the size
        ({"cnn": (0.2, 0.6, 0.995, 0.7, 0.2, 0.1, 0.1)}, 2),  # 1.5 points below at the trained size
        ({"tta": (0.1, 0.5, 0.9, 0.9, 0.98, 0.7, 0.3)}, 3),  # 1 point below at twice the size
        ({"time": 4.3}, 4),
        ({"select": (0.4, 0.7, 0.9, 0.9, 0.98, 0.9, 0.7)}, 5),
    ],
)
def test_each_promise_can_be_broken_alone(changes, broken):
    assert kept(**changes) == [n != broken for n in range(6)]


def test_verdicts_say_where_and_by_how_much():
    assert [verdict.measured for verdict in verdicts(result())] == [
        "at most 3.0 points below, at size 4",
        "at least 76.0 points above, at size 0.5",
        "equal (98.0 and 98.0 per cent)",
        "at worst 7.0 points above, at size 1.41",
        "in 0.31 of its time (4.0 and 12.7 times the CNN's)",
        "at worst 2.0 points above, at size 2",
    ]


def test_networks_that_guess_keep_no_promise_about_accuracy():
    chance = (0.1,) * len(SIZES)
    assert kept(ours=chance, cnn=chance, tta=chance, select=chance) == [False, False, False, False, True, False]


def test_means_and_spreads_are_over_seeds():
    rows = [tuple(0.9 + 0.01 * seed + 0.001 * n for n in range(len(SIZES))) for seed in range(3)]
    found = method("cnn", *rows)
    for n, size in enumerate(SIZES):
        assert found.mean(size) == pytest.approx(statistics.fmean(row[n] for row in rows))
        assert found.spread(size) == pytest.approx(0.01)
    assert method("cnn", rows[0]).spread(1) is None


def test_numbers_survive_as_json():
    assert result().equivariance[0].before() == [0.1]  # downscaled once, level 0: the only entry that stays below 2
    document = json.loads(json.dumps(result().to_json(), allow_nan=False))
    assert document["sizes"] == list(SIZES)
    assert document["methods"][0]["accuracy"] == [[0.2, 0.6, 0.98, 0.7, 0.2, 0.1, 0.1]]
    table = {"boundary": 2, "rows": [1, 2], "errors": [[0.1, 0.9, None], [0.9, None, None]]}
    assert document["equivariance"] == [{"lift": "direct, dense", "layers": 1, **table}]
    assert "series" not in document
