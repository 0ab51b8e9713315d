"""Every layer is its function; what it keeps is in its state, what it is in its repr."""

import copy
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from algebra import assert_same
from reference import refusals
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.testing import assert_close
from torch.utils import _pytree

from scalespaces import ScaleSpace, functional, lift, semigroups
from scalespaces import nn as scale


def space(**settings: Any) -> ScaleSpace:
    return lift(torch.rand(2, 3, 20, 18), **{"num_levels": 3, "sampling": "pyramid"} | settings)


LAYERS: dict[str, tuple[nn.Module, Callable[[ScaleSpace], Any]]] = {
    "avg": (scale.ScaleAvgPool(3, 2, 1), lambda x: functional.avg_pool(x, 3, 2, 1)),
    "avg, plain": (
        scale.ScaleAvgPool((2, 1), window="plain"),
        lambda x: functional.avg_pool(x, (2, 1), window="plain"),
    ),
    "max": (scale.ScaleMaxPool(), lambda x: functional.max_pool(x, 2)),
    "blur": (scale.ScaleBlurPool(5, 1), lambda x: functional.blur_pool(x, 5, 1)),
    "global": (scale.GlobalPool("max"), lambda x: functional.global_pool(x, "max")),
    "scale": (scale.ScalePool("logsumexp"), lambda x: functional.scale_pool(x, "logsumexp")),
    "scale map": (scale.ScalePool("max", True), lambda x: functional.scale_pool(x, "max", return_scale=True)),
    "resample": (scale.Resample(), functional.resample),
    "resample, size": (scale.Resample((10, 9)), lambda x: functional.resample(x, (10, 9))),
    "dropout, eval": (scale.ScaleDropout(0.3).eval(), lambda x: x),
    "norm, eval": (
        scale.ScaleBatchNorm(3).eval(),
        lambda x: functional.scale_batch_norm(x, torch.zeros(3), torch.ones(3), torch.ones(3), torch.zeros(3)),
    ),
}


class TestModulesAreFunctions:
    @pytest.mark.parametrize("name", LAYERS)
    @pytest.mark.parametrize("sampling", ["dense", "pyramid"])
    def test_forward(self, name, sampling):
        module, function = LAYERS[name]
        x = space(sampling=sampling)
        assert_same(module(x), function(x))

    def test_reprs_show_the_arguments(self):
        options = {"stride": 2, "padding": "valid", "groups": 2, "scale_padding": "valid", "bias": False}
        for layer, shown in (
            (
                scale.ScaleAvgPool((2, 1)),
                "ScaleAvgPool(kernel_size=(2, 1), stride=(2, 1), padding=0, window='dilated')",
            ),
            (scale.ScalePool("max", True), "ScalePool(mode='max', return_scale=True)"),
            (scale.ScaleConv2d(3, 8, (2, 3, 3)), "ScaleConv2d(3, 8, kernel_size=(2, 3, 3))"),
            (
                scale.ScaleConv2d(4, 8, [1, 3, 3], **options),
                f"ScaleConv2d(4, 8, kernel_size=(1, 3, 3), {', '.join(f'{k}={v!r}' for k, v in options.items())})",
            ),
            (scale.P4Conv2d(2, 3, 3, lifting=True), "P4Conv2d(2, 3, kernel_size=(1, 3, 3), lifting=True)"),
            (scale.GraphConv(2, 4, scale_padding="valid"), "GraphConv(2, 4, kernel_size=2, scale_padding='valid')"),
        ):
            assert repr(layer) == shown
        assert repr(scale.ScaleBatchNorm(3, sync=True)).endswith("sync=True)")

    def test_dropout_while_training(self):
        x = space()
        torch.manual_seed(3)
        got = scale.ScaleDropout(0.5)(x)
        torch.manual_seed(3)
        assert_same(got, functional.scale_dropout(x, 0.5))

    @pytest.mark.parametrize("dims", [1, 2, 3])
    def test_conv(self, dims):
        layer: Any = (scale.ScaleConv1d, scale.ScaleConv2d, scale.ScaleConv3d)[dims - 1]
        x, taps = lift(torch.rand(1, 4, *(12, 9, 8)[:dims]), 2, dims=dims), [3] * dims
        settings: dict[str, Any] = {"stride": 2, "padding": 1, "dilation": 1, "groups": 2}
        settings |= {"padding_mode": "reflect", "scale_padding": "replicate"}
        for size, shape, options in (((1, *taps), (6, 2, *taps), settings), ((2, *taps), (6, 2, 2, *taps), settings)):
            module = layer(4, 6, size, **options)
            nn.init.normal_(module.bias)
            assert module.weight.shape == shape
            assert_same(module(x), functional.scale_conv(x, module.weight, module.bias, **options))
        module = layer(4, 6, 3)  # an integer is a filter of one level
        assert (module.kernel_size, module.weight.shape) == ((1, *taps), (6, 4, *taps))
        assert_same(module(x), functional.scale_conv(x, module.weight, module.bias))
        axes = ("levels", *("depth", "height", "width")[3 - dims :])
        for wrong in ((3,) * dims, (1, *taps, 3), 3.0, (1, *[3.0] * dims), "3"):
            with pytest.raises(ValueError, match=rf"kernel_size is \({', '.join(axes)}\), or an integer .*; 3 stands"):
                layer(4, 6, wrong)
        for wrong in (0, (0, *taps)):
            with pytest.raises(ValueError, match="kernel_size is at least 1"):
                layer(4, 6, wrong)

    @pytest.mark.parametrize(
        "make",
        [
            lambda one, two, three, twos: scale.ScaleConv2d(three, two, three),
            lambda one, two, three, twos: scale.ScaleConv2d(3, 3, (one, three, three), two, (one, one), twos, three),
            lambda one, two, three, twos: scale.P4MConv2d(three, two, three, lifting=True),
            lambda one, two, three, twos: scale.ScaleBatchNorm(three),
            lambda one, two, three, twos: scale.ScaleAvgPool(two, one, one),
            lambda one, two, three, twos: scale.ScaleMaxPool((three, two), [two, two]),
            lambda one, two, three, twos: scale.ScaleBlurPool(three, twos),
            lambda one, two, three, twos: scale.Resample(twos),
            lambda one, two, three, twos: scale.Resample(three),
            lambda one, two, three, twos: scale.SemigroupConv(one, two, semigroups.CausalShifts(three), twos),
            lambda one, two, three, twos: scale.GraphConv(one, two, three),
            lambda one, two, three, twos: scale.CausalLift(two, two, stages=three),
        ],
    )
    def test_numpy_integers_are_integers(self, make):
        """Also in what a layer keeps: torch.compile would take NumPy's numbers for tensors."""
        x, got, expected = space(), make(np.int64(1), np.int32(2), np.uint8(3), np.array([2, 2])), make(1, 2, 3, (2, 2))
        got.load_state_dict(expected.state_dict())
        assert repr(got).replace("[2, 2]", "(2, 2)") == repr(expected).replace("[2, 2]", "(2, 2)")
        if not isinstance(got, (scale.SemigroupConv, scale.GraphConv, scale.CausalLift)):
            assert_same(got(x), expected(x))


def network() -> nn.Sequential:
    first = [scale.Lift(3, sampling="pyramid"), scale.ScaleConv2d(3, 4, (2, 3, 3)), scale.ScaleBatchNorm(4)]
    second = [nn.ReLU(inplace=True), scale.ScaleMaxPool(2), scale.ScaleConv2d(4, 5, (1, 3, 3), bias=False)]
    return nn.Sequential(*first, *second, scale.GlobalPool(), scale.ScalePool(), nn.Linear(5, 2))


def test_a_network_learns():
    """Every parameter has its name and gets a gradient, and following it lowers the loss."""
    f, target, one = torch.rand(4, 3, 16, 16), torch.tensor([0, 1, 0, 1]), network()
    norm = {f"2.{name}" for name in nn.BatchNorm2d(4).state_dict()}
    assert set(one.state_dict()) == norm | {"1.weight", "1.bias", "5.weight", "8.weight", "8.bias"}
    optimizer, losses = torch.optim.SGD(one.parameters(), lr=0.05), []
    for _ in range(5):
        losses.append(nn.functional.cross_entropy(one(f), target))
        optimizer.zero_grad()
        losses[-1].backward()
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in one.parameters() if p.ndim > 1)
        optimizer.step()
    assert losses[-1] < losses[0]


def tensors(out: Any) -> tuple[torch.Tensor, ...]:
    return tuple(_pytree.tree_leaves(out))


MAPPED: dict[str, nn.Module] = {
    "conv": scale.ScaleConv2d(3, 4, (2, 3, 3), stride=2, padding_mode="reflect"),
    "groups": scale.ScaleConv2d(3, 6, (2, 3, 3), groups=3, scale_padding="valid"),
    "p4": scale.P4Conv2d(3, 2, 3, lifting=True),
    "p4m": scale.P4MConv2d(3, 1, (2, 3, 3), lifting=True),
    "norm, eval": scale.ScaleBatchNorm(3).eval(),
    "norm, training": scale.ScaleBatchNorm(3, track_running_stats=False),
    "avg": scale.ScaleAvgPool(2),
    "max": scale.ScaleMaxPool(3, 2, 1),
    "blur": scale.ScaleBlurPool(),
    "mean": scale.ScalePool(),
    "probabilities": scale.ScalePool("probabilities"),
    "global": scale.GlobalPool(),
    "resample": scale.Resample(),
    "resample, size": scale.Resample((9, 11)),
}


@pytest.mark.parametrize("sampling", ["dense", "pyramid"])
class TestVmap:
    """Mapped over an axis, a layer is itself on each slice."""

    def stacked(self, sampling: str) -> tuple[list[ScaleSpace], tuple[torch.Tensor, ...]]:
        spaces = [lift(torch.rand(2, 3, 10, 12), 3, sampling=sampling) for _ in range(4)]
        return spaces, tuple(torch.stack(levels) for levels in zip(*(x.levels for x in spaces), strict=True))

    @pytest.mark.parametrize("name", MAPPED)
    @pytest.mark.parametrize("axis", [0, 2])
    def test_inputs(self, name, sampling, axis):
        layer, (spaces, stacks) = MAPPED[name], self.stacked(sampling)
        moved = tuple(stack.movedim(0, axis) for stack in stacks)

        def call(*levels: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tensors(layer(spaces[0].replace(levels)))

        got = torch.vmap(call, in_dims=axis)(*moved)
        for index, x in enumerate(spaces):
            assert_close(tuple(out[index] for out in got), tensors(layer(x)), rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("name", [name for name, layer in MAPPED.items() if list(layer.parameters())])
    def test_parameters(self, name, sampling):
        layer, (spaces, _) = MAPPED[name], self.stacked(sampling)
        twins: list[Any] = [copy.deepcopy(layer) for _ in range(3)]
        for parameter in nn.ModuleList(twins).parameters():
            nn.init.normal_(parameter)
        states: Any = torch.func.stack_module_state(twins)

        def call(*state: Any) -> tuple[torch.Tensor, ...]:
            return tensors(torch.func.functional_call(layer, state, (spaces[0],)))

        got = torch.vmap(call)(*states)
        for index, twin in enumerate(twins):
            assert_close(tuple(out[index] for out in got), tensors(twin(spaces[0])), rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("name", MAPPED)
    def test_gradients_per_sample(self, name, sampling):
        layer, (spaces, stacks) = MAPPED[name], self.stacked(sampling)
        parameters = {key: p.detach() for key, p in layer.named_parameters()}

        def loss(parameters: dict, *levels: torch.Tensor) -> torch.Tensor:
            out = torch.func.functional_call(layer, parameters, (spaces[0].replace(levels),))
            return torch.stack([(level**2).sum() for level in tensors(out)]).sum()

        argnums = (0, 1) if parameters else (1,)
        gradients = torch.func.grad(loss, argnums)
        got = torch.vmap(gradients, in_dims=(None, 0, 0, 0))(parameters, *stacks)
        for index, x in enumerate(spaces):
            expected = gradients(parameters, *x.levels)
            one = _pytree.tree_map(lambda g, index=index: g[index], got)
            assert_close(one, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", MAPPED)
@pytest.mark.parametrize(("sampling", "base"), [("pyramid", 2.0), ("dense", 2.0), ("pyramid", 1.5)])
def test_an_empty_batch_is_a_batch(name, sampling, base):
    """Of what comes out there is nothing, and the gradients of parameters are zeros."""
    layer, image = copy.deepcopy(MAPPED[name]), torch.zeros(0, 3, 12, 12, requires_grad=True)
    out = tensors(layer(lift(image, 3, base, sampling=sampling)))
    expected = tensors(layer(lift(torch.rand(1, 3, 12, 12), 3, base, sampling=sampling)))
    assert [t.shape for t in out] == [(0, *t.shape[1:]) for t in expected]
    torch.stack([t.sum() for t in out]).sum().backward()
    assert image.grad is not None
    assert all(p.grad is not None and not p.grad.any() for p in layer.parameters())


@pytest.mark.parametrize(
    "make",
    [
        partial(scale.Lift, 3, sampling="dense"),
        partial(scale.CausalLift, 3),
        partial(scale.ScaleConv1d, 2, 3, 3),
        partial(scale.ScaleConv2d, 2, 3, (2, 3, 3)),
        partial(scale.ScaleConv3d, 2, 3, 3),
        partial(scale.P4Conv2d, 2, 3, 3),
        partial(scale.P4MConv2d, 2, 3, (2, 3, 3), lifting=True),
        partial(scale.ScaleBatchNorm, 4),
        partial(scale.P4BatchNorm, 2),
        partial(scale.P4MBatchNorm, 2),
        partial(scale.GraphConv, 2, 3),
        partial(scale.SemigroupConv, 2, 3, semigroups.CausalShifts(5), [3]),
    ],
)
def test_device_and_dtype(make):
    """Of parameters and buffers, as PyTorch's layers have them; indices and counts stay integers."""
    layer = make(device="meta", dtype=torch.float64)
    tensors = [*layer.parameters(), *layer.buffers()]
    assert tensors
    assert all(t.is_meta for t in tensors)
    assert all(t.dtype == torch.float64 for t in tensors if t.is_floating_point())
    for t in (*make().parameters(), *make().buffers()):
        assert t.device.type == "cpu"
        assert t.dtype == torch.float32 or not t.is_floating_point()


def test_plain_batch_norms_are_synchronized():
    """Without other processes, it changes nothing but what layers are called; layers that do more are refused."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.BatchNorm2d(4), nn.ReLU()), nn.BatchNorm2d(4))
    twin: Any = scale.synchronize(copy.deepcopy(model))
    assert scale.synchronize(scale.ScaleBatchNorm(4)).sync
    assert all(isinstance(layer, scale.ScaleBatchNorm) and layer.sync for layer in (twin[1][0], twin[2]))
    image = torch.rand(5, 3, 8, 8)
    for mode in (True, False):
        assert_close(twin.train(mode)(image), model.train(mode)(image))
    assert_close(dict(twin.state_dict()), dict(model.state_dict()))
    with pytest.raises(ValueError, match="WithReLU computes more than batch normalization"):
        scale.synchronize(nn.Sequential(type("WithReLU", (nn.BatchNorm2d,), {"forward": nn.ReLU.forward})(4)))


class FromHost(TorchFunctionMode):
    """Notes what reads a tensor of the CPU, or makes one from Python's numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        made = func in (torch.tensor, torch.as_tensor, torch.from_numpy, torch.Tensor.new_tensor)
        leaves = _pytree.tree_leaves((args, kwargs))
        if made or any(isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu" for leaf in leaves):
            self.found.append(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", MAPPED)
@pytest.mark.parametrize(("sampling", "base"), [("pyramid", 2.0), ("pyramid", 1.5), ("dense", 1.5)])
def test_constants_are_sent_to_a_device_once(name, sampling, base):
    """A copy at every call would make a GPU wait; the meta device stands in for one."""
    layer, x = copy.deepcopy(MAPPED[name]).to("meta"), space(sampling=sampling, base=base).to("meta")
    if (name, sampling) == ("max", "dense"):  # its padding needs taps on samples
        layer = scale.ScaleMaxPool(3, 2)
    layer(x)
    with FromHost() as seen:
        layer(x)
    assert seen.found == []


def test_every_layer_is_tested():
    sources = "".join(file.read_text(encoding="utf-8") for file in Path(__file__).parent.glob("test_*.py"))
    assert [name for name in scale.__all__ if not re.search(rf"\b{name}\b", sources)] == []


@pytest.mark.parametrize("name", [name for name in MAPPED if name != "p4"])
@pytest.mark.parametrize("wrong", [torch.rand(2, 3, 8, 8), [torch.rand(2, 3, 8, 8)], None])
def test_what_is_no_scale_space_is_refused_with_a_remedy(name, wrong):
    layer = MAPPED[name]
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    remedy = r"a ScaleSpace, got .*; lift (images with scalespaces.lift|the image) first"
    with pytest.raises((TypeError, ValueError), match=remedy):
        layer(wrong)
    assert_close(dict(layer.state_dict()), before)


SLIDING: Any = (scale.ScaleAvgPool, scale.ScaleMaxPool, scale.ScaleBlurPool)

test_refusals = refusals(
    *[(lambda pool=pool: pool(window="square"), "window is one of .*, got 'square'") for pool in SLIDING],
    (lambda: scale.GlobalPool("median"), "mode is one of .*, got 'median'"),
    (lambda: scale.ScalePool("median"), "mode is one of .*, got 'median'"),
    (lambda: scale.ScaleDropout(1.5), "p is a probability"),
    (lambda: scale.ScaleConv1d(3, 8, (2, 3))(space()), "is for levels of 1 spatial axes, got shapes"),
    (lambda: scale.ScaleConv2d(3, 4, 3)(lift(torch.rand(1, 3, 64), 3, dims=1)), "levels of 2 spatial axes, got shapes"),
    (lambda: scale.ScaleConv2d(3, 4, 3)(lift(torch.rand(1, 3, 8, 8, 8), 2, dims=3)), "levels of 2 spatial axes"),
)
