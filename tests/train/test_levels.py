"""One answer from many levels, and their supervision, against formulas in NumPy and laws of the two."""

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
from scalespaces.functional import scale_pool
from scalespaces.functional._pool import SCALE_MODES
from scalespaces.models import ScaleNetwork, create_model
from scalespaces.train._levels import LevelPool, Supervision, answer, level_scores, supervise

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


def images(scores: Tensor) -> Tensor:
    """Images that scores of pixels may be of."""
    return torch.empty(4, 3, *(scores.shape[3:] or (8, 8)))


def pooled(scores: Tensor, pool: Any) -> Tensor:
    return answer(Levels(scores), images(scores), pool).detach()


def logits(seed: int, levels: int = 3, pixels: tuple[int, ...] = ()) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 3, (levels, 4, 5, *pixels)))


def softmax(values: np.ndarray) -> np.ndarray:
    """Over the classes, axis 1 of one level's logits."""
    powers = np.exp(values)
    return powers / powers.sum(1, keepdims=True)


def naive_pool(answers: np.ndarray, pool: str) -> np.ndarray:
    levels = list(answers)
    if pool == "mean":
        return np.asarray(sum(levels)) / len(levels)
    if pool == "max":
        return np.max(levels, 0)
    if pool == "logsumexp":
        return np.log(sum(np.exp(level) for level in levels) / len(levels))
    return np.log(sum(softmax(level) for level in levels) / len(levels))


pixels = st.sampled_from([(), (3, 2)])


def test_the_list_of_pools_is_the_librarys():
    assert tuple(SCALE_MODES) == POOLS


@pytest.mark.parametrize("pool", POOLS)
@given(st.integers(0, 99), st.integers(1, 5), pixels)
def test_pools_are_their_formulas(pool, seed, levels, pixels):
    scores = logits(seed, levels, pixels)
    np.testing.assert_allclose(pooled(scores, pool), naive_pool(scores.numpy(), pool), atol=1e-12)
    assert_close(pooled(scores, "model"), scores[0])


@pytest.mark.parametrize("pool", POOLS)
@given(seed=st.integers(0, 99), pixels=pixels)
def test_laws_of_pools(pool, seed, pixels):
    scores = logits(seed, 4, pixels)
    found = pooled(scores, pool)
    assert_close(pooled(scores[[2, 0, 3, 1]], pool), found)
    same = scores[:1].expand_as(scores)
    assert_close(pooled(same, pool).softmax(1), scores[0].softmax(1))  # levels that agree are right
    assert (found <= scores.amax(0) + 1e-12).all() or pool == "probabilities"
    if pool != "probabilities":
        assert_close(pooled(scores + 7, pool), found + 7)
    else:
        assert_close(found.exp().sum(1), torch.ones_like(found[:, 0]))
        moved = scores + torch.tensor([1.0, -2, 3, 5]).reshape(-1, *[1] * (scores.ndim - 1))
        assert_close(pooled(moved, pool), found)  # each level's logits are known up to a constant only


def test_pools_are_ordered():
    """The mean of exponentials lies between the exponentials of the mean and of the maximum."""
    low, middle, high = (pooled(logits(0), pool) for pool in ("mean", "logsumexp", "max"))
    assert (low < middle).all()
    assert (middle < high).all()


@pytest.mark.parametrize("pool", POOLS)
def test_pools_stay_finite_for_large_logits(pool):
    assert pooled(1e4 * logits(0).float(), pool).isfinite().all()


@pytest.mark.parametrize("name", ["s_densenet", "s_resnet"])
def test_answers_of_networks_with_levels(name):
    small: dict[str, Any] = {"growth": (4, 4), "num_layers": 1} if name == "s_densenet" else {"width": 3}
    network = create_model(name, **small, lift={"num_levels": 3}).double().eval()
    images = torch.rand(2, 3, 40, 36, dtype=torch.float64)
    scores = level_scores(network, images)
    assert scores.shapes == (network(images).shape,) * 3
    assert_close(answer(network, images), network(images))
    assert_close(answer(network, images, "mean"), network(images))
    for pool in POOLS:
        assert_close(answer(network, images, pool), scale_pool(scores, pool))


def test_answers_of_networks_without_levels():
    plain = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)).eval()
    images = torch.rand(2, 3, 32, 32)
    assert_close(answer(plain, images), plain(images))
    message = (
        r"this needs a network with levels, got a Sequential; convert it with scalespaces\.convert, or use the pool"
    )
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
        "mean": loss(naive_pool(scores.numpy(), "mean")),
        "apart": np.mean([loss(level) for level in scores.numpy()]),
    }[how]
    found = supervise(Levels(scores), images(scores), torch.from_numpy(target), how, 255)
    assert found.item() == pytest.approx(expected)


@given(st.integers(0, 99))
def test_laws_of_losses(seed):
    scores, target = logits(seed), torch.arange(4)
    network = Levels(scores)

    def loss(how: Supervision, targets: Tensor = target) -> Tensor:
        return supervise(network, torch.empty(4, 3, 8, 8), targets, how, 255)

    assert loss("apart") >= loss("mean"), "the loss is convex"
    one = Levels(scores[:1])
    equal = [supervise(one, torch.empty(4, 3, 8, 8), target, how) for how in get_args(Supervision)]
    assert_close(equal, [equal[0]] * 3)
    for how in get_args(Supervision):  # a sum over samples
        single = [loss(how, torch.where(torch.arange(4) == n, target, 255)) for n in range(4)]
        assert_close(loss(how), torch.stack(single).sum())
        assert loss(how, torch.full((4,), 255)) == 0


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


def test_unknown_names_are_refused():
    unknown: Any = "median"
    with pytest.raises(ValueError, match=r"one of mean, max, logsumexp, probabilities, got 'median'"):
        pooled(logits(0), unknown)
    with pytest.raises(ValueError, match=r"one of answer, mean, apart, got 'median'"):
        supervise(Levels(logits(0)), torch.empty(4, 3, 8, 8), torch.arange(4), unknown)
