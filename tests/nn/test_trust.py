"""Trust against loops and SciPy, and its law: weights shift with the levels."""

from typing import Any

import numpy as np
import pytest
import torch
from algebra import rand
from hypothesis import given
from hypothesis import strategies as st
from reference import refusals
from scipy import special, stats
from torch import Tensor
from torch.testing import assert_close

from scalespaces import ScaleSpace, downscale, lift, models, resample
from scalespaces.functional import scale_pool, trust
from scalespaces.functional._trust import level_statistics
from scalespaces.nn import ScalePool, Trust

NOTHING: Any = torch.zeros(2, 3)


def pyramid(channels: int, num_levels: int = 3, first_level: int = 0) -> ScaleSpace:
    """Noise on the grids of a pyramid."""
    image = torch.zeros(2, channels, 9, 8, dtype=torch.float64)
    return lift(image, num_levels, first_level=first_level).map(torch.randn_like)


def opinionated(seed: int, **options: Any) -> Trust:
    """A trust with random weights and statistics."""
    torch.manual_seed(seed)
    g: Any = Trust(**options).double().eval()
    for parameter in g.parameters():
        torch.nn.init.normal_(parameter)
    g.temperature.data.abs_()
    g.norm.running_mean.normal_()
    g.norm.running_var.uniform_(0.5, 2)
    return g


@given(st.integers(1, 5), st.integers(1, 4), st.sampled_from([(), (3,), (2, 3)]))
def test_against_loops(num_levels, classes, shape):
    scores = ScaleSpace([rand(2, classes, *shape) for _ in range(num_levels)])
    confidence = ScaleSpace([5 * rand(2, 1, *shape) for _ in range(num_levels)])
    got, level = trust(scores, confidence, return_scale=True)
    weights = special.softmax([g.numpy() for g in confidence.levels], 0)
    parts = [w * special.softmax(z.numpy(), 1) for w, z in zip(weights, scores.levels, strict=True)]
    np.testing.assert_allclose(got.exp(), sum(parts), rtol=1e-10)
    np.testing.assert_array_equal(level, np.argmax(parts, 0))


def test_statistics_against_scipy():
    scores, features = pyramid(5), pyramid(7).relu()
    for z, h, got in zip(scores.levels, features.levels, level_statistics(scores, features).levels, strict=True):
        z, h, p = z.numpy(), h.numpy(), special.softmax(z.numpy(), 1)
        expected = [z.max(1), special.logsumexp(z, 1), stats.entropy(p, axis=1), p.max(1)]
        expected += [np.linalg.norm(h, axis=1) / 7**0.5, h.mean(1), np.count_nonzero(h, 1) / 7, h.std(1)]
        np.testing.assert_allclose(got, np.stack(expected, 1), atol=1e-5)  # the roots of zeros


def test_features_of_another_size_are_averaged_or_interpolated():
    scores, features = pyramid(5), pyramid(7)
    pooled = scores.map(lambda level: level.mean((2, 3)))
    means = features.map(lambda level: level.mean((2, 3)))
    assert_close(level_statistics(pooled, features).levels, level_statistics(pooled, means).levels)
    finer = lift(torch.zeros(2, 5, 18, 16, dtype=torch.float64), 3).map(torch.randn_like)
    constant = features.map(torch.ones_like)
    assert level_statistics(finer, constant).shapes == tuple((2, 8, *shape[2:]) for shape in finer.shapes)
    assert_close(level_statistics(finer, constant).levels[1][:, 4], torch.ones(2, 9, 8, dtype=torch.float64))
    assert level_statistics(finer, means).shapes[2][2:] == finer.shapes[2][2:]


def test_a_new_trust_takes_the_mean_of_probabilities_and_equal_levels_change_nothing():
    scores, features = pyramid(5), pyramid(7)
    g: Any = Trust().double().eval()
    assert_close(g(scores, features), scale_pool(scores, "probabilities"))
    assert_close(ScalePool("trust").double().eval()(scores, features), scale_pool(scores, "probabilities"))
    one, alone = rand(2, 5), rand(2, 7)
    same = opinionated(0)(ScaleSpace([one] * 3), ScaleSpace([alone] * 3))
    assert_close(same, opinionated(0)(ScaleSpace([one]), ScaleSpace([alone])))


@pytest.mark.parametrize("name", ["s_densenet", "s_resnet_no_interaction", "s_cnn"])
@pytest.mark.parametrize("first_level", [0, -1])
@torch.no_grad()
def test_confidence_shifts_with_the_levels(name, first_level):
    """On a pyramid: exactly. The answer changes by at most the weight of the levels that enter or leave."""
    small: Any = {"s_densenet": {"growth": (3, 3), "filter_levels": 1}, "s_cnn": {"channels": (4, 4), "kernel_size": 3}}
    options = small.get(name, {"width": 4, "init": "he"})
    levels = {"num_levels": 4, "first_level": first_level, "base": 2.0}
    network = models.create_model(name, lift=levels, scale_pool="trust", **options).double().eval()
    network.scale_pool.trust = g = opinionated(1)
    image = torch.rand(2, network.in_channels, 129, 113, dtype=torch.float64)
    spaces = [network.scores_and_features(x) for x in (image, downscale(image))]
    before, after = (g.confidence(level_statistics(*space)) for space in spaces)
    for k in range(first_level + 1 if first_level < 0 else 0, first_level + 3):  # level -1 is interpolated
        assert_close(after.level(k), before.level(k + 1), rtol=1e-9, atol=1e-9)
    assert max(float(level.std()) for level in before.levels) > 1e-3
    if before.dims or first_level:
        return
    was, now = (network.weights(x) for x in (image, downscale(image)))
    distance = (network(image).exp() - network(downscale(image)).exp()).abs().sum(1) / 2
    assert (distance <= torch.maximum(was[:, 0], now[:, -1]) + 1e-9).all()


def test_weights_and_scale_maps_are_those_of_the_mixture():
    network: Any = models.create_model("s_resnet", lift={"num_levels": 3}, width=4, scale_pool="trust").eval()
    network.scale_pool.trust = opinionated(2).float()
    image = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        weights, answer = network.weights(image), network(image)
        assert weights.shape == (1, 3, 64, 64)
        assert_close(weights.sum(1), torch.ones(1, 64, 64))
        scores = resample(resample(network.scores(image)), (64, 64)).stack()
        statistics = resample(resample(level_statistics(*network.scores_and_features(image))), (64, 64)).stack()
        g = network.scale_pool.trust
        p = (g.temperature * statistics[:, 4:5] ** -g.exponent * scores).softmax(1) * weights[:, None]
        assert_close(answer.exp(), p.sum(2))
        strongest = p.argmax(2).gather(1, answer.argmax(1, keepdim=True))[:, 0]
        assert torch.equal(network.scale_map(image), strongest)
    with pytest.raises(ValueError, match="combined by trust, got 'mean'"):
        models.create_model("s_resnet").weights(image)


def test_gradients():
    g, ones = opinionated(3, hidden=2), torch.ones(2, 1, dtype=torch.float64)

    def answer(z: Tensor, h: Tensor) -> Any:
        return g(ScaleSpace((z, 2 * z * z)), ScaleSpace((h, h.sin())))

    assert torch.autograd.gradcheck(answer, (rand(2, 3).requires_grad_(), rand(2, 4).requires_grad_()))
    dead = torch.zeros(2, 4, dtype=torch.float64, requires_grad=True)
    answer(ones.expand(2, 3), dead).sum().backward()
    assert dead.grad is not None
    assert dead.grad.isfinite().all()


def test_training_with_the_network_reaches_every_parameter():
    network = models.create_model("s_cnn", channels=(4, 4), kernel_size=3, scale_pool="trust").train()
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    for _ in range(2):  # the first layer of the perceptron moves once the second has
        optimizer.zero_grad()
        torch.nn.functional.nll_loss(network(torch.rand(4, 1, 32, 32)), torch.tensor([1, 2, 3, 4])).backward()
        optimizer.step()
    assert [name for name, p in network.named_parameters() if p.grad is None or not p.grad.any()] == []


SCORES = pyramid(5)

test_refusals = refusals(
    (lambda: trust(SCORES, SCORES), "the confidence has one channel"),
    (lambda: level_statistics(SCORES, SCORES.keep(2)), "the same levels, got 3 and 2"),
    (lambda: ScalePool("trust")(SCORES), r"takes the features of levels, too: pool\(scores, features\)"),
    (lambda: scale_pool(SCORES, "trust"), "has parameters; use scalespaces.nn.ScalePool"),
    (lambda: trust(SCORES.permute(0, 2, 3, 1), SCORES), "axis 1"),
    (lambda: Trust(0), "hidden must be"),
    (lambda: trust(NOTHING, SCORES), "expected a ScaleSpace"),
    error=(TypeError, ValueError),
)
