"""Every layer is its function; what it keeps is in its state, what it is in its repr."""

import copy
import pickle
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from algebra import SAME, assert_same
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.testing import assert_close
from torch.utils import _pytree

import scalespaces
from scalespaces import ScaleSpace, functional, lift, semigroups
from scalespaces.nn import (
    CausalLift,
    FeaturePyramid,
    GlobalPool,
    GraphConv,
    Lift,
    P4BatchNorm,
    P4Conv2d,
    P4MBatchNorm,
    P4MConv2d,
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
    SemigroupConv,
)


def space(**settings: Any) -> ScaleSpace:
    return lift(torch.rand(2, 3, 20, 18), **{"num_levels": 3, "sampling": "pyramid"} | settings)


LAYERS: dict[str, tuple[nn.Module, Callable[[ScaleSpace], Any]]] = {
    "avg": (ScaleAvgPool(3, 2, 1), lambda x: functional.avg_pool(x, 3, 2, 1)),
    "avg, plain": (ScaleAvgPool((2, 1), window="plain"), lambda x: functional.avg_pool(x, (2, 1), window="plain")),
    "max": (ScaleMaxPool(), lambda x: functional.max_pool(x, 2)),
    "blur": (ScaleBlurPool(5, 1), lambda x: functional.blur_pool(x, 5, 1)),
    "global": (GlobalPool("max"), lambda x: functional.global_pool(x, "max")),
    "scale": (ScalePool("logsumexp"), lambda x: functional.scale_pool(x, "logsumexp")),
    "scale map": (ScalePool("max", True), lambda x: functional.scale_pool(x, "max", return_scale=True)),
    "resample": (Resample(), functional.resample),
    "resample, size": (Resample((10, 9)), lambda x: functional.resample(x, (10, 9))),
    "pyramid": (FeaturePyramid(), functional.feature_pyramid),
    "dropout, eval": (ScaleDropout(0.3).eval(), lambda x: x),
    "norm, eval": (
        ScaleBatchNorm(3).eval(),
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
        assert (
            repr(ScaleAvgPool((2, 1))) == "ScaleAvgPool(kernel_size=(2, 1), stride=(2, 1), padding=0, window='dilated')"
        )
        assert repr(ScalePool("max", True)) == "ScalePool(mode='max', return_scale=True)"
        assert repr(ScaleConv2d(3, 8, (2, 3, 3))) == "ScaleConv2d(3, 8, kernel_size=(2, 3, 3))"
        layer = ScaleConv2d(4, 8, [1, 3, 3], stride=2, groups=2, bias=False, padding="valid", scale_padding="valid")
        shown = "stride=2, padding='valid', groups=2, scale_padding='valid', bias=False"
        assert repr(layer) == f"ScaleConv2d(4, 8, kernel_size=(1, 3, 3), {shown})"
        assert repr(P4Conv2d(2, 3, 3, lifting=True)) == "P4Conv2d(2, 3, kernel_size=(1, 3, 3), lifting=True)"
        assert repr(GraphConv(2, 4, scale_padding="valid")) == "GraphConv(2, 4, kernel_size=2, scale_padding='valid')"
        assert repr(ScaleBatchNorm(3, sync=True)).endswith("sync=True)")

    def test_dropout_while_training(self):
        x = space()
        torch.manual_seed(3)
        got = ScaleDropout(0.5)(x)
        torch.manual_seed(3)
        assert_same(got, functional.scale_dropout(x, 0.5))

    @pytest.mark.parametrize("momentum", [0.1, None])
    def test_norm_while_training(self, momentum):
        x, layer = space(), ScaleBatchNorm(3, momentum=momentum, eps=1e-3)
        mean, var = torch.zeros(3), torch.ones(3)
        expected = functional.scale_batch_norm(
            x, mean, var, layer.weight, layer.bias, True, 1.0 if momentum is None else momentum, 1e-3
        )
        assert_same(layer(x), expected)
        assert_close((layer.running_mean, layer.running_var), (mean, var))

    @pytest.mark.parametrize(
        ("layer", "shape"), [(ScaleConv1d, (12,)), (ScaleConv2d, (12, 9)), (ScaleConv3d, (8, 7, 6))]
    )
    @pytest.mark.parametrize("depth", [1, 2])
    def test_conv(self, layer, shape, depth):
        dims = len(shape)
        settings: dict[str, Any] = {"stride": 2, "padding": 1, "dilation": 1, "groups": 2}
        settings |= {"padding_mode": "reflect", "scale_padding": "replicate"}
        module = layer(4, 6, (depth, *[3] * dims), **settings)
        nn.init.normal_(module.bias)
        x = lift(torch.rand(1, 4, *shape), 2, dims=dims)
        assert module.weight.shape == ((6, 2, 2, *[3] * dims) if depth == 2 else (6, 2, *[3] * dims))
        assert_same(module(x), functional.scale_conv(x, module.weight, module.bias, **settings))

    @pytest.mark.parametrize(("layer", "dims"), [(ScaleConv1d, 1), (ScaleConv2d, 2), (ScaleConv3d, 3)])
    def test_an_integer_is_a_filter_of_one_level(self, layer, dims):
        module = layer(4, 6, 3)
        assert module.kernel_size == (1, *[3] * dims)
        assert module.weight.shape == (6, 4, *[3] * dims)
        x = lift(torch.rand(1, 4, *[9] * dims), 2, dims=dims)
        assert_same(module(x), functional.scale_conv(x, module.weight, module.bias))
        axes = ("levels", *("depth", "height", "width")[3 - dims :])
        for wrong in ((3,) * dims, (1, *[3] * dims, 3), 3.0, (1, *[3.0] * dims), "3"):
            with pytest.raises(ValueError, match=rf"kernel_size is \({', '.join(axes)}\), or an integer .*; 3 stands"):
                layer(4, 6, wrong)
        for wrong in (0, (0, *[3] * dims)):
            with pytest.raises(ValueError, match="kernel_size is at least 1"):
                layer(4, 6, wrong)

    def test_numpy_integers_are_integers(self):
        """Also in what a layer keeps: torch.compile would take NumPy's numbers for tensors."""
        numbers: Any = (np.int64(1), np.int32(2), np.uint8(3), np.array([2, 2]))
        x, (one, two, three, twos) = space(), numbers
        pairs: list[tuple[Any, Any]] = [
            (ScaleConv2d(three, two, three), ScaleConv2d(3, 2, 3)),
            (
                ScaleConv2d(three, three, (one, three, three), two, (one, one), twos, three),
                ScaleConv2d(3, 3, (1, 3, 3), 2, (1, 1), (2, 2), 3),
            ),
            (P4MConv2d(three, two, three, lifting=True), P4MConv2d(3, 2, 3, lifting=True)),
            (ScaleBatchNorm(three), ScaleBatchNorm(3)),
            (ScaleAvgPool(two, one, one), ScaleAvgPool(2, 1, 1)),
            (ScaleMaxPool((three, two), [two, two]), ScaleMaxPool((3, 2), (2, 2))),
            (ScaleBlurPool(three, twos), ScaleBlurPool(3, (2, 2))),
            (Resample(twos), Resample((2, 2))),
            (Resample(three), Resample(3)),
        ]
        for got, expected in pairs:
            got.load_state_dict(expected.state_dict())
            assert repr(got) == repr(expected)
            assert_same(got(x), expected(x))
        assert functional.avg_pool(x, two, one).shapes == functional.avg_pool(x, 2, 1).shapes
        shifts = semigroups.CausalShifts(three)
        assert repr(SemigroupConv(one, two, shifts, twos)) == repr(SemigroupConv(1, 2, shifts, (2, 2)))
        assert repr(GraphConv(one, two, three)) == repr(GraphConv(1, 2, 3))
        assert repr(CausalLift(two, two, stages=three)) == repr(CausalLift(2, 2, stages=3))


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
        norm = {f"2.{name}" for name in nn.BatchNorm2d(4).state_dict()}
        assert set(one.state_dict()) == norm | {"1.weight", "1.bias", "5.weight", "8.weight", "8.bias"}
        assert list(one.train().state_dict()) == list(one.eval().state_dict())
        assert_close(other.eval()(f), one.eval()(f), **SAME)

    def test_copies_and_types(self):
        f, one = torch.rand(2, 3, 16, 16), network().eval()
        assert_close(copy.deepcopy(one)(f), one(f), **SAME)
        assert_close(pickle.loads(pickle.dumps(one))(f), one(f), **SAME)
        exact = copy.deepcopy(one).double()(f.double())
        assert_close(one(f).double(), exact, rtol=1e-4, atol=1e-5)

    def test_learns(self):
        """Every parameter gets a gradient, and following it lowers the loss."""
        f, target, one = torch.rand(4, 3, 16, 16), torch.tensor([0, 1, 0, 1]), network()
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
    "conv": ScaleConv2d(3, 4, (2, 3, 3), stride=2, padding_mode="reflect"),
    "groups": ScaleConv2d(3, 6, (2, 3, 3), groups=3, scale_padding="valid"),
    "p4": P4Conv2d(3, 2, 3, lifting=True),
    "p4m": P4MConv2d(3, 1, (2, 3, 3), lifting=True),
    "norm, eval": ScaleBatchNorm(3).eval(),
    "norm, training": ScaleBatchNorm(3, track_running_stats=False),
    "avg": ScaleAvgPool(2),
    "max": ScaleMaxPool(3, 2, 1),
    "blur": ScaleBlurPool(),
    "mean": ScalePool(),
    "probabilities": ScalePool("probabilities"),
    "global": GlobalPool(),
    "resample": Resample(),
    "resample, size": Resample((9, 11)),
    "pyramid": FeaturePyramid(),
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
        partial(Lift, 3, sampling="dense"),
        partial(CausalLift, 3),
        partial(ScaleConv1d, 2, 3, 3),
        partial(ScaleConv2d, 2, 3, (2, 3, 3)),
        partial(ScaleConv3d, 2, 3, 3),
        partial(P4Conv2d, 2, 3, 3),
        partial(P4MConv2d, 2, 3, (2, 3, 3), lifting=True),
        partial(ScaleBatchNorm, 4),
        partial(P4BatchNorm, 2),
        partial(P4MBatchNorm, 2),
        partial(GraphConv, 2, 3),
        partial(SemigroupConv, 2, 3, semigroups.CausalShifts(5), [3]),
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
        layer = ScaleMaxPool(3, 2)
    layer(x)
    with FromHost() as seen:
        layer(x)
    assert seen.found == []


def test_every_layer_is_tested():
    sources = "".join(file.read_text(encoding="utf-8") for file in Path(__file__).parent.glob("test_*.py"))
    uses = {name: len(re.findall(rf"\b{name}\b", sources)) for name in scalespaces.nn.__all__}
    assert [name for name, number in uses.items() if number < 2] == []  # imported, and used


@pytest.mark.parametrize("name", [name for name in MAPPED if name != "p4"])
@pytest.mark.parametrize(
    "wrong", [torch.rand(2, 3, 8, 8), [torch.rand(2, 3, 8, 8)], None], ids=["tensor", "list", "none"]
)
def test_what_is_no_scale_space_is_refused_with_a_remedy(name, wrong):
    layer = MAPPED[name]
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    with pytest.raises(
        (TypeError, ValueError), match=r"a ScaleSpace, got .*; lift (images with scalespaces.lift|the image) first"
    ):
        layer(wrong)
    assert_close(dict(layer.state_dict()), before)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ScaleAvgPool(2, window="square"), "window is one of .*, got 'square'"),
        (lambda: ScaleMaxPool(2, window="square"), "window is one of .*, got 'square'"),
        (lambda: ScaleBlurPool(window="square"), "window is one of .*, got 'square'"),
        (lambda: GlobalPool("median"), "mode is one of .*, got 'median'"),
        (lambda: ScalePool("median"), "mode is one of .*, got 'median'"),
        (lambda: ScaleDropout(1.5), "p is a probability"),
        (lambda: ScaleConv1d(3, 8, (2, 3))(space()), "is for levels of 1 spatial axes, got shapes"),
        (lambda: ScaleConv2d(3, 4, 3)(lift(torch.rand(1, 3, 64), 3, dims=1)), "levels of 2 spatial axes, got shapes"),
        (lambda: ScaleConv2d(3, 4, (2, 3, 3))(lift(torch.rand(1, 3, 8, 8, 8), 2, dims=3)), "levels of 2 spatial axes"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()
