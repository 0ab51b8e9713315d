"""The rivals compute the same as the library: plain networks with one level, the paper's algorithm on dense levels."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from benchmarks import _rivals as rivals
from scalespaces import ScaleSpace, models
from scalespaces.functional import scale_conv

CLOSE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}


@given(st.integers(1, 4), st.integers(1, 3), st.sampled_from([1, 3, 5]), st.tuples(*[st.integers(4, 12)] * 2))
def test_the_papers_correlation_is_ours_on_dense_levels(levels, depth, side, size):
    x = torch.randn(2, 3, levels, *size, dtype=torch.float64)
    weight = torch.randn(4, 3, depth, side, side, dtype=torch.float64)
    bias = torch.randn(4, dtype=torch.float64)
    ours = scale_conv(ScaleSpace.unstack(x), weight, bias).stack()
    assert_close(rivals.scale_conv(x, rivals.side_by_side(weight), bias), ours)


def scrambled(name: str, **arguments: Any) -> models.ScaleNetwork:
    """A network in float64 with weights and statistics as training leaves them."""
    model = models.create_model(name, preset="paper", **arguments).double()
    for key, tensor in model.state_dict().items():
        if "norm" in key and tensor.is_floating_point():
            tensor.uniform_(0.5, 1.5)
        elif tensor.is_floating_point():
            tensor.add_(0.05 * torch.randn_like(tensor))
    return model


CASES = [
    ("resnet", {"width": 4}, 48),
    ("densenet", {"growth": (2, 4, 8)}, 32),
    ("s_resnet", {"width": 4}, 64),
    ("s_resnet_no_interaction", {"width": 4}, 64),
    ("s_resnet", {"width": 4, "lift": {"method": "cascade", "num_levels": 3}}, 64),
    ("s_densenet", {"growth": (2, 4, 8)}, 48),
]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("name", "arguments", "side"), CASES)
def test_rivals_compute_the_same(name, arguments, side, channels_last):
    ours = scrambled(name, **arguments)
    theirs: Any = rivals.rival(ours)
    assert not {p.data_ptr() for p in ours.parameters()} & {p.data_ptr() for p in theirs.parameters()}
    image = torch.rand(2, 3, side, side + 16, dtype=torch.float64)
    if channels_last:
        image = image.contiguous(memory_format=torch.channels_last)
        theirs = theirs.to(memory_format=torch.channels_last)
    for training in (False, True):
        outputs = [model.train(training)(image) for model in (ours, theirs)]
        assert_close(*outputs, **CLOSE)
        assert outputs[0].std() > 1e-3
        gradient = torch.randn_like(outputs[0])
        for model, output in zip((ours, theirs), outputs, strict=True):
            model.zero_grad()
            output.backward(gradient)
        found = dict(theirs.named_parameters())
        for key, parameter in ours.named_parameters():
            assert parameter.grad is not None
            assert_close(found.pop(key).grad, rivals.side_by_side(parameter.grad), **CLOSE)
        assert found == {}
    statistics = theirs.state_dict()  # those that training left
    for key, tensor in ours.state_dict().items():
        assert_close(statistics[key], rivals.side_by_side(tensor), **CLOSE)
