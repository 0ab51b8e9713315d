"""Padding and interpolation of one tensor, each against loops written from its equation."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from reference import MODES

from scalespaces.functional._sampling import pad, sample
from scalespaces.space._numbers import as_integer, floor
from scalespaces.theory._arguments import NUMPY_PADDING

sizes = st.sampled_from([1, 2, 3, 4, 5, 7, 11])
rng = np.random.default_rng(0)


@given(st.integers(-(10**6), 10**6), st.floats(-1e-10, 1e-10))
def test_rounding_does_not_hide_an_integer(n, rounding):
    assert as_integer(n * (1 + rounding)) == floor(n + rounding) == n
    assert as_integer(n + 0.5) is None
    assert floor(n + 0.5) == n


amounts = st.tuples(st.integers(-2, 15), st.integers(-2, 15))


class TestPad:
    @given(
        st.lists(st.tuples(sizes, amounts), min_size=1, max_size=3),
        st.sampled_from(MODES),
        st.sampled_from([torch.float32, torch.float64]),
    )
    @example([(1, (3, -2))], "zeros", torch.float64)
    @example([(2, (-3, 4))], "reflect", torch.float64)
    def test_is_numpys_however_far(self, axes, mode, dtype):
        assume(all(n + before + after > 0 for n, (before, after) in axes))
        x = rng.standard_normal((2, 1, *(n for n, _ in axes)))
        widths = [(max(before, 0), max(after, 0)) for _, (before, after) in axes]
        expected = np.pad(x, [(0, 0), (0, 0), *widths], mode=NUMPY_PADDING[mode])
        for axis, (_, (before, after)) in enumerate(axes, 2):
            kept = slice(max(-before, 0), expected.shape[axis] - max(-after, 0))
            expected = expected[(slice(None),) * axis + (kept,)]
        got = pad(torch.tensor(x, dtype=dtype), [amount for _, amount in axes], mode)  # pyright: ignore
        assert got.dtype == dtype
        assert_array_equal(got.numpy(), expected.astype(got.numpy().dtype))

    def test_values_and_nothing(self):
        got = pad(torch.ones(1, 1, 2), [(1, 2)], value=-math.inf)
        assert got.flatten().tolist() == [-math.inf, 1, 1, -math.inf, -math.inf]
        assert pad(got, [(0, 0)], "reflect") is sample(got, 2, 1.0, 0.0, 5) is got  # nothing is copied

    @pytest.mark.parametrize("mode", MODES)
    def test_gradients(self, mode):
        x = torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True)
        for amounts in ([(2, 0), (5, 7)], [(-1, 3), (2, -3)]):
            assert torch.autograd.gradcheck(lambda x, amounts=amounts: pad(x, amounts, mode), x)


class TestSample:
    @given(sizes, st.sampled_from([1.0, 2.0, 3.0, 0.5, 1.5, 2**0.5, 1 / 1.2]), st.floats(-4, 4), st.integers(1, 9))
    def test_linear_interpolation(self, n, ratio, offset, size):
        x = rng.standard_normal(n)
        got = sample(torch.tensor(x)[None, None], 2, ratio, offset, size)
        assert_allclose(got[0, 0].numpy(), np.interp(offset + ratio * np.arange(size), np.arange(n), x), atol=1e-8)

    @given(st.integers(1, 30), st.integers(1, 4), st.integers(1, 3), st.integers(-6, 6).map(float) | st.floats(-6, 6))
    @example(n=2, spacing=3, ratio=1, offset=-1.0)
    def test_neighbors_are_spacing_apart(self, n, spacing, ratio, offset):
        """From level k samples closer than the spacing do not exist.

        Sample 0 lies between two multiples of the spacing, sample i between the same two moved on by ratio * i. What
        lies past an end is read as many spacings further in as it takes; without such a sample, at that end.
        """
        x = rng.standard_normal(n)
        low = spacing * math.floor(offset / spacing + 1e-12)
        fraction = (offset - low) / spacing
        got = sample(torch.tensor(x)[None, None], 2, float(ratio), offset, 12, float(spacing))
        for i in range(12):
            ends = []
            for index in (low + ratio * i, low + ratio * i + spacing):
                reachable = [m for m in range(n) if (m - index) % spacing == 0]
                nearest = min(reachable or range(n), key=lambda m: abs(m - index))
                ends.append(x[nearest])
            expected = (1 - fraction) * ends[0] + fraction * ends[1]
            assert_allclose(got[0, 0, i].item(), expected, atol=1e-8)

    @pytest.mark.parametrize(("ratio", "offset"), [(2.0, 1.0), (1.0, 0.3), (1.5, -2.0), (0.5, 0.25), (1 / 3, -1.2)])
    @pytest.mark.parametrize("spacing", [1.0, 2.0, 1.5])
    def test_gradients(self, ratio, offset, spacing):
        x = torch.randn(2, 1, 5, 3, dtype=torch.float64, requires_grad=True)
        for axis, size in ((2, 7), (3, 4)):
            assert torch.autograd.gradcheck(lambda x, a=axis, n=size: sample(x, a, ratio, offset, n, spacing), x)

    def test_precise_far_from_the_origin(self):
        """Positions are not rounded to float32, whatever the image is."""
        n = 100_000
        x = torch.zeros(1, 1, n).index_fill_(2, torch.tensor([n - 2]), 1.0)
        got = sample(x, 2, 0.5, n - 3.0, 4)
        assert got.flatten().tolist() == [0.0, 0.5, 1.0, 0.5]
