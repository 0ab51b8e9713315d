"""The ResNets: the supplement's table, an independent implementation of it, and scale."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from models.networks import corr, norm, scramble
from reference import paper_lift
from torch.nn import functional as F
from torch.testing import assert_close

from scalespaces import ScaleSpace
from scalespaces.models import ResNet, create_model
from scalespaces.models._paper import Upsample
from scalespaces.nn import ScaleAvgPool
from scalespaces.testing import assert_equivariant, equivariance_error


def reference(state, levels):
    """The network in evaluation, as a list of levels, dilated convolutions and PyTorch's own layers."""

    def branch(n, x):
        x = [norm(state, f"blocks.{n}.norm1", f).relu() for f in corr(state[f"blocks.{n}.conv1.weight"], x)]
        return [norm(state, f"blocks.{n}.norm2", f) for f in corr(state[f"blocks.{n}.conv2.weight"], x)]

    x = levels
    for n in range(9):
        if n in (1, 2, 4):
            x = [F.avg_pool2d(f, 2) for f in x]
        y = branch(n, x)
        if n < 8:
            for before, after in zip(x, y, strict=True):
                after[:, : before.shape[1]] += before
        x = y
    scores = [F.conv2d(f, state["classifier.weight"], state["classifier.bias"]) for f in x]
    return x, torch.stack([F.interpolate(s, scale_factor=8, mode="bilinear", align_corners=False) for s in scores])


@pytest.mark.parametrize("name", ["resnet", "resnet_matched_parameters", "s_resnet", "s_resnet_no_interaction"])
def test_agrees_with_an_independent_implementation(name):
    model = scramble(create_model(name, preset="paper")).double()
    image = torch.rand(1, 3, 24, 32, dtype=torch.float64)
    levels = list(paper_lift(image, 4 if name.startswith("s_") else 1).levels)
    with torch.no_grad():
        features, scores = reference(model.state_dict(), levels)
        assert_close(model.features(image).levels, tuple(features))
        assert_close(model(image), scores.mean(0))
        predicted = scores.mean(0).argmax(1)[None, :, None].expand(len(scores), -1, -1, -1, -1)
        strongest = scores.gather(2, predicted).argmax(0)[:, 0]
        assert (model.scale_map(image) == strongest).double().mean() > 0.99  # rounding may decide a tie


@given(
    st.tuples(st.integers(57, 90), st.integers(57, 90)),
    st.sampled_from([("dense", 2.0), ("pyramid", 2.0), (2, 2.0), ("pyramid", 1.5), ("dense", 1.5)]),
    st.sampled_from(["zeros", "replicate"]),
)
def test_any_size_comes_back(size, grid, scale_padding):
    levels = {"num_levels": 4, "sampling": grid[0], "base": grid[1]}
    model = ResNet(3, 1, 2, levels, filter_levels=2, scale_padding=scale_padding, window="plain").eval()
    image = torch.rand(1, 1, *size)
    with torch.no_grad():
        assert (model(image).shape, model.scale_map(image).shape) == ((1, 3, *size), (1, *size))
    assert model(image).isfinite().all()


@given(st.integers(16, 60), st.integers(0, 3))
def test_upsampling_puts_every_sample_back_where_it_was(side, poolings):
    """Pooled positions, upsampled, are the positions, except where the last samples were left over."""
    x = ScaleSpace((torch.arange(side, dtype=torch.float64).expand(1, 1, side, side),))
    for _ in range(poolings):
        x = ScaleAvgPool(2)(x)
    out = Upsample()(x, (side, side))
    reach = 2**poolings
    inside = slice(reach // 2, (side // reach - 1) * reach + reach // 2)
    assert_close(out[..., inside], torch.arange(side, dtype=torch.float64).expand_as(out)[..., inside])


@pytest.mark.parametrize("size", [(129, 120), (131, 114)])
def test_multiscale_features_commute_with_scale(size):
    model = scramble(create_model("s_resnet", lift={"num_levels": 2}, scale_padding="valid", width=4)).double()
    assert model.lift.num_levels == 2 + 5
    image = torch.rand(1, 3, *size, dtype=torch.float64)
    assert_equivariant(model.features, image)
    assert_equivariant(model, image)


@pytest.mark.parametrize("scale_padding", ["zeros", "replicate", "valid"])
def test_features_without_interaction_commute_at_every_level(scale_padding):
    model = scramble(create_model("s_resnet_no_interaction", scale_padding=scale_padding, width=4)).double()
    assert_equivariant(model.features, torch.rand(1, 3, 130, 117, dtype=torch.float64), shifts=[1])


@pytest.mark.parametrize("window", ["plain", "dilated"])
def test_dense_sampling_commutes_with_dilated_windows_only(window):
    dense = {"num_levels": 3, "sampling": "dense"}
    model = scramble(create_model("s_resnet_no_interaction", width=4, lift=dense, window=window)).double()
    image = torch.rand(1, 3, 65, 61, dtype=torch.float64)
    if window == "dilated":
        assert_equivariant(model.features, image, tolerance=1e-12, shifts=[1])
    else:
        assert np.nanmax(equivariance_error(model.features, image, shifts=[1]).errors) > 1e-3
