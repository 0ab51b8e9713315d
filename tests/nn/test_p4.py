"""Networks on the symmetries of the square, alone and together with scale: their laws, and PyTorch around them."""

import copy
from typing import Any

import pytest
import torch
from algebra import EXACT, SAME
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import refusals
from torch import Tensor, nn
from torch.testing import assert_close

from scalespaces import ScaleSpace, lift
from scalespaces import nn as scale
from scalespaces.semigroups import p4_conv, transform_field
from scalespaces.semigroups._p4 import Group, order, transform_image
from scalespaces.testing import assert_equivariant

GROUPS: list[Group] = ["p4", "p4m"]
LAYERS: dict[str, Any] = {
    "p4": (scale.P4Conv2d, scale.P4BatchNorm, scale.P4Pool),
    "p4m": (scale.P4MConv2d, scale.P4MBatchNorm, scale.P4MPool),
}


def settle(model: nn.Sequential, *inputs: Tensor) -> nn.Sequential:
    """In double precision, with biases, weights and running statistics that are not those of the start."""
    model.double().train()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            nn.init.uniform_(parameter, 0.5, 1.5)
    for image in inputs:
        model(image)
    return model.eval()


def network(group: Group, pool: nn.Module | None = None) -> nn.Sequential:
    conv, norm, group_pool = LAYERS[group]
    first = [conv(2, 3, 3, lifting=True), norm(3), nn.ReLU(), nn.Identity() if pool is None else pool]
    second = [conv(3, 4, 5, padding_mode="reflect"), nn.SiLU(), conv(4, 2, 2, padding=0, groups=2), norm(2), nn.ReLU()]
    model = nn.Sequential(*first, *second, conv(2, 2, 1, bias=False), group_pool(), nn.AdaptiveAvgPool2d(1))
    return settle(model, torch.rand(2, 2, 12, 12, dtype=torch.float64))


def check_every_layer(model: nn.Sequential, image: Tensor, group: Group) -> None:
    """Fields turn as fields do, pooled fields as images, and the pooled output stays what it is."""
    for element in range(order(group)):
        x, moved, pooled = image, transform_image(image, element), False
        for layer in model:
            x, moved = layer(x), layer(moved)
            pooled = pooled or isinstance(layer, (scale.P4Pool, scale.P4MPool))
            expected = transform_image(x, element) if pooled else transform_field(x, element, group=group)
            assert_close(moved, expected, **EXACT)
        assert_close(moved, x, **EXACT)
        assert x.std() > 1e-6


class TestNetworks:
    @given(st.sampled_from(GROUPS), st.integers(6, 11), st.integers(6, 11))
    @settings(max_examples=10)
    def test_any_size_without_strides(self, group, height, width):
        check_every_layer(network(group), torch.rand(2, 2, height, width, dtype=torch.float64), group)

    @pytest.mark.parametrize("pool", [nn.AvgPool2d(2), nn.MaxPool2d(2)], ids=["average", "maximum"])
    @pytest.mark.parametrize("group", GROUPS)
    def test_even_sizes_with_pooling(self, group, pool):
        check_every_layer(network(group, pool), torch.rand(2, 2, 12, 16, dtype=torch.float64), group)
        odd = torch.rand(2, 2, 13, 13, dtype=torch.float64)
        model = network(group, pool)
        assert (model(transform_image(odd, 1)) - model(odd)).abs().max() > 1e-6

    def test_while_training(self):
        """Statistics over the elements do not change when the batch is turned."""
        image = torch.rand(2, 2, 9, 9, dtype=torch.float64)
        for element in range(8):
            one, other = (copy.deepcopy(network("p4m")).train() for _ in range(2))
            other.load_state_dict(one.state_dict())
            assert_close(other(transform_image(image, element)), one(image), **EXACT)
            assert_close(other.state_dict(), one.state_dict(), **EXACT)


def scale_network(group: Group, sampling: Any, pool: bool = False, padding_mode: Any = "zeros") -> nn.Sequential:
    conv, norm, _ = LAYERS[group]
    settings: Any = {"padding_mode": padding_mode, "scale_padding": "valid"}
    first = [conv(2, 2, (1, 3, 3), lifting=True, **settings), *([scale.ScaleBlurPool()] if pool else []), norm(2)]
    second = [nn.ReLU(), conv(2, 3, (2, 3, 3), **settings), norm(3), nn.ReLU(), conv(3, 2, (2, 3, 3), **settings)]
    model = nn.Sequential(scale.Lift(5, sampling=sampling, padding_mode=padding_mode), *first, *second)
    return settle(model, torch.rand(2, 2, 33, 33, dtype=torch.float64))


@torch.no_grad()
def symmetry_error(model: nn.Sequential, image: Tensor, group: Group) -> float:
    """The largest difference at any level of any layer after the lift, relative to the level's largest value."""
    worst = 0.0
    for element in range(order(group)):
        x, moved = model[0](image), model[0](transform_image(image, element))
        for layer in list(model)[1:]:
            x, moved = layer(x), layer(moved)
            for f, g in zip(x.levels, moved.levels, strict=True):
                difference = (transform_field(f, element, group=group) - g).abs().max() / f.abs().max()
                worst = max(worst, float(difference))
    return worst


SIZES = [("pyramid", False, (33, 33), "zeros"), ("pyramid", False, (33, 49), "reflect")]
SIZES += [("pyramid", True, (33, 65), "zeros"), ("dense", False, (24, 31), "zeros"), ("dense", True, (33, 33), "zeros")]


class TestWithScale:
    @pytest.mark.parametrize(("sampling", "pool", "size", "padding_mode"), SIZES)
    @pytest.mark.parametrize("group", GROUPS)
    def test_equivariant_to_scale_and_to_the_square(self, group, sampling, pool, size, padding_mode):
        model = scale_network(group, sampling, pool, padding_mode)
        image = torch.rand(1, 2, *size, dtype=torch.float64)
        assert_equivariant(model, image, tolerance=1e-12)
        assert symmetry_error(model, image, group) < 1e-12

    @pytest.mark.parametrize(
        ("sampling", "pool", "size"), [("pyramid", False, 32), ("pyramid", True, 49), ("dense", True, 32)]
    )
    def test_other_sizes_lose_the_symmetries_of_the_square(self, sampling, pool, size):
        image = torch.rand(1, 2, size, size, dtype=torch.float64)
        assert symmetry_error(scale_network("p4m", sampling, pool), image, "p4m") > 1e-3

    def test_pooled_over_everything(self):
        head = [scale.P4MPool(), scale.GlobalPool(), scale.ScalePool()]
        model = nn.Sequential(scale_network("p4m", "pyramid"), *head).double().eval()
        image = torch.rand(2, 2, 33, 33, dtype=torch.float64)
        for element in range(8):
            assert_close(model(transform_image(image, element)), model(image), **EXACT)


class TestLayers:
    def test_initialization(self):
        torch.manual_seed(0)
        for layer, inputs in (
            (scale.P4MConv2d(16, 32, 3), 16 * 8 * 9),
            (scale.P4Conv2d(16, 32, 3, groups=2), 8 * 4 * 9),
            (scale.P4MConv2d(64, 64, 3, lifting=True), 64 * 9),
            (scale.P4MConv2d(16, 32, (2, 3, 3)), 16 * 8 * 2 * 9),
            (scale.P4Conv2d(32, 64, (3, 3, 3), lifting=True), 32 * 3 * 9),
        ):
            expected = (2 / inputs) ** 0.5
            assert abs(float(layer.weight.detach().std()) / expected - 1) < 0.05
            assert abs(float(layer.weight.detach().mean())) < 0.05 * expected
            assert layer.weight.is_leaf
        shapes = {name: tuple(value.shape) for name, value in scale.P4MConv2d(2, 3, 5).state_dict().items()}
        assert shapes == {"weight": (3, 2, 8, 5, 5), "bias": (3,)}
        assert scale.P4Conv2d(2, 3, (4, 5, 5), lifting=True).weight.shape == (3, 2, 4, 5, 5)

    @pytest.mark.parametrize("group", GROUPS)
    @pytest.mark.parametrize("lifting", [True, False])
    def test_an_integer_is_a_filter_of_one_level(self, group, lifting):
        """It takes a tensor, which is one level, and a scale-space, and keeps the size of both."""
        short, long = (LAYERS[group][0](2, 3, size, lifting=lifting) for size in (3, (1, 3, 3)))
        assert short.kernel_size == (1, 3, 3)
        long.load_state_dict(short.state_dict())
        x = lift(torch.rand(1, 2 * (1 if lifting else order(group)), 9, 9), 3, sampling="dense")
        assert long(x).shape[2:] == (9, 9)
        assert_close(long(x).levels, short(x).levels, **SAME)
        assert_close(short(x.levels[0]), short(x).levels[0], **SAME)

    def test_the_layer_calls_the_function(self):
        settings: Any = {"stride": 2, "padding": 2, "dilation": 2, "groups": 2}
        settings |= {"padding_mode": "replicate", "scale_padding": "replicate"}
        layer = scale.P4Conv2d(2, 4, (2, 3, 3), **settings)
        x = lift(torch.rand(1, 8, 12, 12), 3, sampling="dense")
        expected = p4_conv(x, layer.weight, layer.bias, group="p4", **settings)
        assert_close(layer(x).levels, expected.levels, **SAME)

    def test_batch_norm_of_a_tensor(self):
        """As torch's, on the elements side by side."""
        x, norm, plain = torch.rand(2, 24, 5, 5), scale.P4MBatchNorm(3, momentum=None), nn.BatchNorm2d(3, momentum=None)
        for training in (True, True, False):
            got = norm.train(training)(x)
            assert_close(got.reshape(2, 3, 40, 5), plain.train(training)(x.reshape(2, 3, 40, 5)), rtol=1e-4, atol=1e-5)
            assert_close(norm.state_dict(), plain.state_dict())
        assert isinstance(norm, scale.ScaleBatchNorm)
        assert norm(ScaleSpace((x,))).num_levels == 1

    def test_a_step_of_training(self):
        """Gradients do not depend on how the images are turned, so neither do the weights."""
        image, target = torch.rand(2, 2, 9, 9, dtype=torch.float64), torch.rand(2, 2, 1, 1, dtype=torch.float64)
        weights, start = [], network("p4m").train()
        for element in (0, 3, 6):
            model = copy.deepcopy(start)
            (model(transform_image(image, element)) - target).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            torch.optim.SGD(model.parameters(), 0.1).step()
            weights.append(list(model.parameters()))
        assert_close(weights[1:], [weights[0]] * 2, **EXACT)


test_refusals = refusals(
    (lambda: scale.P4Conv2d(1, 1, (1, 3, 1)), "only square filters can be turned, got one of 3 x 1"),
    (lambda: scale.P4Conv2d(3, 4, 3, groups=2), "in_channels, a number of fields, is divisible by groups, got"),
    (lambda: scale.P4Conv2d(0, 4, 3), "in_channels must be an integer >= 1, got 0"),
    (lambda: scale.P4MConv2d(1, 1, (3, 3)), r"kernel_size is \(levels, height, width\), or an .* \(3, 3\)"),
    (lambda: scale.P4MPool("sum"), "mode is one of max, mean, got 'sum'"),
    (lambda: scale.P4Conv2d(1, 1, (2, 3, 3))(torch.rand(1, 4, 5, 5)), "needs a ScaleSpace, got a tensor"),
)
