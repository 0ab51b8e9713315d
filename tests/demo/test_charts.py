"""The charts: values lie where they belong, and names stay text."""

import math
import re
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from demo_results import ACCURACY, NAMES, made, square
from hypothesis import given
from hypothesis import strategies as st

from scalespaces.demo._charts import accuracy, apart, plot
from scalespaces.demo._result import SIZES, Method

Element = ElementTree.Element


def drawn(methods: tuple[Method, ...], wide: bool = True) -> Element:
    return ElementTree.fromstring(accuracy(methods, [square(size) for size in SIZES], wide=wide))


def of_class(root: Element, *names: str) -> list[Element]:
    return [e for e in root.iter() if set(names) <= set(e.get("class", "").split())]


def place(marker: Element) -> tuple[float, float]:
    x, y = re.findall(r"[-\d.]+", marker.get("transform", ""))
    return float(x), float(y)


def points(line: Element) -> list[tuple[float, float]]:
    pairs = (pair.split(",") for pair in line.get("points", "").split())
    return [(float(x), float(y)) for x, y in pairs]


def rows(root: Element) -> dict[int, float]:
    """The heights of the lines across, by their per cents."""
    lines = [points(line)[0][1] for line in of_class(root, "grid")]
    return dict(zip([int((e.text or "").split()[0]) for e in of_class(root, "tick", "end")], lines, strict=True))


@pytest.mark.parametrize("wide", [True, False])
def test_accuracies_lie_where_they_belong(wide):
    root = drawn(made().methods, wide)
    heights = rows(root)
    for key, values in ACCURACY.items():
        (group,) = (e for e in root.iter("g") if e.get("class") == key)
        markers = of_class(group, "marker")
        (line,) = of_class(group, "line")
        assert points(line) == [place(marker) for marker in markers]
        for value, (_, y) in zip(values, map(place, markers), strict=True):
            assert (heights[0] - y) / (heights[0] - heights[100]) == pytest.approx(value, abs=1e-3)
    assert len({e.get("d") for e in of_class(root, "marker")}) == len(NAMES)  # methods differ in shape


def test_sizes_are_evenly_spaced_by_their_logarithms_above_their_pictures():
    root = drawn(made().methods)
    places = [x for x, _ in map(place, of_class(root, "marker")[: len(SIZES)])]
    slopes = [(b - a) / math.log(t / s) for a, b, s, t in zip(places, places[1:], SIZES, SIZES[1:], strict=False)]
    assert slopes == pytest.approx([slopes[0]] * len(slopes), rel=0.01)
    middles = [float(e.get("x", 0)) + float(e.get("width", 0)) / 2 for e in root.iter("image")]
    assert middles == pytest.approx(places, abs=0.1)


def test_several_seeds_have_bands_as_wide_as_their_spread_that_end_where_accuracies_do():
    assert not of_class(drawn(made().methods), "band")
    result = made(seeds=3)
    root = drawn(result.methods)
    bands = of_class(root, "band")
    assert len(bands) == len(NAMES)
    around, height = points(bands[0]), rows(root)[0] - rows(root)[100]
    assert result.method("ours").spread(SIZES[0]) == pytest.approx(0.01)
    assert around[-1][1] - around[0][1] == pytest.approx(2 * 0.01 * height, abs=0.2)
    root = drawn((replace(made().methods[0], accuracy=((0.0,) * 7, (0.9,) * 7, (1.0,) * 7)),))
    assert min(y for _, y in points(of_class(root, "band")[0])) >= rows(root)[100]


def test_the_label_tells_all_numbers_and_odd_names_stay_text():
    root = drawn(made().methods)
    assert "scale-space: 93.3, 97.9, 98.5, 98.2, 97.6, 97.4, 94.3" in root.get("aria-label", "")
    assert root.get("role") == "img"
    odd = '<b onload="x">&amp; "more"'
    root = drawn(tuple(replace(method, name=odd) for method in made().methods))
    assert [e.text for e in of_class(root, "label")] == [odd] * len(NAMES)
    assert odd in root.get("aria-label", "")


@given(st.lists(st.floats(0, 500), min_size=1, max_size=6), st.floats(1, 40))
def test_labels_are_apart_and_in_order(places, gap):
    found = apart(places, gap)
    assert math.fsum(found) == pytest.approx(math.fsum(places), abs=1e-6)
    order = sorted(range(len(places)), key=places.__getitem__)
    assert all(found[b] - found[a] >= gap - 1e-6 for a, b in pairwise(order))


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_figure_has_the_means_over_seeds_and_a_digit_at_each_size(seeds, tmp_path):
    ax = plot(made(seeds), tmp_path / "accuracy.png").axes[0]
    lines = {line.get_label(): line for line in ax.lines}
    for key, name in NAMES.items():
        x, y = lines[name].get_data()
        assert np.asarray(y) == pytest.approx([100 * a - (seeds - 1) / 2 for a in ACCURACY[key]])
        assert np.asarray(x).tolist() == list(SIZES)
    assert len(ax.artists) == len(SIZES)
    assert (tmp_path / "accuracy.png").read_bytes().startswith(b"\x89PNG")
