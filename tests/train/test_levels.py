"""Pooling and supervision of levels, against their formulas in NumPy and laws of the two."""

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

from scalespaces import convert
from scalespaces.models import create_model
from scalespaces.train._levels import LevelPool, Supervision, answer, level_answers, pool_levels, supervise

POOLS = get_args(LevelPool)[1:]


class Levels(nn.Module):
    """Answers of its own for each level, whatever the image; the network's answer is the first."""

    def __init__(self, answers: Tensor) -> None:
        super().__init__()
        self.answers = nn.Parameter(answers.double())

    def forward(self, images: Tensor) -> Tensor:
        return self.answers[0]

    def level_answers(self, images: Tensor) -> Tensor:
        return self.answers


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


@pytest.mark.parametrize("pool", POOLS)
@given(st.integers(0, 99), st.integers(1, 5), pixels)
def test_pools_are_their_formulas(pool, seed, levels, pixels):
    answers = logits(seed, levels, pixels)
    np.testing.assert_allclose(pool_levels(answers, pool), naive_pool(answers.numpy(), pool), atol=1e-12)


@pytest.mark.parametrize("pool", POOLS)
@given(seed=st.integers(0, 99), pixels=pixels)
def test_laws_of_pools(pool, seed, pixels):
    answers = logits(seed, 4, pixels)
    pooled = pool_levels(answers, pool)
    assert_close(pool_levels(answers[[2, 0, 3, 1]], pool), pooled)
    same = answers[:1].expand_as(answers)
    assert_close(pool_levels(same, pool).softmax(1), answers[0].softmax(1))  # levels that agree are right
    assert (pooled <= answers.amax(0) + 1e-12).all() or pool == "probabilities"
    if pool != "probabilities":
        assert_close(pool_levels(answers + 7, pool), pooled + 7)
    else:
        assert_close(pooled.exp().sum(1), torch.ones_like(pooled[:, 0]))
        moved = answers + torch.tensor([1.0, -2, 3, 5]).reshape(-1, *[1] * (answers.ndim - 1))
        assert_close(pool_levels(moved, pool), pooled)  # each level's logits are known up to a constant only


def test_pools_are_ordered():
    """The mean of exponentials lies between the exponentials of the mean and of the maximum."""
    answers = logits(0)
    low, middle, high = (pool_levels(answers, pool) for pool in ("mean", "logsumexp", "max"))
    assert (low < middle).all()
    assert (middle < high).all()


@pytest.mark.parametrize("pool", POOLS)
def test_pools_stay_finite_for_large_logits(pool):
    assert pool_levels(1e4 * logits(0).float(), pool).isfinite().all()


def test_answers_of_networks_with_levels():
    network = create_model("s_densenet", growth=(4, 4), num_layers=1, num_levels=3, sampling="pyramid").eval()
    images = torch.rand(2, 3, 32, 32)
    levels = network.level_answers(images)
    assert_close(level_answers(network, images), levels)
    assert_close(answer(network, images), network(images))
    for pool in POOLS:
        assert_close(answer(network, images, pool), pool_levels(levels, pool))


def test_answers_of_networks_without_levels():
    plain = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)).eval()
    images = torch.rand(2, 3, 32, 32)
    assert_close(answer(plain, images), plain(images))
    with pytest.raises(ValueError, match=r"got a Sequential; use the pool 'model', or scalespaces\.convert"):
        answer(plain, images, "mean")
    with pytest.raises(ValueError, match=r"got a Sequential"):
        supervise(plain, images, torch.zeros(2, dtype=torch.int64), "apart")
    assert answer(convert(plain, num_levels=3), images, "probabilities").shape == (2, 2)


@pytest.mark.parametrize("how", get_args(Supervision))
@given(seed=st.integers(0, 99), levels=st.integers(1, 4), pixels=pixels)
def test_losses_are_their_formulas(how, seed, levels, pixels):
    answers = logits(seed, levels, pixels)
    target = np.random.default_rng(seed).integers(0, 5, (4, *pixels))
    target[0] = 255

    def loss(scores: np.ndarray) -> float:
        probabilities = np.moveaxis(softmax(scores), 1, -1)
        places = np.argwhere(target != 255)
        return -sum(math.log(probabilities[(*place, target[tuple(place)])]) for place in places)

    expected = {
        "answer": loss(answers[0].numpy()),
        "mean": loss(naive_pool(answers.numpy(), "mean")),
        "apart": np.mean([loss(level) for level in answers.numpy()]),
    }[how]
    network, images = Levels(answers), torch.empty(4, 3, 8, 8)
    assert supervise(network, images, torch.from_numpy(target), how, 255).item() == pytest.approx(expected)


@given(st.integers(0, 99))
def test_laws_of_losses(seed):
    answers, target = logits(seed), torch.arange(4)
    network = Levels(answers)

    def loss(how: Supervision, targets: Tensor = target) -> Tensor:
        return supervise(network, torch.empty(4, 3, 8, 8), targets, how, 255)

    assert loss("apart") >= loss("mean"), "the loss is convex"
    one = Levels(answers[:1])
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
    gradient = network.answers.grad
    assert gradient is not None
    assert [level for level in range(3) if gradient[level].abs().max() > 0] == learning
    if how == "mean":  # all alike, that of the mean
        mean = network.answers.detach().mean(0).requires_grad_()
        (whole,) = torch.autograd.grad(F.cross_entropy(mean, torch.arange(4), reduction="sum"), mean)
        assert_close(gradient, (whole / 3).expand(3, -1, -1))


def test_unknown_names_are_refused():
    unknown: Any = "median"
    with pytest.raises(ValueError, match=r"one of mean, max, logsumexp, probabilities, got 'median'"):
        pool_levels(logits(0), unknown)
    with pytest.raises(ValueError, match=r"one of answer, mean, apart, got 'median'"):
        supervise(Levels(logits(0)), torch.empty(4, 3, 8, 8), torch.arange(4), unknown)
