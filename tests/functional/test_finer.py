"""Interpolation phase by phase, and all phases at once as on a GPU, against NumPy's."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from scalespaces.functional._fast._choice import acting_as
from scalespaces.functional._fast._finer import Finer, make_finer


@pytest.fixture(params=["cpu", "cuda"], autouse=True, scope="module")
def kind(request):
    """The kind of device that the way is chosen for."""
    with acting_as(request.param):
        yield


@st.composite
def plans(draw: Any) -> Finer:
    factor, samples = draw(st.integers(2, 4)), draw(st.integers(1, 7))
    offset = draw(st.sampled_from([0.0, -1 / 8, 0.3, -1.2, 1.7, 1 / factor, -1 / 2, 9.0, -9.0]))
    return Finer(draw(st.integers(2, 4)), factor, offset, samples, draw(st.integers(1, factor * samples + 3)))


def coarse(plan: Finer, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    sizes = [plan.samples if axis == plan.axis else n for axis, n in enumerate(shape)]
    return torch.randn(sizes, dtype=dtype, requires_grad=True)


@given(plans(), st.sampled_from([torch.float64, torch.float32]))
def test_is_linear_interpolation(plan, dtype):
    x = coarse(plan, 2, 3, 4, 4, 4, dtype=dtype)
    places = plan.offset + np.arange(plan.size) / plan.factor  # outside, np.interp repeats the ends
    expected = np.apply_along_axis(
        lambda f: np.interp(places, np.arange(plan.samples), f), plan.axis, x.detach().double().numpy()
    )
    out = make_finer(x, plan)
    assert_close(out, torch.as_tensor(expected, dtype=dtype))
    if dtype == torch.float64:  # the gradient is the adjoint of a linear map: <A x, y> = <x, A' y> for all x and y
        y = torch.randn_like(out)
        (back,) = torch.autograd.grad(out, x, y)
        assert_close((out * y).sum(), (x * back).sum())


@pytest.mark.parametrize("plan", [Finer(2, 2, -1 / 8, 3, 6), Finer(3, 3, 0.3, 2, 7), Finer(1, 2, 1.7, 4, 5)])
def test_gradients(plan):
    x = coarse(plan, 1, 2, 3, 2)
    assert torch.autograd.gradcheck(lambda x: make_finer(x, plan), x)
    assert torch.autograd.gradgradcheck(lambda x: make_finer(x, plan) ** 2, x)
    slow, fast = (
        torch.autograd.functional.jacobian(lambda x: make_finer(x, plan), x, vectorize=v) for v in (False, True)
    )
    assert_close(fast, slow)


def test_memory_format_is_kept():
    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last).requires_grad_()
    out = make_finer(make_finer(x, Finer(2, 2, 0.0, 4, 8)), Finer(3, 2, 0.0, 5, 10))
    assert out.is_contiguous(memory_format=torch.channels_last)
    (back,) = torch.autograd.grad(out, x, torch.ones_like(out))
    assert back.is_contiguous(memory_format=torch.channels_last)
