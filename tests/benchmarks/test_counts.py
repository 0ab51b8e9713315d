"""Counts of operations, compared with a traced graph; limits, with PyTorch's FLOPs and with filters that are folded."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from models.networks import small
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

import scalespaces
from benchmarks._counts import COPIES, NO_KERNEL, counts, emitted, folded_share, limits
from benchmarks._rivals import rival
from scalespaces.functional._fast import _choice
from scalespaces.models import create_model, prepare
from scalespaces.nn import ScaleBatchNorm, ScaleConv2d


@pytest.mark.parametrize(
    ("kind", "number", "run"),
    [
        ("kernels", 0, lambda x: x.flatten(1).T.unsqueeze(0)[:, 1:]),  # views and allocations
        ("kernels", 0, lambda x: torch.empty_like(x)),
        ("copies", 0, lambda x: x.reshape(6).contiguous()),
        ("copies", 1, lambda x: x.T.contiguous()),
        ("copies", 1, lambda x: torch.cat([x, x])),
        ("copies", 1, lambda x: x.double()),
        ("copies", 1, lambda x: x.gather(1, torch.zeros(2, 1, dtype=torch.long).detach())),
        ("copies", 1, lambda x: nn.functional.pad(x, (1, 1))),
        ("synchronizations", 1, lambda x: x + torch.tensor([1.0])),  # uploads
        ("synchronizations", 1, lambda x: x.new_tensor(1)),
        ("synchronizations", 1, lambda x: x.sum().item()),
        ("synchronizations", 1, lambda x: x.nonzero()),
        ("synchronizations", 1, lambda x: x[x > 0.5]),
    ],
)
def test_operations_that_are_known(kind, number, run):
    assert counts(run, torch.rand(2, 3))[kind] == number


def test_the_same_as_in_a_traced_graph():
    x = scalespaces.lift(torch.rand(1, 4, 16, 16), num_levels=3)
    module = nn.Sequential(ScaleConv2d(4, 4, (2, 3, 3)), ScaleBatchNorm(4), nn.ReLU()).eval()
    with torch.no_grad(), _choice.acting_as("cuda"):
        module(x)  # indices are made once
        graph = make_fx(lambda *levels: module(x.replace(levels)).levels)(*x.levels).graph
    called = [node.target for node in graph.nodes if node.op == "call_function"]
    operations = [op for op in called if isinstance(op, torch._ops.OpOverload) and not op.is_view]
    names = [name for name in (op.overloadpacket.__name__ for op in operations) if name not in NO_KERNEL]
    found = counts(module, x)
    assert found["copies"] == sum(name in COPIES for name in names)
    assert (found["kernels"], found["synchronizations"]) == (len(names), 0)
    assert found["kernels"] >= 3 * 3


@pytest.mark.slow
def test_kernels_that_the_compiler_emits():
    """One for all that acts on single numbers, and those of a convolution: copies to its layout, and the call."""
    pointwise, convolution = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), nn.Tanh()).eval(), nn.Conv2d(3, 4, 3)
    assert emitted(torch.compile(pointwise), torch.rand(2, 3, 8, 8)) == {"kernels": 1}
    both: Any = torch.compile(nn.Sequential(convolution, nn.ReLU(), nn.Tanh()))
    assert emitted(both, torch.rand(2, 3, 8, 8))["kernels"] in (2, 3, 4)


class TestReadiness:
    """What a GPU would see of each layer: few kernels, hardly a copy, and a host that never waits."""

    @staticmethod
    def space(sampling: str) -> scalespaces.ScaleSpace:
        return scalespaces.lift(torch.rand(2, 8, 32, 32), num_levels=4, sampling=sampling)

    @pytest.mark.parametrize("sampling", ["pyramid", "dense"])
    def test_a_filter_of_one_level_is_one_kernel_per_level(self, sampling):
        found = counts(ScaleConv2d(8, 8, (1, 3, 3)), self.space(sampling))
        assert found == {"kernels": 4, "copies": 0, "synchronizations": 0}

    def test_dense_levels_are_added_up_without_a_copy(self):
        """Of two levels of a filter: seven convolutions, three sums."""
        found = counts(ScaleConv2d(8, 8, (2, 3, 3), bias=False), self.space("dense"))
        assert found == {"kernels": 7 + 3, "copies": 0, "synchronizations": 0}

    @pytest.mark.parametrize("least", [-math.inf, math.inf])
    def test_interpolation_is_a_few_kernels(self, monkeypatch, least):
        """Per coarser level: two axes of an index and a sum, or a transposed convolution and its borders."""
        monkeypatch.setitem(_choice._WORTH_FOLDING, "cuda", least)
        found = counts(ScaleConv2d(8, 8, (2, 3, 3), bias=False), self.space("pyramid"))
        folded, plain = 4 + 3 * 45, 7 + 3 + 3 * 2 * 2
        assert found["kernels"] <= (folded if least < 0 else plain)
        assert found["synchronizations"] == 0

    def test_batch_normalization_is_two_kernels_per_level_and_some_vectors(self):
        found = counts(ScaleBatchNorm(8).train(), self.space("pyramid"))
        assert found["kernels"] <= 2 * 4 + 10
        assert found["copies"] <= 2  # means and variances of levels, stacked
        assert found["synchronizations"] == 0

    @pytest.mark.parametrize("name", ["s_densenet", "s_resnet", "s_cnn"])
    @pytest.mark.parametrize("preset", ["recommended", "paper"])
    @pytest.mark.parametrize("sampling", ["pyramid", "dense"])
    @pytest.mark.parametrize("training", [True, False])
    def test_networks_never_wait(self, name, preset, sampling, training):
        model = small(name, preset=preset, lift={"sampling": sampling}).train(training)
        image = torch.rand(2, 3, 64, 64)
        assert counts(model, image)["synchronizations"] == 0

    @pytest.mark.parametrize(
        ("name", "side", "most"),
        [("s_resnet_no_interaction", 64, 360), ("s_resnet", 64, 480), ("s_densenet", 96, 340), ("resnet", 64, 80)],
    )
    def test_launches_of_inference_stay_few(self, name, side, most):
        assert counts(create_model(name).eval(), torch.rand(1, 3, side, side))["kernels"] <= most

    @pytest.mark.parametrize(("name", "most"), [("s_resnet_no_interaction", 200), ("s_resnet", 290), ("resnet", 60)])
    def test_prepared_networks_launch_fewer(self, name, most):
        assert counts(prepare(create_model(name).eval()), torch.rand(1, 3, 64, 64))["kernels"] <= most

    @pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
    def test_filters_of_several_levels_are_not_copied(self, format):
        layout: Any = {"memory_format": format}
        layer, x = ScaleConv2d(8, 8, (2, 3, 3), bias=False).to(**layout), self.space("dense").to(**layout)
        found = counts(layer, x)
        assert found == {"kernels": 7 + 3, "copies": 0, "synchronizations": 0}

    @pytest.mark.parametrize("sides", [(32, 40), (96, 128)])  # upsampled by matrices, and by slices
    def test_no_channel_or_pixel_is_looped_over(self, sides):
        """Kernels depend on levels, and on neither sizes nor channels."""
        found = set()
        for channels, side in ((4, sides[0]), (8, sides[0]), (8, sides[1])):
            x = scalespaces.lift(torch.rand(1, channels, side, side), 3)
            module = nn.Sequential(ScaleConv2d(channels, channels, (2, 3, 3)), ScaleBatchNorm(channels), nn.ReLU())
            found.add(counts(module, x)["kernels"])
        assert len(found) == 1


@pytest.mark.parametrize("taps", [1, 3, 5])
@pytest.mark.parametrize("factor", [1, 2, 4])
def test_folded_filters_have_as_many_taps_as_numbers_that_are_not_zero(taps, factor):
    coarse = np.eye(41)
    fine = np.arange(40 * factor + 1) / factor
    upsampled = np.stack([np.interp(fine, np.arange(41), impulse) for impulse in coarse])
    weight = np.arange(1.0, taps + 1)
    out = np.stack([np.convolve(row, weight, "same") for row in upsampled])
    one_period = out[:, 20 * factor : 21 * factor]
    share = np.count_nonzero(one_period) / (taps * factor)
    assert folded_share((taps,), factor) == min(share, 1)
    assert folded_share((taps, taps), factor) == pytest.approx(min(share**2, 1))


def test_limits_of_a_layer():
    for k, dense, pyramid, folded in ((1, 4, 85 / 64, 85 / 64), (2, 7, 85 / 64 + 21 / 16, 85 / 64 + 21 / 16 * 25 / 36)):
        image, layer = torch.zeros(1, 2, 128, 128), ScaleConv2d(2, 3, (k, 3, 3))
        assert limits(layer, scalespaces.lift(image, 4, sampling="dense")) == pytest.approx((dense, dense))
        assert limits(layer, scalespaces.lift(image, 4)) == pytest.approx((pyramid, folded))


@pytest.mark.parametrize(
    ("name", "baseline", "side"),
    [("s_resnet", "resnet", 64), ("s_resnet_no_interaction", "resnet", 64), ("s_densenet", "densenet", 96)],
)
def test_limits_of_dense_networks_are_flops(name, baseline, side):
    model = create_model(name, preset="paper")
    flops = []
    for network in (rival(model), rival(create_model(baseline))):
        network = network.to("meta").eval()
        if network.lift:
            network.lift = _Levels()
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            network(torch.zeros(1, 3, side, side, device="meta"))
        flops.append(counter.get_total_flops())
    image = torch.zeros(1, 3, side, side)
    dense, _ = limits(model, image)
    assert dense == pytest.approx(flops[0] / flops[1], rel=1e-12)
    pyramid, folded = limits(create_model(name), image)
    assert 1 < folded <= pyramid < dense


class _Levels(nn.Module):
    """Levels without a blur, whose multiplications are not counted."""

    def forward(self, image):
        self.image = image
        return self

    def stack(self):
        return torch.stack([self.image] * 4, 2)
