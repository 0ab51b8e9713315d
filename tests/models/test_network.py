"""One interface: what holds for every network with levels, built by name or converted."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from models.networks import NAMES, POOLS, small
from torch import Tensor, nn
from torch.testing import assert_close

from scalespaces import ScaleSpace, convert, resample
from scalespaces.functional._resample import on_image
from scalespaces.models import Card, ScaleNetwork, export
from scalespaces.models._network import strongest_level

PLAIN: dict[str, Callable[[], list[nn.Module]]] = {  # the first and last classify, the others segment
    "cnn": lambda: [
        *(nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)),
    ],
    "strided": lambda: [nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Conv2d(6, 4, 1)],
    "fully": lambda: [nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 4, 1)],
    "signals": lambda: [
        *(nn.Conv1d(2, 6, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2)),
        *(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(6, 4)),
    ],
}
ALIKE = ("resnet_matched_parameters", "s_resnet_no_interaction")  # the resnet, with its width and levels
NETWORKS = [*(name for name in NAMES if name not in ALIKE), *(f"converted {name}" for name in PLAIN)]
SIZE = (40, 37)
EVERY = pytest.mark.parametrize("name", NETWORKS)


@dataclass
class Case:
    """A network in evaluation with a batch of two for it, and the plain model if it was converted."""

    network: Any
    image: Tensor
    plain: nn.Module | None = None
    size: tuple[int, ...] = SIZE

    @property
    def segments(self) -> bool:
        return self.network(self.image).ndim == self.image.ndim

    def levels(self, scores: ScaleSpace) -> ScaleSpace:
        """The scores where the answer is: at the pixels, but for converted networks, whose answers are coarser."""
        return on_image(scores, self.size) if self.plain is None else resample(scores)


def build(name: str, lift: Any = None, **arguments: Any) -> Case:
    torch.manual_seed(0)
    lift = {"num_levels": 3} if lift is None else lift
    if name.startswith("converted"):
        plain = nn.Sequential(*PLAIN[name.removeprefix("converted ")]()).double().eval()
        size = (96,) if name.endswith("signals") else SIZE
        image = torch.rand(2, 2 if name.endswith("signals") else 3, *size, dtype=torch.float64)
        return Case(convert(plain, lift, **{"scale_pool": "mean", **arguments}).eval(), image, plain, size)
    network = small(name, lift=lift, num_classes=4, init="he", **arguments)
    return Case(network.double().eval(), torch.rand(2, 3, *SIZE, dtype=torch.float64))


@EVERY
@torch.no_grad()
def test_scores_are_each_levels_own_answer_computed_from_features(name):
    case = build(name)
    network, scores, features = case.network, case.network.scores(case.image), case.network.features(case.image)
    assert isinstance(case.network, ScaleNetwork)
    assert isinstance(scores, ScaleSpace)
    assert scores.num_levels == case.network.config["lift"]["num_levels"] == 3
    assert scores.first_level == 0
    assert all(shape[:2] == (2, 4) for shape in scores.shapes)
    assert scores.dims == (case.image.ndim - 2 if case.segments else 0)
    if case.plain is not None:
        for k, level in enumerate(scores.levels):
            assert_close(level, case.plain(case.network.lift.downscale(case.image, k)))
    assert isinstance(features, ScaleSpace)
    assert features.num_levels == 3
    head = network.head if case.plain is None else network.model[-1]
    assert_close(head(features).levels, scores.levels)
    assert [level.shape for level in network.pyramid(case.image).values()] == list(features.shapes) or not features.dims


@pytest.mark.parametrize(
    ("lift", "pool"),
    [*(({}, pool) for pool in POOLS), ({"sampling": "dense"}, "mean"), ({"base": 1.5, "first_level": -1}, "mean")],
)
@EVERY
@torch.no_grad()
def test_the_answer_is_pooled_from_the_scores_of_levels(name, lift, pool):
    if pool in ("max", "logsumexp") and name.endswith(("densenet", "resnet")):
        return  # they pool features, which is the same for means only
    case = build(name, {"num_levels": 3, **lift}, scale_pool=pool)
    answer, scores = case.network.answer_and_scores(case.image)
    assert_close(answer, case.network(case.image))
    assert_close(scores.levels, case.network.scores(case.image).levels)
    levels = case.levels(scores)
    assert levels.shapes == (answer.shape,) * 3
    assert_close(POOLS[pool](torch.stack(levels.levels)), answer)
    assert not torch.allclose(levels.levels[0], levels.levels[1])


@pytest.mark.parametrize(("first_level", "sampling"), [(0, "pyramid"), (-1, "pyramid"), (-1, "dense"), (-1, 2)])
@EVERY
@torch.no_grad()
def test_scale_maps_name_a_level_for_every_pixel(name, first_level, sampling):
    case = build(name, {"num_levels": 3, "first_level": first_level, "sampling": sampling})
    scales = case.network.scale_map(case.image)
    assert (scales.shape, scales.dtype) == ((2, *case.size), torch.int64)
    assert first_level <= scales.min() <= scales.max() <= first_level + 2
    assert case.network.scores(case.image).first_level == first_level


@given(st.integers(0, 99), st.booleans(), st.integers(-2, 0))
def test_the_strongest_level_by_loops(seed, dense, first_level):
    torch.manual_seed(seed)
    shape = (2, 4, 5, 3) if dense else (2, 4)
    scores = ScaleSpace(tuple(torch.randn(3, *shape)), steps=(1.0,) * 3, first_level=first_level)
    answer = torch.randn(shape)
    found = strongest_level(answer, scores, (5, 3))
    for b in range(2):
        for i in range(5):
            for j in range(3):
                place = (i, j) if dense else ()
                predicted = max(range(4), key=lambda c: answer[(b, c, *place)].item())
                best = max(range(3), key=lambda k: scores.levels[k][(b, predicted, *place)].item())
                assert found[b, i, j] == best + first_level


@EVERY
def test_what_an_image_needs(name):
    case = build(name)
    network = case.network
    assert network.in_channels == case.image.shape[1]
    side = network.smallest_side
    assert isinstance(side, int)
    assert network.card == Card()
    if side > 1:
        assert network(case.image[:, :, :side, :side]).isfinite().all()
        with pytest.raises(ValueError, match=f"at least {side} pixels"):
            network(case.image[:, :, : side - 1])
    with pytest.raises(ValueError, match=r"add a batch axis with image\[None\]"):
        network(case.image[0])
    for method in (network, network.scores, network.features, network.answer_and_scores, network.scale_map):
        with pytest.raises(ValueError, match=r"got shape \(2,"):
            method(case.image[..., None])


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        *product(("s_cnn", "s_densenet", "s_resnet"), ({}, {"preset": "paper"}, {"lift": {"sampling": "dense"}})),
        *[(name, {"scale_padding": "valid"}) for name in ("s_densenet", "s_resnet")],
        ("s_cnn", {"lift": {"base": 1.5, "method": "direct"}}),
        ("s_cnn", {"lift": {"sampling": 1.5}}),
        ("s_cnn", {"lift": {"sampling": "dense", "base": 1.3, "first_level": -1}}),
        ("s_cnn", {"filter_levels": 2, "scale_padding": "valid", "lift": {"first_level": -1, "num_levels": 2}}),
        ("s_densenet", {"lift": {"sampling": 2}}),
        ("s_densenet", {"lift": {"base": 3.0, "num_levels": 3}}),
        ("s_densenet", {"scale_padding": "valid", "filter_levels": (2, 1, 1, 1, 1)}),
        ("s_resnet", {"lift": {"first_level": -1}}),
    ],
    ids=str,
)
def test_the_smallest_side_is_the_smallest(name, arguments):
    model = small(name, **arguments).eval()
    side = model.smallest_side
    assert model(torch.rand(1, 3, side, side + 1)).isfinite().all()
    image = torch.rand(1, 3, side + 1, side - 1)
    with pytest.raises(ValueError, match=f"images of at least {side} pixels along each side, got"):
        model(image)
    with pytest.raises(ValueError, match="too few for a window"):  # what the poolings say themselves
        model.body(model.lift(image))


SLOW = [name for name in NETWORKS if name not in ("converted strided", "converted signals")]  # images are exported


@pytest.mark.parametrize("name", ["converted strided", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
@torch.no_grad()
def test_exports_have_the_levels(name, tmp_path):
    case, path = build(name, scale_pool="probabilities"), tmp_path / "network.pt2"
    exported = export(case.network, path, levels=True, static=True, size=(48, 44))
    assert exported.outputs == ("output", "level_0", "level_1", "level_2")
    image = torch.rand(1, 3, 48, 44, dtype=torch.float64)
    found, (answer, scores) = torch.export.load(path).module()(image), case.network.answer_and_scores(image)
    assert_close(list(found.values()), [answer, *scores.levels])


@given(st.lists(st.tuples(st.floats(-10, 10), st.floats(0.01, 10)), min_size=1, max_size=4), st.integers(0, 2))
def test_cards_normalize(channels, batch_axes):
    mean, std = zip(*channels, strict=True)
    image = torch.rand(*[2] * batch_axes, len(channels), 3, 4, dtype=torch.float64)
    expected = torch.stack([(image[..., i, :, :] - m) / s for i, (m, s) in enumerate(channels)], -3)
    torch.testing.assert_close(Card(mean=mean, std=std).normalize(image), expected)
    assert Card().normalize(image) is image
    with pytest.raises(ValueError, match="images are"):
        Card(mean=mean, std=std).normalize(image[..., :0, :, :])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"classes": "abc"}, "classes is a list"),
        ({"classes": ["a", 1]}, "different strings"),
        ({"classes": ["a", "a"]}, "different strings"),
        ({"mean": [0.5]}, "one finite number per channel"),
        ({"mean": [0.5], "std": [0.0]}, "above zero"),
        ({"mean": [float("nan")], "std": [1.0]}, "finite"),
        ({"mean": 0.5, "std": 0.5}, "mean is a list"),
    ],
)
def test_wrong_cards(arguments, message):
    with pytest.raises(ValueError, match=message):
        Card(**arguments)
