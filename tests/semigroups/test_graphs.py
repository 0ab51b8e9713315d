"""Heat against SciPy's exponentials and the discrete Gaussian, its laws, and the correlation as loops over matrices."""

import copy
import itertools
import math
import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from algebra import EXACT, NORMALIZATIONS, graphs, icosphere
from hypothesis import given
from hypothesis import strategies as st
from reference import refusals
from scipy.linalg import expm
from torch.testing import assert_close

from scalespaces.semigroups import Graph, graph_conv, graph_lift, graph_pool
from scalespaces.semigroups._graphs import heat
from scalespaces.theory import discrete_gaussian, graph_laplacian

SINGLE: dict[str, Any] = {"rtol": 0, "atol": 1e-6}
rand = partial(torch.rand, dtype=torch.float64)


def dense(graph: Graph) -> torch.Tensor:
    """The Laplacian as a matrix, column by column."""
    return graph.laplace(torch.eye(graph.num_nodes, dtype=torch.float64)).T


def exact(f: torch.Tensor, graph: Graph, tau: float) -> torch.Tensor:
    """Heat by the eigenvectors of the Laplacian, symmetric under its mass; for times where exponentials get lost."""
    root = graph.mass.sqrt()
    values, vectors = torch.linalg.eigh(root[:, None] * dense(graph) / root)
    values[values.abs() < 1e-10 * values.max()] = 0  # else large times would see its rounding
    return (f.double() * root) @ vectors @ torch.diag(torch.exp(-tau * values)) @ vectors.T / root


def ring(n: int) -> Graph:
    return Graph.from_edges([(i, (i + 1) % n) for i in range(n)])


def sphere(subdivisions: int = 2) -> Graph:
    return Graph.from_mesh(*icosphere(subdivisions))


class TestHeat:
    @pytest.mark.parametrize("normalization", NORMALIZATIONS)
    @given(graph=graphs(), tau=st.just(0.0) | st.floats(1e-9, 20))
    def test_scipy(self, normalization, graph: Any, tau):
        f = rand(2, 3, graph[2])
        laplacian: Any = graph_laplacian(*graph, normalization=normalization)
        out = heat(f, Graph.from_edges(*graph, normalization=normalization), tau)
        assert_close(out, f @ torch.from_numpy(expm(-tau * laplacian.toarray())).T, **EXACT)

    @pytest.mark.parametrize("tau", [1e-6, 1e-2, 1.0, 1e2, 1e4])
    @pytest.mark.parametrize("graph", [sphere(1), ring(40), Graph.from_edges([(0, i) for i in range(1, 30)])])
    def test_small_and_large_times_in_both_precisions(self, graph, tau):
        f = rand(2, graph.num_nodes)
        assert_close(heat(f, graph, tau), exact(f, graph, tau), **EXACT)
        assert_close(heat(f.float(), graph, tau).double(), exact(f.float(), graph, tau), **SINGLE)

    @given(st.integers(3, 30), st.floats(0, 8))
    def test_on_a_ring_it_is_the_discrete_gaussian(self, n, t):
        """exp(-tL) with L = 2 - shift - shift^T has the taps e^(-2t) I_n(2t): a discrete Gaussian of variance 2t."""
        radius = 120
        wrapped = np.bincount(np.arange(-radius, radius + 1) % n, discrete_gaussian(2 * t, radius=radius), n)
        impulse = torch.eye(n, dtype=torch.float64)[0]
        assert_close(heat(impulse, ring(n), t), torch.tensor(wrapped), **EXACT)

    @given(graphs(), st.floats(0, 50), st.floats(0, 50))
    def test_semigroup(self, graph: Any, s, t):
        g, f = Graph.from_edges(*graph), rand(graph[2])
        assert_close(heat(heat(f, g, s), g, t), heat(f, g, s + t), **EXACT)

    @pytest.mark.parametrize("normalization", ["none", "random_walk"])
    @given(graph=graphs(), tau=st.floats(0, 100))
    def test_mass_maximum_and_constants(self, normalization, graph: Any, tau):
        g, f = Graph.from_edges(*graph, normalization=normalization), rand(graph[2])
        out = heat(f, g, tau)
        assert_close(out @ g.mass, f @ g.mass, **EXACT)
        assert f.min() - 1e-14 <= out.min() <= out.max() <= f.max() + 1e-14
        constant = torch.full((graph[2],), 0.3)
        assert torch.equal(heat(constant, g, tau), constant)

    def test_a_mesh_keeps_its_heat_and_forgets_the_rest(self):
        graph, f = sphere(), rand(162)
        assert_close(heat(f, graph, 0.1) @ graph.mass, f @ graph.mass, **EXACT)
        mean = f @ graph.mass / graph.mass.sum()
        assert_close(heat(f, graph, 100.0), mean.expand(162), **EXACT)

    def test_nowhere_to_go(self):
        for edges, n in (([], 1), ([], 3), ([(0, 0)], 1)):
            graph, f = Graph.from_edges(edges, None, n), rand(2, n)
            assert torch.equal(heat(f, graph, 3.0), f)
            assert torch.equal(graph.average(f), f)

    def test_half_precision_is_rounded_once_and_autocast_leaves_it_alone(self):
        for dtype in (torch.float16, torch.bfloat16):
            f = torch.rand(2, 40).to(dtype)
            assert torch.equal(heat(f, ring(40), 30.0), heat(f.float(), ring(40), 30.0).to(dtype))
        f = torch.rand(2, 3, 12)
        with torch.autocast("cpu", torch.bfloat16):
            out, lifted = heat(f, ring(12), 2.0), graph_lift(f, graph=ring(12))
        assert torch.equal(out, heat(f, ring(12), 2.0))
        assert torch.equal(lifted, graph_lift(f, graph=ring(12)))

    def test_gradients(self):
        graph = sphere(0)
        f = rand(1, 12).requires_grad_()
        assert torch.autograd.gradcheck(lambda f: heat(f, graph, 0.5), f)
        assert torch.autograd.gradcheck(lambda f: heat(f, graph, 12.0), f)
        assert torch.autograd.gradgradcheck(lambda f: heat(f, graph, 0.2) ** 2, f)


class TestGraph:
    @pytest.mark.parametrize("normalization", NORMALIZATIONS)
    @given(graph=graphs())
    def test_laplace_and_average_as_matrices(self, normalization, graph: Any):
        laplacian = torch.tensor(graph_laplacian(*graph, normalization=normalization).toarray())
        g, f = Graph.from_edges(*graph, normalization=normalization), rand(3, graph[2])
        assert_close(g.laplace(f), f @ laplacian.T, **EXACT)
        neighbors = -laplacian + torch.diag(laplacian.diag())
        total = neighbors.sum(1, keepdim=True)
        mean = torch.where(total > 0, neighbors / total, torch.eye(graph[2]))
        assert_close(g.average(f), f @ mean.T, **EXACT)

    def test_negative_weights_are_left_out_of_the_mean(self):
        """Two flat triangles: the angles opposite to their common edge 01 are obtuse."""
        vertices = [(-1.0, 0.0), (1.0, 0.0), (0.0, 0.2), (0.0, -0.2)]
        graph = Graph.from_mesh(vertices, [(0, 1, 2), (1, 0, 3)])
        assert graph.weights.min() < 0
        assert_close(graph.average(torch.tensor([0.0, 5.0, 1.0, 3.0]))[:2], torch.tensor([2.0, 2.0]))
        f = rand(4)
        assert f.min() <= graph.average(f).min() <= graph.average(f).max() <= f.max()

    def test_every_kind_of_matrix(self):
        matrix, f = graph_laplacian([(0, 1), (1, 2), (0, 3)], [0.1, 0.2, 0.7]), rand(4)
        dense = torch.tensor(matrix.toarray())
        kinds = (matrix, matrix.toarray(), scipy.sparse.coo_matrix(matrix), dense, dense.to_sparse())
        for kind in (*kinds, dense.float().to_sparse()):
            graph = Graph.from_laplacian(kind)
            assert graph.rowsums is None
            assert_close(graph.laplace(f), torch.tensor(matrix @ f.numpy()), rtol=0, atol=1e-6)

    def test_a_laplacian_with_a_sink(self):
        """Heat that leaks away at one node, as at a fixed boundary."""
        matrix = np.array([[2.0, -1], [-1, 1]])
        expected = torch.linalg.matrix_exp(-torch.tensor(matrix)) @ torch.ones(2, dtype=torch.float64)
        assert_close(heat(torch.ones(2, dtype=torch.float64), Graph.from_laplacian(matrix), 1.0), expected, **EXACT)

    def test_to(self):
        graph, f = sphere(1), torch.rand(42)
        single = graph.to(dtype=torch.float32)
        assert (single.weights.dtype, single.mass.dtype, single.edges.dtype) == (torch.float32,) * 2 + (torch.int64,)
        assert torch.equal(heat(f, single, 0.1), heat(f, graph, 0.1))
        assert_close(heat(f.double(), single, 0.1), heat(f.double(), graph, 0.1), **SINGLE)
        assert graph.to("meta").mass.is_meta
        for other in (copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
            assert torch.equal(heat(f, other, 0.1), heat(f, graph, 0.1))


class TestLift:
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("tau", [0.01, 1.0, 30.0])
    def test_diffusing_shifts_the_levels_bit_for_bit(self, dtype, tau):
        graph, f = sphere(), torch.rand(2, 3, 162).to(dtype)
        lifted = graph_lift(f, 5, tau, graph=graph)
        assert torch.equal(graph_lift(heat(f, graph, tau), 4, tau, graph=graph), lifted[:, :, 1:])
        assert torch.equal(lifted[:, :, 0], f)
        limit = 10 * torch.finfo(dtype).eps
        assert_close(lifted[:, :, 3].double(), heat(f.double(), graph, 3 * tau), rtol=0, atol=limit)


def naive_conv(x, weight, graph, bias, scale_padding):
    """Level by level, tap by tap, with P as a matrix."""
    mean = graph.average(torch.eye(graph.num_nodes, dtype=x.dtype)).T
    num_levels, depth = x.shape[2], weight.shape[2]
    out = []
    for k in range(num_levels - depth + 1 if scale_padding == "valid" else num_levels):
        level = bias[:, None].expand(len(x), -1, x.shape[3]).clone()
        for el in range(depth):
            source = min(k + el, num_levels - 1) if scale_padding == "replicate" else k + el
            if source >= num_levels:
                continue
            for o, i in itertools.product(range(weight.shape[0]), range(weight.shape[1])):
                f = x[:, i, source]
                level[:, o] += weight[o, i, el, 0] * f + weight[o, i, el, 1] * f @ mean.T
        out.append(level)
    return torch.stack(out, 2)


class TestConv:
    @pytest.mark.parametrize("scale_padding", ["zeros", "replicate", "valid"])
    @given(graph=graphs(), depth=st.integers(1, 6), channels=st.tuples(st.integers(1, 3), st.integers(1, 3)))
    def test_loops(self, scale_padding, graph: Any, depth, channels):
        """Filters may be deeper than the scale-space, but for "valid"."""
        depth = min(depth, 4) if scale_padding == "valid" else depth
        g, x = Graph.from_edges(*graph), rand(2, channels[0], 4, graph[2])
        weight, bias = rand(channels[1], channels[0], depth, 2), rand(channels[1])
        out = graph_conv(x, weight, bias, graph=g, scale_padding=scale_padding)
        assert_close(out, naive_conv(x, weight, g, bias, scale_padding), **EXACT)

    def test_gradients(self):
        graph, inputs = sphere(0), tuple(rand(*n).requires_grad_() for n in ((2, 2, 3, 12), (2, 2, 2, 2), (2,)))
        for padding in ("zeros", "replicate", "valid"):
            assert torch.autograd.gradcheck(
                lambda x, w, b, padding=padding: graph_conv(x, w, b, graph=graph, scale_padding=padding), inputs
            )


class TestPool:
    def test_equations(self):
        graph, x = Graph.from_edges([(0, 1), (1, 2)], normalization="random_walk"), rand(2, 3, 4, 3)
        share = torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64)
        assert_close(graph_pool(x), x.mean((2, 3)))
        assert_close(graph_pool(x, over="levels"), x.sum(2) / 4)
        assert_close(graph_pool(x, graph=graph, over="nodes"), x @ share)
        assert_close(graph_pool(x, graph=graph), (x @ share).mean(2))
        for over, axes in {"both": (2, 3), "levels": 2, "nodes": 3}.items():
            assert torch.equal(graph_pool(x, "max", graph=graph, over=over), x.amax(axes))


NOTHING: Any = None
EDGES: Any = [(0, 1)]
FOUR, LEVELS, WEIGHT = ring(4), torch.rand(1, 2, 3, 4), torch.rand(1, 2, 2, 2)
of_matrix: Any = Graph.from_laplacian


test_refusals = refusals(
    (lambda: heat(torch.rand(4, 5), FOUR, 1.0), "4 nodes along its last axis, got shape"),
    (lambda: heat(torch.ones(4, dtype=torch.long), FOUR, 1.0), "floating point"),
    (lambda: heat(torch.rand(4, device="meta"), FOUR, 1.0), r"graph.to\(device\)"),
    *[(lambda t=t: heat(torch.rand(4), FOUR, t), "tau") for t in (-1.0, math.nan, math.inf)],
    (lambda: graph_lift(torch.rand(4), graph=FOUR), r"\(B, C, N\), got shape"),
    (lambda: graph_lift(LEVELS[:, 0], 0, graph=FOUR), "num_levels"),
    (lambda: graph_lift(NOTHING, graph=FOUR), r"a signal \(B, C, N\), got NoneType"),
    (lambda: graph_conv(NOTHING, WEIGHT, graph=FOUR), "got NoneType; lift signals with graph_lift first"),
    (lambda: graph_conv(LEVELS[0], WEIGHT, graph=FOUR), "graph_lift first"),
    (lambda: graph_conv(LEVELS[:, :1], WEIGHT, graph=FOUR), r"need a weight \(C_out, 1, k, 2\)"),
    (lambda: graph_conv(LEVELS, WEIGHT, graph=FOUR, scale_padding="same"), "scale_padding"),
    (lambda: graph_conv(LEVELS[:, :, :1], WEIGHT, graph=FOUR, scale_padding="valid"), "more levels"),
    (lambda: graph_pool(NOTHING), "graph_lift first"),
    (lambda: graph_pool(LEVELS, mode="sum"), "mode"),
    (lambda: graph_pool(LEVELS, over="time"), "over"),
    (lambda: FOUR.to(dtype=torch.bfloat16), "float32 or float64"),
    (lambda: of_matrix([[1.0, -1], [0, 0]]), "symmetric under its mass"),
    *[(lambda m=m: of_matrix([[1.0, -1], [-1, 1]], m), "symmetric under its mass") for m in ([1.0, 2.0], [0.0, 0.0])],
    (lambda: of_matrix([[1.0, -1], [-1, 1]], [1.0]), "for each of 2 nodes"),
    (lambda: of_matrix([[1.0, -1], [-1, 1]], [1.0, -1.0]), "number >= 0"),
    (lambda: of_matrix([[0.0, 1], [1, 0]]), "adjacency matrix"),
    (lambda: of_matrix([[-1.0, 1], [1, -1]]), "positive semidefinite"),
    (lambda: of_matrix([[1.0, -1, 0], [-1, 1, 0]]), "square"),
    (lambda: of_matrix([[math.nan]]), "finite"),
)

test_what_is_no_graph = refusals(
    (lambda: graph_lift(LEVELS[:, 0], graph=NOTHING), "graph must be a Graph, got NoneType; use Graph.from_edges"),
    (lambda: graph_conv(LEVELS, WEIGHT, graph=NOTHING), "graph must be a Graph"),
    (lambda: graph_pool(LEVELS, graph=EDGES), "graph must be a Graph, got list"),
    error=TypeError,
)
