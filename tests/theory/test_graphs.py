"""Laplacians against sums over edges and finite elements; the spectrum of the sphere; Chebyshev's series itself."""

import math
from typing import Any

import numpy as np
import pytest
from algebra import NORMALIZATIONS, graphs, icosphere
from hypothesis import given
from hypothesis import strategies as st
from numpy.polynomial import chebyshev
from numpy.testing import assert_allclose, assert_array_equal
from reference import refusals

from scalespaces.theory import cotangent_laplacian, graph_laplacian
from scalespaces.theory._graphs import adjacency, chebyshev_heat, mesh_laplacian, spectral_bound


def naive_laplacian(edges, weights, n, normalization):
    """Edge by edge, then divided node by node."""
    degree, out = np.zeros(n), np.zeros((n, n))
    for (i, j), w in zip(edges, weights, strict=True):
        for a, b in {(i, j), (j, i)}:
            degree[a] += w
            out[a, a] += w
            out[a, b] -= w
    power = {"none": (0, 0), "symmetric": (0.5, 0.5), "random_walk": (1, 0)}[normalization]
    for i in range(n):
        for j in range(n):
            if out[i, j]:
                out[i, j] /= degree[i] ** power[0] * degree[j] ** power[1]
    return out


def finite_elements(vertices, faces):
    """Stiffness and mass from the gradients of the hat functions, triangle by triangle."""
    n = len(vertices)
    stiffness, mass = np.zeros((n, n)), np.zeros(n)
    for face in faces:
        p = np.asarray(vertices, dtype=float)[face]
        edges = np.stack([p[1] - p[0], p[2] - p[0]], 1)  # from the reference triangle, whose gradients are known
        metric = edges.T @ edges
        area = math.sqrt(np.linalg.det(metric)) / 2
        reference = np.array([[-1.0, -1], [1, 0], [0, 1]])
        stiffness[np.ix_(face, face)] += area * reference @ np.linalg.inv(metric) @ reference.T
        mass[face] += area / 3
    return stiffness, mass


class TestGraphLaplacian:
    @pytest.mark.parametrize("normalization", NORMALIZATIONS)
    @given(graph=graphs())
    def test_edge_by_edge(self, normalization, graph: Any):
        assert_allclose(
            graph_laplacian(*graph, normalization=normalization).toarray(),
            naive_laplacian(*graph, normalization=normalization),
            atol=1e-12,
        )

    @given(graphs())
    def test_both_directions_are_the_same_graph(self, graph):
        edges, weights, n = graph
        twice = np.concatenate([edges, edges[edges[:, 0] != edges[:, 1]][:, ::-1]])
        weights_twice = np.concatenate([weights, weights[edges[:, 0] != edges[:, 1]]])
        assert_allclose(adjacency(twice, weights_twice, n).toarray(), adjacency(*graph).toarray(), atol=1e-12)

    @given(graphs())
    def test_kernel_and_quadratic_form(self, graph):
        edges, weights, n = graph
        f = np.random.default_rng(0).standard_normal(n)
        laplacian = graph_laplacian(*graph)
        assert_allclose(laplacian @ np.ones(n), 0, atol=1e-12)
        assert_allclose(f @ (laplacian @ f), (weights * (f[edges[:, 0]] - f[edges[:, 1]]) ** 2).sum(), atol=1e-10)

    def test_a_self_loop_slows_a_walk_down(self):
        """Half of the walk's steps from node 0 stay."""
        assert_allclose(graph_laplacian([(0, 0), (0, 1)], None, None, "random_walk").toarray(), [[0.5, -0.5], [-1, 1]])
        assert_allclose(graph_laplacian([(0, 0), (0, 1)]).toarray(), graph_laplacian([(0, 1)]).toarray())
        assert graph_laplacian([], num_nodes=3).toarray().tolist() == np.zeros((3, 3)).tolist()
        assert graph_laplacian([(0, 1)], [0.0]).nnz == 0


class TestCotangentLaplacian:
    @pytest.mark.parametrize("dims", [2, 3])
    def test_finite_elements_on_any_mesh_with_boundary_and_obtuse_angles(self, dims):
        rng = np.random.default_rng(dims)
        vertices = rng.standard_normal((9, dims))
        faces = np.array([rng.permutation(8)[:3] for _ in range(10)])  # vertex 8 is in no face
        sparse, mass = mesh_laplacian(vertices, faces)
        laplacian = sparse.toarray()
        stiffness, expected = finite_elements(vertices, faces)
        assert (stiffness - np.diag(np.diag(stiffness))).max() > 0, "no angle is obtuse"
        assert_allclose(mass, expected, atol=1e-13)
        assert_allclose(mass[:, None] * laplacian, stiffness, atol=1e-10)
        assert_array_equal(laplacian[8], 0)
        assert_allclose(laplacian @ np.ones(9), 0, atol=1e-10)
        assert np.linalg.eigvalsh(stiffness).min() > -1e-10

    def test_linear_functions_are_harmonic_inside_a_plane(self):
        rng = np.random.default_rng(0)
        ring = np.array([(math.cos(a), math.sin(a)) for a in np.sort(rng.uniform(0, 2 * math.pi, 9))])
        vertices, faces = np.concatenate([[(0, 0)], ring]), [(0, i, i % 9 + 1) for i in range(1, 10)]
        assert_allclose((cotangent_laplacian(vertices, faces) @ vertices)[0], 0, atol=1e-12)

    def test_the_sphere_has_the_eigenvalues_of_its_harmonics(self):
        """l (l + 1), 2l + 1 times; the error falls with the area of the triangles."""
        errors = []
        for subdivisions in (1, 2, 3):
            vertices, faces = icosphere(subdivisions)
            laplacian, mass = mesh_laplacian(vertices, faces)
            root = np.sqrt(mass)
            found = np.linalg.eigvalsh(root[:, None] * laplacian.toarray() / root)[:9]
            errors.append(np.abs(found - [0, 2, 2, 2, 6, 6, 6, 6, 6]).max())
            assert_allclose(root @ root, 4 * math.pi, rtol=errors[-1] / 6)
        assert errors[-1] < 0.05
        assert errors[0] > 3 * errors[1] > 9 * errors[2]


class TestSpectralBound:
    @pytest.mark.parametrize("normalization", NORMALIZATIONS)
    @given(graph=graphs())
    def test_it_is_one_and_no_worse_than_gershgorin(self, normalization, graph: Any):
        laplacian = graph_laplacian(*graph, normalization=normalization)
        bound = spectral_bound(laplacian)
        assert np.abs(np.linalg.eigvals(laplacian.toarray())).max() <= bound * (1 + 1e-12)
        assert bound <= abs(laplacian).sum(axis=1).max() * (1 + 1e-11)

    def test_it_is_sharp_on_bipartite_graphs(self):
        star = [(0, i) for i in range(1, 9)]
        for normalization, largest, rtol in (("none", 9, 1e-6), ("symmetric", 2, 1e-2)):
            assert_allclose(spectral_bound(graph_laplacian(star, normalization=normalization)), largest, rtol=rtol)


class TestChebyshevHeat:
    @given(st.floats(0, 300), st.floats(0, 50), st.sampled_from([1e-3, 1e-8, 1e-16]))
    def test_the_series_is_the_exponential(self, tau, bound, tolerance):
        x = np.linspace(0, 1, 101)
        series = chebyshev.chebval(2 * x - 1, chebyshev_heat(tau, bound, tolerance))
        assert_allclose(series, np.exp(-tau * bound * x), rtol=0, atol=tolerance + 2e-14)

    @pytest.mark.parametrize("z", [0.5, 5.0, 50.0])
    def test_no_term_more_than_needed(self, z):
        coefficients = chebyshev_heat(z, 2.0, 1e-6)
        assert 1 - np.abs(coefficients).sum() <= 1e-6 < 1 - np.abs(coefficients[:-1]).sum()


LINE, CORNER = [(0, 1)], [(0, 0), (1, 0), (0, 1)]
DIRECTED: list[Any] = [([(0, 1), (1, 0), (1, 2)],), ([(0, 1), (1, 0)], [1.0, 2.0])]

test_refusals = refusals(
    *[(lambda a=a: graph_laplacian(*a), "undirected") for a in DIRECTED],
    *[(lambda w=w: graph_laplacian(LINE, [w]), "finite and >= 0") for w in (-1.0, math.nan)],
    (lambda: graph_laplacian(LINE, [1.0, 1.0]), "one for each of 1 edges"),
    (lambda: graph_laplacian([]), "pass num_nodes"),
    (lambda: graph_laplacian([(0, 5)], None, 3), "nodes 0 to 2, got 0 to 5"),
    (lambda: graph_laplacian([(-1, 0)]), "got -1 to 0"),
    (lambda: graph_laplacian([(0.0, 1.0)]), "integers"),
    (lambda: graph_laplacian([(0, 1, 2), (1, 2, 3)]), "transpose"),
    (lambda: graph_laplacian(LINE, None, 0), "num_nodes"),
    (lambda: graph_laplacian(LINE, None, None, "left"), "normalization is one of"),
    (lambda: cotangent_laplacian([(0, 0), (1, 1), (2, 2)], [(0, 1, 2)]), "area, got 1 without, the first at index 0"),
    (lambda: cotangent_laplacian(CORNER, [(0, 1, 3)]), "faces must name nodes 0 to 2"),
    (lambda: cotangent_laplacian([*CORNER[:2], (0, math.nan)], [(0, 1, 2)]), "finite positions"),
    (lambda: cotangent_laplacian([0.0, 1.0, 2.0], [(0, 1, 2)]), "shape"),
    *[(lambda tau=tau: chebyshev_heat(tau, 2.0), "tau") for tau in (-1.0, math.inf)],
    (lambda: chebyshev_heat(1e10, 2.0), "smaller tau"),
)
