"""Networks on graphs commute with diffusion and with permutations of the nodes."""

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from algebra import NORMALIZATIONS, rand
from hypothesis import given
from hypothesis import strategies as st
from reference import refusals
from torch import Tensor, nn
from torch.testing import assert_close

from scalespaces.nn import GraphConv, GraphLift, GraphPool
from scalespaces.semigroups import Graph, graph_conv, graph_lift, graph_pool
from scalespaces.semigroups._graphs import heat

MESH = Path(__file__).parents[2] / "examples" / "mesh.py"
LEVELS, TAU, NODES = 6, 0.8, 14


class Network(nn.Module):
    """Lift, correlation, batch norm, ReLU, correlation; three channels come out."""

    def __init__(self, scale_padding: str = "valid", levels: int = LEVELS) -> None:
        super().__init__()
        self.lift = GraphLift(levels, TAU)
        self.first = GraphConv(2, 8, 2, scale_padding=scale_padding)
        self.norm = nn.BatchNorm2d(8)
        self.second = GraphConv(8, 3, 2, scale_padding=scale_padding)
        for parameter in self.parameters():
            if parameter.ndim == 1:
                nn.init.normal_(parameter)

    def forward(self, f: Tensor, graph: Graph) -> Tensor:
        return self.second(self.norm(self.first(self.lift(f, graph), graph)).relu(), graph)


def random_graph(seed: int = 0, normalization: str = "none", order: np.ndarray | None = None) -> Graph:
    rng = np.random.default_rng(seed)
    edges = np.unique(np.sort(rng.integers(0, NODES, (30, 2)), 1), axis=0)
    weights = rng.uniform(0.1, 2, len(edges))
    return Graph.from_edges(edges if order is None else order[edges], weights, NODES, normalization)


def signal() -> Tensor:
    return rand(2, 2, NODES)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize(("scale_padding", "truncated"), [("valid", 0), ("zeros", 2), ("replicate", 2)])
def test_diffusing_the_input_shifts_the_output_by_a_level(normalization, scale_padding, truncated):
    network, graph, f = Network(scale_padding).double().eval(), random_graph(0, normalization), signal()
    expected, got = network(f, graph)[:, :, 1:], network(heat(f, graph, TAU), graph)[:, :, :-1]
    exact = expected.shape[2] - truncated
    assert_close(got[:, :, :exact], expected[:, :, :exact], rtol=0, atol=1e-12)
    assert (expected[:, :, 1:] - expected[:, :, :-1]).abs().max() > 1e-3, "levels that are all alike show nothing"


@given(st.permutations(range(NODES)), st.sampled_from(NORMALIZATIONS))
def test_renaming_the_nodes_renames_the_output(order, normalization):
    order = np.array(order)  # node i becomes order[i]
    network, f = Network().double().eval(), signal()
    out = network(f, random_graph(0, normalization))
    renamed = torch.empty_like(f)
    renamed[:, :, order] = f
    got = network(renamed, random_graph(0, normalization, order))
    assert_close(got[..., order], out, rtol=0, atol=1e-12)


def test_each_layer_is_its_function():
    graph, f = random_graph(), signal()
    x = GraphLift(3, 0.5)(f, graph)
    assert torch.equal(x, graph_lift(f, 3, 0.5, graph=graph))
    layer = GraphConv(2, 4, 3, scale_padding="replicate").double()
    assert torch.equal(layer(x, graph), graph_conv(x, layer.weight, layer.bias, graph=graph, scale_padding="replicate"))
    assert torch.equal(GraphPool("max", "levels")(x), graph_pool(x, "max", over="levels"))
    assert torch.equal(GraphPool()(x, graph), graph_pool(x, graph=graph))
    assert set(layer.state_dict()) == {"weight", "bias"}
    assert not GraphLift().state_dict()


def test_training_under_autocast():
    """A step of training in bfloat16: weights and signals get finite gradients, close to those of full precision."""
    graph, f = random_graph(), signal().float().requires_grad_()
    network = Network().eval()
    gradients = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            out = network(f, graph)
        assert out.dtype == (torch.bfloat16 if enabled else torch.float32)
        gradients.append(torch.autograd.grad(out.float().square().mean(), [f, *network.parameters()]))
    for full, half in zip(*gradients, strict=True):
        assert (full - half).norm() < 0.05 * full.norm()


@pytest.mark.slow
def test_export():
    """The graph is an input of the exported program: another one of its size may follow."""
    network, f = Network(levels=4).eval(), signal().float()
    graph = random_graph()
    program = torch.export.export(network, (f, graph))
    assert_close(program.module()(f, graph), network(f, graph))
    heavier = Graph.from_edges(graph.edges.T.numpy(), torch.rand(graph.edges.shape[1]).numpy(), NODES)
    other = Graph(graph.edges, heavier.weights, heavier.means, graph.mass, None, graph.bound)
    assert_close(program.module()(f, other), network(f, other))


@pytest.mark.slow
def test_compile():
    network, graph, f = Network(levels=4), random_graph(0, "symmetric"), signal().float().requires_grad_()
    compiled = torch.compile(network, fullgraph=True)
    results = []
    for run in (network.eval(), compiled):
        out = run(f, graph)
        results.append((out, *torch.autograd.grad(out.square().sum(), [f, *network.parameters()])))
    for eager, fused in zip(*results, strict=True):
        assert_close(fused, eager, rtol=1e-4, atol=1e-4)


def test_the_example(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(MESH), "--out", str(tmp_path / "out"), "--subdivisions", "2"])
    runpy.run_path(str(MESH), run_name="__main__")
    printed = re.findall(r"(float\d+) (.*)", capsys.readouterr().out)
    rows = {name: [float(error) for error in line.split()] for name, line in printed}
    assert [len(row) for row in rows.values()] == [3, 3]
    assert max(rows["float32"]) < 1e-6
    assert max(rows["float64"]) < 1e-14
    assert (tmp_path / "out" / "mesh.png").read_bytes().startswith(b"\x89PNG")


TIMES: list[Any] = [-1.0, float("nan"), torch.ones(())]


test_refusals = refusals(
    (lambda: GraphConv(0, 4), "in_channels must be an integer >= 1"),
    (lambda: GraphConv(2, 4, 0), "kernel_size must be an integer >= 1"),
    (lambda: GraphConv(2, 4, scale_padding="same"), "scale_padding"),
    (lambda: GraphLift(0), "num_levels must be an integer >= 1"),
    *[(lambda t=t: GraphLift(tau=t), "tau must be a finite number >= 0") for t in TIMES],
    (lambda: GraphPool("sum"), "mode is one of"),
)
