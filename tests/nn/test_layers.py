"""Every layer is its function; what it keeps is in its state, what it is in its repr."""

import copy
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils import _pytree

import scalespaces
from scalespaces import ScaleSpace, functional, lift
from scalespaces.nn import (
    FeaturePyramid,
    GlobalPool,
    Lift,
    Resample,
    ScaleAvgPool,
    ScaleBatchNorm,
    ScaleBlurPool,
    ScaleConv1d,
    ScaleConv2d,
    ScaleConv3d,
    ScaleDropout,
    ScaleMaxPool,
    ScalePool,
    synchronize,
)

QUINCUNX = ((1.0, 1.0), (1.0, -1.0))


def space(**settings: Any) -> ScaleSpace:
    return lift(torch.rand(2, 3, 20, 18), **{"num_levels": 3, "sampling": "pyramid"} | settings)


def assert_same(got: Any, expected: Any) -> None:
    if isinstance(expected, ScaleSpace):
        assert (got.base, got.steps, got.origins, got.unit, got.first_level) == (
            expected.base,
            expected.steps,
            expected.origins,
            expected.unit,
            expected.first_level,
        )
        got, expected = got.levels, expected.levels
    assert_close(got, expected, rtol=0, atol=0)


LAYERS: dict[str, tuple[nn.Module, Callable[[ScaleSpace], Any], str]] = {
    "avg": (
        ScaleAvgPool(3, 2, 1),
        lambda x: functional.avg_pool(x, 3, 2, 1),
        "ScaleAvgPool(kernel_size=3, stride=2, padding=1, window='dilated')",
    ),
    "avg, plain": (
        ScaleAvgPool((2, 1), window="plain"),
        lambda x: functional.avg_pool(x, (2, 1), window="plain"),
        "ScaleAvgPool(kernel_size=(2, 1), stride=(2, 1), padding=0, window='plain')",
    ),
    "max": (
        ScaleMaxPool(),
        lambda x: functional.max_pool(x, 2),
        "ScaleMaxPool(kernel_size=2, stride=2, padding=0, window='dilated')",
    ),
    "blur": (
        ScaleBlurPool(5, 1),
        lambda x: functional.blur_pool(x, 5, 1),
        "ScaleBlurPool(kernel_size=5, stride=1, window='dilated')",
    ),
    "global": (GlobalPool("max"), lambda x: functional.global_pool(x, "max"), "GlobalPool('max')"),
    "scale": (ScalePool("logsumexp"), lambda x: functional.scale_pool(x, "logsumexp"), "ScalePool('logsumexp')"),
    "scale map": (
        ScalePool("max", return_scale=True),
        lambda x: functional.scale_pool(x, "max", return_scale=True),
        "ScalePool('max', return_scale=True)",
    ),
    "resample": (Resample(), functional.resample, "Resample()"),
    "resample, size": (Resample((10, 9)), lambda x: functional.resample(x, (10, 9)), ""),
    "pyramid": (FeaturePyramid(), functional.feature_pyramid, "FeaturePyramid()"),
    "dropout, eval": (ScaleDropout(0.3).eval(), lambda x: x, "ScaleDropout(p=0.3)"),
    "norm, eval": (
        ScaleBatchNorm(3).eval(),
        lambda x: functional.scale_batch_norm(x, torch.zeros(3), torch.ones(3), torch.ones(3), torch.zeros(3)),
        "",
    ),
}


class TestModulesAreFunctions:
    @pytest.mark.parametrize("name", LAYERS)
    @pytest.mark.parametrize("sampling", ["dense", "pyramid"])
    def test_forward(self, name, sampling):
        module, function, _ = LAYERS[name]
        x = space(sampling=sampling)
        assert_same(module(x), function(x))

    @pytest.mark.parametrize("name", [name for name, (_, _, text) in LAYERS.items() if text])
    def test_repr(self, name):
        module, _, text = LAYERS[name]
        assert repr(module) == text

    def test_resample_says_its_size(self):
        assert "(10, 9)" in repr(Resample((10, 9)))

    def test_dropout_while_training(self):
        x = space()
        torch.manual_seed(3)
        got = ScaleDropout(0.5)(x)
        torch.manual_seed(3)
        assert_same(got, functional.scale_dropout(x, 0.5))
        with pytest.raises(ValueError, match="p is a probability"):
            ScaleDropout(1.5)

    @pytest.mark.parametrize("momentum", [0.1, None])
    def test_norm_while_training(self, momentum):
        x, layer = space(), ScaleBatchNorm(3, momentum=momentum, eps=1e-3)
        mean, var = torch.zeros(3), torch.ones(3)
        expected = functional.scale_batch_norm(
            x, mean, var, layer.weight, layer.bias, True, 1.0 if momentum is None else momentum, 1e-3
        )
        assert_same(layer(x), expected)
        assert_close((layer.running_mean, layer.running_var), (mean, var))
        assert repr(ScaleBatchNorm(3, sync=True)).endswith("sync=True)")

    @pytest.mark.parametrize(
        ("layer", "shape"), [(ScaleConv1d, (12,)), (ScaleConv2d, (12, 9)), (ScaleConv3d, (8, 7, 6))]
    )
    @pytest.mark.parametrize("depth", [1, 2])
    def test_conv(self, layer, shape, depth):
        dims = len(shape)
        settings: dict[str, Any] = {
            "stride": 2,
            "padding": 1,
            "dilation": 1,
            "groups": 2,
            "padding_mode": "reflect",
            "scale_padding": "replicate",
        }
        module = layer(4, 6, (depth, *[3] * dims), **settings)
        nn.init.normal_(module.bias)
        x = lift(torch.rand(1, 4, *shape), 2, sampling="pyramid")
        assert module.weight.shape == ((6, 2, 2, *[3] * dims) if depth == 2 else (6, 2, *[3] * dims))
        assert_same(module(x), functional.scale_conv(x, module.weight, module.bias, **settings))

    def test_conv_repr_says_what_is_not_default(self):
        assert repr(ScaleConv2d(3, 8, (2, 3, 3))) == "ScaleConv2d(3, 8, kernel_size=(2, 3, 3))"
        layer = ScaleConv2d(4, 8, [1, 3, 3], stride=2, groups=2, bias=False, padding="valid", scale_padding="valid")
        text = repr(layer)
        for part in ("kernel_size=(1, 3, 3)", "stride=2", "groups=2", "bias=False", "scale_padding='valid'"):
            assert part in text
        assert "padding=valid" in text or "padding='valid'" in text
        assert "dilation" not in text


LIFTS: dict[str, dict[str, Any]] = {
    "default": {},
    "cascade pyramid": {"method": "cascade", "sampling": "pyramid", "num_levels": 3},
    "fractional": {"base": 1.5, "sampling": "pyramid", "zero_scale": 0.5},
    "oversampled": {"base": 3, "sampling": 2, "padding_mode": "circular"},
    "finer": {"first_level": -1, "sampling": "pyramid"},
    "binomial": {"kernel": "binomial", "zero_scale": 0.5, "truncation": 3.0},
    "quincunx": {"base": QUINCUNX, "method": "cascade", "padding_mode": "zeros"},
    "list of lists": {"base": [[2, 0], [0, 2]], "num_levels": 2},
}


@pytest.mark.parametrize("name", LIFTS)
class TestLift:
    def test_is_the_function(self, name):
        f = torch.rand(2, 3, 14, 11)
        assert_same(Lift(**LIFTS[name])(f), lift(f, **LIFTS[name]))

    def test_double_is_as_precise_as_the_function(self, name):
        """Kernels are cast from float64, not from the float32 they were before."""
        f = torch.rand(2, 3, 14, 11, dtype=torch.float64)
        assert_same(Lift(**LIFTS[name]).double()(f), lift(f, **LIFTS[name]))
        assert_same(Lift(**LIFTS[name]).half().to(torch.float64)(f), lift(f, **LIFTS[name]))

    def test_downscales_as_it_lifts(self, name):
        f, settings = torch.rand(1, 1, 14, 11), LIFTS[name]
        action = {
            key: value for key, value in settings.items() if key in ("base", "zero_scale", "kernel", "truncation")
        }
        action |= {"padding_mode": settings.get("padding_mode", "reflect")}
        layer = Lift(**settings)
        for n in (0, 1):
            for method in ("cascade", "direct"):
                expected = scalespaces.downscale(f, n, method=method, **action)
                assert_close(layer.downscale(f, n, method=method), expected)

    def test_keeps_nothing_in_checkpoints(self, name):
        layer = Lift(**LIFTS[name])
        assert dict(layer.state_dict()) == {}
        assert list(layer.parameters()) == []
        layer.load_state_dict({})

    def test_copies(self, name):
        f, layer = torch.rand(1, 2, 14, 11), Lift(**LIFTS[name])
        for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert_same(twin(f), layer(f))

    def test_buffers_follow(self, name):
        layer = Lift(**LIFTS[name])
        assert all(buffer.dtype == torch.float64 for buffer in layer.double().buffers())
        assert all(buffer.device.type == "meta" for buffer in layer.to("meta").buffers())
        restored = layer.to_empty(device="cpu").float()
        f = torch.rand(1, 2, 14, 11)
        assert_same(restored(f), lift(f, **LIFTS[name]))

    def test_repr(self, name):
        text = repr(Lift(**LIFTS[name]))
        for key in ("num_levels", "base", "zero_scale", "kernel", "method", "sampling", "padding_mode"):
            assert f"{key}=" in text
        assert ("first_level=-1" in text) == (name == "finer")


class TestLiftState:
    def test_writing_to_a_layers_buffer_changes_no_other_lift(self):
        """Plans are shared; buffers must not be."""
        f = torch.rand(1, 1, 9, dtype=torch.float64)
        before = lift(f, zero_scale=0.31)
        layer = Lift(zero_scale=0.31).double()
        for buffer in layer.buffers():
            buffer.zero_()
        assert_same(lift(f, zero_scale=0.31), before)

    def test_default_type(self):
        torch.set_default_dtype(torch.float64)
        try:
            layer = Lift()
        finally:
            torch.set_default_dtype(torch.float32)
        assert all(buffer.dtype == torch.float64 for buffer in layer.buffers())

    def test_arguments_are_checked_at_once(self):
        cases: list[dict[str, Any]] = [{"base": 1.0}, {"num_levels": 0}, {"kernel": "none"}, {"sampling": 0.5}]
        for wrong in [*cases, {"zero_scale": np.nan}]:
            with pytest.raises(ValueError, match=next(iter(wrong))):
                Lift(**wrong)

    def test_on_an_image_of_another_type(self):
        """The image decides; a float32 layer on a float64 image has float32's kernels."""
        f = torch.rand(1, 1, 9, dtype=torch.float64)
        got = Lift()(f)
        assert got.dtype == torch.float64
        for level, expected in zip(got.levels, lift(f).levels, strict=True):
            assert_close(level, expected, rtol=0, atol=1e-6)


def network() -> nn.Sequential:
    return nn.Sequential(
        Lift(3, sampling="pyramid"),
        ScaleConv2d(3, 4, (2, 3, 3)),
        ScaleBatchNorm(4),
        nn.ReLU(inplace=True),
        ScaleMaxPool(2),
        ScaleConv2d(4, 5, (1, 3, 3), bias=False),
        GlobalPool(),
        ScalePool(),
        nn.Linear(5, 2),
    )


class TestNetworks:
    def test_state_dict_round_trip(self, tmp_path):
        f, one = torch.rand(2, 3, 16, 16), network()
        one(f)
        torch.save(one.state_dict(), tmp_path / "state.pt")
        torch.manual_seed(7)
        other = network()
        other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        assert set(one.state_dict()) == {
            "1.weight",
            "1.bias",
            "2.weight",
            "2.bias",
            "2.running_mean",
            "2.running_var",
            "2.num_batches_tracked",
            "5.weight",
            "8.weight",
            "8.bias",
        }
        assert_close(other.eval()(f), one.eval()(f), rtol=0, atol=0)

    def test_state_does_not_change_with_the_mode(self):
        one = network()
        assert list(one.train().state_dict()) == list(one.eval().state_dict())

    def test_copies_and_types(self):
        f, one = torch.rand(2, 3, 16, 16), network().eval()
        assert_close(copy.deepcopy(one)(f), one(f), rtol=0, atol=0)
        assert_close(pickle.loads(pickle.dumps(one))(f), one(f), rtol=0, atol=0)
        exact = copy.deepcopy(one).double()(f.double())
        assert_close(one(f).double(), exact, rtol=1e-4, atol=1e-5)

    def test_learns(self):
        """Every parameter gets a gradient, and following it lowers the loss."""
        f, target, one = torch.rand(4, 3, 16, 16), torch.tensor([0, 1, 0, 1]), network()
        optimizer = torch.optim.SGD(one.parameters(), lr=0.05)
        losses = []
        for _ in range(5):
            loss = nn.functional.cross_entropy(one(f), target)
            optimizer.zero_grad()
            loss.backward()
            assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in one.parameters() if p.ndim > 1)
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0]

    def test_hooks_and_data_parallel_wrappers_see_a_tree(self):
        seen = []
        one = network()
        one[1].register_forward_hook(lambda module, args, out: seen.append(out))
        one(torch.rand(1, 3, 16, 16))
        assert isinstance(seen[0], ScaleSpace)
        assert len(_pytree.tree_leaves(seen[0])) == 3


def test_every_layer_is_tested():
    sources = "".join(file.read_text(encoding="utf-8") for file in Path(__file__).parent.glob("test_*.py"))
    uses = {name: len(re.findall(rf"\b{name}\b", sources)) for name in scalespaces.nn.__all__}
    assert [name for name, number in uses.items() if number < 2] == []  # imported, and used


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (ScaleConv1d(3, 8, (2, 3)), (32, 32)),
        (ScaleConv2d(3, 4, (2, 3, 3)), (8, 8, 8)),
        (ScaleConv2d(3, 4, (1, 3, 3)), (64,)),
    ],
)
def test_layers_of_another_number_of_axes_are_refused(layer, shape):
    with pytest.raises(ValueError, match=rf"is for levels of {layer.dims} spatial axes, got shapes"):
        layer(lift(torch.rand(1, 3, *shape), 3))


@pytest.mark.parametrize(
    "make",
    [
        lambda: ScaleAvgPool(2, window="square"),
        lambda: ScaleMaxPool(2, window="square"),
        lambda: ScaleBlurPool(window="square"),
        lambda: GlobalPool("median"),
        lambda: ScalePool("median"),
    ],
)
def test_wrong_choices_are_refused_at_once(make):
    with pytest.raises(ValueError, match=r"is one of .*, got '(square|median)'"):
        make()


class TestSynchronize:
    """Without other processes, it changes nothing but what layers are called."""

    def test_plain_layers_become_ours(self):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.BatchNorm2d(4), nn.ReLU()), nn.BatchNorm2d(4))
        image = torch.rand(5, 3, 8, 8)
        twin: Any = synchronize(copy.deepcopy(model))
        assert all(isinstance(layer, ScaleBatchNorm) and layer.sync for layer in (twin[1][0], twin[2]))
        assert twin.state_dict().keys() == model.state_dict().keys()
        for mode in (True, False):
            torch.testing.assert_close(twin.train(mode)(image), model.train(mode)(image))
        for key, value in model.state_dict().items():
            torch.testing.assert_close(twin.state_dict()[key], value)

    def test_ours_are_told(self):
        layer = ScaleBatchNorm(4)
        synchronize(nn.Sequential(layer))
        assert layer.sync

    def test_layers_that_do_more_are_refused(self):
        class WithReLU(nn.BatchNorm2d):
            def forward(self, input):
                return super().forward(input).relu()

        with pytest.raises(ValueError, match="WithReLU computes more than a batch normalization"):
            synchronize(nn.Sequential(WithReLU(4)))
