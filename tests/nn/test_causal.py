"""Causal networks: no output knows the future, all of them scale, and torch's tools take them."""

from typing import Any

import numpy as np
import pytest
import torch
from algebra import assert_same, times
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from scalespaces import ScaleSpace, equivariance_error, feature_pyramid
from scalespaces import nn as scale
from scalespaces.semigroups import causal_downscale, causal_lift

POOLS: dict[str, Any] = {
    "none": lambda stride: nn.Identity(),
    "max": lambda stride: scale.ScaleMaxPool(2, stride, 1),
    "max unpadded": lambda stride: scale.ScaleMaxPool(2, stride),
    "average": lambda stride: scale.ScaleAvgPool(2, stride),
    "blur": lambda stride: scale.ScaleBlurPool(3, stride),
}


def network(sampling, *, num_levels=4, base=2, lift_padding: Any = "zeros", mode: Any = "zeros", **options):
    """A filter of one level, a pooling, and a filter of two levels, whose biases and statistics are random."""
    defaults = {"taps": 3, "stride": 1, "pool": "max", "pool_stride": 2, "padding": "same", "scale_padding": "zeros"}
    taps, stride, pool, pool_stride, padding, scale_padding = (defaults | options).values()
    last: Any = scale.ScaleConv1d(4, 4, (2, taps), padding_mode=mode, scale_padding=scale_padding)
    layers = nn.Sequential(
        scale.CausalLift(num_levels, base, sampling=sampling, padding_mode=lift_padding),
        scale.ScaleConv1d(2, 4, (1, taps), stride, padding, padding_mode=mode),
        *(nn.ReLU(), POOLS[pool](pool_stride), last, scale.ScaleBatchNorm(4), nn.ReLU()),
    ).double()
    state = layers.state_dict()
    for name in ("1.bias", "4.bias", "5.weight", "5.bias", "5.running_mean"):
        nn.init.normal_(state[name])
    return layers.eval()


def scale_pooled(mode):
    """What a scale.ScalePool returns, on the grid of level 0 where it lies."""

    def head(x):
        return ScaleSpace((torch.as_tensor(scale.ScalePool(mode)(x)),), unit=x.unit, causal=True)

    return head


NETWORKS = st.fixed_dictionaries(
    {
        "num_levels": st.integers(2, 5),
        "base": st.integers(2, 3),
        "sampling": st.sampled_from(["pyramid", "dense"]),
        "lift_padding": st.sampled_from(["zeros", "replicate"]),
        "mode": st.sampled_from(["zeros", "replicate"]),
        "taps": st.integers(1, 4),
        "stride": st.integers(1, 3),
        "pool": st.sampled_from(["none", "max", "blur"]),
        "pool_stride": st.integers(1, 3),
        "scale_padding": st.sampled_from(["zeros", "replicate", "valid"]),
    }
)


@settings(max_examples=60)
@given(st.integers(1, 80), st.integers(0, 80), NETWORKS)
def test_no_bit_knows_the_future(length, back, options):
    torch.manual_seed(0)
    model, base = network(**options), options["base"]
    f, now = torch.randn(2, 2, length, dtype=torch.float64), max(-back, 1 - length)  # what comes after now changes
    g = f.clone()
    g[..., length - 1 + now + 1 :] += torch.randn_like(g[..., length - 1 + now + 1 :])
    x, y = model(f), model(g)
    for head in (nn.Identity(), scale.Resample(length), scale_pooled("mean"), scale_pooled("max")):
        a, b = head(x), head(y)
        for k, (before, after) in enumerate(zip(a.levels, b.levels, strict=True)):
            known = torch.as_tensor(times(a, k) <= now)
            assert torch.equal(before[..., known], after[..., known]), (head, k)
    for k, (before, after) in enumerate(zip(feature_pyramid(x).values(), feature_pyramid(y).values(), strict=True)):
        known = -(base**k) * x.unit[0] * torch.arange(before.shape[2]).flip(0) <= now
        assert torch.equal(before[..., known], after[..., known]), k


def test_the_newest_sample_is_heard_by_the_newest_output():
    for sampling in ("pyramid", "dense"):
        for length in range(40, 50):
            model = nn.Sequential(
                scale.CausalLift(4, sampling=sampling),
                scale.ScaleConv1d(2, 2, (2, 3), stride=3),
                scale.ScaleAvgPool(2, 2, 1),
            )
            f = torch.randn(1, 2, length, requires_grad=True)
            for level in model(f).levels:
                (gradient,) = torch.autograd.grad(level[..., -1].sum(), f, retain_graph=True)
                assert gradient[..., -1].abs().min() > 0


@pytest.mark.parametrize("pool", list(POOLS))
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("mode", ["zeros", "replicate"])
def test_pyramids_scale_at_every_length(mode, stride, pool):
    model = network("pyramid", lift_padding=mode, mode=mode, stride=stride, pool=pool, scale_padding="valid")
    for length in (150, 211, 289, 300):
        check(model, length)


@pytest.mark.parametrize("pool", [pool for pool in POOLS if pool != "blur"])  # which repeats the first sample
@pytest.mark.parametrize("layer", [{}, {"stride": 2}, {"stride": 3}, {"padding": "valid"}, {"padding": 1, "stride": 2}])
def test_dense_levels_scale_at_every_length_with_zeros(layer, pool):
    model = network("dense", pool=pool, scale_padding="valid", **layer)
    for length in (128, 165, 199, 210):
        check(model, length)


@pytest.mark.parametrize("base", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("sampling", ["pyramid", "dense"])
def test_every_short_length(sampling, base):
    model = network(sampling, base=base, scale_padding="valid")
    for length in (*range(1, 31), 40, 54, 59):
        check(model, length)


def test_dense_levels_with_replicate_scale_at_their_lengths():
    model = network("dense", lift_padding="replicate", mode="replicate", pool="none", scale_padding="valid")
    check(model, 65)  # 1 modulo 2^3
    with pytest.raises(AssertionError):
        check(model, 68)


def check(model, length):
    """Every sample of every level agrees when the record is downscaled."""
    f = torch.randn(1, 2, length, dtype=torch.float64)
    table = equivariance_error(model, f, downscaling=model[0].downscale)
    assert np.nanmax(table.errors) < 1e-12, length
    assert np.nanmax(table.largest) < 1e-9, length  # relative to how much a channel varies


def test_the_layer_is_the_function():
    f = torch.rand(2, 3, 50)
    arguments: Any
    for arguments in ({}, {"num_levels": 3, "base": 3, "zero_scale": 1.0, "stages": 2, "sampling": "dense"}):
        layer = scale.CausalLift(**arguments, padding_mode="replicate")
        expected = causal_lift(f, **arguments, padding_mode="replicate")
        assert repr(layer(f)) == repr(expected)
        assert_close(layer(f).levels, expected.levels)
        arguments = {name: arguments[name] for name in ("base", "zero_scale", "stages") if name in arguments}
        for n in range(3):
            assert_close(layer.downscale(f, n), causal_downscale(f, n, **arguments, padding_mode="replicate"))
    wrong: Any
    for name, wrong in (("base", 1.5), ("num_levels", 0), ("stages", 0), ("zero_scale", -1.0), ("sampling", "sparse")):
        with pytest.raises(ValueError, match=f"{name} (must be|is one of)"):
            scale.CausalLift(**{name: wrong})
    with pytest.raises(ValueError, match="samples of the future"):
        scale.CausalLift(padding_mode="reflect")


@pytest.mark.parametrize("sampling", ["pyramid", "dense"])
def test_the_kernel_follows_and_signals_decide_the_precision(sampling):
    """Whatever a layer keeps its kernel in, signals are lifted in their own precision, or in float32 at least."""
    f = torch.rand(1, 2, 40, dtype=torch.float64)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        layer = scale.CausalLift(sampling=sampling).half().to(dtype)
        assert layer.state_dict() == {}
        assert_same(layer(f), causal_lift(f, sampling=sampling))
        assert_close(layer.downscale(f), causal_downscale(f), rtol=0, atol=0)
    half = f.half()
    exact, got = (causal_lift(g, 2, sampling=sampling).levels[1] for g in (half.double(), half))
    assert_close(got, exact.half(), rtol=0, atol=2**-11)  # one rounding
    with torch.device("meta"):
        empty = scale.CausalLift()
    assert_close(empty.to_empty(device="cpu").taps, scale.CausalLift().taps)
