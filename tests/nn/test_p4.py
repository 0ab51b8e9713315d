"""Networks on the symmetries of the square, alone and together with scale: their laws, and PyTorch around them."""

import copy
from typing import Any

import pytest
import torch
from algebra import EXACT, SAME
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from scalespaces import ScaleSpace, lift
from scalespaces.nn import (
    GlobalPool,
    Lift,
    P4BatchNorm,
    P4Conv2d,
    P4MBatchNorm,
    P4MConv2d,
    P4MPool,
    P4Pool,
    ScaleBatchNorm,
    ScaleBlurPool,
    ScaleConv2d,
    ScalePool,
)
from scalespaces.semigroups import p4_conv, transform_field, transform_image
from scalespaces.semigroups._p4 import Group, order
from scalespaces.testing import assert_equivariant

GROUPS: list[Group] = ["p4", "p4m"]
LAYERS: dict[str, Any] = {"p4": (P4Conv2d, P4BatchNorm, P4Pool), "p4m": (P4MConv2d, P4MBatchNorm, P4MPool)}


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
    model = nn.Sequential(
        conv(2, 3, 3, lifting=True),
        norm(3),
        nn.ReLU(),
        nn.Identity() if pool is None else pool,
        conv(3, 4, 5, padding_mode="reflect"),
        nn.SiLU(),
        conv(4, 2, 2, padding=0, groups=2),
        norm(2),
        nn.ReLU(),
        conv(2, 2, 1, bias=False),
        group_pool(),
        nn.AdaptiveAvgPool2d(1),
    )
    return settle(model, torch.rand(2, 2, 12, 12, dtype=torch.float64))


def check_every_layer(model: nn.Sequential, image: Tensor, group: Group) -> None:
    """Fields turn as fields do, pooled fields as images, and the pooled output stays what it is."""
    for element in range(order(group)):
        x, moved, pooled = image, transform_image(image, element), False
        for layer in model:
            x, moved = layer(x), layer(moved)
            pooled = pooled or isinstance(layer, (P4Pool, P4MPool))
            expected = transform_image(x, element) if pooled else transform_field(x, element, group=group)
            assert_close(moved, expected, **EXACT)
        assert_close(moved, x, **EXACT)
        assert x.std() > 1e-6


class TestNetworks:
    @given(st.sampled_from(GROUPS), st.integers(6, 11), st.integers(6, 11))
    def test_any_size_without_strides(self, group, height, width):
        check_every_layer(network(group), torch.rand(2, 2, height, width, dtype=torch.float64), group)

    @pytest.mark.parametrize("pool", [nn.AvgPool2d(2), nn.MaxPool2d(2)], ids=["average", "maximum"])
    @pytest.mark.parametrize("group", GROUPS)
    def test_even_sizes_with_pooling(self, group, pool):
        check_every_layer(network(group, pool), torch.rand(2, 2, 12, 16, dtype=torch.float64), group)
        odd = torch.rand(2, 2, 13, 13, dtype=torch.float64)
        model = network(group, pool)
        assert (model(transform_image(odd, 1)) - model(odd)).abs().max() > 1e-6

    @pytest.mark.parametrize(("size", "keeps"), [(13, True), (12, False)])
    def test_strides(self, size, keeps):
        """Odd filters of stride 2 padded to the same size keep the symmetry when 2 divides n - 1."""
        model = nn.Sequential(P4MConv2d(2, 3, 3, 2, 1, lifting=True), nn.ReLU(), P4MConv2d(3, 3, 3)).double()
        image = torch.rand(1, 2, size, size, dtype=torch.float64)
        differences = [
            model(transform_image(image, g)) - transform_field(model(image), g, group="p4m") for g in range(8)
        ]
        error = max(float(difference.detach().abs().max()) for difference in differences)
        assert error < 1e-12 if keeps else error > 1e-3

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
    model = nn.Sequential(
        Lift(5, method="cascade", sampling=sampling, padding_mode=padding_mode),
        conv(2, 2, (1, 3, 3), lifting=True, **settings),
        *([ScaleBlurPool()] if pool else []),
        norm(2),
        nn.ReLU(),
        conv(2, 3, (2, 3, 3), **settings),
        norm(3),
        nn.ReLU(),
        conv(3, 2, (2, 3, 3), **settings),
    )
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


class TestWithScale:
    @pytest.mark.parametrize(
        ("sampling", "pool", "size", "padding_mode"),
        [
            ("pyramid", False, (33, 33), "zeros"),
            ("pyramid", False, (33, 49), "reflect"),
            ("pyramid", True, (33, 65), "zeros"),
            ("dense", False, (24, 31), "zeros"),
            ("dense", True, (33, 33), "zeros"),
        ],
    )
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
        model = nn.Sequential(scale_network("p4m", "pyramid"), P4MPool(), GlobalPool(), ScalePool()).double().eval()
        image = torch.rand(2, 2, 33, 33, dtype=torch.float64)
        for element in range(8):
            assert_close(model(transform_image(image, element)), model(image), **EXACT)


class TestLayers:
    def test_initialization(self):
        torch.manual_seed(0)
        for layer, inputs in (
            (P4MConv2d(16, 32, 3), 16 * 8 * 9),
            (P4Conv2d(16, 32, 3, groups=2), 8 * 4 * 9),
            (P4MConv2d(64, 64, 3, lifting=True), 64 * 9),
            (P4MConv2d(16, 32, (2, 3, 3)), 16 * 8 * 2 * 9),
            (P4Conv2d(32, 64, (3, 3, 3), lifting=True), 32 * 3 * 9),
        ):
            expected = (2 / inputs) ** 0.5
            assert abs(float(layer.weight.detach().std()) / expected - 1) < 0.05
            assert abs(float(layer.weight.detach().mean())) < 0.05 * expected
            assert layer.weight.is_leaf
        shapes = {name: tuple(value.shape) for name, value in P4MConv2d(2, 3, 5).state_dict().items()}
        assert shapes == {"weight": (3, 2, 8, 5, 5), "bias": (3,)}
        assert P4Conv2d(2, 3, (4, 5, 5), lifting=True).weight.shape == (3, 2, 4, 5, 5)

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
        layer = P4Conv2d(2, 4, (2, 3, 3), **settings)
        x = lift(torch.rand(1, 8, 12, 12), 3, sampling="dense")
        expected = p4_conv(x, layer.weight, layer.bias, group="p4", **settings)
        assert_close(layer(x).levels, expected.levels, **SAME)

    def test_batch_norm_of_a_tensor(self):
        """As torch's, on the elements side by side."""
        x, norm, plain = torch.rand(2, 24, 5, 5), P4MBatchNorm(3, momentum=None), nn.BatchNorm2d(3, momentum=None)
        for training in (True, True, False):
            got = norm.train(training)(x)
            assert_close(got.reshape(2, 3, 40, 5), plain.train(training)(x.reshape(2, 3, 40, 5)), rtol=1e-4, atol=1e-5)
            assert_close(norm.state_dict(), plain.state_dict())
        assert isinstance(norm, ScaleBatchNorm)
        assert norm(ScaleSpace((x,))).num_levels == 1

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: P4Conv2d(1, 1, (1, 3, 1)), "only square filters can be turned, got one of 3 x 1"),
            (lambda: P4Conv2d(3, 4, 3, groups=2), "in_channels, a number of fields, is divisible by groups, got 3"),
            (lambda: P4Conv2d(0, 4, 3), "in_channels must be an integer >= 1, got 0"),
            (lambda: P4MConv2d(1, 1, (3, 3)), r"kernel_size is \(levels, height, width\), or an integer .* \(3, 3\)"),
            (lambda: P4MPool("sum"), "mode is one of max, mean, got 'sum'"),
            (lambda: P4Conv2d(1, 1, (2, 3, 3))(torch.rand(1, 4, 5, 5)), "needs a ScaleSpace, got a tensor"),
        ],
    )
    def test_errors(self, make, message):
        with pytest.raises(ValueError, match=message):
            make()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.Sequential(P4MConv2d(2, 2, 3, lifting=True), P4MBatchNorm(2), nn.ReLU())
        self.levels = nn.Sequential(
            Lift(3, method="cascade", sampling="pyramid"),
            P4MConv2d(2, 2, (2, 3, 3)),
            P4MBatchNorm(2),
            nn.ReLU(),
            P4MConv2d(2, 2, 3),
            P4MConv2d(2, 3, (2, 3, 3), lifting=False),
        )
        self.head = nn.Sequential(P4MPool(), GlobalPool(), ScalePool())

    def forward(self, image: Tensor) -> tuple[Tensor, ScaleSpace]:
        levels = self.levels(self.plain(image))
        return self.head(levels), levels


class TestTorch:
    @pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
    def test_autocast(self, layout):
        model, image = Net().train(), torch.rand(2, 2, 17, 17)
        arguments: Any = {"memory_format": layout}
        expected = copy.deepcopy(model)(image)[0]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out, levels = model.to(**arguments)(image.to(**arguments))
        assert levels.dtype == torch.bfloat16
        assert_close(out.float(), expected, rtol=0.1, atol=0.1)
        out.float().square().mean().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())

    def test_channels_last(self):
        model, image = Net().eval(), torch.rand(2, 2, 17, 17)
        expected = model(image)[0]
        layout: Any = {"memory_format": torch.channels_last}
        model.to(**layout)
        pooled, levels = model(image.to(**layout))
        assert_close(pooled, expected, rtol=1e-4, atol=1e-5)
        assert all(level.is_contiguous(**layout) for level in levels.levels)
        assert all(level.is_contiguous(**layout) for level in P4MPool()(levels).levels)
        assert model.plain(image.to(**layout)).is_contiguous(**layout)
        assert all(level.is_contiguous() for level in model(image)[1].levels)

    def test_export(self, tmp_path):
        model, image = Net().eval(), torch.rand(2, 2, 17, 17)
        torch.export.save(torch.export.export(model, (image,), strict=False), tmp_path / "net.pt2")
        pooled, levels = torch.export.load(tmp_path / "net.pt2").module()(image)
        assert_close(pooled, model(image)[0])
        assert_close(levels.levels, model(image)[1].levels)

    @pytest.mark.slow
    def test_compile(self):
        torch._dynamo.reset()
        model, image = Net().train(), torch.rand(2, 2, 17, 17)
        twin = copy.deepcopy(model)
        out, expected = torch.compile(twin, fullgraph=True)(image)[0], model(image)[0]
        assert_close(out, expected, rtol=1e-4, atol=1e-4)
        out.square().mean().backward()
        expected.square().mean().backward()
        for (name, got), wanted in zip(twin.named_parameters(), model.parameters(), strict=True):
            assert got.grad is not None, name
            assert_close(got.grad, wanted.grad, rtol=1e-3, atol=1e-4)

    def test_checkpoints_and_the_meta_device(self):
        other, image = Net().eval(), torch.rand(1, 2, 17, 17)
        with torch.device("meta"):
            model = Net().eval()
        assert model.plain[0].index.is_meta
        model.to_empty(device="cpu").load_state_dict(other.state_dict())
        for twin in (model, copy.deepcopy(other)):
            assert_close(twin(image)[0], other(image)[0], **SAME)
        assert not any("index" in key for key in model.state_dict())

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


def test_plain_filters_that_are_symmetric_already_give_equal_elements():
    """A filter that every symmetry leaves alone makes the elements of a field equal: an ordinary convolution's."""
    layer, plain = P4MConv2d(2, 3, 3, lifting=True), ScaleConv2d(2, 3, 3)
    with torch.no_grad():
        layer.weight.copy_(sum((transform_image(layer.weight, g) for g in range(8)), torch.zeros(())))
        plain.load_state_dict(layer.state_dict())
    image = torch.rand(1, 2, 9, 9)
    expected = plain(ScaleSpace((image,))).levels[0].repeat_interleave(8, 1)
    assert_close(layer(image), expected)
