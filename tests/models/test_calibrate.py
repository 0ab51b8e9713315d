"""Calibration: from stripes of one width, levels learn to answer for others."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import scalespaces
from scalespaces import models

SIDE, PERIOD = 48, 4


class Stripes(nn.Module):
    """Finds out whether stripes of one period are upright or level, by their energy; sure of itself at any other."""

    def __init__(self) -> None:
        super().__init__()
        wave = 2 * torch.pi * torch.arange(2 * PERIOD) / PERIOD
        line = torch.stack([wave.sin(), wave.cos()])[:, None] / (2 * PERIOD)
        upright = line[:, :, None].expand(-1, -1, 2 * PERIOD, -1)
        self.filters = nn.Parameter(torch.cat([upright, upright.mT]))
        self.head = nn.Linear(2, 2)
        self.head.weight.data = torch.eye(2)
        nn.init.zeros_(self.head.bias)

    def forward(self, image: Tensor) -> Tensor:
        energy = nn.functional.conv2d(image, self.filters).square().mean((2, 3))
        energy = torch.stack([energy[:, :2].sum(1), energy[:, 2:].sum(1)], 1)
        return self.head(energy)


def stripes(count: int, scale: float = 1.0, noise: float = 2.0) -> tuple[Tensor, Tensor]:
    """Noisy stripes with random phases, and whether they are level."""
    torch.manual_seed(count)
    place = torch.arange(round(SIDE * scale)) * 2 * torch.pi / (PERIOD * scale)
    waves = (place + 6 * torch.rand(count, 1)).sin()[:, None, None, :].expand(-1, -1, place.shape[0], -1)
    labels = torch.arange(count) % 2
    images = torch.where(labels.view(-1, 1, 1, 1) == 1, waves.mT, waves)
    return images + noise * torch.randn(images.shape) * scale, labels


def converted(**lift: Any) -> Any:
    return scalespaces.convert(Stripes().eval(), {"num_levels": 3} | lift, scale_pool="image").eval()


def accuracy(network: nn.Module, scale: float) -> float:
    images, labels = stripes(200, scale)
    with torch.no_grad():
        return float((network(images).argmax(1) == labels).float().mean())


@pytest.mark.parametrize("labeled", [False, True])
def test_levels_answer_for_sizes_that_the_model_does_not_know(labeled, tmp_path):
    network, plain = converted(), Stripes().eval()
    images, labels = stripes(60)
    found = scalespaces.calibrate(network, images, labels if labeled else None, scales=[1, 2])
    assert network.scale_pool.mode == network.config["scale_pool"] == "trust"
    assert all(torch.equal(p, q) for p, q in zip(network.model.parameters(), plain.parameters(), strict=True))
    assert accuracy(network, 1) >= accuracy(plain, 1) - 0.01
    assert accuracy(network, 2) > accuracy(plain, 2) + 0.1  # which the plain model guesses
    assert [row[0] for row in found.rows] == [1, 2]
    assert found.rows[1][2] > found.rows[1][1] + 0.1
    assert f"{'accuracy' if labeled else 'agreement'}" in str(found)
    models.save(network, tmp_path / "network.safetensors")
    loaded = models.load(tmp_path / "network.safetensors", model=Stripes())
    assert torch.equal(loaded(images), network(images))
    assert torch.equal(loaded.weights(images), network.weights(images))


def test_the_same_seed_gives_the_same_network_and_the_random_state_is_left():
    images = [image[:, : 48 - n % 2, :] for n, image in enumerate(stripes(24)[0])]  # of two sizes
    networks = [converted(), converted()]
    state = torch.get_rng_state()
    for network in networks:
        assert scalespaces.calibrate(network, images, scales=[1, 2], batch=7).images == 24
    assert torch.equal(torch.get_rng_state(), state)
    first, second = (network.state_dict() for network in networks)
    assert all(torch.equal(first[name], second[name]) for name in first)


def segmenter() -> Any:
    return models.create_model("s_resnet", lift={"num_levels": 2}, width=3, num_classes=2, init="he").eval()


def test_pixels_have_weights_of_their_own():
    network = segmenter()
    images = torch.rand(20, 3, 16, 16)
    masks = torch.zeros(20, 16, 16, dtype=torch.long)
    masks[:, :8] = 1
    masks[:, :, :2] = 255  # of no class
    found = scalespaces.calibrate(network, images, masks, scales=[1, 2])
    assert 0 < found.rows[0][2] <= 1
    weights = network.weights(images[:2])
    assert weights.shape == (2, 2, 16, 16)
    assert_close(weights.sum(1), torch.ones(2, 16, 16))


@pytest.mark.parametrize(
    ("network", "images", "arguments", "message"),
    [
        (Stripes(), stripes(20)[0], {}, "levels of a network, got a Stripes"),
        (converted(), stripes(5)[0], {}, "needs 20 images at least, .+ got 5"),
        (converted(), stripes(20)[0], {"labels": [1, 2]}, "got 2 for 20"),
        (converted(), stripes(20)[0], {"scales": [0]}, "scale must be"),
        (segmenter(), torch.rand(20, 3, 16, 16), {"scales": [0.5]}, "at scale 0.5, which scales= may leave out"),
    ],
)
def test_errors(network, images, arguments, message):
    with pytest.raises(ValueError, match=message):
        scalespaces.calibrate(network, images, **arguments)


def test_the_temperature_is_fitted():
    plain = Stripes().eval()
    plain.head.weight.data *= 30  # so it is far too sure of itself
    network: Any = scalespaces.convert(plain, {"num_levels": 3}, scale_pool="image").eval()
    images, labels = stripes(60, noise=12.0)
    scalespaces.calibrate(network, images, labels, scales=[1, 2])
    trust, (tests, truth) = network.scale_pool.trust, stripes(200, noise=12.0)

    def loss() -> float:
        with torch.no_grad():
            return float(nn.functional.nll_loss(network(tests), truth))

    fitted, features = loss(), network.scores_and_features(images)[1].level(0)
    assert trust.temperature > 0
    trust.temperature.data, trust.exponent.data = features.square().mean(1).sqrt().mean().detach(), torch.ones(())
    assert loss() > 1.5 * fitted  # scores as they are at the size that the network knows
