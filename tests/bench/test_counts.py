"""Counts of kernels, copies and synchronisations: of functions whose operations are known, and of a traced graph."""

import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import scalespaces
from scalespaces.bench.counts import COPIES, counts
from scalespaces.nn import ScaleBatchNorm, ScaleConv2d


def test_views_and_allocations_are_no_kernels():
    x = torch.rand(2, 3, 4)
    assert counts(lambda x: x.flatten(1).T.unsqueeze(0)[:, 1:], x)["kernels"] == 0
    assert counts(lambda x: torch.empty_like(x), x)["kernels"] == 0
    assert counts(lambda x: x.reshape(2, 12).contiguous(), x)["copies"] == 0


def test_copies():
    x = torch.rand(2, 3)
    for copy in (
        lambda x: x.T.contiguous(),
        lambda x: torch.cat([x, x]),
        lambda x: torch.stack([x, x]),
        lambda x: x.double(),
        lambda x: x.gather(1, torch.zeros(2, 1, dtype=torch.long).detach()),
        lambda x: nn.functional.pad(x, (1, 1)),
    ):
        assert counts(copy, x)["copies"] == 1


def test_synchronisations():
    x = torch.rand(3)
    for wait in (lambda x: x.sum().item(), lambda x: bool(x.sum() > 0), lambda x: x.nonzero(), lambda x: x[x > 0.5]):
        assert counts(wait, x)["synchronisations"] >= 1


def test_the_same_as_in_a_traced_graph():
    x = scalespaces.lift(torch.rand(1, 4, 16, 16), num_levels=3, sampling="pyramid")
    module = nn.Sequential(ScaleConv2d(4, 4, (2, 3, 3)), ScaleBatchNorm(4), nn.ReLU()).eval()
    with torch.no_grad():
        graph = make_fx(lambda *levels: module(x.replace(levels)).levels)(*x.levels).graph
    called = [node.target for node in graph.nodes if node.op == "call_function"]
    operations = [op for op in called if isinstance(op, torch._ops.OpOverload) and not op.is_view]
    names = [op.overloadpacket.__name__ for op in operations if "empty" not in str(op)]
    found = counts(module, x)
    assert found["copies"] == sum(name in COPIES for name in names)
    assert found["kernels"] == len(names)
    assert found["synchronisations"] == 0
    assert found["kernels"] >= 3 * 3
