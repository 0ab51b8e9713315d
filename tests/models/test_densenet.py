"""The DenseNets: the supplement's table, an independent implementation of it, and the symmetries they keep."""

from typing import Any

import pytest
import torch
from models.networks import corr, norm, scramble
from reference import paper_lift
from torch.nn import functional as F
from torch.testing import assert_close

from scalespaces import ScaleSpace
from scalespaces.models import create_model
from scalespaces.semigroups._p4 import transform_image
from scalespaces.testing import assert_equivariant, equivariance_error


def reference(state, levels, growth, num_layers=3):
    """The network in evaluation, as a list of levels, dilated convolutions and PyTorch's own layers."""

    def layer(name, x):
        return corr(state[f"{name}.conv.weight"], [norm(state, f"{name}.norm", f).relu() for f in x])

    def pool(x):
        return [F.avg_pool2d(f, 2) for f in x]

    def cat(x, y):
        return [torch.cat(pair, 1) for pair in zip(x, y, strict=True)]

    x = levels
    for stage in range(len(growth)):
        given = x
        for n in range(num_layers):
            x = cat(x, layer(f"blocks.{stage}.layers.{n}", x))
        if stage < len(growth) - 1:
            x = layer(f"transitions.{stage}.mix", pool(layer(f"transitions.{stage}.reduce", x)))
            x = cat(x, pool(given))
    pooled = torch.stack([f.mean((2, 3)) for f in x]).mean(0)
    return x, F.linear(pooled, state["linear.weight"], state["linear.bias"])


@pytest.mark.parametrize("size", [(24, 24), (21, 30)])
@pytest.mark.parametrize("name", ["densenet", "s_densenet"])
def test_agrees_with_an_independent_implementation(name, size):
    model = scramble(create_model(name, preset="paper")).double()
    image = torch.rand(2, 3, *size, dtype=torch.float64)
    levels = list(paper_lift(image, 4 if name == "s_densenet" else 1).levels)
    features, scores = reference(model.state_dict(), levels, (12, 24, 48))
    assert_close(model.features(image).levels, tuple(features))
    assert_close(model(image), scores)


@pytest.mark.parametrize("size", [(97, 80), (103, 96)])
@pytest.mark.parametrize("base", [2.0, 1.5])
def test_features_commute_with_scale(base, size):
    arguments: dict[str, Any] = {"lift": {"num_levels": 3, "base": base}, "growth": (2, 3, 4), "num_layers": 1}
    model = scramble(create_model("s_densenet", scale_padding="valid", **arguments)).double()
    assert model.lift.num_levels == 3 + 4
    image = torch.rand(1, 3, *[2 * n for n in size], dtype=torch.float64)
    assert_equivariant(model.features, image, shifts=[1])
    assert_equivariant(model, image, shifts=[1])


def test_scores_commute_before_the_boundary():
    model = scramble(create_model("s_densenet", lift={"num_levels": 6}, growth=(2, 3, 4), num_layers=1)).double()
    image = torch.rand(1, 3, 200, 194, dtype=torch.float64)
    assert_equivariant(model, image, shifts=[1])
    assert equivariance_error(model, image, shifts=[1]).boundary == 6 - 2 * 2


def test_scale_map_names_the_level_that_speaks_for_the_class():
    model: Any = create_model("s_densenet", lift={"num_levels": 3, "first_level": -1}, filter_levels=1)
    wanted = torch.zeros(1, 213, 6, 5)
    wanted[:, 0] = 1.0
    pushed = torch.zeros_like(wanted)
    pushed[:, 0, :3] = 9.0
    levels = [torch.zeros(1, 213, 6, 5), wanted, pushed]
    space = ScaleSpace(tuple(levels), base=2.0, unit=(4.0, 4.0), origins=((1.5 / 4,) * 2,) * 3, first_level=-1)
    model.body = lambda _: space
    with torch.no_grad():
        model.linear.weight.zero_()
        model.linear.weight[1, 0] = 1.0
    scales = model.scale_map(torch.rand(1, 3, 24, 20))
    assert (scales[:, :9] == 1).all()
    assert (scales[:, 14:] == 0).all()


@pytest.mark.parametrize("group", ["p4", "p4m"])
@pytest.mark.parametrize(
    "scale", [{}, {"preset": "paper", "lift": {"num_levels": 2}, "filter_levels": 2}], ids=["plain", "with scale"]
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_p4m_is_invariant_under_the_symmetries(group, scale, dtype, tolerance):
    model = scramble(create_model("p4m_densenet", group=group, growth=(2, 2, 2), **scale)).to(dtype)
    image = torch.rand(2, 3, 16, 20, dtype=dtype)
    expected = model(image)
    for element in range(4 if group == "p4" else 8):
        assert_close(model(transform_image(image, element)), expected, rtol=0, atol=tolerance)


def test_p4m_needs_sides_divisible_by_four():
    model = scramble(create_model("p4m_densenet")).double()
    odd = torch.rand(1, 3, 30, 26, dtype=torch.float64)
    assert (model(transform_image(odd, 2)) - model(odd)).abs().max() > 1e-6


def test_p4m_starts_as_the_identity_when_asked_to():
    model: Any = create_model("p4m_densenet", init="paper", growth=(3, 3, 3))
    layer = model.blocks[0].layers[0].conv
    f = torch.rand(1, 24, 9, 9)
    with torch.no_grad():
        layer.weight[layer.weight.abs() < 0.5] = 0
    assert_close(layer(ScaleSpace((f,))).levels[0], f)
