"""The small CNN: its size, an independent implementation of it, and scale."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from models.networks import POOLS, norm, scramble
from torch.nn import functional as F
from torch.testing import assert_close

from scalespaces import lift
from scalespaces.models import ConvNet
from scalespaces.models._convnet import GridPool
from scalespaces.testing import assert_equivariant

SMALL: dict[str, Any] = {"channels": (4, 5, 6), "hidden": 8, "num_classes": 3}


def plain(state, f):
    """The body and head for one image, of PyTorch's own layers."""
    for n in range(3):
        f = F.conv2d(f, state[f"blocks.{n}.conv.weight"], state[f"blocks.{n}.conv.bias"], padding="same").relu()
        f = norm(state, f"blocks.{n}.norm", F.max_pool2d(f, 2) if n < 2 else f)
    f = F.linear(F.adaptive_max_pool2d(f, 2).flatten(1), state["hidden.weight"])
    return F.linear(norm(state, "norm", f).relu(), state["linear.weight"], state["linear.bias"])


@pytest.mark.parametrize("scale_pool", POOLS)
@pytest.mark.parametrize("size", [(28, 28), (21, 30)])
def test_each_level_is_what_the_plain_network_makes_of_it(size, scale_pool):
    model = scramble(ConvNet(**SMALL, lift={"num_levels": 3, "base": 2**0.5}, scale_pool=scale_pool)).double()
    image = torch.rand(2, 1, *size, dtype=torch.float64)
    expected = [plain(model.state_dict(), level) for level in lift(image, 3, 2**0.5).levels]
    answer, scores = model.answer_and_scores(image)
    assert_close(scores.levels, tuple(expected))
    assert_close(answer, POOLS[scale_pool](torch.stack(expected)))


@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 9))
def test_the_grid_is_torchs(cells, height, width):
    image = torch.rand(2, 3, height, width)
    found = GridPool(cells)(lift(image, 1)).levels[0]
    assert torch.equal(found, F.adaptive_max_pool2d(image, cells).flatten(1))


@pytest.mark.parametrize("base", [2.0, 2**0.5])
@pytest.mark.parametrize("depth", [1, 2])
def test_features_and_scores_commute_with_scale(base, depth):
    levels: dict[str, Any] = {"num_levels": 3, "base": base}
    model = scramble(ConvNet(**SMALL, lift=levels, filter_levels=depth, scale_padding="valid")).double()
    assert model.lift.num_levels == 3 + 3 * (depth - 1)
    image = torch.rand(1, 1, 161, 197, dtype=torch.float64)
    assert_equivariant(model.features, image, shifts=[1], tolerance=1e-10)
    assert_equivariant(model, image, shifts=[1], tolerance=1e-10)
