"""What the demo promises, and when it is kept."""

import json
import statistics
from dataclasses import replace

import pytest
from demo_results import errors, made

from scalespaces.demo._result import SIZES, Result, verdicts

GOOD = {
    "ours": (0.96, 0.97, 0.98, 0.97, 0.97, 0.96, 0.95),
    "cnn": (0.2, 0.6, 0.98, 0.7, 0.2, 0.1, 0.1),
    "tta": (0.1, 0.5, 0.9, 0.9, 0.9, 0.7, 0.3),
    "select": (0.4, 0.7, 0.9, 0.9, 0.95, 0.9, 0.7),
}


def result(time: float = 4, **changes: tuple[float, ...]) -> Result:
    """A result that keeps all promises, but for the changes."""
    found, predict = made(), {"tta": 12.7, "ours": time}
    methods = [replace(m, accuracy=((GOOD | changes).get(m.key, GOOD["ours"]),)) for m in found.methods]
    costs = [replace(m.cost, predict=predict.get(m.key, 1.0)) for m in methods]
    return replace(found, methods=tuple(replace(m, cost=cost) for m, cost in zip(methods, costs, strict=True)))


def kept(**changes) -> list[bool]:
    return [verdict.kept for verdict in verdicts(result(**changes))]


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({}, None),
        ({"ours": (0.92, 0.97, 0.98, 0.97, 0.97, 0.96, 0.95)}, 0),  # 6 points below at half the size
        ({"cnn": (0.2, 0.6, 0.98, 0.7, 0.8, 0.1, 0.1)}, 1),  # 17 points above at twice the size
        ({"cnn": (0.2, 0.6, 0.995, 0.7, 0.2, 0.1, 0.1)}, 2),  # 1.5 points below at the trained size
        ({"tta": (0.1, 0.5, 0.9, 0.9, 0.98, 0.7, 0.3)}, 3),  # 1 point below at twice the size
        ({"time": 12.8}, 4),
        ({"select": (0.4, 0.7, 0.9, 0.9, 0.98, 0.9, 0.7)}, 5),
    ],
)
def test_each_promise_can_be_broken_alone(changes, broken):
    assert kept(**changes) == [n != broken for n in range(6)]


def test_verdicts_say_where_and_by_how_much():
    assert [verdict.measured for verdict in verdicts(result())] == [
        "at most 3.0 points below, at size 4",
        "at least 76.0 points above, at size 0.5",
        "equal (98.0 and 98.0 percent)",
        "at worst 7.0 points above, at size 1.41",
        "in 0.31 of its time (4.0 and 12.7 times the CNN's)",
        "at worst 2.0 points above, at size 2",
    ]
    guessing = dict.fromkeys(GOOD, (0.1,) * len(SIZES))
    assert kept(**guessing) == [False, False, False, False, True, False]


def test_means_and_spreads_are_over_seeds():
    rows = tuple(tuple(0.9 + 0.01 * seed + 0.001 * n for n in range(len(SIZES))) for seed in range(3))
    method = replace(made().methods[0], accuracy=rows)
    for n, size in enumerate(SIZES):
        assert method.mean(size) == pytest.approx(statistics.fmean(row[n] for row in rows))
        assert method.spread(size) == pytest.approx(0.01)
    assert replace(method, accuracy=rows[:1]).spread(1) is None


def test_numbers_survive_as_json():
    table = errors(1, 0.1, levels=3)
    assert table.before() == [0.1]  # downscaled once, level 0: the only entry that stays below level 2
    document = json.loads(json.dumps(made(equivariance={"direct, dense": {1: table}}).to_json(), allow_nan=False))
    assert document["sizes"] == list(SIZES)
    assert document["methods"][0]["accuracy"] == [[0.481, 0.902, 0.981, 0.893, 0.324, 0.115, 0.106]]
    found = {"boundary": 2, "rows": [1, 2], "errors": [[0.1, 0.9, None], [0.9, None, None]]}
    assert document["equivariance"] == [{"lift": "direct, dense", "layers": 1, **found}]
    assert "series" not in document
