"""Blocks whose insides are computed again: the same training, less kept."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import scalespaces
from scalespaces import models
from scalespaces.nn import ScaleBatchNorm, ScaleConv2d, ScaleDropout, checkpoint

LIFT = {"num_levels": 3, "sampling": "pyramid"}
NETWORKS: dict[str, dict[str, Any]] = {
    "s_densenet": {"growth": (2, 3), "filter_levels": 2},
    "s_resnet": {"width": 4},
    "s_cnn": {},
}


def step(model: nn.Module, image: Tensor) -> tuple[int, dict[str, Tensor], list[Tensor | None]]:
    """Bytes kept for the gradient, the state afterwards, and the gradients."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    torch.manual_seed(0)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = model(image)
    out.square().mean().backward()
    gradients = [p.grad for p in model.parameters()]
    return sum(kept.values()), {n: v.clone() for n, v in model.state_dict().items()}, gradients


def twins(name: str, side: int) -> tuple[Any, nn.Module, Tensor]:
    """A network that computes again, the same that does not, and an image."""
    model: Any = models.create_model(name, lift=LIFT, **NETWORKS[name]).train().double()
    twin, model.recompute = copy.deepcopy(model), True
    return model, twin, torch.rand(2, model.in_channels, side, side, dtype=torch.float64)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_train_the_same_with_less(name):
    model, twin, image = twins(name, 48)
    less, state, gradients = step(model, image)
    kept, expected, theirs = step(twin, image)
    assert_close(state, expected, rtol=0, atol=0)
    assert_close(gradients, theirs)
    assert less < 0.7 * kept


def test_statistics_move_once_and_dropout_repeats():
    layers = ScaleConv2d(3, 4, (2, 3, 3)), ScaleBatchNorm(4, momentum=None), ScaleDropout(0.5)
    block, x = nn.Sequential(*layers), scalespaces.lift(torch.rand(2, 3, 12, 12), 3)
    twin = copy.deepcopy(block)
    for _ in range(2):
        for module, run in ((block, lambda x: checkpoint(block, x)), (twin, twin)):
            torch.manual_seed(3)
            module.zero_grad()
            torch.stack([level.square().sum() for level in run(x).levels]).sum().backward()
    assert_close(dict(block.state_dict()), dict(twin.state_dict()), rtol=0, atol=0)
    assert_close([p.grad for p in block.parameters()], [p.grad for p in twin.parameters()])


def test_gradients_may_be_taken_twice():
    block = nn.Sequential(ScaleConv2d(3, 4, (2, 3, 3)), ScaleBatchNorm(4)).double()
    x = scalespaces.lift(torch.rand(2, 3, 8, 8, dtype=torch.float64), 2)
    out = checkpoint(block, x)
    total = torch.stack([level.square().sum() for level in out.levels]).sum()
    once = torch.autograd.grad(total, list(block.parameters()), retain_graph=True)
    assert_close(torch.autograd.grad(total, list(block.parameters())), once)
    tracked: Any = block[1].num_batches_tracked
    assert tracked.item() == 1
    with torch.no_grad():
        checkpoint(block, x)
    assert tracked.item() == 2


@pytest.mark.slow
def test_compiled():
    model, twin, image = twins("s_resnet", 32)
    torch.compile(model, fullgraph=True, backend="aot_eager")(image).square().mean().backward()
    twin(image).square().mean().backward()
    assert_close([p.grad for p in model.parameters()], [p.grad for p in twin.parameters()])
    assert_close(dict(model.state_dict()), dict(twin.state_dict()))
