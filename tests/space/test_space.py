"""The container: levels on grids that fit, converted, saved and collated with their geometry."""

import copy
import pickle
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import QUINCUNX, assert_levelwise, geometry, refusals, space
from torch.testing import assert_close
from torch.utils import _pytree
from torch.utils.data import DataLoader, default_collate

from scalespaces import ScaleSpace, lift, semigroups


class TestGeometry:
    def test_defaults_are_one_dense_grid(self):
        x = ScaleSpace((torch.ones(1, 2, 3), torch.ones(1, 2, 3)))
        assert geometry(x) == (2.0, (1.0, 1.0), ((0.0,), (0.0,)), (1.0,), 0)
        assert (x.num_levels, x.dims, x.dtype, x.device.type) == (2, 1, torch.float32, "cpu")
        assert x.shapes == ((1, 2, 3), (1, 2, 3))

    @given(st.sampled_from([2.0, 3.0, 1.5, 2**0.5, 1.2]), st.integers(-2, 0), st.integers(1, 4))
    def test_taps_are_as_far_apart_as_the_dilation_over_the_step(self, base, first_level, num_levels):
        steps = tuple(1.0 + 0.5 * k for k in range(num_levels))
        x = ScaleSpace((torch.ones(1, 1, 4),) * num_levels, base, steps, first_level=first_level)
        for index in range(num_levels):
            assert x.expansion(index) == pytest.approx(base ** (index + first_level))
            assert x.spacing(index) == pytest.approx(base ** (index + first_level) / steps[index])

    def test_a_matrix_base_has_matrix_expansions(self):
        x = ScaleSpace((torch.ones(1, 1, 4, 4),) * 3, QUINCUNX)
        for k in range(3):
            np.testing.assert_array_equal(x.expansion(k), np.linalg.matrix_power(np.array(QUINCUNX), k))

    def test_levels_are_numbered_from_the_first(self):
        x = space()
        assert [x.level(number) is level for number, level in enumerate(x.levels, -1)] == [True] * 3
        for number in (-2, 2):
            with pytest.raises(IndexError, match=r"numbered -1 to 1, got"):
                x.level(number)
        assert x.keep(2).levels == x.levels[:2]
        assert x.keep(2).grid == x.grid.keep(2)

    def test_repr_says_where_the_levels_are(self):
        assert repr(space()).splitlines() == [
            "ScaleSpace(3 levels, base 2, torch.float32, cpu)",
            "  level -1: (2, 4, 9, 7), step 0.5, origin 0.25 0.5",
            "  level 0: (2, 4, 5, 4), step 1, origin 0.5 1",
            "  level 1: (2, 4, 3, 2), step 2, origin 1 2",
        ]


LEVEL = torch.ones(1, 1, 2)
APART = [lift(torch.rand(1, 1, 8, 8), 2), ScaleSpace((LEVEL,) * 2, steps=(1, 2))]
APART += [ScaleSpace((LEVEL,) * 2, origins=((0,), (1,)))]
ARRAY, STACK = cast("Any", np.ones((1, 1, 2))), cast("Any", torch.ones(2, 3, 4, 4))

test_refusals = refusals(
    (lambda: ScaleSpace(()), "at least one level"),
    (lambda: ScaleSpace((LEVEL,), steps=(1, 2)), "needs a step and an origin"),
    (lambda: ScaleSpace((LEVEL,), origins=((0,), (0,))), "needs a step and an origin"),
    (lambda: ScaleSpace((LEVEL,), base=1.0), "base"),
    (lambda: ScaleSpace((LEVEL,), base=((1.0, 0.0), (0.0, 1.0))), "expand"),
    (lambda: ScaleSpace((LEVEL, torch.ones(1, 1, 2, 2))), "the same number of axes"),
    (lambda: ScaleSpace((LEVEL, LEVEL[..., :1])), r"different sizes need their steps.*x\.map\(function\)"),
    (lambda: ScaleSpace((ARRAY,)), "levels must be tensors"),
    (lambda: ScaleSpace(STACK), r"tuple of tensors.*ScaleSpace\.unstack"),  # not a sequence of levels
    *[(lambda x=x: x.stack(), r"only levels on one grid can be stacked.*scalespaces\.resample") for x in APART],
    (lambda: ScaleSpace.unstack(torch.ones(2, 3)), r"\(B, C, S, \*spatial\)"),
    error=(TypeError, ValueError),
)


class TestConversions:
    @given(st.integers(1, 3), st.integers(1, 4), st.sampled_from([1, 2, 3, 5]), st.integers(-2, 0))
    def test_stack_and_unstack_are_inverse(self, dims, num_levels, n, first_level):
        t = torch.rand(2, 3, num_levels, *[n] * dims)
        x = ScaleSpace.unstack(t, base=3.0, first_level=first_level)
        assert (x.num_levels, x.dims, x.base, x.first_level) == (num_levels, dims, 3.0, first_level)
        assert_close(x.stack(), t)

    def test_to(self):
        x = space()
        for got in (x.to(torch.float64), x.to("cpu", torch.float64), x.to(dtype=torch.float64), x.double()):
            assert got.dtype == torch.float64
            assert_levelwise(got, torch.Tensor.double, x)
        assert x.to("meta").device.type == "meta"

    @pytest.mark.parametrize("base", [2.0, 1.2, QUINCUNX, "causal"])
    def test_copies_are_the_same_space(self, tmp_path, base):
        x = semigroups.causal_lift(torch.rand(1, 2, 9), 2) if base == "causal" else space(base=base)
        torch.save({"x": x}, tmp_path / "x.pt")
        safe, loaded = (torch.load(tmp_path / "x.pt", weights_only=w)["x"] for w in (True, False))
        leaves, spec = _pytree.tree_flatten({"x": [x, 1]})
        assert len(leaves) == x.num_levels + 1
        spec = _pytree.treespec_loads(_pytree.treespec_dumps(spec))
        tree = _pytree.tree_unflatten([copy.copy(leaf) for leaf in leaves], spec)["x"][0]
        for twin in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x), safe, loaded, tree):
            assert_levelwise(twin, lambda level: level, x)
            assert (twin.grid, repr(twin)) == (x.grid, repr(x))
        assert copy.copy(x).levels[0] is x.levels[0]
        assert copy.deepcopy(x).levels[0] is not x.levels[0]

    def test_is_a_pytree(self):
        x = space()
        assert_levelwise(_pytree.tree_map(lambda leaf: leaf + 1, x), lambda level: level + 1, x)
        paths = [_pytree.keystr(path) for path, _ in _pytree.tree_flatten_with_path(x)[0]]
        assert paths == ["[0]", "[1]", "[2]"]

    @given(st.lists(st.integers(0, 3), min_size=1, max_size=4), st.sampled_from(["dense", "pyramid", 2]))
    def test_samples_are_collated_along_the_batch(self, batches, sampling):
        samples = [lift(torch.rand(b, 2, 9, 7), 3, sampling=sampling) for b in batches]
        got, labels = default_collate([(x, k) for k, x in enumerate(samples)])
        assert labels.tolist() == list(range(len(samples)))
        assert_levelwise(got, lambda *parts: torch.cat(parts), *samples)

    @pytest.mark.parametrize(
        "other", [{"size": (2, 9, 8)}, {"size": (3, 9, 7)}, {"num_levels": 2}, {"base": 3}, {"sampling": "pyramid"}]
    )
    def test_samples_of_a_batch_lie_on_the_same_grids(self, other):
        """Sizes that differ by a window's border would be cropped elsewhere."""

        def dense(size: tuple[int, ...] = (2, 9, 7), **settings: Any) -> ScaleSpace:
            return lift(torch.rand(1, *size), **{"num_levels": 3, "sampling": "dense"} | settings)

        with pytest.raises(ValueError, match=r"(?s)if all else is the same, got.*Lift images of one size"):
            default_collate([dense(), dense(**other)])

    def test_loaders(self):
        """Also with workers, which send what they collate through files or shared memory."""
        samples = [lift(torch.rand(1, 2, 9, 7), 2) for _ in range(5)]
        for workers in (0, 1):
            batches = list(DataLoader(cast("Any", samples), batch_size=2, num_workers=workers))
            assert [batch.shape[0] for batch in batches] == [2, 2, 1]
            assert torch.equal(batches[1].levels[1][1:], samples[3].levels[1])
