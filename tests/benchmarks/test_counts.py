"""Counts of kernels, copies and synchronizations: of functions whose operations are known, and of a traced graph."""

import math

import pytest
import torch
from models.networks import small
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import scalespaces
from benchmarks._counts import COPIES, NO_KERNEL, counts
from scalespaces.functional._fast import _choice
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
    with torch.no_grad():
        module(x)  # matrices that interpolate are built once
        graph = make_fx(lambda *levels: module(x.replace(levels)).levels)(*x.levels).graph
    called = [node.target for node in graph.nodes if node.op == "call_function"]
    operations = [op for op in called if isinstance(op, torch._ops.OpOverload) and not op.is_view]
    names = [name for name in (op.overloadpacket.__name__ for op in operations) if name not in NO_KERNEL]
    found = counts(module, x)
    assert found["copies"] == sum(name in COPIES for name in names)
    assert (found["kernels"], found["synchronizations"]) == (len(names), 0)
    assert found["kernels"] >= 3 * 3


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
        """Per coarser level: two axes of two phases and an end, or a transposed convolution and its borders."""
        monkeypatch.setitem(_choice._WORTH_FOLDING, "cpu", least)
        module, x = ScaleConv2d(8, 8, (2, 3, 3), bias=False), self.space("pyramid")
        module(x)  # matrices are built once
        found = counts(module, x)
        folded, plain = 4 + 3 * 45, 7 + 3 + 3 * 2 * 3
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
        model(image)  # kernels of fractional steps are sent once
        assert counts(model, image)["synchronizations"] == 0

    @pytest.mark.parametrize("sides", [(32, 40), (96, 128)])  # upsampled by matrices, and by slices
    def test_no_channel_or_pixel_is_looped_over(self, sides):
        """Kernels depend on levels, and on neither sizes nor channels."""
        found = set()
        for channels, side in ((4, sides[0]), (8, sides[0]), (8, sides[1])):
            x = scalespaces.lift(torch.rand(1, channels, side, side), 3)
            module = nn.Sequential(ScaleConv2d(channels, channels, (2, 3, 3)), ScaleBatchNorm(channels), nn.ReLU())
            module(x)  # matrices are built once
            found.add(counts(module, x)["kernels"])
        assert len(found) == 1
