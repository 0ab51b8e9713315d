import math
import re
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from demo_results import ACCURACY, NAMES, SHRINKS, errors, made, square
from hypothesis import given
from hypothesis import strategies as st

from scalespaces.demo import _charts as charts
from scalespaces.demo._result import SIZES, Errors, Result

Element = ElementTree.Element


def parsed(svg: str) -> Element:
    return ElementTree.fromstring(svg)


def of_class(root: Element, *names: str) -> list[Element]:
    return [e for e in root.iter() if set(names) <= set(e.get("class", "").split())]


def place(marker: Element) -> tuple[float, float]:
    x, y = re.findall(r"[-\d.]+", marker.get("transform", ""))
    return float(x), float(y)


def points(line: Element) -> list[tuple[float, float]]:
    pairs = (pair.split(",") for pair in line.get("points", "").split())
    return [(float(x), float(y)) for x, y in pairs]


def rows(root: Element) -> dict[str, float]:
    """The heights of the lines across, by their names."""
    lines = [points(line)[0][1] for line in of_class(root, "grid")]
    return dict(zip([e.text or "" for e in of_class(root, "tick", "end")], lines, strict=True))


def drawn(result: Result, wide: bool = True) -> Element:
    return parsed(charts.accuracy(result.methods, [square(size) for size in SIZES], wide=wide))


@pytest.mark.parametrize("wide", [True, False])
def test_accuracies_lie_where_they_belong(wide):
    root = drawn(made(), wide)
    heights = rows(root)
    bottom, top = min(heights, key=lambda n: int(n.split()[0])), max(heights, key=lambda n: int(n.split()[0]))
    for key, values in ACCURACY.items():
        (group,) = (e for e in root.iter("g") if e.get("class") == key)
        markers = of_class(group, "marker")
        (line,) = of_class(group, "line")
        assert points(line) == [place(marker) for marker in markers]
        for value, (_, y) in zip(values, map(place, markers), strict=True):
            assert (heights[bottom] - y) / (heights[bottom] - heights[top]) == pytest.approx(value, abs=1e-3)


def test_sizes_are_evenly_spaced_by_their_logarithms_above_their_pictures():
    root = drawn(made())
    places = [x for x, _ in map(place, of_class(root, "marker")[: len(SIZES)])]
    slopes = [(b - a) / math.log(t / s) for a, b, s, t in zip(places, places[1:], SIZES, SIZES[1:], strict=False)]
    assert slopes == pytest.approx([slopes[0]] * len(slopes), rel=0.01)
    middles = [float(e.get("x", 0)) + float(e.get("width", 0)) / 2 for e in root.iter("image")]
    assert middles == pytest.approx(places, abs=0.1)


def test_methods_differ_in_shape():
    root = drawn(made())
    assert len({e.get("d") for e in of_class(root, "marker")}) == len(NAMES)


def test_several_seeds_have_bands_as_wide_as_their_spread():
    assert not of_class(drawn(made()), "band")
    result = made(seeds=3)
    root = drawn(result)
    bands = of_class(root, "band")
    assert len(bands) == len(NAMES)
    around = points(bands[0])
    method = next(m for m in result.methods if m.key == "ours")
    scale = (rows(root)["0 %"] - rows(root)["100 %"]) / 1.0
    spread = method.spread(SIZES[0])
    assert spread == pytest.approx(0.01)
    assert around[-1][1] - around[0][1] == pytest.approx(2 * 0.01 * scale, abs=0.2)


def test_bands_end_where_accuracies_do():
    method = made().methods[0]
    method = replace(method, accuracy=((0.0,) * 7, (0.9,) * 7, (1.0,) * 7))
    root = parsed(charts.accuracy([method], [], wide=True))
    heights = [y for _, y in points(of_class(root, "band")[0])]
    assert min(heights) >= rows(root)["100 %"]


def test_the_label_tells_all_numbers():
    label = drawn(made()).get("aria-label", "")
    assert "scale-space: 93.3, 97.9, 98.5, 98.2, 97.6, 97.4, 94.3" in label
    assert drawn(made()).get("role") == "img"


def test_odd_names_stay_text():
    odd = '<b onload="x">&amp; "more"'
    methods = [replace(method, name=odd) for method in made().methods]
    root = parsed(charts.accuracy(methods, [], wide=True))
    assert [e.text for e in of_class(root, "label")] == [odd] * len(NAMES)
    assert odd in root.get("aria-label", "")


@given(st.lists(st.floats(0, 500), min_size=1, max_size=6), st.floats(1, 40))
def test_labels_are_apart_and_in_order(places, gap):
    found = charts.apart(places, gap)
    assert math.fsum(found) == pytest.approx(math.fsum(places), abs=1e-6)
    order = sorted(range(len(places)), key=places.__getitem__)
    assert all(found[b] - found[a] >= gap - 1e-6 for a, b in pairwise(order))


def test_shares_are_means_over_the_digits():
    series = made().series
    root = parsed(charts.shares(series))
    cells = of_class(root, "cell")
    assert len(cells) == len(SHRINKS) * len(series[0].frames)
    shares = [float(e.get("style", "").removeprefix("--share:")) for e in cells]
    columns = len(series[0].frames)
    assert [sum(shares[n::columns]) for n in range(columns)] == pytest.approx([1] * columns, abs=0.01)
    assert shares[0] == pytest.approx(series[0].frames[0].shares[0], abs=1e-3)  # all ten have the same
    first, last = cells[0], cells[-1]
    assert float(first.get("y", 0)) > float(last.get("y", 0))  # upwards
    assert float(first.get("x", 0)) < float(last.get("x", 0))
    assert "from 0 to 6" in root.get("aria-label", "")


def test_shares_of_different_digits_are_averaged():
    one, other = made().series[:2]
    turned = replace(other, frames=tuple(replace(f, shares=f.shares[::-1]) for f in other.frames))
    found, shares = charts.mean_shares([one, turned]), one.frames[0].shares
    assert found[0.5] == pytest.approx([(a + b) / 2 for a, b in zip(shares, shares[::-1], strict=True)])


def test_errors_of_zero_lie_on_the_floor_and_those_past_the_boundary_are_hollow():
    found = errors("cascade, pyramid", 2, 0.0)
    root = parsed(charts.errors(found, charts.lowest([found])))
    markers = of_class(root, "marker")
    past = of_class(root, "marker", "past")
    known = [error for line in found.errors for error in line if error is not None]
    assert len(markers) == len(known)
    assert len(past) == sum(error == 0.9 for error in known)
    inside = [marker for marker in markers if marker not in past]
    assert len(inside) == len(found.before())
    assert {place(marker)[1] for marker in inside} == {rows(root)["0"]}
    assert all(rows(root)["1"] < place(marker)[1] < rows(root)["1e-1"] for marker in past)
    assert "all exactly 0" in root.get("aria-label", "")


def test_powers_of_ten_lie_on_their_lines():
    root = parsed(charts.errors(errors("direct, dense", 1, 1e-3), -4))
    inside = [m for m in of_class(root, "marker") if "past" not in m.get("class", "").split()]
    assert {place(marker)[1] for marker in inside} == {rows(root)["1e-3"]}
    assert "1.0e-03 to 1.0e-03" in root.get("aria-label", "")


def test_the_axis_begins_below_the_smallest_error():
    tiny = errors("cascade, pyramid", 1, 3e-16)
    low = charts.lowest([errors("direct, dense", 1, 4e-3), tiny])
    assert low == -16
    root = parsed(charts.errors(tiny, low))
    heights = {place(m)[1] for m in of_class(root, "marker") if "past" not in m.get("class", "").split()}
    assert all(rows(root)["1e-16"] > y > rows(root)["1e-12"] for y in heights)
    assert charts.lowest([errors("cascade, pyramid", 1, 0.0)]) == -4


def test_nothing_before_the_boundary():
    found = Errors("direct, dense", 1, 0, (1,), ((0.9, None),))
    root = parsed(charts.errors(found, charts.lowest([found])))
    assert len(of_class(root, "marker")) == 1
    assert "No errors before the boundary" in root.get("aria-label", "")
