"""Interpolation phase by phase, against NumPy's."""

from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from scalespaces.functional._fast._finer import Finer, make_finer


@st.composite
def plans(draw: Any) -> Finer:
    factor, samples = draw(st.integers(2, 4)), draw(st.integers(1, 7))
    offset = draw(st.sampled_from([0.0, -1 / 8, 0.3, -1.2, 1.7, 1 / factor, -1 / 2, 9.0, -9.0]))
    return Finer(draw(st.integers(2, 4)), factor, offset, samples, draw(st.integers(1, factor * samples + 3)))


@given(plans())
def test_is_linear_interpolation(plan):
    shape = [2, 3, 4, 4, 4]
    shape[plan.axis] = plan.samples
    x = torch.randn(shape, dtype=torch.float64)
    places = plan.offset + np.arange(plan.size) / plan.factor  # outside, np.interp repeats the ends
    expected = np.apply_along_axis(lambda f: np.interp(places, np.arange(plan.samples), f), plan.axis, x.numpy())
    assert_close(make_finer(x, plan), torch.as_tensor(expected))


@given(plans())
def test_the_gradient_is_the_adjoint(plan):
    """Of a linear map: <A x, y> = <x, A' y> for all x and y."""
    shape = [1, 1, 2, 2, 2]
    shape[plan.axis] = plan.samples
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    out = make_finer(x, plan)
    y = torch.randn_like(out)
    (back,) = torch.autograd.grad(out, x, y)
    assert_close((out * y).sum(), (x * back).sum())


def test_gradients_of_gradients():
    plan = Finer(2, 2, -1 / 8, 3, 6)
    x = torch.randn(1, 2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: make_finer(x, plan) ** 2, x)


def test_memory_format_is_kept():
    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last).requires_grad_()
    out = make_finer(make_finer(x, Finer(2, 2, 0.0, 4, 8)), Finer(3, 2, 0.0, 5, 10))
    assert out.is_contiguous(memory_format=torch.channels_last)
    (back,) = torch.autograd.grad(out, x, torch.ones_like(out))
    assert back.is_contiguous(memory_format=torch.channels_last)


def test_many_gradients_at_once():
    plan = Finer(2, 2, -1 / 8, 3, 6)
    x = torch.randn(1, 2, 3, dtype=torch.float64)
    slow, fast = (
        torch.autograd.functional.jacobian(lambda x: make_finer(x, plan), x, vectorize=v) for v in (False, True)
    )
    assert_close(fast, slow)
