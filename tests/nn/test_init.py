"""Initializations: what a layer does before it has learned anything."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from scalespaces import lift
from scalespaces.functional import scale_conv
from scalespaces.nn import ScaleConv2d, init

channels = st.integers(1, 9)


class TestPaper:
    @pytest.mark.parametrize("dims", [1, 2, 3])
    @pytest.mark.parametrize("depth", [None, 1, 3])
    @pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
    def test_equal_channels_start_as_the_identity(self, dims, depth, size):
        shape = [size] * dims if depth is None else [depth, *[size] * dims]
        weight = init.paper_(torch.empty(4, 4, *shape, dtype=torch.float64), dims, std=0.0)
        x = lift(torch.rand(2, 4, *[9] * dims, dtype=torch.float64), 3, dims=dims)
        for got, expected in zip(scale_conv(x, weight).levels, x.levels, strict=True):
            assert_close(got, expected)

    @given(channels, channels)
    def test_channels_are_repeated_or_averaged_in_order(self, in_channels, out_channels):
        """Each output has inputs beside each other, each input is used, and the order is kept."""
        mix = init.paper_(torch.empty(out_channels, in_channels, 1, 1), 2, std=0.0)[:, :, 0, 0]
        assert (mix >= 0).all()
        assert ((mix > 0).any(0)).all()
        assert ((mix > 0).any(1)).all()
        centers = (mix * torch.arange(in_channels)).sum(1)
        assert (centers.diff() >= 0).all()
        for row in mix:
            used = row.nonzero().flatten()
            assert used.diff().eq(1).all()
            assert_close(row[used], torch.full_like(row[used], 1 / len(used)))
        if out_channels % in_channels == 0:
            assert_close(mix, torch.eye(in_channels).repeat_interleave(out_channels // in_channels, 0))
        if in_channels % out_channels == 0:
            group = in_channels // out_channels
            assert_close(mix, torch.eye(out_channels).repeat_interleave(group, 1) / group)

    def test_the_rest_is_noise(self):
        weight = init.paper_(torch.empty(16, 16, 3, 5, 5), 2)
        center = weight[:, :, 0, 2, 2].clone()
        assert_close(center.diagonal(), torch.ones(16))
        noise = weight.clone()
        noise[range(16), range(16), 0, 2, 2] = 0
        assert noise.std().item() == pytest.approx(0.01, rel=0.02)
        assert abs(noise.mean().item()) < 3e-4
        assert (noise[:, :, 1:] != 0).all()

    def test_axes_tell_the_levels(self):
        layer = ScaleConv2d(3, 3, (2, 3, 3))
        assert init.paper_(layer.weight, 2) is layer.weight
        assert layer.weight.is_leaf
        with pytest.raises(ValueError, match=r"weight of 4 or 5 axes, got shape \(3, 3, 3\)"):
            init.paper_(torch.empty(3, 3, 3), 2)


class TestHe:
    @pytest.mark.parametrize("shape", [(64, 32, 3, 3), (64, 32, 2, 3, 3), (256, 16, 5), (32, 16, 2, 3, 3, 3)])
    def test_all_levels_count_as_inputs(self, shape):
        weight = init.he_(torch.empty(*shape))
        fan_in = math.prod(shape[1:])
        assert weight.std().item() == pytest.approx(math.sqrt(2 / fan_in), rel=0.05)
        assert abs(weight.mean().item()) < 0.05 * math.sqrt(2 / fan_in)
        layer = ScaleConv2d(32, 64, (2, 3, 3))  # starts with it
        assert layer.weight.std().item() == pytest.approx(math.sqrt(2 / (32 * 18)), rel=0.05)
        assert layer.bias is not None
        assert layer.bias.abs().max() == 0
