"""The spatial axes are followed wherever they go; sizes that differ between levels compute like numbers."""

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from reference import assert_levelwise, refusals, space
from torch.nn import functional as F
from torch.testing import assert_close

from scalespaces import functional, lift
from scalespaces.space._per_level import PerLevel

MOVES: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "permute": (lambda x: x.permute(0, 2, 3, 1), (1, 2)),
    "permute from the end": (lambda x: x.permute(-1, 0, 1, -2), (3, 0)),
    "transpose": (lambda x: x.transpose(2, 3), (3, 2)),
    "swapaxes": (lambda x: x.swapaxes(0, 2), (0, 3)),
    "movedim": (lambda x: torch.movedim(x, 1, 3), (1, 2)),
    "movedim of two": (lambda x: x.movedim((2, 3), (0, 1)), (0, 1)),
    "channel groups": (lambda x: x.view(x.size(0), 2, 2, x.size(2), x.size(3)), (3, 4)),
    "channel groups by unflatten": (lambda x: x.unflatten(1, (2, 2)), (3, 4)),
    "channel shuffle": (lambda x: x.view(2, 2, 2, *x.shape[2:]).transpose(1, 2).reshape(x.shape), (2, 3)),
    "batch and channels merged": (lambda x: x.flatten(0, 1), (1, 2)),
    "unsqueeze": (lambda x: x.unsqueeze(1), (3, 4)),
    "None": (lambda x: x[:, :, None], (3, 4)),
    "None and dots": (lambda x: x[:, None, ..., None], (3, 4)),
    "there and back": (lambda x: x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2), (2, 3)),
    "stack": (lambda x: torch.stack([x, x], 1), (3, 4)),
    "sum over channels": (lambda x: x.sum(1), (1, 2)),
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

    def test_one_axis_of_space_may_go_and_one_of_a_single_sample_may_stay(self):
        x = space()
        for got in (x.mean(2), x.permute(0, 2, 3, 1).sum(dim=1)):
            assert (got.unit, got.origins) == (x.unit[1:], tuple(origin[1:] for origin in x.origins))
            assert [got.sizes(k) for k in range(3)] == [x.sizes(k)[1:] for k in range(3)]
        mean = x.mean(3, keepdim=True)
        assert mean.axes == (2, 3)
        assert_levelwise(mean * x, lambda level: level.mean(3, keepdim=True) * level, x)
        assert mean.squeeze(3).unit == x.unit[:1]
        assert x.mean((2, 3), keepdim=True).flatten(2).dims == 1

    def test_levels_can_be_resampled_wherever_their_axes_are(self):
        x = lift(torch.rand(1, 4, 9, 7), 3, sampling="pyramid")
        got = functional.resample(x.permute(0, 2, 3, 1))
        assert_close(torch.stack(got.levels), torch.stack(functional.resample(x).levels).movedim(2, -1))

    def test_a_crop_at_the_end_leaves_the_grids_where_they_are_and_channels_can_be_written(self):
        x = space()
        for stop, ends in ((3, {9: 3, 5: 3, 3: 3}), (PerLevel((6, 3, 2)), {9: 6, 5: 3, 3: 2})):
            assert_levelwise(x[:, :, :stop], lambda level, ends=ends: level[:, :, : ends[level.shape[2]]], x)
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

    def test_rounding(self):
        n = PerLevel((9, 5, 3))
        assert type(n - n) is type(n % 2) is int  # what all levels share is a number
        half = PerLevel((9, 5, 4)) / 2
        assert math.ceil(half).values == (5, 3, 2)
        assert math.floor(half).values == (4, 2, 2)
        assert round(half).values == (4, 2, 2)
        assert (-half).values == (-4.5, -2.5, -2)
        assert divmod(PerLevel((9, 5)), 2) == (PerLevel((4, 2)), 1)

    def test_comparisons_answer_or_refuse(self):
        n = PerLevel((9, 5, 4))
        assert (n > 3, n >= 10, n == PerLevel((9, 5, 4)), n != (3,), bool(n)) == (True, False, True, True, True)
        assert max(n, 0) is n
        for branch in (lambda: n > 4, lambda: n == 5, lambda: n % 2 == 1, lambda: bool(n - 4), lambda: max(n, 5)):
            with pytest.raises(ValueError, match="branch differently at different levels"):
                branch()

    def test_each_level_gets_its_own(self):
        x = space()
        assert_levelwise(x.new_zeros(2, 4, x.size(2), x.size(3)), torch.zeros_like, x)
        area = x.size(2) * x.size(3)
        for got in (x / area, x * (1 / area)):
            assert_close(got.levels, tuple(level / (level.shape[2] * level.shape[3]) for level in x.levels))
        assert_close((area * x).levels, (x * area).levels)
        assert x.shape == (x + 1).shape
        assert (x.shape[-2:], x.shape[:2], x.shape.numel()) == (x.shape[2:], (2, 4), x.numel())
        _, _, height, width = x.shape
        assert height * width == PerLevel((63, 20, 6))


NUMBER: Any = PerLevel((9, 5, 4))
USES: list[Callable[[Any], Any]] = [int, float, range, lambda n: [0] * n, lambda n: torch.ones(9)[:n]]
MAKERS: list[Callable[[Any], Any]] = [lambda n: torch.zeros((1, 2, n, n)), lambda n: torch.randn((1, n))]
MAKERS += [torch.arange, lambda n: torch.empty((n,)), lambda n: torch.ones(6).view(n, -1)]
# Older versions of PyTorch refuse by themselves, in words of their own.
HINT = r"PerLevel\(9, 5, 4\).*x\.new_zeros" if torch.__version__ >= "2.13" else "PerLevel"

test_is_not_one_number = refusals(
    *[(lambda use=use: use(NUMBER), "differs between levels") for use in USES],
    *[(lambda make=make: make(NUMBER), HINT) for make in MAKERS],
    error=TypeError,
)
