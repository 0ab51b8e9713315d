"""Torch's functions act level by level, follow the spatial axes, and refuse what would go wrong in silence."""

import contextlib
import copy
import itertools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from reference import assert_levelwise, space
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from scalespaces import ScaleSpace, functional, lift
from scalespaces.space._per_level import PerLevel

OPERATORS = ["add", "sub", "mul", "truediv", "pow", "lt", "le", "gt", "ge", "eq", "ne"]
BINARY = {name: getattr(operator, name) for name in OPERATORS}
SCALARS = {"int": 2, "float": 0.75, "tensor": torch.tensor(1.25), "channels": torch.rand(4, 1, 1) + 0.5}
SCALARS |= {"np.float64": np.float64(2), "np.float32": np.float32(0.5), "np.int64": np.int64(2)}


@pytest.mark.parametrize("name", BINARY)
class TestOperators:
    @pytest.mark.parametrize("other", SCALARS.values(), ids=SCALARS)
    def test_with_a_number_or_tensor_on_either_side(self, name, other):
        x, op = space(), BINARY[name]
        plain = other.item() if isinstance(other, np.generic) else other
        assert_levelwise(op(x, other), lambda level: op(level, plain), x)
        assert_levelwise(op(other, x), lambda level: op(plain, level), x)

    def test_with_another_space(self, name):
        x, y = space(), space()
        assert_levelwise(BINARY[name](x, y), BINARY[name], x, y)

    def test_refuses_other_levels_or_another_base(self, name):
        x = space()
        others = ((x.keep(2), "same levels"), (space(first_level=0), "same levels"), (space(base=3.0), "same base"))
        for other, message in others:
            with pytest.raises(ValueError, match=message):
                BINARY[name](x, other)


class TestMoreOperators:
    @pytest.mark.parametrize("op", [operator.and_, operator.or_, operator.xor])
    def test_unary_and_masks(self, op):
        x = space()
        low, high = x > 0.7, x < 1.2
        assert_levelwise(op(low, high), op, low, high)
        assert_levelwise(~low, torch.bitwise_not, low)
        assert_levelwise(-x, torch.neg, x)
        assert_levelwise(abs(x - 1), torch.abs, x - 1)

    def test_an_array_is_refused_or_taken_level_by_level_but_never_splits_the_space(self):
        """NumPy would otherwise make an array of objects."""
        x, array = space(), np.full((4, 1, 1), 2, dtype=np.float32)
        for op, (a, b) in itertools.product((operator.mul, operator.add, operator.sub), ((x, array), (array, x))):
            with contextlib.suppress(TypeError):
                assert isinstance(op(a, b), ScaleSpace)

    def test_has_no_truth_value_but_an_identity(self):
        """``if x == y`` would always be taken."""
        x = space()
        for ask in (lambda: bool(x == x + 1), lambda: x in [x + 1]):
            with pytest.raises((TypeError, RuntimeError, ValueError)):
                ask()
        assert {x: 1, space(): 2}[x] == 1
        y, before = x, copy.deepcopy(x)
        y += 1
        assert_levelwise(y, lambda level: level + 1, before)

    def test_is_not_iterated_over(self):
        for look in (iter, list, len, lambda x: (lambda *levels: levels)(*x), reversed):
            with pytest.raises(TypeError, match=r"its levels are x\.levels.*x\.num_levels"):
                look(space())

    def test_is_equal_to_nothing_of_another_kind(self):
        """As a tensor: comparisons answer as Python's do, from either side."""
        x = space()
        for other in (None, "a", (), [1, 2], {}, object(), nn.ReLU(), torch.float32, len):
            assert (x == other, other == x, x != other, other != x) == (False, False, True, True)


POINTWISE: dict[str, Callable[[Any], Any]] = {
    "nn.ReLU": nn.ReLU(),
    "nn.GELU": nn.GELU(),
    "nn.PReLU": nn.PReLU(4),
    "nn.Dropout, eval": nn.Dropout(0.5).eval(),
    "F.softmax": lambda x: F.softmax(x, 1),
    "F.normalize": lambda x: F.normalize(x, dim=1),
    "torch.sigmoid": torch.sigmoid,
    "torch.clamp": lambda x: torch.clamp(x, 0.2, 0.8),
    "x.relu": lambda x: x.relu(),
    "x.detach": lambda x: x.detach(),
    "x.double": lambda x: x.double(),
    "x.contiguous": lambda x: x.contiguous(memory_format=torch.channels_last),
    "x.sum over channels": lambda x: x.sum(1, keepdim=True),
    "torch.where": lambda x: torch.where(x > 1, x, 0.0),
    "masked_fill": lambda x: x.masked_fill(x > 1, -1.0),
    "einsum": lambda x: torch.einsum("bchw,dc->bdhw", x, torch.ones(3, 4)),
    "cat with itself": lambda x: torch.cat([x, 2 * x], 1),
    "cat over the batch": lambda x: torch.cat((x, x), dim=0),
    "x[:, :2]": lambda x: x[:, :2],
    "x[:1]": lambda x: x[:1],
    "x[:, [2, 0]]": lambda x: x[:, [2, 0]],
    "squeeze and excite": lambda x: x.mean((2, 3), keepdim=True) * x,
    "torch.maximum": lambda x: torch.maximum(x, 1.5 - x),
    "nn.GroupNorm": nn.GroupNorm(2, 4),
}


class TestPointwise:
    @pytest.mark.parametrize("name", POINTWISE)
    def test_acts_level_by_level(self, name):
        x = space()
        assert_levelwise(POINTWISE[name](x), POINTWISE[name], x)

    def test_on_one_grid_the_grid_is_the_same_object(self):
        x: Any = space()
        got: Any
        for got in (torch.relu(x), x + 1, x + 2 * x, nn.GELU()(x), x.map(torch.exp), torch.cat([x, x], 1), x.double()):
            assert got.grid is x.grid
        assert_levelwise(x.map(torch.exp), torch.exp, x)

    @pytest.mark.parametrize(
        "module", [nn.ReLU(inplace=True), nn.SiLU(inplace=True), nn.LeakyReLU(0.1, inplace=True), nn.ReLU6(True)]
    )
    def test_in_place_modules_write_into_the_levels(self, module):
        x = space() - 1
        before, held = copy.deepcopy(x), x.levels
        got = module(x)
        assert_levelwise(got, lambda level: module(level.clone()), before)
        for new, tensor in zip(got.levels, held, strict=True):
            assert new.data_ptr() == tensor.data_ptr()

    @pytest.mark.parametrize(
        "split",
        [
            lambda x: torch.chunk(x, 2, 1),
            lambda x: x.split([1, 3], dim=1),
            lambda x: torch.max(x, 1, keepdim=True),
            lambda x: torch.var_mean(x, 1, keepdim=True),
        ],
    )
    def test_several_answers_are_a_tuple_of_spaces(self, split):
        x = space()
        parts = split(x)
        assert isinstance(parts, tuple)
        for i, part in enumerate(parts):
            assert_levelwise(part, lambda level, i=i: split(level)[i], x)

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
        for flat in (x.flatten(1), nn.Flatten()(x)):
            assert (flat.dims, flat.unit, flat.origins) == (0, (), ((), (), ()))
            assert (flat.base, flat.first_level) == (x.base, x.first_level)
            assert_close(flat.levels, tuple(level.flatten(1) for level in x.levels))

    def test_without_space_levels_can_be_stacked(self):
        """Once space is gone the grids no longer tell levels apart, whatever the sampling was."""
        x = lift(torch.rand(2, 4, 9, 9), num_levels=3, sampling="pyramid")
        expected = torch.stack([level.mean((2, 3)) for level in x.levels], 2)
        assert_close(x.mean((2, 3)).stack(), expected)
        assert_close(functional.global_pool(x).stack(), expected)
        x, head = ScaleSpace.unstack(torch.rand(2, 4, 3, 5, 6)), nn.Linear(120, 7)
        assert_close(head(x.flatten(1)).stack(), torch.stack([head(level.flatten(1)) for level in x.levels], 2))

    def test_gradients_flow_through(self):
        x = space(dtype=torch.float64)
        leaves = [level.requires_grad_() for level in x.levels]
        y = torch.relu(2 * x - 1.5) ** 2
        sum(level.sum() for level in y.levels).backward()  # pyright: ignore[reportAttributeAccessIssue]
        for leaf in leaves:
            assert_close(leaf.grad, 4 * torch.relu(2 * leaf - 1.5))


REFUSALS: dict[str, tuple[str, list[Callable[[Any], Any]]]] = {
    "functions that need the grids": (
        r"knows nothing of the grids of a ScaleSpace; |no place for grids",
        [
            lambda x: F.max_pool2d(x, 3, 1, 1, return_indices=True),
            *(lambda x: F.max_unpool2d(x, x, [2]), lambda x: F.lp_pool2d(x, 2, 2), lambda x: F.unfold(x, 3)),
            *(lambda x: x.unfold(2, 2, 1), lambda x: F.fold(x, 3, 3), lambda x: x.flip(2), lambda x: x.roll(1, 2)),
            *(lambda x: F.grid_sample(x, torch.zeros(2, 3, 3, 2)), lambda x: torch.rot90(x, 1, (2, 3))),
        ],
    ),
    "changed grids": (
        "in a way the geometry cannot follow",
        [
            *(lambda x: x[:, :, ::2], lambda x: x[..., 1:], lambda x: x[:, :, 0], lambda x: x[0]),
            lambda x: x.map(lambda level: level[:, :, :-1]),
            *(lambda x: torch.cat([x, x], 2), lambda x: x.repeat(1, 1, 2, 2)),
        ],
    ),
    "merged axes": (
        "spatial axes of shapes .* are merged",
        [
            *(lambda x: x.flatten(2), lambda x: torch.flatten(x, 0, 2), lambda x: x.view(2, 4, -1, 1)),
            lambda x: x.reshape(x.size(0), x.size(1), -1),
        ],
    ),
    "samples picked one by one": ("single samples", [lambda x: x.select(2, 0)]),
    "windows over axes at other places": (
        "permute back first",
        [
            lambda x: functional.scale_conv(x.transpose(2, 3), torch.ones(1, 4, 3, 3)),
            lambda x: functional.avg_pool(x.transpose(2, 3), 2),
            lambda x: F.conv2d(x.transpose(2, 3), torch.ones(1, 4, 3, 3)),
            lambda x: F.interpolate(x.transpose(2, 3), scale_factor=2),
        ],
    ),
    "operands with axes at other places": (
        "at different places",
        [lambda x: x[..., :2, :2] + x[..., :2, :2].transpose(2, 3)],
    ),
}


class TestRefusals:
    @pytest.mark.parametrize("name", REFUSALS)
    def test_what_no_grid_can_follow(self, name):
        message, calls = REFUSALS[name]
        for call in calls:
            with pytest.raises((TypeError, ValueError), match=message):
                call(space())

    def test_attributes_of_one_tensor_and_functions_of_ours_that_ask_for_a_space(self):
        for name in ("backward", "numpy", "tolist", "item", "grad_fn", "nonsense", "_private"):
            with pytest.raises(AttributeError, match=rf"no attribute '{name}'; x\.levels holds its tensors"):
                getattr(space(), name)
        wrong: Any = torch.ones(1, 2, 4, 4)
        with pytest.raises(TypeError, match=r"expected a ScaleSpace, got a tensor of shape \(1, 2, 4, 4\); lift"):
            functional.global_pool(wrong)
        wrong = [1]
        with pytest.raises(TypeError, match="expected a ScaleSpace, got list"):
            functional.resample(wrong)


def test_branches_of_other_strides_are_refused():
    x = lift(torch.rand(1, 3, 16, 16), 2, sampling="pyramid")
    small, coarse = (F.avg_pool2d(lift(torch.rand(1, 3, n, n), 2, sampling="pyramid"), 2) for n in (16, 32))  # pyright: ignore
    with pytest.raises(ValueError, match=r"same sizes, got .* or bring them together with scalespaces\.resample"):
        _ = x + small
    with pytest.raises(ValueError, match="different grids"):
        _ = x + coarse
