"""Prepared networks: fewer operations, the same answers, and nothing folded that something else reads."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from models.cnns import ResNet, same
from models.networks import NAMES, PRESETS, scramble, small
from torch import Tensor, nn
from torch.testing import assert_close

import scalespaces
from benchmarks._counts import counts
from scalespaces._torch import NormBase
from scalespaces.models import create_model, prepare, save
from scalespaces.nn import P4Conv2d, P4MBatchNorm, P4MConv2d, ScaleConv2d
from scalespaces.space import ScaleSpace
from scalespaces.testing import assert_equivariant


def norms(model: nn.Module) -> int:
    return sum(isinstance(module, NormBase) for module in model.modules())


def random_norms(model: Any) -> Any:
    """Statistics and weights as training leaves them, wherever batch norms are."""
    generator = torch.Generator().manual_seed(2)
    for norm in model.modules():
        if isinstance(norm, NormBase):
            for tensor in norm.state_dict().values():
                if tensor.is_floating_point():
                    tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    return model.eval()


def leaves(network: Any, image: Tensor) -> list[Tensor]:
    """The answer, scores and features."""
    return [network(image), *network.scores(image).levels, *network.features(image).levels]


@torch.no_grad()
@PRESETS
@pytest.mark.parametrize("name", NAMES)
def test_every_network_answers_as_before(name, preset):
    network = scramble(small(name, preset=preset)).double()
    before = copy.deepcopy(network.state_dict())
    fast = prepare(network)
    assert (type(fast), fast.config, fast.card) == (type(network), network.config, network.card)
    for height, width in ((64, 96), (61, 77)):
        image = torch.rand(2, 3, height, width, dtype=torch.float64)
        assert_close(leaves(fast, image), leaves(network, image), rtol=1e-9, atol=1e-9)
    assert not any(parameter.requires_grad for parameter in fast.parameters())
    assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())
    assert not any(isinstance(module, P4Conv2d) for module in fast.modules())
    if "resnet" in name:
        assert (norms(network), norms(fast)) == (18, 0)
        image = image.float()
        fewer, more = (counts(model.float(), image)["kernels"] for model in (fast, network))
        assert fewer == more - 18 * network.lift.num_levels


@torch.no_grad()
def test_single_precision_and_channels_last():
    layout: Any = {"memory_format": torch.channels_last}
    network, image = scramble(create_model("s_resnet", width=8)).to(**layout), torch.rand(1, 3, 64, 64).to(**layout)
    fast = prepare(network)
    expected = network(image)
    assert (fast(image) - expected).abs().max() <= 1e-5 * expected.abs().max()
    weights = [layer.weight for layer in fast.modules() if isinstance(layer, ScaleConv2d)]
    assert {weight.ndim for weight in weights} == {4, 5}
    for weight in weights:
        for level in weight.unbind(2) if weight.ndim == 5 else [weight]:
            assert level.is_contiguous(**layout)


def test_equivariance_stays_exact():
    one = [2] + [1] * 8
    network = scramble(small("s_resnet", filter_levels=one, lift={"num_levels": 2}, scale_padding="valid")).double()
    assert_equivariant(prepare(network), torch.rand(1, 3, 97, 97, dtype=torch.float64), shifts=[1])


class Branches(nn.Module):
    """Convolutions whose outputs are read twice, returned, normalized twice, or normalized by a shared layer."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("once", "twice", "shared", "again", "shown"):
            setattr(self, name, nn.Conv2d(4, 4, 3, padding=1))
        self.stem, self.norms = nn.Conv2d(3, 4, 1), nn.ModuleList(nn.BatchNorm2d(4) for _ in range(5))
        self.relu = nn.ReLU()

    def forward(self: Any, x: Any) -> Any:
        x = self.relu(self.stem(x))
        x = x + self.relu(self.norms[0](self.once(x)))
        y = self.twice(x)
        x = self.norms[1](y) + y
        x = self.norms[2](self.shared(x)) + self.norms[2](self.again(x))
        y = self.shown(x)
        return {"out": self.norms[4](self.norms[3](y)).mean((2, 3)), "shown": y}


def flat(nest: Any) -> list[Tensor]:
    if isinstance(nest, dict):
        return [tensor for value in nest.values() for tensor in flat(value)]
    return list(nest.levels) if isinstance(nest, ScaleSpace) else [nest]


@torch.no_grad()
@pytest.mark.parametrize("interaction", [None, "all"])
@pytest.mark.parametrize(("make", "left"), [(ResNet, 0), (same, None), (Branches, 4)])
def test_converted_networks(make: Callable[[], nn.Module], left, interaction):
    torch.manual_seed(0)
    model = random_norms(make()).double()
    network = scalespaces.convert(model, {"num_levels": 3}, interaction=interaction, scale_pool="mean")
    image = torch.rand(1, 3, 96, 80, dtype=torch.float64)
    fast = prepare(network, image)
    for side in (image, torch.rand(2, 3, 65, 96, dtype=torch.float64)):
        assert_close(flat(fast.outputs(side)), flat(network.outputs(side)), rtol=1e-9, atol=1e-9)
        assert_close(flat(fast(side)), flat(network(side)), rtol=1e-9, atol=1e-9)
    assert left is None or norms(fast) == left


@torch.no_grad()
def test_what_others_see_stays_as_it_is():
    cnn = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(2), nn.AdaptiveAvgPool1d(1))
    cnn = random_norms(nn.Sequential(cnn, nn.Flatten(), nn.Linear(4, 2)))
    image = torch.rand(1, 3, 32, 32)
    seen = scalespaces.convert(cnn, {"num_levels": 2}, scale_pool="mean", features="0.1")
    plain = scalespaces.convert(cnn, {"num_levels": 2}, scale_pool="mean")
    assert (norms(prepare(seen)), norms(prepare(plain))) == (1, 0)
    assert_close(prepare(seen).features(image).levels, seen.features(image).levels)
    watched: list[object] = []
    plain.model.get_submodule("0.0").register_forward_hook(lambda module, inputs, output: watched.append(output))
    assert norms(prepare(plain)) == 1


@torch.no_grad()
def test_linear_layers_and_fields():
    class Fields(scalespaces.models.DenseNet):
        def __init__(self, **arguments: Any) -> None:
            super().__init__(group="p4m", growth=(2,), **arguments)
            first, second = P4MConv2d(3, 3, 3, lifting=True), P4MConv2d(3, 3, 3, bias=False)
            self.stem = nn.Sequential(first, P4MBatchNorm(3), nn.ReLU(), second, P4MBatchNorm(3))

    network = random_norms(Fields()).double()
    fast, image = prepare(network), torch.rand(1, 3, 20, 21, dtype=torch.float64)
    assert norms(fast) == norms(network) - 2
    assert_close(leaves(fast, image), leaves(network, image))
    cnn = scramble(small("cnn"))
    assert norms(prepare(cnn)) == norms(cnn) - 1  # after the hidden layer
    assert prepare(cnn).hidden.bias is not None


def test_refusals(tmp_path):
    network = small("resnet")
    with pytest.raises(ValueError, match=r"in training mode; call network\.eval\(\)"):
        prepare(network.train())
    with pytest.raises(TypeError, match="expected a network with levels, got a Conv2d; convert it first"):
        prepare(nn.Conv2d(3, 2, 1))  # type: ignore[reportArgumentType]
    fast = prepare(network.eval())
    with pytest.raises(ValueError, match="for inference; train the network it was made from"):
        fast.train()
    with pytest.raises(ValueError, match="save the one it was made from"):
        save(fast, tmp_path / "model.safetensors")
    assert prepare(fast) is not fast
    assert not prepare(fast).eval().training


@torch.no_grad()
def test_networks_that_compute_otherwise_when_folded_are_refused():
    class Odd(nn.Module):
        """Reads the weight of a batch norm beside calling it."""

        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x: Any) -> Any:
            return self.norm(self.conv(x)) * len(list(self.norm.parameters()))

    network = scalespaces.convert(Odd().eval(), {"num_levels": 2}, scale_pool="mean")
    with pytest.raises(ValueError, match="the prepared network differs by"):
        prepare(network)
