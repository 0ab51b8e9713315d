"""A filter on an upsampled level in one transposed convolution, against the two steps."""

import math
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from scalespaces import lift
from scalespaces.functional import _conv as conv
from scalespaces.functional import avg_pool, scale_conv
from scalespaces.functional._fast import _choice
from scalespaces.functional._fast._fold import Fold, fold_axis, upsampled_conv
from scalespaces.functional._sampling import sample

CONV: dict[int, Any] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def in_two_steps(f: Tensor, weight: Tensor, folds: list[Fold]) -> Tensor:
    for axis, fold in enumerate(folds, 2):
        f = sample(f, axis, 1 / fold.finer, fold.offset, fold.size)
    return CONV[len(folds)](f, weight, padding=[taps // 2 for taps in weight.shape[2:]])


@st.composite
def foldings(draw: Any) -> list[Fold]:
    finer, folds = draw(st.sampled_from([2, 3, 4])), []
    for _ in range(draw(st.integers(1, 3))):
        samples, taps = draw(st.integers(2, 5)), draw(st.sampled_from([1, 3]))
        size = draw(st.integers(max(2, finer * (samples - 1) - 1), finer * samples + 1))
        offset = draw(st.sampled_from([0.0, -1 / 8, -3 / 16, 0.1, -0.3, 1 / finer]))
        folds.append(fold_axis(1 / finer, offset, size, samples, taps, (taps // 2, taps // 2)))
    assume(None not in folds)
    return folds


def halves(size: int, samples: int, offset: float = 0.0) -> Fold:
    fold = fold_axis(1 / 2, offset, size, samples, 3, (1, 1))
    assert fold is not None
    return fold


def make_operands(folds: list[Fold], dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    f = torch.randn(2, 3, *(fold.samples for fold in folds), dtype=dtype, requires_grad=True)
    return f, torch.randn(4, 3, *(fold.taps for fold in folds), dtype=dtype, requires_grad=True)


class TestOneFilter:
    @given(foldings(), st.sampled_from([torch.float64, torch.float32]))
    def test_is_the_two_steps(self, folds, dtype):
        operands = make_operands(folds, dtype)
        limit = 1e-12 if dtype == torch.float64 else 1e-5
        got, expected = upsampled_conv(*operands, folds), in_two_steps(*operands, folds)
        assert_close(got, expected, rtol=limit, atol=limit)
        back = torch.randn_like(got)
        gradients, exact = (torch.autograd.grad(out, operands, back) for out in (got, expected))
        if dtype == torch.float64:
            assert_close(gradients, exact, rtol=limit, atol=limit)
        for mine, theirs in zip(gradients, exact, strict=True):
            assert (mine - theirs).norm() <= limit * theirs.norm()

    def test_one_of_the_gradients_and_those_of_gradients(self):
        folds = [halves(8, 4), halves(7, 4)]
        for wanted in (0, 1):
            operands = make_operands(folds)
            operands[1 - wanted].requires_grad_(False)
            outs = (function(*operands, folds).sum() for function in (upsampled_conv, in_two_steps))
            assert_close(*(torch.autograd.grad(out, operands[wanted]) for out in outs))
        folds = [halves(6, 3, -1 / 8)]
        assert torch.autograd.gradgradcheck(lambda f, w: upsampled_conv(f, w, folds), make_operands(folds))

    @pytest.mark.parametrize("inside", [False, True])
    def test_autocast(self, inside):
        """Doubles are left alone; the gradient is taken inside or outside."""
        folds = [halves(8, 4)] * 2
        operands, doubles = make_operands(folds, torch.float32), make_operands(folds)
        with torch.autocast("cpu", torch.bfloat16):
            got, expected = upsampled_conv(*operands, folds), in_two_steps(*operands, folds)
            precise = upsampled_conv(*doubles, folds)
        assert got.dtype == expected.dtype == torch.bfloat16
        assert_close(got, expected, rtol=0.05, atol=0.1)
        assert_close(precise, in_two_steps(*doubles, folds), rtol=1e-12, atol=1e-12)
        with torch.autocast("cpu", torch.bfloat16, enabled=inside):
            gradients = torch.autograd.grad(got.float().square().sum(), operands)
        exact = torch.autograd.grad(in_two_steps(*operands, folds).square().sum(), operands)
        for mine, theirs in zip(gradients, exact, strict=True):
            assert mine.dtype == torch.float32
            assert (mine - theirs).norm() < 0.02 * theirs.norm()


def test_others_do_not_fold():
    for ratio, taps, padding in ((1 / 1.5, 3, 1), (1.0, 3, 1), (2.0, 3, 1), (1 / 2, 5, 2), (1 / 2, 3, 0)):
        assert fold_axis(ratio, 0.0, 8, 4, taps, (padding, padding)) is None


class TestScaleConv:
    """With and without folding, the same correlation."""

    @pytest.mark.parametrize("depth", [2, 3])
    @pytest.mark.parametrize("base", [2.0, 3.0])
    @pytest.mark.parametrize("pooled", [0, 1, 2])
    @pytest.mark.parametrize("scale_padding", ["zeros", "valid", "replicate"])
    @pytest.mark.parametrize("size", [(28, 28), (29, 33)])
    def test_same_result(self, monkeypatch, depth, base, pooled, scale_padding, size):
        x: Any = lift(torch.randn(2, 3, *size, dtype=torch.float64), 3, base, sampling="pyramid")
        for _ in range(pooled):
            x = avg_pool(x, 2)
        leaves = [level.requires_grad_() for level in x.map(torch.clone).levels]
        x = x.replace(tuple(leaves))
        weight = torch.randn(4, 3, depth, 3, 3, dtype=torch.float64, requires_grad=True)
        bias = torch.randn(4, dtype=torch.float64, requires_grad=True)
        results = []
        for least in (-math.inf, math.inf):
            monkeypatch.setitem(_choice._WORTH_FOLDING, "cpu", least)
            out = scale_conv(x, weight, bias, scale_padding=scale_padding)
            torch.manual_seed(0)
            back = [torch.randn_like(level) for level in out.levels]
            used = [weight, bias, *leaves]
            results.append((out.levels, torch.autograd.grad(out.levels, used, back, allow_unused=True)))
        assert_close(results[0], results[1], rtol=1e-12, atol=1e-12)

    def test_transforms(self, monkeypatch):
        monkeypatch.setitem(_choice._WORTH_FOLDING, "cpu", -math.inf)
        x = lift(torch.randn(1, 3, 16, 16, dtype=torch.float64), 3, sampling="pyramid")
        weight = torch.randn(2, 3, 2, 3, 3, dtype=torch.float64, requires_grad=True)

        def total(weight: Tensor) -> Tensor:
            return torch.stack([level.square().sum() for level in scale_conv(x, weight).levels]).sum()

        (expected,) = torch.autograd.grad(total(weight), weight)
        assert_close(torch.func.grad(total)(weight.detach()), expected)
        tangent = torch.randn_like(expected)
        assert_close(torch.func.jvp(total, (weight.detach(),), (tangent,))[1], (expected * tangent).sum())

    def test_folds_where_it_pays(self, monkeypatch):
        """A large pyramid goes through the transposed convolution; the meta device decides by the same sizes."""
        calls: list[int] = []
        monkeypatch.setattr(conv, "upsampled_conv", lambda f, w, folds: calls.append(f.shape[2]) or f.new_zeros(()))
        f, weight = (torch.empty(size, device="meta") for size in ((2, 64, 128, 128), (64, 64, 2, 3, 3)))
        x = lift(f, 2, sampling="pyramid")
        scale_conv(x, weight)
        assert calls == [64]
        others: list[dict[str, Any]] = [{"stride": 2}, {"dilation": 2}, {"padding_mode": "reflect"}]
        for other in others:
            scale_conv(x, weight, **other)
        scale_conv(lift(f, 2, sampling="dense"), weight)
        scale_conv(lift(f[:1, :4, :8, :8], 2, sampling="pyramid"), weight[:4, :4])
        assert calls == [64]
