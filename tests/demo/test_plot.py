"""The picture of the demonstration."""

import math
from itertools import pairwise

import pytest
from demo_results import ACCURACY, NAMES, made

from scalespaces.demo._plot import plot
from scalespaces.demo._result import SIZES


@pytest.mark.parametrize("seeds", [1, 3])
def test_lines_are_the_means_over_seeds_in_per_cent(seeds):
    ax = plot(made(seeds)).axes[0]
    lines = {line.get_label(): line for line in ax.lines}
    for key, name in NAMES.items():
        means = [100 * a - (seeds - 1) / 2 for a in ACCURACY[key]]
        assert list(lines[name].get_ydata()) == pytest.approx(means)
        assert list(lines[name].get_xdata()) == pytest.approx([math.log2(size) for size in SIZES])
    assert len(ax.artists) == len(SIZES)  # a digit below each


def test_names_do_not_lie_on_each_other():
    heights = sorted(text.xy[1] for text in plot(made()).axes[0].texts if text.get_text() in NAMES.values())
    assert len(heights) == len(NAMES)
    assert min(b - a for a, b in pairwise(heights)) >= 6 - 1e-9


def test_it_is_written(tmp_path):
    plot(made(), tmp_path / "accuracy.png")
    assert (tmp_path / "accuracy.png").read_bytes().startswith(b"\x89PNG")
