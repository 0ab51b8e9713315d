"""Windows cover an image, and blending undoes cutting."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from scalespaces.data._windows import blend_windows, cut_windows, window_places

axis = st.tuples(st.integers(1, 40), st.integers(1, 20), st.integers(1, 20)).map(
    lambda t: (t[0], t[1], min(t[1], t[2]))
)


@given(axis, axis, st.sampled_from([torch.float32, torch.float64]))
def test_blending_undoes_cutting(rows, columns, dtype):
    size, window, stride = zip(rows, columns, strict=True)
    image = torch.randn(2, *size, dtype=dtype)
    places = window_places(size, window, stride)
    assert places[0] == (0, 0)
    for n, m, step, tops in zip(size, window, stride, zip(*places, strict=True), strict=True):
        tops = sorted(set(tops))
        assert tops[-1] == max(n - m, 0)
        assert all(0 < b - a <= step for a, b in itertools.pairwise(tops))
    blended = blend_windows(cut_windows(image, places, window), places, size)
    assert blended.dtype == dtype
    assert_close(blended, image)


def test_blending_is_the_weighted_mean():
    places = [(0, 0), (0, 2)]
    windows = torch.stack([torch.full((1, 1, 4), value) for value in (0.0, 1.0)])
    # Tents of 1, 2, 2, 1 (in fifths of two): overlapping pixels see weights 2 : 1 and 1 : 2.
    weights = [1 - abs(i - 1.5) / 2.5 for i in range(4)]
    expected = [0, 0, weights[0] / (weights[0] + weights[2]), weights[1] / (weights[1] + weights[3]), 1, 1]
    assert_close(blend_windows(windows, places, (1, 6))[0, 0], torch.tensor(expected))


def test_no_more_windows_than_needed():
    assert len(window_places((1024, 2048), (992, 992), (992, 992))) == 2 * 3
    assert window_places((10, 10), (32, 32), (16, 16)) == [(0, 0)]


def test_gaps_and_miscounts_are_refused():
    with pytest.raises(ValueError, match=r"from 1 to the window's side, 4, or windows leave gaps; got 5"):
        window_places((10, 10), (4, 4), (4, 5))
    with pytest.raises(ValueError, match=r"one place for each window is needed, got 1 for 2"):
        blend_windows(torch.zeros(2, 1, 4, 4), [(0, 0)], (4, 4))
