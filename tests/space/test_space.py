"""The container acts level by level, keeps its geometry, and refuses what would go wrong in silence."""

import copy
import math
import operator
import pickle
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils import _pytree
from torch.utils.data import DataLoader, default_collate

from scalespaces import ScaleSpace, functional, lift, semigroups
from scalespaces.space._per_level import PerLevel

GEOMETRY = ("base", "steps", "origins", "unit", "first_level")


def space(*, dtype: torch.dtype = torch.float32, **changes: Any) -> ScaleSpace:
    """Levels from -1 on, on grids where nothing is left at its default, with positive values."""
    sizes = ((9, 7), (5, 4), (3, 2))
    fields: dict[str, Any] = {
        "base": 2.0,
        "steps": (0.5, 1.0, 2.0),
        "origins": ((0.25, 0.5), (0.5, 1.0), (1.0, 2.0)),
        "unit": (2.0, 3.0),
        "first_level": -1,
    }
    return ScaleSpace(tuple(torch.rand(2, 4, *size, dtype=dtype) + 0.5 for size in sizes), **fields | changes)


def geometry(x: ScaleSpace) -> tuple:
    return tuple(getattr(x, name) for name in GEOMETRY)


def assert_levelwise(got: Any, x: ScaleSpace, function: Callable[[Tensor], Tensor]) -> None:
    """Check that every level went through the function, and the geometry through unchanged."""
    assert isinstance(got, ScaleSpace)
    assert geometry(got) == geometry(x)
    for new, old in zip(got.levels, x.levels, strict=True):
        assert_close(new, function(old), rtol=0, atol=0)


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
        quincunx = ((1.0, 1.0), (1.0, -1.0))
        x = ScaleSpace((torch.ones(1, 1, 4, 4),) * 3, quincunx)
        for k in range(3):
            np.testing.assert_array_equal(x.expansion(k), np.linalg.matrix_power(np.array(quincunx), k))

    def test_levels_are_numbered_from_the_first(self):
        x = space()
        for number in (-1, 0, 1):
            assert x.level(number) is x.levels[number + 1]
        for number in (-2, 2):
            with pytest.raises(IndexError, match=r"numbered -1 to 1, got"):
                x.level(number)

    def test_keep_drops_the_top_with_its_geometry(self):
        x = space()
        kept = x.keep(2)
        assert kept.levels == x.levels[:2]
        assert geometry(kept) == (x.base, x.steps[:2], x.origins[:2], x.unit, x.first_level)
        for number in (0, 4, -1):
            with pytest.raises(ValueError, match="can keep 1 to 3"):
                x.keep(number)

    @pytest.mark.parametrize(
        ("levels", "changes", "message"),
        [
            ((), {}, "at least one level"),
            ((torch.ones(1, 1, 2),), {"steps": (1, 2)}, "needs a step and an origin"),
            ((torch.ones(1, 1, 2),), {"origins": ((0,), (0,))}, "needs a step and an origin"),
            ((torch.ones(1, 1, 2),), {"origins": ((0, 0),)}, "one number for each of 1 axes"),
            ((torch.ones(1, 1, 2),), {"unit": (1, 1)}, "one number for each of 1 axes"),
            ((torch.ones(1, 1, 2), torch.ones(1, 1, 2, 2)), {}, "one number of axes"),
            ((torch.ones(1, 1, 2),), {"base": 1.0}, "base"),
            ((torch.ones(1, 1, 2),), {"base": [[1.0, 0.0], [0.0, 1.0]]}, "expand"),
        ],
    )
    def test_refuses_a_geometry_that_does_not_fit(self, levels, changes, message):
        with pytest.raises(ValueError, match=message):
            ScaleSpace(levels, **changes)

    def test_levels_are_tensors(self):
        with pytest.raises(TypeError, match="levels are tensors"):
            ScaleSpace((np.ones((1, 1, 2)),))  # pyright: ignore[reportArgumentType]

    def test_one_tensor_is_not_a_sequence_of_levels(self):
        """Its batch would be taken for levels."""
        with pytest.raises((TypeError, ValueError), match=r"levels|unstack"):
            ScaleSpace(torch.ones(2, 3, 4, 4))  # pyright: ignore[reportArgumentType]

    def test_repr_says_where_the_levels_are(self):
        assert repr(space()).splitlines() == [
            "ScaleSpace(3 levels, base 2, torch.float32, cpu)",
            "  level -1: (2, 4, 9, 7), step 0.5, origin 0.25 0.5",
            "  level 0: (2, 4, 5, 4), step 1, origin 0.5 1",
            "  level 1: (2, 4, 3, 2), step 2, origin 1 2",
        ]


BINARY = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "pow": operator.pow,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
}
SCALARS = {"int": 2, "float": 0.75, "tensor": torch.tensor(1.25), "channels": torch.rand(4, 1, 1) + 0.5}


@pytest.mark.parametrize("name", BINARY)
class TestOperators:
    @pytest.mark.parametrize("other", SCALARS.values(), ids=SCALARS)
    def test_with_a_number_or_tensor_on_either_side(self, name, other):
        x, op = space(), BINARY[name]
        assert_levelwise(op(x, other), x, lambda level: op(level, other))
        assert_levelwise(op(other, x), x, lambda level: op(other, level))

    @pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64])
    def test_with_a_numpy_number_on_either_side(self, name, kind):
        x, op = space(), BINARY[name]
        assert_levelwise(op(x, kind(2)), x, lambda level: op(level, 2))
        assert_levelwise(op(kind(2), x), x, lambda level: op(2, level))

    def test_with_another_space(self, name):
        x, y, op = space(), space(), BINARY[name]
        got = op(x, y)
        assert geometry(got) == geometry(x)
        for new, a, b in zip(got.levels, x.levels, y.levels, strict=True):
            assert_close(new, op(a, b), rtol=0, atol=0)

    def test_refuses_other_levels_or_another_base(self, name):
        x, op = space(), BINARY[name]
        with pytest.raises(ValueError, match="same levels"):
            op(x, x.keep(2))
        with pytest.raises(ValueError, match="same levels"):
            op(x, space(first_level=0))
        with pytest.raises(ValueError, match="same base"):
            op(x, space(base=3.0))


class TestMoreOperators:
    @pytest.mark.parametrize("op", [operator.neg, operator.abs])
    def test_unary(self, op):
        x = space() - 1
        assert_levelwise(op(x), x, op)

    @pytest.mark.parametrize("op", [operator.and_, operator.or_, operator.xor])
    def test_masks_combine(self, op):
        x = space()
        low, high = x > 0.7, x < 1.2
        got = op(low, high)
        assert geometry(got) == geometry(x)
        for new, a, b in zip(got.levels, low.levels, high.levels, strict=True):
            assert_close(new, op(a, b))
        assert_levelwise(~low, low, operator.invert)

    def test_an_array_is_refused_or_taken_level_by_level_but_never_splits_the_space(self):
        """NumPy would otherwise make an array of objects."""
        x, array = space(), np.full((4, 1, 1), 2, dtype=np.float32)
        for op in (operator.mul, operator.add, operator.sub):
            for a, b in ((x, array), (array, x)):
                try:
                    got = op(a, b)
                except TypeError:
                    continue
                assert isinstance(got, ScaleSpace)

    def test_has_no_truth_value(self):
        """``if x == y`` would always be taken."""
        x = space()
        with pytest.raises((TypeError, RuntimeError, ValueError)):
            bool(x == x + 1)
        with pytest.raises((TypeError, RuntimeError, ValueError)):
            _ = x in [x + 1]

    def test_augmented_assignment(self):
        x = space()
        y, before = x, copy.deepcopy(x)
        y += 1
        assert_levelwise(y, before, lambda level: level + 1)

    def test_is_hashable_by_identity(self):
        x, y = space(), space()
        assert {x: 1, y: 2}[x] == 1

    def test_is_not_iterated_over(self):
        for look in (iter, list, len, lambda x: (lambda *levels: levels)(*x), reversed):
            with pytest.raises(TypeError, match=r"its levels are x\.levels.*x\.num_levels"):
                look(space())

    @pytest.mark.parametrize("other", [None, "a", (), [1, 2], {}, object(), nn.ReLU(), torch.float32, len])
    def test_is_equal_to_nothing_of_another_kind(self, other):
        """As a tensor: comparisons answer as Python's do, from either side."""
        x = space()
        assert (x == other) is False
        assert (other == x) is False
        assert (x != other) is True
        assert (other != x) is True

    @pytest.mark.parametrize(
        "other", [0, 0.5, True, np.float32(0.5), np.int64(0), torch.tensor(0.5), torch.zeros(4, 1, 1)]
    )
    def test_is_compared_with_numbers_and_tensors_sample_by_sample(self, other):
        x = space()
        assert_levelwise(x == other, x, lambda level: level == other)
        assert_levelwise(x != other, x, lambda level: level != other)
        assert_levelwise(other == x, x, lambda level: other == level)
        assert all(level.all() for level in (x == x.to(torch.float64)).levels)
        assert not any(level.any() for level in (x != copy.deepcopy(x)).levels)


POINTWISE: dict[str, Callable[[Any], Any]] = {
    "nn.ReLU": nn.ReLU(),
    "nn.GELU": nn.GELU(),
    "nn.PReLU": nn.PReLU(4),
    "nn.Sigmoid": nn.Sigmoid(),
    "nn.Softmax2d": nn.Softmax2d(),
    "nn.Hardtanh": nn.Hardtanh(),
    "nn.Identity": nn.Identity(),
    "nn.Dropout, eval": nn.Dropout(0.5).eval(),
    "F.softmax": lambda x: F.softmax(x, 1),
    "F.normalize": lambda x: F.normalize(x, dim=1),
    "torch.exp": torch.exp,
    "torch.sigmoid": torch.sigmoid,
    "torch.clamp": lambda x: torch.clamp(x, 0.2, 0.8),
    "x.relu": lambda x: x.relu(),
    "x.clamp": lambda x: x.clamp(min=0.3),
    "x.detach": lambda x: x.detach(),
    "x.clone": lambda x: x.clone(),
    "x.double": lambda x: x.double(),
    "x.contiguous": lambda x: x.contiguous(memory_format=torch.channels_last),
    "x.sum over channels": lambda x: x.sum(1, keepdim=True),
    "torch.where": lambda x: torch.where(x > 1, x, 0.0),
    "torch.where, both": lambda x: torch.where(x > 1, x, -x),
    "masked_fill": lambda x: x.masked_fill(x > 1, -1.0),
    "einsum": lambda x: torch.einsum("bchw,dc->bdhw", x, torch.ones(3, 4)),
    "cat with itself": lambda x: torch.cat([x, 2 * x], 1),
    "cat over the batch": lambda x: torch.cat((x, x), dim=0),
    "x[:, :2]": lambda x: x[:, :2],
    "x[:1]": lambda x: x[:1],
    "x[:, [2, 0]]": lambda x: x[:, [2, 0]],
    "x[..., :]": lambda x: x[..., :],
    "squeeze and excite": lambda x: x.mean((2, 3), keepdim=True) * x,
    "excite from the right": lambda x: x * torch.sigmoid(x.amax((2, 3), keepdim=True)),
    "torch.lerp": lambda x: torch.lerp(x, 2 * x, 0.25),
    "torch.maximum": lambda x: torch.maximum(x, 1.5 - x),
    "nn.GroupNorm": nn.GroupNorm(2, 4),
}


class TestPointwise:
    @pytest.mark.parametrize("name", POINTWISE)
    def test_acts_level_by_level(self, name):
        x = space()
        assert_levelwise(POINTWISE[name](x), x, POINTWISE[name])

    def test_map(self):
        x = space()
        assert_levelwise(x.map(lambda level: 2 * level), x, lambda level: 2 * level)

    @pytest.mark.parametrize(
        "module", [nn.ReLU(inplace=True), nn.SiLU(inplace=True), nn.LeakyReLU(0.1, inplace=True), nn.ReLU6(True)]
    )
    def test_in_place_modules_write_into_the_levels(self, module):
        x = space() - 1
        before, held = copy.deepcopy(x), x.levels
        got = module(x)
        assert_levelwise(got, before, lambda level: module(level.clone()))
        for new, tensor in zip(got.levels, held, strict=True):
            assert new.data_ptr() == tensor.data_ptr()

    def test_dropout_drops_at_every_level(self):
        x = space().map(torch.ones_like).map(lambda level: level.repeat(20, 1, 1, 1))
        got = nn.Dropout(0.25)(x)
        assert geometry(got) == geometry(x)
        for level in got.levels:
            assert_close(level[level != 0], torch.full_like(level[level != 0], 4 / 3))
            assert (level == 0).float().mean().item() == pytest.approx(0.25, abs=0.1)
        assert_levelwise(nn.Dropout(0.25).eval()(x), x, lambda level: level)

    @pytest.mark.parametrize(
        "split",
        [
            lambda x: torch.chunk(x, 2, 1),
            lambda x: x.chunk(2, 1),
            lambda x: torch.split(x, [1, 3], 1),
            lambda x: x.split(2, dim=1),
            lambda x: torch.max(x, 1, keepdim=True),
            lambda x: torch.var_mean(x, 1, keepdim=True),
        ],
    )
    def test_several_answers_are_a_tuple_of_spaces(self, split):
        x = space()
        parts = split(x)
        assert isinstance(parts, tuple)
        for i, part in enumerate(parts):
            assert_levelwise(part, x, lambda level, i=i: split(level)[i])

    def test_numbers_that_all_levels_share_come_out_once(self):
        x: Any = space()
        assert (x.size(1), x.dim(), x.is_floating_point()) == (4, 4, True)
        assert x.shape == x.size() == (2, 4, PerLevel((9, 5, 3)), PerLevel((7, 4, 2)))
        assert (x.ndim, x.requires_grad, x.is_sparse, x.layout) == (4, False, False, torch.strided)
        assert x.size(-1) == x.shape[3] == PerLevel((7, 4, 2))
        assert x.numel() == PerLevel((2 * 4 * 63, 2 * 4 * 20, 2 * 4 * 6))
        assert torch.allclose(x, x) is True
        assert torch.allclose(x, x + 1) is False

    def test_flatten_leaves_no_space(self):
        x = space()
        flat = x.flatten(1)
        assert (flat.dims, flat.unit, flat.origins) == (0, (), ((), (), ()))
        assert (flat.base, flat.first_level) == (x.base, x.first_level)
        for new, old in zip(flat.levels, x.levels, strict=True):
            assert_close(new, old.flatten(1))
        for new, old in zip(nn.Flatten()(x).levels, x.levels, strict=True):
            assert_close(new, old.flatten(1))

    def test_linear_after_flatten(self):
        x, head = ScaleSpace.unstack(torch.rand(2, 4, 3, 5, 6)), nn.Linear(120, 7)
        got = head(x.flatten(1))
        assert got.shapes == ((2, 7),) * 3
        assert_close(got.stack(), torch.stack([head(level.flatten(1)) for level in x.levels], 2))

    def test_averaged_space_can_be_squeezed_and_stacked(self):
        """Once space is gone the grids no longer tell levels apart, whatever the sampling was."""
        x = lift(torch.rand(2, 4, 9, 9), num_levels=3, sampling="pyramid")
        expected = torch.stack([level.mean((2, 3)) for level in x.levels], 2)
        assert_close(x.mean((2, 3)).stack(), expected)
        assert_close(functional.global_pool(x).stack(), expected)

    def test_gradients_flow_through(self):
        x = space(dtype=torch.float64)
        leaves = [level.requires_grad_() for level in x.levels]
        y = torch.relu(2 * x - 1.5) ** 2
        sum(level.sum() for level in y.levels).backward()  # pyright: ignore[reportAttributeAccessIssue]
        for leaf in leaves:
            assert_close(leaf.grad, 4 * torch.relu(2 * leaf - 1.5))


REFUSED: dict[str, Callable[[Any], Any]] = {
    "max_pool2d with indices": lambda x: F.max_pool2d(x, 3, 1, 1, return_indices=True),
    "max_unpool2d": lambda x: F.max_unpool2d(x, x, [2]),
    "lp_pool2d": lambda x: F.lp_pool2d(x, 2, 2),
    "unfold": lambda x: F.unfold(x, 3),
    "x.unfold": lambda x: x.unfold(2, 2, 1),
    "fold": lambda x: F.fold(x, 3, 3),
    "grid_sample": lambda x: F.grid_sample(x, torch.zeros(2, 3, 3, 2)),
    "torch.flip": lambda x: torch.flip(x, (2,)),
    "x.flip": lambda x: x.flip(2),
    "x.roll": lambda x: x.roll(1, 2),
    "rot90": lambda x: torch.rot90(x, 1, (2, 3)),
}


class TestRefusals:
    @pytest.mark.parametrize("name", REFUSED)
    def test_what_needs_the_grids(self, name):
        with pytest.raises(TypeError, match=r"knows nothing of the grids of a ScaleSpace; |no place for grids"):
            REFUSED[name](space())

    @pytest.mark.parametrize(
        "change",
        [
            lambda x: x[:, :, ::2],
            lambda x: x[..., 1:],
            lambda x: x[..., :-1],
            lambda x: x[:, :, 0],
            lambda x: x[0],
            lambda x: x.map(lambda level: level[:, :, :-1]),
            lambda x: torch.cat([x, x], 2),
            lambda x: x.repeat(1, 1, 2, 2),
            lambda x: torch.diff(x, dim=2),
        ],
    )
    def test_changed_grids(self, change):
        with pytest.raises(ValueError, match="in a way the geometry cannot follow"):
            change(space())

    @pytest.mark.parametrize(
        "change",
        [
            lambda x: x.flatten(2),
            lambda x: x.flatten(2, 3).transpose(1, 2),
            lambda x: x.reshape(x.size(0), x.size(1), -1),
            lambda x: torch.flatten(x, 0, 2),
            lambda x: x.view(2, 4, -1, 1),
        ],
    )
    def test_merged_axes(self, change):
        with pytest.raises(ValueError, match=r"axes of space of shapes .* are merged"):
            change(space())

    def test_samples_picked_one_by_one(self):
        with pytest.raises(ValueError, match="one by one"):
            space().select(2, 0)

    @pytest.mark.parametrize("name", ["backward", "numpy", "tolist", "item"])
    def test_methods_of_one_tensor(self, name):
        with pytest.raises(AttributeError, match=rf"no attribute '{name}'; x\.levels holds its tensors"):
            getattr(space(), name)

    def test_unknown_attributes(self):
        with pytest.raises(AttributeError, match=r"no attribute 'grad_fn'; x\.levels"):
            _ = space().grad_fn
        with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
            _ = space().nonsense
        assert not hasattr(space(), "_private")

    def test_functions_of_ours_ask_for_a_space(self):
        with pytest.raises(TypeError, match=r"expected a ScaleSpace, got a tensor of shape \(1, 2, 4, 4\); lift"):
            functional.global_pool(torch.ones(1, 2, 4, 4))  # pyright: ignore[reportArgumentType]
        with pytest.raises(TypeError, match="expected a ScaleSpace, got list"):
            functional.resample([1])  # pyright: ignore[reportArgumentType]


MOVES: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "permute": (lambda x: x.permute(0, 2, 3, 1), (1, 2)),
    "permute by a tuple": (lambda x: torch.permute(x, (0, 2, 3, 1)), (1, 2)),
    "permute from the end": (lambda x: x.permute(-1, 0, 1, -2), (3, 0)),
    "transpose": (lambda x: x.transpose(2, 3), (3, 2)),
    "transpose from the end": (lambda x: torch.transpose(x, 1, -1), (2, 1)),
    "swapaxes": (lambda x: x.swapaxes(0, 2), (0, 3)),
    "movedim": (lambda x: torch.movedim(x, 1, 3), (1, 2)),
    "movedim of two": (lambda x: x.movedim((2, 3), (0, 1)), (0, 1)),
    "channel groups": (lambda x: x.view(x.size(0), 2, 2, x.size(2), x.size(3)), (3, 4)),
    "channel groups by unflatten": (lambda x: x.unflatten(1, (2, 2)), (3, 4)),
    "channel shuffle": (lambda x: x.view(2, 2, 2, *x.shape[2:]).transpose(1, 2).reshape(x.shape), (2, 3)),
    "the same view": (lambda x: x.view(*x.shape), (2, 3)),
    "batch and channels merged": (lambda x: x.flatten(0, 1), (1, 2)),
    "reshape with -1": (lambda x: x.reshape(-1, *x.shape[2:]), (1, 2)),
    "unsqueeze": (lambda x: x.unsqueeze(1), (3, 4)),
    "None": (lambda x: x[:, :, None], (3, 4)),
    "None and dots": (lambda x: x[:, None, ..., None], (3, 4)),
    "there and back": (lambda x: x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2), (2, 3)),
    "stack": (lambda x: torch.stack([x, x], 1), (3, 4)),
    "stack last": (lambda x: torch.stack([x, 2 * x], -1), (2, 3)),
    "sum over channels": (lambda x: x.sum(1), (1, 2)),
    "argmax over channels": (lambda x: x.argmax(dim=1), (1, 2)),
    "norm over channels": (lambda x: x.norm(2, 1), (1, 2)),
    "one channel": (lambda x: x[:, 1], (1, 2)),
    "select": (lambda x: x.select(1, 0), (1, 2)),
    "linear over channels": (lambda x: F.linear(x.permute(0, 2, 3, 1), torch.ones(3, 4)), (1, 2)),
    "layer norm over channels": (lambda x: F.layer_norm(x.permute(0, 2, 3, 1), (4,)), (1, 2)),
    "matmul over channels": (lambda x: x.permute(0, 2, 3, 1) @ torch.ones(4, 5), (1, 2)),
}


class TestAxes:
    @pytest.mark.parametrize("name", MOVES)
    def test_the_axes_of_space_are_followed(self, name):
        x, (move, axes) = space(), MOVES[name]
        got = move(x)
        assert got.axes == axes
        assert (got.origins, got.unit, got.steps) == (x.origins, x.unit, x.steps)
        for k, (new, old) in enumerate(zip(got.levels, x.levels, strict=True)):
            assert_close(new, move(old), rtol=0, atol=0)
            assert got.sizes(k) == x.sizes(k)

    def test_one_axis_of_space_may_go(self):
        x = space()
        for move in (lambda x: x.mean(2), lambda x: x.permute(0, 2, 3, 1).sum(dim=1)):
            got = move(x)
            assert (got.unit, got.origins) == (x.unit[1:], tuple(origin[1:] for origin in x.origins))
            for k in range(3):
                assert got.sizes(k) == x.sizes(k)[1:]

    def test_an_axis_of_one_sample_may_stay_or_go(self):
        x = space()
        mean = x.mean(3, keepdim=True)
        assert mean.axes == (2, 3)
        assert_levelwise(mean * x, x, lambda level: level.mean(3, keepdim=True) * level)
        assert mean.squeeze(3).unit == x.unit[:1]
        assert x.mean((2, 3), keepdim=True).flatten(2).dims == 1

    @pytest.mark.parametrize(
        "op",
        [
            lambda x: functional.scale_conv(x, torch.ones(1, 4, 3, 3)),
            lambda x: functional.avg_pool(x, 2),
            lambda x: F.conv2d(x, torch.ones(1, 4, 3, 3)),
            lambda x: F.max_pool2d(x, 2),
            lambda x: F.interpolate(x, scale_factor=2),
        ],
    )
    def test_windows_want_the_axes_in_their_places(self, op):
        with pytest.raises(ValueError, match="permute back first"):
            op(space().transpose(2, 3))

    def test_operands_have_their_axes_at_the_same_places(self):
        x = ScaleSpace((torch.ones(1, 4, 4, 4),) * 2)
        with pytest.raises(ValueError, match="at different places"):
            _ = x + x.permute(0, 2, 3, 1)

    def test_levels_can_be_resampled_wherever_their_axes_are(self):
        x = lift(torch.rand(1, 4, 9, 7), 3, sampling="pyramid")
        got = functional.resample(x.permute(0, 2, 3, 1))
        assert_close(torch.stack(got.levels), torch.stack(functional.resample(x).levels).movedim(2, -1))

    @pytest.mark.parametrize("stop", [3, PerLevel((6, 3, 2))])
    def test_a_crop_at_the_end_leaves_the_grids_where_they_are(self, stop):
        x = space()
        got = x[:, :, :stop]
        assert geometry(got) == geometry(x)
        for k, level in enumerate(got.levels):
            assert_close(level, x.levels[k][:, :, : stop if isinstance(stop, int) else stop.values[k]])

    def test_channels_can_be_written(self):
        x = space()
        x[:, 1:3] = 7.0
        assert all((level[:, 1:3] == 7).all() and not (level[:, 0] == 7).any() for level in x.levels)
        with pytest.raises(ValueError, match="cannot follow"):
            x[:, :, 1:] = 0.0


class TestPerLevel:
    @pytest.mark.parametrize("op", [operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, pow])
    @pytest.mark.parametrize("other", [7, PerLevel((2, 5, 1))])
    def test_arithmetic_acts_level_by_level(self, op, other):
        n = PerLevel((9, 5, 4))
        others = other.values if isinstance(other, PerLevel) else (other,) * 3
        assert op(n, other).values == tuple(map(op, n.values, others))
        assert op(other, n).values == tuple(map(op, others, n.values))

    def test_what_all_levels_share_is_a_number(self):
        n = PerLevel((9, 5, 3))
        assert type(n - n) is int
        assert type(PerLevel((9, 5, 3)) % 2) is int
        assert n * 0 == 0

    def test_rounding(self):
        half = PerLevel((9, 5, 4)) / 2
        assert math.ceil(half).values == (5, 3, 2)
        assert math.floor(half).values == (4, 2, 2)
        assert round(half).values == (4, 2, 2)
        assert (-half).values == (-4.5, -2.5, -2)
        assert divmod(PerLevel((9, 5)), 2) == (PerLevel((4, 2)), 1)

    def test_comparisons_answer_or_refuse(self):
        n = PerLevel((9, 5, 4))
        assert n > 3
        assert not n >= 10
        assert n == PerLevel((9, 5, 4))
        assert n != (3,)
        assert max(n, 0) is n
        assert bool(n)
        for branch in (lambda: n > 4, lambda: n == 5, lambda: n % 2 == 1, lambda: bool(n - 4), lambda: max(n, 5)):
            with pytest.raises(ValueError, match="branch differently at different levels"):
                branch()

    @pytest.mark.parametrize("use", [int, float, range, lambda n: [0] * n, lambda n: torch.ones(9)[:n]])
    def test_is_not_one_number(self, use):
        with pytest.raises(TypeError, match="differs between levels"):
            use(PerLevel((9, 5, 4)))

    @pytest.mark.parametrize(
        "make",
        [
            lambda n: torch.zeros(1, 2, n, n),
            lambda n: torch.randn((1, n)),
            lambda n: torch.full((n,), 1.0),
            lambda n: torch.arange(n),
            lambda n: torch.ones(6).view(n, -1),
        ],
    )
    def test_makes_no_single_tensor(self, make):
        hint = r"PerLevel\(9, 5, 4\).*x\.new_zeros" if torch.__version__ >= "2.13" else "PerLevel"
        with pytest.raises(TypeError, match=hint):  # older ones refuse by themselves, in words of their own
            make(PerLevel((9, 5, 4)))

    def test_each_level_gets_its_own(self):
        x = space()
        zeros = x.new_zeros(2, 4, x.size(2), x.size(3))
        assert_levelwise(zeros, x, torch.zeros_like)
        area = x.size(2) * x.size(3)
        for got in (x / area, x * (1 / area)):
            assert_close(got.levels, tuple(level / (level.shape[2] * level.shape[3]) for level in x.levels))
        assert_close((area * x).levels, (x * area).levels)

    def test_shapes_are_compared_and_sliced(self):
        x = space()
        assert x.shape == (x + 1).shape
        assert x.shape[-2:] == x.shape[2:]
        assert x.shape[:2] == (2, 4)
        assert x.shape.numel() == x.numel()
        batch, channels, height, width = x.shape
        assert (batch, channels, height * width) == (2, 4, PerLevel((63, 20, 6)))


class TestConversions:
    @given(st.integers(1, 3), st.integers(1, 4), st.sampled_from([1, 2, 3, 5]), st.integers(-2, 0))
    def test_stack_and_unstack_are_inverse(self, dims, num_levels, n, first_level):
        t = torch.rand(2, 3, num_levels, *[n] * dims)
        x = ScaleSpace.unstack(t, base=3.0, first_level=first_level)
        assert (x.num_levels, x.dims, x.base, x.first_level) == (num_levels, dims, 3.0, first_level)
        assert_close(x.stack(), t)

    def test_only_one_grid_can_be_stacked(self):
        t = torch.ones(1, 1, 4)
        for x in (
            lift(torch.rand(1, 1, 8, 8), num_levels=2, sampling="pyramid"),
            ScaleSpace((t, t), steps=(1, 2)),
            ScaleSpace((t, t), origins=((0,), (1,))),
        ):
            with pytest.raises(ValueError, match=r"only levels on one grid can be stacked.*scalespaces\.resample"):
                x.stack()
        with pytest.raises(ValueError, match=r"\(B, C, S, \*spatial\)"):
            ScaleSpace.unstack(torch.ones(2, 3))

    def test_to(self):
        x = space()
        for got in (x.to(torch.float64), x.to("cpu", torch.float64), x.to(dtype=torch.float64), x.double()):
            assert got.dtype == torch.float64
            assert_levelwise(got, x, torch.Tensor.double)
        assert x.to("meta").device.type == "meta"

    def test_pickle_and_copies(self):
        x = space()
        for twin in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
            assert_levelwise(twin, x, lambda level: level)
            twin.levels[0].zero_()
            assert x.levels[0].abs().sum() > 0
        assert copy.copy(x).levels[0] is x.levels[0]

    @pytest.mark.parametrize("base", [2.0, 1.2, ((1.0, 1.0), (1.0, -1.0))])
    @pytest.mark.parametrize("weights_only", [True, False])
    def test_saves_and_loads(self, tmp_path, base, weights_only):
        x = space(base=base)
        torch.save({"x": [x, semigroups.causal_lift(torch.rand(1, 2, 9), 2)]}, tmp_path / "x.pt")
        got, causal = torch.load(tmp_path / "x.pt", weights_only=weights_only)["x"]
        assert_levelwise(got, x, lambda level: level)
        assert causal.causal
        assert_levelwise(causal + 1, causal, lambda level: level + 1)

    @given(st.lists(st.integers(0, 3), min_size=1, max_size=4), st.sampled_from(["dense", "pyramid", 2]))
    def test_samples_are_collated_along_the_batch(self, batches, sampling):
        samples = [lift(torch.rand(b, 2, 9, 7), 3, sampling=sampling) for b in batches]
        got = default_collate(samples)
        assert geometry(got) == geometry(samples[0])
        assert got.shape[0] == sum(batches)
        for level, parts in zip(got.levels, zip(*(x.levels for x in samples), strict=True), strict=True):
            assert torch.equal(level, torch.cat(parts))
        spaces, labels = default_collate([(x, k) for k, x in enumerate(samples)])
        assert spaces.shapes == got.shapes
        assert labels.tolist() == list(range(len(samples)))

    @pytest.mark.parametrize(
        "other",
        [
            lambda: lift(torch.rand(1, 2, 9, 8), 3, sampling="dense"),
            lambda: lift(torch.rand(1, 2, 9, 7), 3),
            lambda: lift(torch.rand(1, 2, 9, 7), 2, sampling="dense"),
            lambda: lift(torch.rand(1, 2, 9, 7), 3, 3.0, sampling="dense"),
            lambda: lift(torch.rand(1, 3, 9, 7), 3, sampling="dense"),
        ],
    )
    def test_samples_of_a_batch_lie_on_the_same_grids(self, other):
        """Sizes that differ by a window's border would be cropped elsewhere."""
        with pytest.raises(ValueError, match=r"(?s)if all else is the same, got.*Lift images of one size"):
            default_collate([lift(torch.rand(1, 2, 9, 7), 3, sampling="dense"), other()])

    def test_loaders(self):
        """Also with workers, which send what they collate through files or shared memory."""
        samples = [lift(torch.rand(1, 2, 9, 7), 2) for _ in range(5)]
        for workers in (0, 1):
            batches = list(DataLoader(cast("Any", samples), batch_size=2, num_workers=workers))
            assert [batch.shape[0] for batch in batches] == [2, 2, 1]
            assert torch.equal(batches[1].levels[1][1:], samples[3].levels[1])

    @pytest.mark.parametrize("base", [2.0, 1.2, ((1.0, 1.0), (1.0, -1.0))])
    def test_is_a_pytree(self, base):
        x = space(base=base)
        leaves, spec = _pytree.tree_flatten({"x": [x, 1]})
        assert len(leaves) == 4
        spec = _pytree.treespec_loads(_pytree.treespec_dumps(spec))
        twin = _pytree.tree_unflatten(leaves, spec)["x"][0]
        assert_levelwise(twin, x, lambda level: level)
        assert_levelwise(_pytree.tree_map(lambda leaf: leaf + 1, x), x, lambda level: level + 1)
        paths = [_pytree.keystr(path) for path, _ in _pytree.tree_flatten_with_path(x)[0]]
        assert paths == ["[0]", "[1]", "[2]"]


def test_branches_of_other_strides_are_refused():
    x = lift(torch.rand(1, 3, 16, 16), 2, sampling="pyramid")
    weight = torch.rand(3, 3, 3, 3)
    scale_conv = functional.scale_conv
    with pytest.raises(ValueError, match=r"same sizes, got .* or bring them together with scalespaces\.resample"):
        _ = x + scale_conv(x, weight, stride=2)
    coarse = scale_conv(lift(torch.rand(1, 3, 32, 32), 2, sampling="pyramid"), weight, stride=2)
    with pytest.raises(ValueError, match="different grids"):
        _ = x + coarse


def test_levels_of_different_sizes_need_their_steps():
    x = lift(torch.rand(1, 1, 16, 16), num_levels=2)
    with pytest.raises(ValueError, match=r"levels of different sizes need their steps.*x\.map\(function\)"):
        ScaleSpace(x.levels)
    assert ScaleSpace(x.levels, steps=(1, 2)).steps == x.steps
