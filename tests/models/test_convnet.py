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
from scalespaces.models import ConvNet, create_model, summarize
from scalespaces.models._convnet import GridPool
from scalespaces.testing import assert_equivariant

SMALL: dict[str, Any] = {"channels": (4, 5, 6), "hidden": 8, "num_classes": 3}


def plain(state, num_convolutions):
    """The head and body for one image, of PyTorch's own layers."""

    def network(f, grid=2):
        for n in range(num_convolutions):
            f = F.conv2d(f, state[f"blocks.{n}.conv.weight"], state[f"blocks.{n}.conv.bias"], padding="same").relu()
            f = norm(state, f"blocks.{n}.norm", F.max_pool2d(f, 2) if n < num_convolutions - 1 else f)
        f = F.linear(F.adaptive_max_pool2d(f, grid).flatten(1), state["hidden.weight"])
        return F.linear(norm(state, "norm", f).relu(), state["linear.weight"], state["linear.bias"])

    return network


def number_of_parameters(channels, kernel_size, grid, hidden, classes, in_channels=1, depth=1):
    convolutions = sum(
        a * b * depth * kernel_size**2 + b for a, b in zip((in_channels, *channels), channels, strict=False)
    )
    norms = 2 * (sum(channels) + hidden)
    return convolutions + norms + grid**2 * channels[-1] * hidden + hidden * classes + classes


@pytest.mark.parametrize("name", ["cnn", "s_cnn"])
def test_as_many_parameters_as_in_sesn(name):
    model = create_model(name)
    number = sum(p.numel() for p in model.parameters())
    assert number == number_of_parameters((32, 63, 95), 7, 2, 256, 10) == 494_549
    assert summarize(model, (1, 28, 28)).parameters == number


def test_other_sizes():
    model = ConvNet(channels=(4, 5, 6, 7), kernel_size=3, grid=1, hidden=8, num_classes=3, in_channels=2)
    number = sum(p.numel() for p in model.parameters())
    assert number == number_of_parameters((4, 5, 6, 7), 3, 1, 8, 3, 2)
    deep = ConvNet(**SMALL, lift={"num_levels": 2}, filter_levels=2)
    assert sum(p.numel() for p in deep.parameters()) == number_of_parameters((4, 5, 6), 7, 2, 8, 3, depth=2)


def test_the_table():
    summary = summarize(create_model("s_cnn", lift={"num_levels": 3}), (1, 28, 28))
    rows = [(layer.layer, layer.shape) for layer in summary.layers]
    assert [row for row in rows if row[0].startswith(("conv", "max", "linear", "scale"))] == [
        ("conv[1,7,7], max pooling", (3, 14, 14, 32)),
        ("conv[1,7,7], max pooling", (3, 7, 7, 63)),
        ("conv[1,7,7]", (3, 7, 7, 95)),
        ("max pooling to 2 x 2", (3, 380)),
        ("linear", (3, 256)),
        ("linear", (3, 10)),
        ("scale-pool", (1, 10)),
    ]


# --- an independent implementation -----------------------------------------------------------------------------------


@pytest.mark.parametrize("scale_pool", POOLS)
@pytest.mark.parametrize("size", [(28, 28), (21, 30)])
def test_each_level_is_what_the_plain_network_makes_of_it(size, scale_pool):
    model = scramble(ConvNet(**SMALL, lift={"num_levels": 3, "base": 2**0.5}, scale_pool=scale_pool)).double()
    image = torch.rand(2, 1, *size, dtype=torch.float64)
    network = plain(model.state_dict(), 3)
    expected = [network(level) for level in lift(image, 3, 2**0.5).levels]
    answer, scores = model.answer_and_scores(image)
    assert_close(scores.levels, tuple(expected))
    assert_close(answer, POOLS[scale_pool](torch.stack(expected)))


def test_one_level_is_a_plain_network():
    model = scramble(create_model("cnn"))
    image = torch.rand(2, 1, 28, 28)
    assert model.lift(image).levels[0] is image
    assert_close(model(image), plain(model.state_dict(), 3)(image))


@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 9))
def test_the_grid_is_torchs(cells, height, width):
    image = torch.rand(2, 3, height, width)
    found = GridPool(cells)(lift(image, 1)).levels[0]
    assert torch.equal(found, F.adaptive_max_pool2d(image, cells).flatten(1))


def test_batch_statistics_are_those_of_all_levels_with_equal_weight():
    model = ConvNet(**SMALL, lift={"num_levels": 3}, dropout=0.0)
    seen: list[Any] = []
    model.hidden.register_forward_hook(lambda module, args, output: seen.append(output))
    model(torch.rand(5, 1, 28, 28))
    values = torch.stack(seen[0].levels).flatten(0, 1)
    assert_close(model.norm.running_mean, 0.1 * values.mean(0))
    assert_close(model.norm.running_var, 0.9 + 0.1 * values.var(0))


def test_dropout_is_for_training_only():
    model = ConvNet(**SMALL, lift={"num_levels": 2}, dropout=0.5)
    image = torch.rand(4, 1, 28, 28)
    seen: list[Any] = []
    model.dropout.register_forward_hook(lambda module, args, output: seen.append((args[0].levels, output.levels)))
    model(image)
    model.eval()(image)
    (before, after), (kept, same) = seen
    assert torch.equal(torch.stack(kept), torch.stack(same))
    dropped = torch.stack(after) == 0
    assert_close(torch.stack(after), torch.stack(before) * 2 * ~dropped)
    assert 0.3 < (dropped & (torch.stack(before) > 0)).sum() / (torch.stack(before) > 0).sum() < 0.7


# --- scale -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [2.0, 2**0.5])
@pytest.mark.parametrize("depth", [1, 2])
def test_features_and_scores_commute_with_scale(base, depth):
    levels: dict[str, Any] = {"num_levels": 3, "base": base}
    model = scramble(ConvNet(**SMALL, lift=levels, filter_levels=depth, scale_padding="valid")).double()
    assert model.lift.num_levels == 3 + 3 * (depth - 1)
    image = torch.rand(1, 1, 161, 197, dtype=torch.float64)
    assert_equivariant(model.features, image, shifts=[1], tolerance=1e-10)
    assert_equivariant(model, image, shifts=[1], tolerance=1e-10)


@pytest.mark.parametrize("scale_padding", ["zeros", "replicate", "valid"])
def test_deep_filters_anywhere(scale_padding):
    model: Any = ConvNet(**SMALL, lift={"num_levels": 3}, filter_levels=(2, 1, 3), scale_padding=scale_padding)
    assert [block.conv.kernel_size for block in model.blocks] == [(k, 7, 7) for k in (2, 1, 3)]
    assert model.features(torch.rand(1, 1, 130, 130)).num_levels == 3
    assert model.lift.num_levels == (3 + 1 + 2 if scale_padding == "valid" else 3)
