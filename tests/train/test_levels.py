"""One answer from many levels, and their supervision, against formulas in NumPy."""

import math
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from scalespaces import ScaleSpace, convert
from scalespaces._choices import SCALE_MODES, LevelPool, Supervision
from scalespaces.functional import scale_pool
from scalespaces.models import ScaleNetwork, create_model
from scalespaces.train._levels import answer, answer_and_level, level_scores, supervise

POOLS = get_args(LevelPool)[1:]


class Levels(ScaleNetwork):
    """Scores of its own for each level, whatever the image; the network's answer is the first."""

    def __init__(self, scores: Tensor) -> None:
        super().__init__()
        self.own = nn.Parameter(scores.double())

    def forward(self, images: Tensor) -> Tensor:
        return self.own[0]

    def scores(self, image: Tensor) -> ScaleSpace:
        return ScaleSpace(tuple(self.own), steps=(1.0,) * len(self.own))


def logits(seed: int, levels: int = 3, pixels: tuple[int, ...] = ()) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 3, (levels, 4, 5, *pixels)))


def softmax(values: np.ndarray) -> np.ndarray:
    """Over the classes, axis 1 of one level's logits."""
    powers = np.exp(values)
    return powers / powers.sum(1, keepdims=True)


pixels = st.sampled_from([(), (3, 2)])


@pytest.mark.parametrize("name", ["s_densenet", "s_resnet"])
def test_answers_of_networks_with_levels(name):
    small: dict[str, Any] = {"growth": (4, 4), "num_layers": 1} if name == "s_densenet" else {"width": 3}
    network = create_model(name, **small, lift={"num_levels": 3}).double().eval()
    images = torch.rand(2, 3, 40, 36, dtype=torch.float64)
    scores = level_scores(network, images)
    assert scores.shapes == (network(images).shape,) * 3
    assert_close(answer(network, images), network(images))
    assert_close(answer(network, images, "mean"), network(images))
    for pool in POOLS[:-1]:
        assert_close(answer(network, images, pool), scale_pool(scores, pool))
    with pytest.raises(ValueError, match=r"needs a network that has learned which levels to trust; fit it with"):
        answer(network, images, "trust")
    trusting = create_model(name, **small, lift={"num_levels": 3}, scale_pool="trust").double().eval()
    trusting.load_state_dict(network.state_dict(), strict=False)  # new trust is the same for all levels
    assert_close(answer(trusting, images, "trust"), answer(network, images, "probabilities"))


def test_answers_of_networks_without_levels():
    plain = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)).eval()
    images = torch.rand(2, 3, 32, 32)
    assert_close(answer(plain, images), plain(images))
    message = "this needs a network with levels, got a Sequential; convert it with scalespaces.convert, or use the pool"
    with pytest.raises(ValueError, match=message):
        answer(plain, images, "mean")
    with pytest.raises(ValueError, match=message):
        supervise(plain, images, torch.zeros(2, dtype=torch.int64), "apart")
    assert answer(convert(plain, {"num_levels": 3}), images, "probabilities").shape == (2, 2)


@pytest.mark.parametrize("how", get_args(Supervision))
@given(seed=st.integers(0, 99), levels=st.integers(1, 4), pixels=pixels)
def test_losses_are_their_formulas(how, seed, levels, pixels):
    scores = logits(seed, levels, pixels)
    target = np.random.default_rng(seed).integers(0, 5, (4, *pixels))
    target[0] = 255

    def loss(level: np.ndarray) -> float:
        probabilities = np.moveaxis(softmax(level), 1, -1)
        places = np.argwhere(target != 255)
        return -sum(math.log(probabilities[(*place, target[tuple(place)])]) for place in places)

    expected = {
        "answer": loss(scores[0].numpy()),
        "mean": loss(scores.mean(0).numpy()),
        "apart": np.mean([loss(level) for level in scores.numpy()]),
    }[how]
    images = torch.empty(4, 3, *(pixels or (8, 8)))
    found = supervise(Levels(scores), images, torch.from_numpy(target), how, 255)
    assert found.item() == pytest.approx(expected)


@pytest.mark.parametrize(("how", "learning"), [("answer", [0]), ("mean", [0, 1, 2]), ("apart", [0, 1, 2])])
def test_which_levels_learn(how, learning):
    network = Levels(logits(1))
    supervise(network, torch.empty(4, 3, 8, 8), torch.arange(4), how).backward()
    gradient = network.own.grad
    assert gradient is not None
    assert [level for level in range(3) if gradient[level].abs().max() > 0] == learning
    if how == "mean":  # all alike, that of the mean
        mean = network.own.detach().mean(0).requires_grad_()
        (whole,) = torch.autograd.grad(F.cross_entropy(mean, torch.arange(4), reduction="sum"), mean)
        assert_close(gradient, (whole / 3).expand(3, -1, -1))


def test_pools_are_the_librarys_and_unknown_names_are_refused():
    assert tuple(SCALE_MODES) == POOLS
    unknown: Any = "median"
    with pytest.raises(ValueError, match=r"one of image, mean, max, logsumexp, probabilities, trust, got 'median'"):
        answer(Levels(logits(0)), torch.empty(4, 3, 8, 8), unknown)
    with pytest.raises(ValueError, match=r"one of answer, mean, apart, got 'median'"):
        supervise(Levels(logits(0)), torch.empty(4, 3, 8, 8), torch.arange(4), unknown)


@pytest.mark.parametrize("mode", ["mean", "max", "probabilities", "trust", "image"])
def test_the_level_that_says_most(mode):
    torch.manual_seed(0)
    network: Any = create_model("s_cnn", channels=(4, 8), kernel_size=3, hidden=16, scale_pool=mode).eval()
    images = torch.cat([F.interpolate(torch.randn(4, 1, n, n), (28, 28)) for n in (2, 4, 7, 28)])
    with torch.no_grad():
        network.linear.weight.normal_()
        logits, level = answer_and_level(network, images)
        assert_close(logits, network(images))
        if mode == "image":
            assert level is None
        else:
            assert level is not None
            assert len(level.unique()) > 1
            assert level.tolist() == network.scale_map(images)[:, 0, 0].tolist()
        assert answer_and_level(network, images, "max")[1] is None  # another way than the network's own
        assert answer_and_level(create_model("cnn", channels=(4, 8), kernel_size=3), images)[1] is None
