"""The checker itself: exact networks pass, networks that are broken on purpose do not, whatever hides the error."""

import math
import random
import threading
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_networks import BROKEN, PYRAMIDS, REFUSED, SCALE_PADDINGS, USELESS, Call, biased, exact_network, fails, then
from torch import Tensor, nn

import scalespaces
from scalespaces import ScaleSpace
from scalespaces.nn import GlobalPool, Lift, ScaleAvgPool, ScaleBatchNorm, ScaleBlurPool, ScaleConv2d, ScalePool
from scalespaces.testing import EquivarianceTable, assert_equivariant, equivariance_error, translation_error


@pytest.mark.parametrize("seeds", [range(first, first + 10) for first in range(0, 100, 10)], ids=str)
def test_exact_networks_pass(seeds):
    """In float32, and in float64 with a bias; which is refused in float32."""
    for seed in seeds:
        model, image = exact_network(seed)
        assert_equivariant(model, image)
        if seed % 2:
            model = biased(model, seed % 3)
            assert_equivariant(model.double(), image.double())
            fails(ValueError, r"rounding hides the .* use float64 \(model\.double\(\)", model.float(), image)


@pytest.mark.parametrize("name", BROKEN)
def test_broken_networks_fail(name):
    """Most of them in float64, where the difference is seen; in float32 they may be refused. Most have a bias."""
    for seed in range(14):
        torch.manual_seed(seed)
        model, image = BROKEN[name](random.Random(seed))
        options = {"translations": name == "index ramp"}
        if seed % 4:
            model = biased(model, seed % 2)
        if seed % 3:
            fails(AssertionError, "not equivariant", model.double(), image.double(), **options)
        else:
            fails((AssertionError, ValueError), f"not equivariant|{REFUSED}", model, image, **options)


@pytest.mark.parametrize("name", USELESS)
def test_what_proves_nothing_is_refused(name):
    make, reason = USELESS[name]
    for seed in range(8):
        torch.manual_seed(seed)
        model, image = make(random.Random(seed))
        dtype = (torch.float32, torch.float64)[seed % 2]
        fails(ValueError, reason, model.to(dtype), image.to(dtype))


def test_channels_and_samples_are_not_hidden():
    weight = torch.tensor([1.0, 0.0])[:, None, None]
    for bias in (0.0, 0.1):
        assert_equivariant(then(Lift(3), lambda level, k, b=bias: level * weight + b), torch.randn(1, 2, 32, 32))
    broken = then(Lift(3), lambda level, k: level * weight + 0.1 * k * (1 - weight))
    fails(AssertionError, r"by inf: .*does not depend on the image \(channel 1,", broken, torch.randn(1, 2, 32, 32))
    size = torch.tensor([1e6, 1.0])[:, None, None]
    broken = then(Lift(3), lambda level, k: size * level * (1 + 0.01 * k * (size == 1)))
    fails(AssertionError, "channel 1,", broken, torch.randn(1, 2, 32, 32))
    spot = torch.zeros(2, 2, 32, 32).index_put_([torch.tensor(n) for n in (1, 0, 0, -1)], torch.tensor(0.01))
    broken = then(Lift(3), lambda level, k: level + k * spot[..., : level.shape[2], -level.shape[3] :])
    fails(AssertionError, "channel 0,", broken, torch.randn(2, 2, 32, 32))


def test_single_samples_show_little():
    """An image two pixels high is one high as soon as it is downscaled; pooled levels have one sample anyway."""
    model = nn.Sequential(Lift(3), ScaleConv2d(1, 2, (1, 3, 3)), nn.ReLU())
    for image in (torch.randn(1, 1, 2, 40), torch.randn(1, 1, 40, 2)):
        fails(ValueError, "to compare have a single sample along an axis", model, image)
        assert_equivariant(nn.Sequential(model, GlobalPool()), image)


@given(
    layers=st.lists(st.tuples(st.integers(1, 3), st.sampled_from(SCALE_PADDINGS)), max_size=3),
    sampling=st.sampled_from([*PYRAMIDS, ("dense", 2.0), (2, 2.0)]),
    more=st.integers(1, 3),
)
def test_the_boundary_is_the_sum_over_the_layers(layers, sampling, more):
    reach = sum(k - 1 for k, _ in layers)
    convs = [ScaleConv2d(1, 1, (k, 3, 3), scale_padding=padding) for k, padding in layers]
    model = nn.Sequential(Lift(reach + more, sampling[1], sampling=sampling[0]), *convs, nn.ReLU())
    table = equivariance_error(model, torch.randn(1, 1, 24, 17))
    outputs = reach + more - sum(k - 1 for k, padding in layers if padding == "valid")
    assert (len(table.levels), table.boundary) == (outputs, more)
    assert table.left_out.keys() == set(range(more, outputs))


def test_levels_that_see_past_the_end_are_named():
    model = nn.Sequential(Lift(4), ScaleConv2d(2, 3, (2, 3, 3)))
    assert_equivariant(model, torch.randn(1, 2, 32, 32))
    table = equivariance_error(model, torch.randn(1, 2, 32, 32))
    assert table.left_out == {3: "filters reach past the last lifted level, 3"}
    assert str(table).endswith("left out: level 3 (filters reach past the last lifted level, 3)")
    assert repr(table) == str(table)
    assert table.to_json()["left_out"] == {"3": "filters reach past the last lifted level, 3"}
    np.testing.assert_array_equal(table.before(), table.before(3))
    assert table.before().max() < 1e-6
    assert table.errors[0, 2] > 0.01
    broken = then(model, lambda level, k: level * (1 + k))
    fails(AssertionError, r"left out: level 3 \(filters reach past", broken, torch.randn(1, 2, 32, 32))
    blind = nn.Sequential(Lift(4), ScaleConv2d(2, 3, (4, 3, 3)))
    message = r"no level is left to compare, of 4; left out: levels 1, 2, 3 \(filters"
    fails(ValueError, message, blind, torch.randn(1, 2, 32, 32))


@pytest.mark.parametrize("first_level", [-1, -2])
def test_levels_finer_than_the_image_are_named(first_level):
    model = nn.Sequential(Lift(5 - first_level, first_level=first_level), ScaleConv2d(2, 3, (2, 3, 3)))
    table = equivariance_error(model, torch.randn(1, 2, 32, 30))
    finer = dict.fromkeys(range(first_level, 0), "finer than the image")
    assert table.left_out == {**finer, 4: "filters reach past the last lifted level, 4"}
    assert (table.levels[0], table.boundary) == (first_level, 4)
    assert_equivariant(model, torch.randn(1, 2, 32, 30))

    def mixed(image: Tensor) -> ScaleSpace:  # level 0 sees level -1
        x = model(image)
        levels = list(x.levels)
        levels[-first_level] = levels[-first_level] + levels[-first_level - 1].mean()
        return x.replace(tuple(levels))

    reason = equivariance_error(mixed, torch.randn(1, 2, 32, 30)).left_out[0]
    assert reason == "reaches down to level -1, finer than the image"


def test_lifts_inside_a_function_are_found():
    """Also their arguments, for the downscaling."""
    image, conv = torch.randn(1, 2, 32, 32), ScaleConv2d(2, 3, (2, 3, 3))
    short, long, other = Lift(4), Lift(5), Lift(4, zero_scale=1.0, padding_mode="circular")
    assert_equivariant(lambda image: conv(other(image)), image)
    table = equivariance_error(lambda image: conv(short(image)) + conv(long(image)).keep(4), image)
    assert table.left_out.keys() == {3}
    assert not equivariance_error(lambda image: short(image) + conv(long(image))[:, :2].keep(4), image).left_out


def test_without_a_lift_all_levels_are_compared_and_it_is_said():
    conv, image = ScaleConv2d(2, 3, (2, 3, 3)), torch.randn(1, 2, 32, 32)
    fails(AssertionError, r"No nn\.Lift ran", lambda image: conv(scalespaces.lift(image)), image)
    conv.scale_padding = "valid"
    assert_equivariant(lambda image: conv(scalespaces.lift(image)), image)


def test_tables_made_by_hand():
    values = np.array([[1.0, 2.0, np.nan], [3.0, np.nan, np.nan]])
    table = EquivarianceTable(values, values, (1, 2), (0, 1, 2), "l")
    assert (table.boundary, table.before().tolist(), table.before(2).tolist()) == (3, [1, 2, 3], [1])
    assert not table.past().any()
    assert table.past(2).tolist() == [[False, True, False], [True, False, False]]


class Network(nn.Module):
    """A whole network: an answer, and the scores of its levels."""

    def __init__(self, strength: float = 0.0) -> None:
        super().__init__()
        layers = [Lift(5), ScaleConv2d(3, 8, (2, 3, 3)), ScaleBatchNorm(8), nn.ReLU(), ScaleConv2d(8, 4, (1, 1, 1))]
        self.layers, self.strength = nn.Sequential(*layers), strength

    def scores(self, image: Tensor) -> ScaleSpace:
        x = GlobalPool()(self.layers(image))
        return x.replace(tuple(level * (1 + self.strength * k) for k, level in enumerate(x.levels)))

    def forward(self, image: Tensor) -> Tensor:
        return ScalePool("mean")(self.scores(image))


def test_whole_networks_by_the_scores_of_their_levels():
    model, image = Network(), torch.rand(3, 3, 40, 32)
    assert_equivariant(model, image[:1])
    assert_equivariant(model, image)
    table = equivariance_error(model, image)
    assert (table.levels, table.boundary) == ((0, 1, 2, 3, 4), 4)
    assert table.before().max() < 1e-5
    worst = r"level 0 of the image downscaled by base\*\*3 differs from level 3 of"
    fails(AssertionError, worst, Network(strength=0.01), image)
    with pytest.raises(ValueError, match=r"translations need levels with positions, got shapes .*\(\d, 4\)"):
        translation_error(model, image)
    fails(ValueError, "translations need levels with positions", model, image, translations=True)
    assert_equivariant(nn.Sequential(Lift(2), ScaleConv2d(3, 4, (1, 3, 3)), GlobalPool("max")), image)
    layer = Call(Lift(3))
    layer.scores = nn.Linear(2, 2)  # which is not taken for a method
    assert_equivariant(layer, image)


def test_levels_of_other_shapes():
    model, image = nn.Sequential(Lift(4), ScaleConv2d(2, 3, (2, 3, 3))), torch.randn(2, 2, 32, 32)
    broken = then(model, lambda level, k: level * (1 + 0.01 * k))
    for reshape in (lambda x: x.permute(0, 2, 3, 1), lambda x: x.flatten(1)):
        assert_equivariant(nn.Sequential(model, Call(reshape)), image)
        fails(AssertionError, "not equivariant", nn.Sequential(broken, Call(reshape)), image)


def test_functions_run_in_evaluation_mode_too():
    model = nn.Sequential(Lift(3), ScaleConv2d(2, 3, (1, 3, 3)), ScaleBatchNorm(3), nn.Dropout(0.5))
    model[1].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for function in (model, lambda image: model(image), model.forward):
        assert_equivariant(function, torch.randn(1, 2, 32, 32))
        assert [module.training for module in model] == [True, False, True, True]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_other_threads_are_left_alone():
    lift, image, seen = Lift(3), torch.randn(1, 2, 16, 16), []

    def model(image: Tensor) -> ScaleSpace:
        thread = threading.Thread(target=lambda: seen.append(other(torch.randn(1, 2, 16, 16))))
        thread.start()
        thread.join()
        return lift(image)

    other = nn.Sequential(Lift(3), nn.Dropout())
    assert_equivariant(model, image)
    assert other.training
    assert all(level.isfinite().all() for x in seen for level in x.levels)


def test_downscalings_too_small_for_the_network_are_named():
    with warnings.catch_warnings():  # of single samples: the downscaled image is lifted to as many levels as the image
        warnings.simplefilter("error")
        assert_equivariant(nn.Sequential(Lift(4), ScaleConv2d(1, 3, (1, 3, 3))), torch.randn(1, 1, 16, 16))
    model, image = nn.Sequential(Lift(4), ScaleAvgPool(2)), torch.randn(1, 1, 32, 32)
    table = equivariance_error(model, image)
    assert (table.rows, [*table.failed]) == ((1,), [2, 3])
    assert "too small for the network: l = 2 (level 3 has (1, 1) samples" in str(table)
    assert_equivariant(model, image)
    with pytest.raises(ValueError, match="too few for a window") as caught:
        assert_equivariant(model, image, shifts=[2])
    assert caught.value.__notes__ == ["for the image downscaled by base**2, (1, 1, 8, 8); use a larger image"]


def test_a_tolerance_can_be_chosen():
    broken, image = then(Lift(3), lambda level, k: level * (1 + 0.001 * k)), torch.randn(1, 1, 32, 32)
    assert_equivariant(broken, image, tolerance=0.1)
    fails(AssertionError, r"(?s)tolerance 0.*To rule out rounding, use float64", broken, image)
    fails(ValueError, "rounding hides the answer", Lift(3), image, tolerance=1e-9)
    fails(ValueError, "tolerance must be a finite number", broken, image, tolerance=math.nan)


MOVES: list[Any] = [("pyramid", 2.0, True), ("pyramid", 2.0, [8, 16]), ("pyramid", 1.5, True)]
MOVES += [("dense", 2.0, True), ("dense", 2.0, [1, 3]), ("dense", 2**0.5, [1])]


@pytest.mark.parametrize(("sampling", "base", "moves"), MOVES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_translations_by_whole_samples_are_exact(sampling, base, moves, dtype):
    """At every sample that sees no border."""
    layers = [ScaleConv2d(1, 3, (2, 3, 3)), nn.ReLU(), ScaleConv2d(3, 3, (1, 3, 3))]
    lift = Lift(3, base, sampling=sampling, padding_mode="zeros")
    image = torch.randn(1, 1, *((64, 72) if sampling == "pyramid" else (48, 40)), dtype=dtype)
    model = nn.Sequential(lift, *layers).to(dtype)
    if base == 2**0.5:
        table = translation_error(model, image, translations=moves, margin=None, axis=-2)
        assert np.nanmax(table.largest) < 1e-4
    else:
        assert_equivariant(model, image, translations=moves)


def test_translations_of_other_levels():
    """Without channels, and strided."""
    model = nn.Sequential(Lift(3), ScaleConv2d(1, 3, (1, 3, 3)))
    assert_equivariant(lambda image: model(image).mean(1), torch.randn(1, 1, 64, 48), translations=True)
    model = nn.Sequential(Lift(3), ScaleConv2d(1, 3, (1, 3, 3), stride=2), ScaleBlurPool()).double()
    image = torch.randn(1, 1, 112, 128, dtype=torch.float64)
    assert_equivariant(model, image, translations=True)
    fails(ValueError, r"\[4.0, 8.0, 16.0\] pixels apart, got \[8\] within", model, image, translations=[8])


def test_translations_that_cannot_be_checked_are_refused():
    image = torch.randn(1, 1, 32, 32)
    rule = r"must move by whole samples .* \(bases such as the square root of 2 have none\)"
    fails(ValueError, rule, Lift(3, 2**0.5), image, translations=True)
    model = nn.Sequential(Lift(3), ScaleConv2d(1, 3, (1, 25, 25)))
    fails(ValueError, r"left out: levels 0, 1, 2 \(every sample sees a border\)", model, image, translations=True)
    with pytest.raises(ValueError, match="axis must be one of the image's last 2"):
        translation_error(Lift(3), image, axis=1)


def test_what_cannot_be_compared_is_refused():
    image, is_complex = torch.rand(1, 1, 32, 32), r"got complex ones; return torch\.view_as_real"
    fails(TypeError, is_complex, then(Lift(3), lambda level, k: torch.complex(level, level)), image)
    fails(ValueError, "the network is random", then(Lift(3), lambda level, k: level + torch.randn_like(level)), image)
    fails(ValueError, "the image has values that are not finite", Lift(3), image * math.nan)
    fails(TypeError, "there is no argument 'tol'", Lift(3), image, tol=1e-3)
    for shifts in ([0], [1, 0], [-1], [1.5], [True]):
        fails(ValueError, "shifts must be an integer >= 1", Lift(3), image, shifts=shifts)
