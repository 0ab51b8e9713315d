"""The checker itself: exact networks pass, networks that are broken on purpose do not, whatever hides the error."""

import math
import random
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import scalespaces
from scalespaces import ScaleSpace
from scalespaces.nn import (
    CausalLift,
    GlobalPool,
    Lift,
    P4MBatchNorm,
    P4MConv2d,
    P4MPool,
    ScaleAvgPool,
    ScaleBatchNorm,
    ScaleBlurPool,
    ScaleConv1d,
    ScaleConv2d,
    ScaleMaxPool,
    ScalePool,
)
from scalespaces.testing import EquivarianceTable, assert_equivariant, equivariance_error, translation_error

PADDINGS = ("zeros", "reflect", "replicate", "circular")
SCALE_PADDINGS = ("zeros", "replicate", "valid")
PYRAMIDS = (("pyramid", 2.0), ("pyramid", 2**0.5), ("pyramid", 1.5), ("pyramid", 3.0))
DENSE = (("dense", 2.0), (2, 2.0))
REFUSED = "rounding hides the answer|no channel of the output depends on the image|to compare have a single sample"


# --- random networks -------------------------------------------------------------------------------------------------


def draw_layers(draw: random.Random, sampling: Any) -> tuple[list[nn.Module], int]:
    """Layers that are exact, from 2 channels to 3, and how many levels above its own each level sees."""
    layers, reach, channels, halved = [], 0, 2, draw.randint(0, 2)
    for _ in range(draw.randint(1, 3)):
        k, side, width = draw.choice([1, 2, 2]), draw.choice([1, 3]), draw.randint(4, 6)
        halved -= (stride := draw.choice([1, 2]) if halved else 1) == 2
        options: dict[str, Any] = {"stride": stride, "scale_padding": draw.choice(SCALE_PADDINGS)}
        options["padding_mode"] = draw.choice(PADDINGS) if sampling == "pyramid" else "zeros"
        layers.append(ScaleConv2d(channels, width, (k, side, side), **options))
        channels, reach = width, reach + k - 1
        if draw.random() < 0.5:
            layers.append(settled(ScaleBatchNorm(channels)))
        if draw.random() < 0.7:
            layers.append(draw.choice([nn.ReLU(), nn.Tanh(), nn.LeakyReLU(0.2)]))
        if draw.random() < 0.4 and halved:
            halved -= 1
            pools = [ScaleAvgPool(3, 2, 1), ScaleMaxPool(3, 2, 1), ScaleBlurPool()]
            layers.append(draw.choice(pools if sampling == "pyramid" else pools[:2]))
    return [*layers, ScaleConv2d(channels, 3, (1, 1, 1))], reach


def settled(norm: ScaleBatchNorm) -> ScaleBatchNorm:
    """Batch normalization with statistics that are not those of its initialization."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.normal_(0, 0.2)
    norm.running_var.uniform_(0.5, 2)
    return norm


def network(
    draw: random.Random, samplings: Sequence = PYRAMIDS * 2 + DENSE, pooled: bool = False, **lifted: Any
) -> tuple[nn.Sequential, Tensor]:
    """A random network with three exact levels, and noise for it."""
    sampling, base = draw.choice(samplings)
    layers, reach = draw_layers(draw, sampling)
    padding_mode = draw.choice(PADDINGS) if sampling == "pyramid" else "zeros"
    options = {"zero_scale": draw.choice([0.25, 0.5, 1.0]), "padding_mode": padding_mode, **lifted}
    lift = Lift(reach + 3, base, sampling=sampling, **options)
    image = torch.randn(draw.randint(1, 2), 2, draw.randint(25, 40), draw.randint(25, 40))
    return nn.Sequential(lift, *layers, *([GlobalPool()] if pooled else [])), image


def causal_network(draw: random.Random) -> tuple[nn.Sequential, Tensor]:
    lift = CausalLift(5, stages=3, sampling=draw.choice(["pyramid", "dense"]))
    layers = [ScaleConv1d(1, 3, (draw.choice([1, 2]), 5), stride=draw.choice([1, 2])), nn.Tanh()]
    return nn.Sequential(lift, *layers, ScaleConv1d(3, 3, (2, 3), scale_padding="replicate")), torch.randn(1, 1, 101)


def p4m_network(draw: random.Random) -> tuple[nn.Sequential, Tensor]:
    first = P4MConv2d(2, 2, (2, 3, 3), lifting=True, scale_padding=draw.choice(SCALE_PADDINGS))
    layers = [first, P4MBatchNorm(2), nn.ReLU(), P4MConv2d(2, 2, (1, 3, 3)), P4MPool()]
    return nn.Sequential(Lift(4), *layers), torch.randn(1, 2, draw.randint(25, 40), 33)


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def then(network: nn.Module, function: Callable[[Tensor, int], Tensor]) -> nn.Sequential:
    """A network, and a function of each level and its index."""
    return nn.Sequential(
        network, Call(lambda x: x.replace(tuple(function(level, k) for k, level in enumerate(x.levels))))
    )


def inserted(network: nn.Sequential, function: Callable[[ScaleSpace], ScaleSpace], at: int = 1) -> nn.Sequential:
    """A network with a function of levels between its layers."""
    layers = list(network)
    return nn.Sequential(*layers[:at], Call(function), *layers[at:])


def biased(network: nn.Module, channels: slice) -> nn.Module:
    """The network with a bias of 1e4 in some channels."""

    def add(level: Tensor, k: int) -> Tensor:
        bias = torch.zeros_like(level)
        bias[:, channels] = 1e4
        return level + bias

    return then(network, add)


CHANNELS = [slice(None), slice(0, 1), slice(1, 3)]


def fails(error: type[Exception], message: str, model: Any, image: Tensor, **options: Any) -> None:
    with pytest.raises(error, match=message):
        assert_equivariant(model, image, **options)


def ramp(level: Tensor) -> Tensor:
    return torch.arange(level.shape[-1]).to(level)


# --- exact networks --------------------------------------------------------------------------------------------------


def draw_exact(seed: int) -> tuple[nn.Module, Tensor]:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    if seed % 10 in (8, 9):
        return (causal_network if seed % 10 == 8 else p4m_network)(draw)
    return network(draw, PYRAMIDS, pooled=True) if seed % 10 == 7 else network(draw)


@pytest.mark.parametrize("seeds", [range(first, first + 10) for first in range(0, 100, 10)], ids=str)
def test_exact_networks_pass(seeds):
    """In float32, and in float64 with a bias; which is refused in float32."""
    for seed in seeds:
        model, image = draw_exact(seed)
        assert_equivariant(model, image)
        if seed % 2:
            model = biased(model, CHANNELS[seed % 3])
            assert_equivariant(model.double(), image.double())
            fails(ValueError, r"rounding hides the .* use float64 \(model\.double\(\)", model.float(), image)


# --- networks broken on purpose --------------------------------------------------------------------------------------

Broken = tuple[nn.Module, Tensor, dict[str, Any]]


def level_bias(draw: random.Random) -> Broken:
    model, image = network(draw)
    strength = 10 ** draw.uniform(-2, 0)
    return then(model, lambda level, k: level + strength * k), image, {}


def level_weight(draw: random.Random) -> Broken:
    model, image = network(draw)
    strength = 10 ** draw.uniform(-2, 0)
    return then(model, lambda level, k: level * (1 + strength * k)), image, {}


def level_temperature(draw: random.Random) -> Broken:
    model, image = network(draw, PYRAMIDS, pooled=True)
    strength = 10 ** draw.uniform(-1, 0)
    return then(model, lambda level, k: (level / (1 + strength * k)).softmax(1)), image, {}


def pixel_ramp(draw: random.Random) -> Broken:
    """The position in the image, in pixels, is added."""
    model, image = network(draw, [("pyramid", 2.0), ("pyramid", 1.5), ("dense", 2.0)])
    strength = 10 ** draw.uniform(-2, 0)

    def add(x: ScaleSpace) -> ScaleSpace:
        pixels = [step * x.unit[-1] * ramp(level) for step, level in zip(x.steps, x.levels, strict=True)]
        return x.replace(tuple(f + strength * p for f, p in zip(x.levels, pixels, strict=True)))

    return inserted(model, add, len(model)), image, {}


def pixel_weight(draw: random.Random) -> Broken:
    """Pixels to the right weigh more."""
    model, image = network(draw)
    strength = draw.uniform(0.5, 2)
    weigh = Call(lambda image: image * (1 + strength * torch.linspace(0, 1, image.shape[-1]).to(image)))
    return nn.Sequential(weigh, *model), image, {}


def index_ramp(draw: random.Random) -> Broken:
    """The index of the sample is added, which scaling keeps, and translations do not."""
    strength, down = 10 ** draw.uniform(-2, 0), draw.choice([True, False])
    model = nn.Sequential(Lift(3), ScaleConv2d(2, 3, (2, 3, 3)))

    def add(level: Tensor, k: int) -> Tensor:
        return level + strength * (ramp(level.mT)[:, None] if down else ramp(level))

    return then(model, add), torch.randn(1, 2, 56, 60), {"translations": True}


def direct_lift(draw: random.Random) -> Broken:
    return *network(draw, method="direct"), {}


def one_level_lifted_otherwise(draw: random.Random) -> Broken:
    model, image = network(draw)
    lift, number, found = model[0], draw.randint(1, 2), draw.choice([True, False])
    assert isinstance(lift, Lift)
    arguments = {**lift.config, "zero_scale": 1.3 * lift.zero_scale}
    other: Any = Lift(**arguments) if found else lambda image: scalespaces.lift(image, **arguments)

    def mixed(image: Tensor) -> ScaleSpace:
        x, y = lift(image), other(image)
        return x.replace(tuple((y if k == number else x).levels[k] for k in range(x.num_levels)))

    layer = Call(mixed)
    layer.lift, layer.other = lift, other  # so that they are cast with the network
    return nn.Sequential(layer, *list(model)[1:]), image, {}


def plain_windows(draw: random.Random) -> Broken:
    pool = draw.choice([ScaleAvgPool, ScaleMaxPool])(draw.choice([2, 3]), window="plain")
    layers = [ScaleConv2d(2, 4, (2, 3, 3)), pool, ScaleConv2d(4, 3, (1, 3, 3))]
    return nn.Sequential(Lift(4, sampling="dense", padding_mode="zeros"), *layers), torch.randn(1, 2, 48, 40), {}


def plain_filters(draw: random.Random) -> Broken:
    model = nn.Sequential(Lift(4, sampling="dense", padding_mode="zeros"), ScaleConv2d(2, 3, (2, 3, 3)))
    filters = torch.randn(3, 3, 3, 3)
    return then(model, lambda level, k: F.conv2d(level, filters.to(level), padding=1)), torch.randn(1, 2, 40, 40), {}


def finer_levels(draw: random.Random) -> Broken:
    """Each level sees the one below it, if there is one."""
    model, image = network(draw, [("dense", 2.0)])

    def add(x: ScaleSpace) -> ScaleSpace:
        return x.replace((x.levels[0], *(a + b for a, b in zip(x.levels, x.levels[1:], strict=False))))

    return inserted(model, add), image, {}


def one_level_sees_further(draw: random.Random) -> Broken:
    """Level 0 sees one level more than the others, so that it would seem that more of them see past the end."""
    model, image = network(draw, [("dense", 2.0), ("pyramid", 2.0)])

    def see(x: ScaleSpace) -> ScaleSpace:
        first, *others = x.levels
        return x.replace((first + 1e-6 * others[0].mean(), *others[:-1], 2 * others[-1]))

    return inserted(model, see), image, {}


LEVELS = (level_bias, level_weight, level_temperature, finer_levels, one_level_sees_further)
PLACES = (pixel_ramp, pixel_weight, index_ramp)
LIFTS_AND_LAYERS = (direct_lift, one_level_lifted_otherwise, plain_windows, plain_filters)


@pytest.mark.parametrize("make", LEVELS + PLACES + LIFTS_AND_LAYERS)
def test_broken_networks_fail(make):
    """Most of them in float64, where the difference is seen; in float32 they may be refused. Most have a bias."""
    for seed in range(14):
        torch.manual_seed(seed)
        model, image, options = make(random.Random(seed))
        if seed % 4:
            model = biased(model, CHANNELS[seed % 2])
        if seed % 3:
            fails(AssertionError, "not equivariant", model.double(), image.double(), **options)
        else:
            with pytest.raises((AssertionError, ValueError), match=f"not equivariant|{REFUSED}"):
                assert_equivariant(model, image, **options)


def dead(draw: random.Random) -> Broken:
    model, image = network(draw)
    return inserted(model, lambda x: (x - 1e6).relu(), -1), image, {}


def constant(draw: random.Random) -> Broken:
    model, image = network(draw, PYRAMIDS, pooled=draw.choice([True, False]))
    return then(model, lambda level, k: torch.ones_like(level)), image, {}


def pattern(draw: random.Random) -> Broken:
    """The output varies from place to place, but not with the image."""
    model, image = network(draw, PYRAMIDS)
    return then(model, lambda level, k: 0 * level + ramp(level)), image, {}


def constant_image(draw: random.Random) -> Broken:
    model, image, _ = draw.choice([level_weight, direct_lift, plain_windows])(draw)
    return model, image[..., :1, :1].expand(image.shape).clone(), {}


def single_pixel(draw: random.Random) -> Broken:
    model, image, _ = draw.choice([level_weight, direct_lift])(draw)
    return model, image[..., :1, :1], {}


def everything_past_the_end(draw: random.Random) -> Broken:
    model, image = network(draw, PYRAMIDS)
    return inserted(model, lambda x: x + torch.stack([f.mean() for f in x.levels]).mean(), len(model)), image, {}


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (dead, "no channel of the output depends on the image"),
        (constant, "no channel of the output depends on the image"),
        (pattern, "no channel of the output depends on the image"),
        (constant_image, "an image that is constant"),
        (single_pixel, "an image that is constant"),
        (everything_past_the_end, "no level is left to compare"),
    ],
)
def test_what_proves_nothing_is_refused(make, reason):
    for seed in range(8):
        torch.manual_seed(seed)
        model, image, options = make(random.Random(seed))
        dtype = (torch.float32, torch.float64)[seed % 2]
        with pytest.raises(ValueError, match=reason):
            assert_equivariant(model.to(dtype), image.to(dtype), **options)


def test_a_channel_that_does_not_depend_on_the_image_must_agree():
    weight = torch.tensor([1.0, 0.0])[:, None, None]
    for bias in (0.0, 0.1):
        assert_equivariant(then(Lift(3), lambda level, k, b=bias: level * weight + b), torch.randn(1, 2, 32, 32))
    broken = then(Lift(3), lambda level, k: level * weight + 0.1 * k * (1 - weight))
    fails(AssertionError, r"by inf: .*does not depend on the image \(channel 1,", broken, torch.randn(1, 2, 32, 32))


def test_small_channels_are_not_hidden_by_large_ones():
    size = torch.tensor([1e6, 1.0])[:, None, None]
    broken = then(Lift(3), lambda level, k: size * level * (1 + 0.01 * k * (size == 1)))
    fails(AssertionError, "channel 1,", broken, torch.randn(1, 2, 32, 32))


def test_one_sample_of_one_image_is_enough():
    def spoil(level: Tensor, k: int) -> Tensor:
        spoiled = level.clone()
        spoiled[1, 0, 0, -1] += 0.01 * k
        return spoiled

    fails(AssertionError, "channel 0,", then(Lift(3), spoil), torch.randn(2, 2, 32, 32))


@pytest.mark.parametrize("size", [(2, 40), (40, 2)])
def test_single_samples_show_little(size):
    """An image two pixels high is one high as soon as it is downscaled; pooled levels have one sample anyway."""
    model, image = nn.Sequential(Lift(3), ScaleConv2d(1, 2, (1, 3, 3)), nn.ReLU()), torch.randn(1, 1, *size)
    fails(ValueError, "to compare have a single sample along an axis", model, image)
    assert_equivariant(nn.Sequential(model, GlobalPool()), image)


# --- levels that are left out ----------------------------------------------------------------------------------------


@given(
    layers=st.lists(st.tuples(st.integers(1, 3), st.sampled_from(SCALE_PADDINGS)), max_size=3),
    sampling=st.sampled_from([*PYRAMIDS, *DENSE]),
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
    with pytest.raises(ValueError, match=r"no level is left to compare, of 4; left out: levels 1, 2, 3 \(filters"):
        assert_equivariant(nn.Sequential(Lift(4), ScaleConv2d(2, 3, (4, 3, 3))), torch.randn(1, 2, 32, 32))


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


def test_a_lift_inside_a_function_is_found():
    """Also its arguments, for the downscaling."""
    lift, conv = Lift(4, zero_scale=1.0, padding_mode="circular"), ScaleConv2d(2, 3, (2, 3, 3))
    assert_equivariant(lambda image: conv(lift(image)), torch.randn(1, 2, 32, 32))


def test_several_lifts():
    short, long, conv = Lift(4), Lift(5), ScaleConv2d(2, 3, (2, 3, 3))
    table = equivariance_error(lambda image: conv(short(image)) + conv(long(image)).keep(4), torch.randn(1, 2, 32, 32))
    assert table.left_out.keys() == {3}
    table = equivariance_error(lambda image: short(image) + conv(long(image))[:, :2].keep(4), torch.randn(1, 2, 32, 32))
    assert not table.left_out


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


# --- what is taken ---------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("batch", [1, 3])
def test_whole_networks_by_the_scores_of_their_levels(batch):
    model, image = Network(), torch.rand(batch, 3, 40, 32)
    assert_equivariant(model, image)
    table = equivariance_error(model, image)
    assert (table.levels, table.boundary) == ((0, 1, 2, 3, 4), 4)
    assert table.before().max() < 1e-5
    worst = r"level 0 of the image downscaled by base\*\*3 differs from level 3 of"
    fails(AssertionError, worst, Network(strength=0.01), image)
    with pytest.raises(ValueError, match=r"translations need levels with positions, got shapes .*\(\d, 4\)"):
        translation_error(model, image)
    fails(ValueError, "translations need levels with positions", model, image, translations=True)


def test_a_layer_called_scores_is_not_taken_for_a_method():
    model = Call(Lift(3))
    model.scores = nn.Linear(2, 2)
    assert_equivariant(model, torch.randn(1, 2, 32, 32))


def test_two_levels_of_scores_are_enough():
    model = nn.Sequential(Lift(2), ScaleConv2d(2, 4, (1, 3, 3)), GlobalPool("max"))
    assert_equivariant(model, torch.randn(1, 2, 32, 32))


@pytest.mark.parametrize("levels", [lambda x: x.permute(0, 2, 3, 1), lambda x: x.flatten(1)])
def test_levels_of_other_shapes(levels):
    model = nn.Sequential(Lift(4), ScaleConv2d(2, 3, (2, 3, 3)))
    assert_equivariant(lambda image: levels(model(image)), torch.randn(2, 2, 32, 32))
    broken = then(model, lambda level, k: level * (1 + 0.01 * k))
    fails(AssertionError, "not equivariant", lambda image: levels(broken(image)), torch.randn(2, 2, 32, 32))


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


def test_the_warning_of_single_samples_is_kept_back():
    """The downscaled image is lifted to as many levels as the image."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_equivariant(nn.Sequential(Lift(4), ScaleConv2d(1, 3, (1, 3, 3))), torch.randn(1, 1, 16, 16))


def test_downscalings_too_small_for_the_network_are_named():
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
    fails(AssertionError, r"(?s)tolerance 0.*In float64 rounding is no cause", broken, image)
    fails(ValueError, "rounding hides the answer", Lift(3), image, tolerance=1e-9)
    fails(ValueError, "tolerance must be a finite number", broken, image, tolerance=math.nan)


# --- translations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "base", "size", "moves"),
    [
        ("pyramid", 2.0, (64, 72), True),
        ("pyramid", 2.0, (64, 72), [8, 16]),
        ("pyramid", 1.5, (64, 72), True),
        ("dense", 2.0, (48, 40), True),
        ("dense", 2.0, (48, 40), [1, 3]),
        ("dense", 2**0.5, (48, 40), [1]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_translations_by_whole_samples_are_exact(sampling, base, size, moves, dtype):
    """At every sample that sees no border."""
    layers = [ScaleConv2d(1, 3, (2, 3, 3)), nn.ReLU(), ScaleConv2d(3, 3, (1, 3, 3))]
    lift = Lift(3, base, sampling=sampling, padding_mode="zeros")
    image = torch.randn(1, 1, *size, dtype=dtype)
    model = nn.Sequential(lift, *layers).to(dtype)
    if base == 2**0.5:
        table = translation_error(model, image, translations=moves, margin=None, axis=-2)
        assert np.nanmax(table.largest) < 1e-4
    else:
        assert_equivariant(model, image, translations=moves)


def test_translations_of_levels_without_channels():
    model = nn.Sequential(Lift(3), ScaleConv2d(1, 3, (1, 3, 3)))
    assert_equivariant(lambda image: model(image).mean(1), torch.randn(1, 1, 64, 48), translations=True)


def test_translations_of_strided_networks():
    model = nn.Sequential(Lift(3), ScaleConv2d(1, 3, (1, 3, 3), stride=2), ScaleBlurPool()).double()
    image = torch.randn(1, 1, 112, 128, dtype=torch.float64)
    assert_equivariant(model, image, translations=True)
    fails(ValueError, r"\[4.0, 8.0, 16.0\] pixels apart, got \[8\] within", model, image, translations=[8])


def test_translations_that_cannot_be_checked_are_refused():
    image = torch.randn(1, 1, 32, 32)
    with pytest.raises(ValueError, match=r"moves by whole samples .* \(bases such as the square root of 2 have none\)"):
        assert_equivariant(Lift(3, 2**0.5), image, translations=True)
    model = nn.Sequential(Lift(3), ScaleConv2d(1, 3, (1, 25, 25)))
    fails(ValueError, r"left out: levels 0, 1, 2 \(every sample sees a border\)", model, image, translations=True)
    with pytest.raises(ValueError, match="axis is one of the image's last 2"):
        translation_error(Lift(3), image, axis=1)


def test_what_cannot_be_compared_is_refused():
    image, is_complex = torch.rand(1, 1, 32, 32), r"got complex ones; return torch\.view_as_real"
    fails(TypeError, is_complex, then(Lift(3), lambda level, k: torch.complex(level, level)), image)
    fails(ValueError, "the network is random", then(Lift(3), lambda level, k: level + torch.randn_like(level)), image)
    fails(ValueError, "the image has values that are not finite", Lift(3), image * math.nan)
    fails(TypeError, "there is no argument 'tol'", Lift(3), image, tol=1e-3)
    for shifts in ([0], [1, 0], [-1], [1.5], [True]):
        fails(ValueError, "shifts must be an integer >= 1", Lift(3), image, shifts=shifts)
