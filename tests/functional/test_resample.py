"""Levels stay registered: what is read off any grid is where the geometry says it is."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from reference import MATRICES, QUINCUNX, assert_levels, paper_lift, refusals

from scalespaces import ScaleSpace, feature_pyramid, resample, scale_shift
from scalespaces.functional import avg_pool, blur_pool, scale_conv
from scalespaces.functional._resample import on_grid_of

ROOT2 = 2**0.5
SAMPLINGS = ("dense", "pyramid", 2, 3)
ANY_SAMPLING, SIZES = st.sampled_from(SAMPLINGS), st.sampled_from([1, 2, 3, 7, 8, 13, 16, 20])


def positions(x: ScaleSpace, index: int, axis: int) -> np.ndarray:
    """Pixel coordinates of the samples of a level along an axis."""
    n = x.levels[index].shape[axis + 2]
    return x.unit[axis] * (x.origins[index][axis] + x.steps[index] * np.arange(n))


def ramps(shape: tuple[int, ...], **settings: Any) -> ScaleSpace:
    """A space whose channel a is, at each sample of each level, that sample's pixel coordinate along axis a."""
    return fill_with_positions(paper_lift(torch.zeros(1, len(shape), *shape, dtype=torch.float64), **settings))


def coordinates(x: ScaleSpace, index: int) -> np.ndarray:
    return np.stack(np.meshgrid(*(positions(x, index, axis) for axis in range(x.dims)), indexing="ij"))


def fill_with_positions(x: ScaleSpace) -> ScaleSpace:
    return x.replace(tuple(torch.tensor(coordinates(x, index))[None] for index in range(x.num_levels)))


def assert_registered(x: ScaleSpace, margin: float = 0.0, extent: float = math.inf) -> None:
    """Each sample of a ramp reads its own position, at least ``margin`` pixels from the borders of the image."""
    seen = 0
    for index, level in enumerate(x.levels):
        grids = coordinates(x, index)
        inside = ((grids >= margin) & (grids <= extent - margin)).all(0)
        seen += inside.sum()
        assert_allclose(level[0].numpy()[:, inside], grids[:, inside], atol=1e-8)
    assert seen > 0


def box(dims: int, size: int) -> torch.Tensor:
    """A filter of one level that averages over a window, channel by channel, off center on purpose."""
    weight = torch.zeros(dims, dims, *[size] * dims, dtype=torch.float64)
    for channel in range(dims):
        weight[channel, channel] = 1 / size**dims
    return weight


OPERATIONS: dict[str, Callable[[ScaleSpace], ScaleSpace]] = {
    "2x2 average pooling": lambda x: avg_pool(x, 2),
    "2x2 average pooling of neighbors": lambda x: avg_pool(x, 2, window="plain"),
    "3x3 average pooling of stride 2": lambda x: avg_pool(x, 3, 2),
    "pooling by 2 and 1": lambda x: avg_pool(x, (2, 1)),
    "blur pooling": lambda x: blur_pool(x, 3, 2),
    "blur pooling of neighbors": lambda x: blur_pool(x, 3, 2, window="plain"),
    "two poolings": lambda x: avg_pool(avg_pool(x, 2), 2),
    "unpadded convolution": lambda x: scale_conv(x, box(2, 3), padding="valid"),
    "even unpadded convolution": lambda x: scale_conv(x, box(2, 2), padding="valid"),
    "strided unpadded convolution": lambda x: scale_conv(x, box(2, 3), stride=2, padding=0),
    "strided convolution": lambda x: scale_conv(x, box(2, 3), stride=2, padding="same"),
    "even convolution": lambda x: scale_conv(x, box(2, 2), padding="same"),
    "dilated convolution": lambda x: scale_conv(x, box(2, 2), dilation=2, padding=0),
    "pooling, then a strided convolution": lambda x: scale_conv(avg_pool(x, 2), box(2, 3), stride=2),
}
on_all = pytest.mark.parametrize(("name", "sampling"), list(itertools.product(OPERATIONS, SAMPLINGS)))


class TestRegistration:
    @pytest.mark.parametrize("base", [2.0, 1.5])
    @on_all
    def test_windows_say_where_they_are(self, name, sampling, base):
        """A mean over a window of a ramp is the ramp at the window's center."""
        x = OPERATIONS[name](ramps((48, 40), num_levels=3, base=base, sampling=sampling))
        assert_registered(x, margin=12, extent=36)

    @on_all
    def test_resample_finds_them(self, name, sampling):
        x = OPERATIONS[name](ramps((96, 88), num_levels=3, sampling=sampling))
        on_level_0 = resample(x)
        assert on_level_0.stack().shape[3:] == x.levels[0].shape[2:]
        assert (on_level_0.unit, on_level_0.origins[0]) == (x.unit, x.origins[0])
        assert_registered(on_level_0, margin=30, extent=88)
        on_pixels = resample(x, (96, 88))
        assert on_pixels.shapes == ((1, 2, 96, 88),) * 3
        assert (on_pixels.unit, on_pixels.origins[0], on_pixels.steps) == ((1, 1), (0, 0), (1, 1, 1))
        assert_registered(on_pixels, margin=30, extent=88)

    @pytest.mark.parametrize("first_level", [-1, -2])
    def test_finer_levels(self, first_level):
        x = ramps((40, 33), num_levels=4, first_level=first_level, sampling="pyramid")
        assert_registered(x)
        got = resample(x)
        assert torch.equal(got.level(0), x.level(0))
        assert_registered(got, margin=0, extent=32)
        assert_registered(resample(avg_pool(x, 2)), margin=8, extent=30)

    @pytest.mark.parametrize("sampling", SAMPLINGS)
    def test_a_filter_sees_other_levels_where_they_are(self, sampling):
        """Reading level k + l from level k, as the correlation does."""
        x = avg_pool(ramps((64,), num_levels=4, sampling=sampling), 2)
        for index in range(4):
            for source in range(index, 4):
                level = on_grid_of(x, index, source)[0, 0].numpy()
                expected = positions(x, index, 0)
                inside = (expected > 17) & (expected < 40)
                assert_allclose(level[inside], expected[inside], atol=1e-9)


class TestResample:
    @given(SIZES, st.sampled_from([2.0, 1.5, ROOT2]), ANY_SAMPLING, st.sampled_from([None, 1, 2, 7, 20]), st.booleans())
    def test_is_linear_interpolation(self, n, base, sampling, size, pooled):
        """On the grid of level 0, or on that many pixels from the first."""
        x = paper_lift(torch.rand(1, 1, n, dtype=torch.float64), 3, base, sampling=sampling)
        x = avg_pool(x.keep(2), 2) if pooled and n > 3 else x
        places = positions(x, 0, 0) if size is None else np.arange(size)
        for index, level in enumerate(resample(x, size).levels):
            expected = np.interp(places, positions(x, index, 0), x.levels[index][0, 0].numpy())
            assert_allclose(level[0, 0].numpy(), expected, atol=1e-9)

    def test_there_may_be_nothing_to_do(self):
        x = paper_lift(torch.rand(1, 2, 9), 3)
        assert all(a is b for a, b in zip(resample(x).levels, x.levels, strict=True))
        x = ScaleSpace(tuple(torch.rand(2, 3) for _ in range(3)), steps=(1, 2, 4))  # no axis of space
        assert resample(x) is x
        assert all(a is b for a, b in zip(scale_shift(x, 1).levels, x.levels[1:], strict=True))
        with pytest.raises((ValueError, IndexError), match="level"):
            resample(paper_lift(torch.rand(1, 1, 8), 4, first_level=-2).keep(2))

    def test_gradient(self):
        x = paper_lift(torch.zeros(1, 1, 5, 1), 2, sampling="pyramid")
        levels = tuple(torch.rand(1, 1, n, 1, dtype=torch.float64, requires_grad=True) for n in (5, 3))
        x = x.replace(levels, origins=((0.25, 0.0), (0.5, 0.0)))
        assert torch.autograd.gradcheck(lambda *levels: resample(x.replace(levels)).levels, levels)
        assert torch.autograd.gradcheck(lambda *levels: resample(x.replace(levels), (6, 2)).levels, levels)
        y = paper_lift(torch.zeros(1, 1, 6), 2, 1.5)
        f = torch.rand(1, 1, 6, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda f: scale_shift(y.replace((f, 2 * f)), 1).levels, f)


class TestPyramid:
    @given(st.sampled_from([5, 8, 17]), st.sampled_from(["dense", 2, 4]), st.integers(-1, 0))
    def test_integer_base_keeps_every_so_many_samples(self, n, sampling, first_level):
        x = paper_lift(torch.rand(1, 1, n, n, dtype=torch.float64), 4, sampling=sampling, first_level=first_level)
        levels = feature_pyramid(x)
        assert list(levels) == [str(number) for number in range(first_level, first_level + 4)]
        for index, level in enumerate(levels.values()):
            stride = round(2.0 ** (index + first_level) / x.steps[index])
            assert torch.equal(level, x.levels[index][:, :, ::stride, ::stride])

    @pytest.mark.parametrize("base", [2.0, 1.5, ROOT2])
    def test_a_pyramid_is_one_already_and_others_are_registered_after_pooling(self, base):
        x = paper_lift(torch.rand(1, 2, 13, 9), 4, base, sampling="pyramid")
        assert_levels(list(feature_pyramid(x).values()), x, rtol=0, atol=0)
        x = avg_pool(ramps((48,), num_levels=3, base=base), 2)
        for index, level in enumerate(feature_pyramid(x).values()):
            expected = x.unit[0] * (x.origins[index][0] + base**index * np.arange(level.shape[2]))
            assert_allclose(level[0, 0].numpy(), expected, atol=1e-9)
            assert expected[-1] + x.unit[0] * base**index > positions(x, index, 0)[-1]


def read_naively(x: ScaleSpace, n: int) -> list[np.ndarray]:
    """f_{k+n}(c^n z) at every position z of level k that level k + n reaches, by linear interpolation, in 1-D."""
    assert isinstance(x.base, float)
    out = []
    for k in range(x.num_levels - n):
        source = x.levels[k + n][0, 0].numpy()
        at = x.origins[k + n][0] + x.steps[k + n] * np.arange(len(source))
        values, i = [], 0
        while (z := x.base**n * (x.origins[k][0] + x.steps[k] * i)) <= at[-1] + 1e-9:
            values.append(np.interp(z, at, source))
            i += 1
        out.append(np.array(values))
    return out


class TestScaleShift:
    @given(SIZES, st.sampled_from([2.0, 3.0, 1.5, ROOT2, 1.2]), ANY_SAMPLING, st.integers(0, 3), st.booleans())
    def test_definition(self, n, base, sampling, shift, pooled):
        x = paper_lift(torch.rand(1, 1, n, dtype=torch.float64), 4, base, sampling=sampling)
        if pooled and n >= 8:
            x = avg_pool(x.keep(2), 2) if n > 8 else x
        shift = min(shift, x.num_levels - 1)
        got = scale_shift(x, shift)
        assert (got.steps, got.origins) == (x.steps[: got.num_levels], x.origins[: got.num_levels])
        assert (got.base, got.unit, got.first_level) == (x.base, x.unit, x.first_level)
        for level, expected in zip(got.levels, read_naively(x, shift), strict=True):
            assert_allclose(level[0, 0].numpy(), expected, atol=1e-8)

    @pytest.mark.parametrize(
        ("sampling", "base"), [("pyramid", 2.0), ("pyramid", 1.5), ("pyramid", 1.2), ("dense", 2), ("dense", 3)]
    )
    def test_a_pyramid_is_renumbered_and_dense_levels_thinned(self, sampling, base):
        x = paper_lift(torch.rand(2, 3, 17, 12), 4, base, sampling=sampling)
        for n in range(4):
            step = 1 if sampling == "pyramid" else base**n
            assert_levels(scale_shift(x, n), [f[:, :, ::step, ::step] for f in x.levels[n:]], rtol=0, atol=0)

    @given(
        st.sampled_from([1, 2, 9, 16, 23]),
        st.sampled_from([("dense", 2.0), ("dense", 3.0), ("pyramid", 2.0), ("pyramid", 1.5), (2, 2.0), (4, 2.0)]),
        st.integers(0, 3),
        st.integers(0, 3),
    )
    def test_is_a_semigroup(self, n, kind, a, b):
        sampling, base = kind
        x = paper_lift(torch.rand(1, 1, n, dtype=torch.float64), 7, base, sampling=sampling)
        twice, once = scale_shift(scale_shift(x, a), b), scale_shift(x, a + b)
        assert_levels(twice, once, rtol=0, atol=0)

    @pytest.mark.parametrize("first_level", [-1, -2])
    def test_finer_levels(self, first_level):
        x = paper_lift(torch.rand(1, 1, 9), 4, sampling="pyramid", first_level=first_level)
        got = scale_shift(x, 1)
        assert got.first_level == first_level
        for number in range(first_level, first_level + 3):
            assert torch.equal(got.level(number), x.level(number + 1))

    @on_all
    def test_positions_scale(self, name, sampling):
        """The value of a ramp at z becomes c^n z."""
        x = OPERATIONS[name](ramps((40, 36), num_levels=3, sampling=sampling))
        assert_registered(scale_shift(fill_with_positions(x), 1) / 2)


IMAGE = torch.rand(1, 1, 8, 8)
SPACE, TURNED = paper_lift(IMAGE, 3), paper_lift(IMAGE, 2, QUINCUNX)

test_refusals = refusals(
    *[(lambda n=n: scale_shift(SPACE, n), "can be shifted by 0 to 2") for n in (-1, 3, 4)],
    *[(lambda n=n: resample(SPACE, n), "size is an integer or one for each of 2 axes") for n in ((8,), (8, 8, 8))],
    *[(lambda n=n: resample(SPACE, n), "one positive number for each of 2 axes") for n in ((0, 8), (8, -1))],
    (lambda: feature_pyramid(TURNED), "scalar base"),
)


@pytest.mark.parametrize("base", MATRICES.values(), ids=MATRICES)
@pytest.mark.parametrize("origin", [(0.0, 0.0), (2.0, 1.0)])
def test_matrices_move_positions(base, origin):
    """A position z of the result has read C z: so its own position, multiplied by C; positions count, not indices."""
    x = ramps((12, 11), num_levels=2, base=base)
    x = fill_with_positions(x.replace(x.levels, origins=(origin, origin)))
    got = scale_shift(x, 1)
    first, found = np.array(origin), 0
    for i in np.ndindex(*got.sizes(0)):
        read = np.array(base) @ (np.array(got.origins[0]) + got.steps[0] * np.array(i))
        if (read >= first).all() and (read - first <= (11, 10)).all():
            assert_allclose(got.levels[0][0][:, *i].numpy(), read, atol=1e-9)
            found += 1
    inverse = np.linalg.inv(base)
    places = [inverse @ (first + i) for i in np.ndindex(12, 11)]
    on_lattice = sum(np.allclose(place - got.origins[0], np.rint(place - got.origins[0])) for place in places)
    assert found == on_lattice > 0.7 * 132 / abs(np.linalg.det(base))
