"""Padding, interpolation and correlation of one tensor, each against loops written from its equation."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from torch.nn import functional as F

from scalespaces.functional import _correlate
from scalespaces.functional._resample import subsample
from scalespaces.functional._sampling import fold, pad, sample, sample_lattice
from scalespaces.space._numbers import as_integer, floor, per_axis
from scalespaces.space._window import Window

MODES = ("zeros", "reflect", "replicate", "circular")
NUMPY_MODES: dict[str, Any] = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
SIZES = (1, 2, 3, 4, 5, 7, 11)
sizes = st.sampled_from(SIZES)
rng = np.random.default_rng(0)


class TestNumbers:
    @given(st.integers(-(10**6), 10**6), st.floats(-1e-10, 1e-10))
    def test_rounding_does_not_hide_an_integer(self, n, rounding):
        assert as_integer(n * (1 + rounding)) == n
        assert floor(n + rounding) == n

    @given(st.floats(-1e6, 1e6))
    def test_floor(self, value):
        assume(abs(value - round(value)) > 1e-2)
        assert as_integer(value) is None
        assert floor(value) == math.floor(value)

    def test_a_matrix_is_no_integer(self):
        assert as_integer(np.eye(2)) is None

    def test_per_axis(self):
        assert per_axis(3, 2, "stride") == (3, 3)
        assert per_axis([1, 2], 2, "stride") == (1, 2)
        for numpys in (np.int64(3), (np.uint8(3), np.int32(3)), np.array([3, 3]), [np.int64(3), 3]):
            values = per_axis(numpys, 2, "stride")
            assert values == (3, 3)
            assert {type(value) for value in values} == {int}
        for wrong in ((1, 2, 3), (1,), (1.5, 2), np.array([1.0, 2.0]), np.float64(2), "2", None):
            with pytest.raises(ValueError, match="stride is an integer or one for each of 2 axes"):
                per_axis(wrong, 2, "stride")


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
        expected = np.pad(x, [(0, 0), (0, 0), *widths], mode=NUMPY_MODES[mode])
        for axis, (_, (before, after)) in enumerate(axes, 2):
            kept = slice(max(-before, 0), expected.shape[axis] - max(-after, 0))
            expected = expected[(slice(None),) * axis + (kept,)]
        got = pad(torch.tensor(x, dtype=dtype), [amount for _, amount in axes], mode)  # pyright: ignore
        assert got.dtype == dtype
        assert_array_equal(got.numpy(), expected.astype(got.numpy().dtype))

    def test_value(self):
        got = pad(torch.ones(1, 1, 2), [(1, 2)], value=-math.inf)
        assert got.flatten().tolist() == [-math.inf, 1, 1, -math.inf, -math.inf]

    def test_nothing_to_pad_copies_nothing(self):
        x = torch.ones(1, 1, 3, 3)
        assert pad(x, [(0, 0), (0, 0)], "reflect") is x

    @given(sizes, st.sampled_from(["reflect", "replicate", "circular"]))
    def test_fold_stays_inside(self, n, mode):
        index = fold(torch.arange(-50, 50), n, mode)
        assert int(index.min()) >= 0
        assert int(index.max()) < n
        assert_array_equal(index[50 : 50 + n].numpy(), np.arange(n))

    @pytest.mark.parametrize("mode", MODES)
    def test_gradient(self, mode):
        x = torch.rand(1, 1, 2, 3, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda x: pad(x, [(3, 1), (-1, 4)], mode), x)


def interpolate(x: np.ndarray, position: float) -> float:
    """Linear interpolation between samples 0, 1, 2 ...; past the ends, the end."""
    position = min(max(position, 0.0), len(x) - 1.0)
    low = min(int(position), len(x) - 1)
    high = min(low + 1, len(x) - 1)
    return (1 - (position - low)) * x[low] + (position - low) * x[high]


class TestSample:
    @given(sizes, st.sampled_from([1.0, 2.0, 3.0, 0.5, 1.5, 2**0.5, 1 / 1.2]), st.floats(-4, 4), st.integers(1, 9))
    def test_linear_interpolation(self, n, ratio, offset, size):
        x = rng.standard_normal(n)
        got = sample(torch.tensor(x)[None, None], 2, ratio, offset, size)
        assert_allclose(got[0, 0].numpy(), [interpolate(x, offset + ratio * i) for i in range(size)], atol=1e-8)

    @given(
        st.integers(1, 30),
        st.integers(1, 4),
        st.integers(1, 3),
        st.one_of(st.integers(-6, 6).map(float), st.floats(-6, 6)),
    )
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

    @given(st.sampled_from([1.0, 2.0, 0.5, 1.5]), st.floats(0, 4), st.sampled_from([1.0, 2.0, 3.0, 0.7]))
    def test_a_ramp_stays_where_it_is(self, ratio, offset, spacing):
        x = torch.arange(40, dtype=torch.float64)[None, None]
        got = sample(x, 2, ratio, offset, 10, spacing)
        assert_allclose(got[0, 0].numpy(), offset + ratio * np.arange(10), atol=1e-8)

    @pytest.mark.parametrize("axis", [2, 3, 4])
    def test_every_axis(self, axis):
        x = torch.rand(2, 3, 4, 5, 6, dtype=torch.float64)
        got = sample(x, axis, 0.5, 0.25, 7)
        alone = sample(x.movedim(axis, 2).flatten(3), 2, 0.5, 0.25, 7).unflatten(3, x.movedim(axis, 2).shape[3:])
        assert_allclose(got.numpy(), alone.movedim(2, axis).numpy())

    def test_the_same_grid_copies_nothing(self):
        x = torch.rand(1, 1, 5)
        assert sample(x, 2, 1.0, 0.0, 5) is x

    def test_precise_far_from_the_origin(self):
        """Positions are not rounded to float32, whatever the image is."""
        n = 100_000
        x = torch.zeros(1, 1, n).index_fill_(2, torch.tensor([n - 2]), 1.0)
        got = sample(x, 2, 0.5, n - 3.0, 4)
        assert got.flatten().tolist() == [0.0, 0.5, 1.0, 0.5]

    @pytest.mark.parametrize(("ratio", "offset", "spacing"), [(1.0, 0.3, 1.0), (0.5, 0.0, 1.0), (1.0, -0.5, 2.0)])
    def test_gradient(self, ratio, offset, spacing):
        x = torch.rand(1, 1, 5, 2, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda x: sample(x, 2, ratio, offset, 6, spacing), x)


def multilinear(x: np.ndarray, position: np.ndarray) -> float:
    """Multilinear interpolation, zero outside the samples."""
    low = np.floor(position + 1e-9).astype(int)
    fraction = np.clip(position - low, 0, 1)
    total = 0.0
    for corner in itertools.product((0, 1), repeat=x.ndim):
        index = low + np.array(corner)
        if (index >= 0).all() and (index < x.shape).all():
            total += float(x[tuple(index)] * np.prod(np.where(corner, fraction, 1 - fraction)))
    return total


def correlate_naively(
    x: np.ndarray, w: np.ndarray, matrix: Any, stride: Any, padding: Any, dilation: Any, counts: Any
) -> np.ndarray:
    """The sum over y of w(y) x(z + M (d y - p)), tap by tap, zeros outside."""
    M = np.asarray(matrix) * np.eye(x.ndim - 1) if np.ndim(matrix) == 0 else np.asarray(matrix)
    out = np.zeros((w.shape[0], *counts))
    for place in np.ndindex(*counts):
        z = np.array(place) * np.array(stride)
        for tap in np.ndindex(*w.shape[2:]):
            position = z + M @ (np.array(dilation) * np.array(tap) - np.array(padding))
            read = np.array([multilinear(channel, position) for channel in x])
            out[(slice(None), *place)] += w[(slice(None), slice(None), *tap)] @ read
    return out


def output_size(n: int, taps: int, spacing: float, stride: int, padding: tuple[int, int], dilation: int) -> int:
    """How many windows, from the first tap at -before spacings, end within `after` spacings of the last sample."""
    count, (before, after) = 0, padding
    while True:
        last = count * stride + spacing * (dilation * (taps - 1) - before)
        if last > n - 1 + spacing * after + 1e-9:
            return count
        count += 1


def correlate(x, weight, bias=None, *, stride, padding, dilation, **settings):
    window = Window(tuple(weight.shape[2:]), tuple(stride), tuple(padding), tuple(dilation))
    return _correlate.correlate(x, weight, bias, window=window, **settings)


class TestCorrelate:
    @given(
        st.lists(st.tuples(sizes, st.integers(1, 3)), min_size=1, max_size=2),
        st.sampled_from([1.0, 2.0, 3.0, 1.5, 2**0.5, 1.2, 1.44, 2.5]),
        st.integers(1, 3),
        st.tuples(st.integers(0, 3), st.integers(0, 3)),
        st.integers(1, 2),
    )
    def test_equation(self, axes, spacing, stride, padding, dilation):
        ns, taps = [n for n, _ in axes], [k for _, k in axes]
        counts = [output_size(n, k, spacing, stride, padding, dilation) for n, k in axes]
        assume(min(counts) > 0)
        x, w = rng.standard_normal((2, *ns)), rng.standard_normal((2, 2, *taps))
        got = correlate(
            torch.tensor(x)[None],
            torch.tensor(w),
            spacing=spacing,
            stride=[stride] * len(axes),
            padding=[padding] * len(axes),
            dilation=[dilation] * len(axes),
        )
        expected = correlate_naively(x, w, spacing, stride, padding[0], dilation, counts)
        assert_allclose(got[0].numpy(), expected, atol=1e-12)

    @pytest.mark.parametrize(
        "matrix", [[[1, 1], [1, -1]], [[1, -1], [1, 1]], [[2, 0], [0, 1]], [[2, 1], [0, 1.5]], [[1, 0], [0, 1]]]
    )
    @pytest.mark.parametrize("stride", [1, 2])
    def test_matrix_spacing(self, matrix, stride):
        x, w = rng.standard_normal((1, 6, 7)), rng.standard_normal((2, 1, 3, 3))
        got = correlate(
            torch.tensor(x)[None],
            torch.tensor(w),
            torch.tensor([0.0, 1.0], dtype=torch.float64),
            spacing=np.array(matrix, dtype=float),
            stride=(stride, stride),
            padding=((1, 1), (1, 1)),
            dilation=(1, 1),
        )
        counts = [(n - 1) // stride + 1 for n in (6, 7)]
        expected = correlate_naively(x, w, matrix, stride, 1, 1, counts) + np.array([0.0, 1.0])[:, None, None]
        assert_allclose(got[0].numpy(), expected, atol=1e-12)

    def test_a_matrix_needs_same_padding(self):
        with pytest.raises(ValueError, match='a matrix base needs padding="same"'):
            correlate(
                torch.ones(1, 1, 5, 5),
                torch.ones(1, 1, 3, 3),
                spacing=np.array([[1.0, 1.0], [1.0, -1.0]]),
                stride=(1, 1),
                padding=((0, 0), (0, 0)),
                dilation=(1, 1),
            )

    @given(sizes, st.integers(1, 4), st.sampled_from([1.0, 2.0, 1.5, 1.2]), st.sampled_from(MODES))
    def test_padding_modes_read_a_padded_image(self, n, taps, spacing, mode):
        """Padding far enough by hand, and correlating without any, is the same."""
        x = torch.tensor(rng.standard_normal((1, 1, n)))
        w = torch.tensor(rng.standard_normal((1, 1, taps)))
        before, after = (taps - 1) // 2, taps - 1 - (taps - 1) // 2
        fixed: dict[str, Any] = {"spacing": spacing, "stride": [1], "dilation": [1]}
        got = correlate(x, w, padding=[(before, after)], padding_mode=mode, **fixed)
        far = 20  # whole samples, so that the padded grid has the same positions
        wide = correlate(pad(x, [(far, far)], mode), w, padding=[(before, after)], **fixed)
        assert_allclose(got.numpy(), wide[:, :, far : far + n].numpy(), atol=1e-12)

    @given(st.sampled_from([1.0, 2.0, 1.5]), st.integers(1, 2))
    def test_groups_and_bias(self, spacing, stride):
        x, w = torch.rand(2, 4, 9, 8, dtype=torch.float64), torch.rand(6, 2, 3, 3, dtype=torch.float64)
        bias = torch.rand(6, dtype=torch.float64)
        fixed: dict[str, Any] = {
            "spacing": spacing,
            "stride": [stride] * 2,
            "padding": [(1, 1)] * 2,
            "dilation": [1] * 2,
        }
        got = correlate(x, w, bias, groups=2, **fixed)
        halves = [
            correlate(x[:, 2 * g : 2 * g + 2], w[3 * g : 3 * g + 3], bias[3 * g : 3 * g + 3], **fixed) for g in (0, 1)
        ]
        assert_allclose(got.numpy(), torch.cat(halves, 1).numpy(), atol=1e-12)
        if spacing != 1.5:
            step = int(spacing)
            plain = F.conv2d(x, w, bias, stride, padding=step, dilation=step, groups=2)
            assert_allclose(got.numpy(), plain.numpy(), atol=1e-12)

    @pytest.mark.parametrize("spacing", [2.0, 1.5, np.array([[1.0, 1.0], [1.0, -1.0]])])
    @pytest.mark.parametrize("mode", MODES)
    def test_gradient(self, spacing, mode):
        x = torch.rand(1, 1, 3, 4, dtype=torch.float64, requires_grad=True)
        w = torch.rand(2, 1, 3, 3, dtype=torch.float64, requires_grad=True)

        def function(x, w):
            return correlate(
                x, w, spacing=spacing, stride=(1, 2), padding=((1, 1), (1, 1)), dilation=(1, 1), padding_mode=mode
            )

        assert torch.autograd.gradcheck(function, (x, w))


MATRICES = ([[1, 1], [1, -1]], [[1, -1], [1, 1]], [[2, 0], [0, 1]], [[2, 0], [0, 2]], [[1.5, 0.5], [0, 1.2]])


class TestSampleLattice:
    @pytest.mark.parametrize("matrix", MATRICES)
    @pytest.mark.parametrize("shape", [(5, 5), (4, 7), (1, 3)])
    def test_equation(self, matrix, shape):
        x, offset, size = rng.standard_normal(shape), np.array([-2.0, 1.5]), (6, 4)
        got = sample_lattice(torch.tensor(x)[None, None], np.array(matrix, dtype=float), offset, size)
        for i in np.ndindex(*size):
            position = offset + np.array(matrix) @ np.array(i)
            assert_allclose(got[0, 0][i].item(), multilinear(x, position), atol=1e-8)

    @pytest.mark.parametrize("matrix", MATRICES[:4])
    @pytest.mark.parametrize("shape", [(5, 5), (4, 7), (1, 3)])
    def test_subsample_keeps_every_lattice_point_of_the_image(self, matrix, shape):
        """An integer matrix reads each sample of its lattice once, and nothing else but zeros."""
        x = torch.arange(1.0, 1 + math.prod(shape), dtype=torch.float64).reshape(1, 1, *shape)
        inverse = np.linalg.inv(np.array(matrix))
        on_lattice = [x[0, 0][i].item() for i in np.ndindex(*shape) if np.allclose(inverse @ i, np.rint(inverse @ i))]
        got = subsample(x, np.array(matrix, dtype=float), np.zeros(2))[0].flatten()
        assert sorted(got[got != 0].tolist()) == sorted(on_lattice)
