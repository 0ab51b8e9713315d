r"""Heat on graphs and meshes: Laplacians :math:`L`, bounds of their spectra, and polynomials for :math:`e^{-\tau L}`.

Every Laplacian here is symmetric and positive semidefinite under some mass, :math:`m_i L_{ij} = m_j L_{ji}`, so that
:math:`\{e^{-k \tau L}\}_{k \ge 0}` is a semigroup of blurs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scalespaces.theory._arguments import Array, check_choice, check_integer, check_real

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def adjacency(edges: ArrayLike, weights: ArrayLike | None, num_nodes: int | None) -> csr_array:
    """Return the symmetric matrix of weights W of an undirected graph."""
    from scipy import sparse

    if num_nodes is not None:
        check_integer("num_nodes", num_nodes, 1)
    pairs, n = _indices("edges", edges, 2, num_nodes)
    values = np.ones(len(pairs)) if weights is None else np.asarray(weights, dtype=np.float64)
    if values.shape != (len(pairs),) or not (np.isfinite(values) & (values >= 0)).all():
        given = f"{values} of shape {values.shape}"
        raise ValueError(f"weights must be finite and >= 0, one for each of {len(pairs)} edges, got {given}")
    if n == 0:
        raise ValueError("the number of nodes of a graph without edges is unknown; pass num_nodes")
    matrix: Any = sparse.csr_array((values, tuple(pairs.T)), shape=(n, n))
    loops = sparse.diags_array(matrix.diagonal()).tocsr()
    matrix = matrix - loops
    matrix.eliminate_zeros()
    pattern = matrix.astype(bool)
    if not pattern.multiply(pattern.T).nnz:
        matrix = matrix + matrix.T
    elif abs(matrix - matrix.T).max() > 1e-12 * matrix.max():
        rule = "edges are undirected: list each once, or all in both directions with equal weights"
        way = "for a directed graph add up the weights of the two directions"
        raise ValueError(f"{rule}, got some whose reverse is missing or has another weight; {way}")
    return sparse.csr_array((matrix + matrix.T) / 2 + loops)


def graph_laplacian(
    edges: ArrayLike, weights: ArrayLike | None = None, num_nodes: int | None = None, normalization: str = "none"
) -> csr_array:
    r"""Return the Laplacian of an undirected graph.

    .. math:: L = D - W, \qquad D^{-1/2} (D - W) D^{-1/2} \qquad \text{or} \qquad D^{-1} (D - W)

    for the normalizations ``"none"``, ``"symmetric"`` and ``"random_walk"``; :math:`D` contains the row sums of
    :math:`W`, the matrix of weights. Isolated nodes have rows of zeros and keep their heat. A self-loop counts once in
    :math:`D`, so it matters only under a normalization, where it slows its node down.

    Args:
        edges: ``(E, 2)`` pairs of nodes: each edge once, or every edge in both directions with equal weights. Repeated
            edges add up. A directed graph, with the reverse of some edges only, is an error.
        weights: one number >= 0 per edge; 1 by default.
        num_nodes: number of nodes; the largest node plus one by default.
        normalization: heat is conserved as :math:`\sum_i f_i`, :math:`\sum_i \sqrt{D_{ii}} f_i` and
            :math:`\sum_i D_{ii} f_i`. All but the symmetric one leave constants unchanged.

    Example:
        >>> graph_laplacian([(0, 1), (1, 2)]).toarray().tolist()
        [[1.0, -1.0, 0.0], [-1.0, 2.0, -1.0], [0.0, -1.0, 1.0]]
    """
    return edges_laplacian(edges, weights, num_nodes, normalization)[0]


def edges_laplacian(
    edges: ArrayLike, weights: ArrayLike | None, num_nodes: int | None, normalization: str
) -> tuple[csr_array, Array]:
    """Return the Laplacian of a graph and the mass under which it is symmetric."""
    from scipy import sparse

    check_choice("normalization", normalization, ("none", "symmetric", "random_walk"))
    matrix: Any = adjacency(edges, weights, num_nodes)
    degree = matrix.sum(axis=1)
    laplacian, mass = sparse.diags_array(degree) - matrix, np.ones(len(degree))
    if normalization == "symmetric":
        root = sparse.diags_array(_inverse(degree) ** 0.5)
        laplacian = root @ laplacian @ root
    elif normalization == "random_walk":
        laplacian, mass = sparse.diags_array(_inverse(degree)) @ laplacian, np.where(degree > 0, degree, 1.0)
    return sparse.csr_array(laplacian), mass


def cotangent_laplacian(vertices: ArrayLike, faces: ArrayLike) -> csr_array:
    r"""Return the Laplacian of a triangle mesh, by linear finite elements with lumped mass.

    .. math:: (L f)_i = \frac{1}{m_i} \sum_j \frac{\cot \alpha_{ij} + \cot \beta_{ij}}{2} (f_i - f_j)

    with the angles opposite to the edge :math:`ij`; the mass of node i is a third of the area of the triangles around
    it. An edge of the boundary has one such angle: no heat flows out. Angles beyond 90 degrees may make weights
    negative: heat is still conserved, but a value may overshoot those around it, unless the mesh is Delaunay.

    Args:
        vertices: ``(N, 3)`` or ``(N, 2)`` positions; those in no face have rows of zeros.
        faces: ``(F, 3)`` nodes of the triangles; a triangle without area is an error.
    """
    return mesh_laplacian(vertices, faces)[0]


def mesh_laplacian(vertices: ArrayLike, faces: ArrayLike) -> tuple[csr_array, Array]:
    """Return the Laplacian of a mesh and its mass, a third of the area of the triangles around each vertex."""
    from scipy import sparse

    positions = np.asarray(vertices, dtype=np.float64)
    if positions.shape[1:] not in ((2,), (3,)) or not positions.size or not np.isfinite(positions).all():
        raise ValueError(f"vertices must be finite positions of shape (N, 3) or (N, 2), got shape {positions.shape}")
    triangles, n = _indices("faces", faces, 3, len(positions))
    corner = np.pad(positions, ((0, 0), (0, 3 - positions.shape[1])))[triangles]
    u, v = np.roll(corner, -1, 1) - corner, np.roll(corner, -2, 1) - corner
    cross = np.linalg.norm(np.cross(u, v), axis=-1)  # twice the area
    flat = np.flatnonzero(cross.min(1) <= 1e-12 * (u * u).sum(-1).max(1))
    if len(flat):
        came = f"{len(flat)} without, the first at index {flat[0]}"
        raise ValueError(f"triangles must have an area, got {came}; remove them, and merge vertices that coincide")
    mass = np.zeros(n)
    np.add.at(mass, triangles, cross[:, :1] / 2 / 3)
    ends = np.roll(triangles, -1, 1).ravel(), np.roll(triangles, -2, 1).ravel()  # of the edge opposite to each corner
    half: Any = sparse.csr_array((((u * v).sum(-1) / cross).ravel() / 2, ends), shape=(n, n))
    weights = half + half.T
    stiffness = sparse.diags_array(weights.sum(axis=1)) - weights
    return sparse.csr_array(sparse.diags_array(_inverse(mass)) @ stiffness), mass


def spectral_bound(laplacian: Any) -> float:
    r"""Return an upper bound of all :math:`|\lambda|` of a sparse matrix.

    For every :math:`x > 0` it is :math:`\max_i (|L| x)_i / x_i` (Collatz and Wielandt). With :math:`x = 1` this is
    Gershgorin's bound; steps of the power method improve it.
    """
    magnitude = abs(laplacian)
    x, bound = np.ones(magnitude.shape[0]), math.inf
    for _ in range(20):
        y = magnitude @ x
        bound = min(bound, float((y / x).max()))
        if bound == 0:
            return 0.0
        x = np.maximum(y / y.max(), 1e-9)
    return bound * (1 + 1e-12)


def chebyshev_heat(tau: float, bound: float, tolerance: float = 1e-16) -> Array:
    r"""Return the Chebyshev coefficients of :math:`e^{-\tau x}` on ``[0, bound]``.

    .. math:: e^{-\tau x} = \sum_j c_j T_j(2x / \text{bound} - 1), \qquad
        c_j = (2 - [j = 0]) (-1)^j e^{-z} I_j(z), \quad z = \tau\, \text{bound} / 2

    The :math:`|c_j|` sum to one, so the sum of those left out bounds the error: at most ``tolerance``. About
    :math:`\sqrt{2 z \log(2 / \text{tolerance})}` are needed for large :math:`z`.
    """
    from scipy import special

    z = check_real("tau", tau, ">= 0", lambda t: t >= 0) * bound / 2
    if z > 2**30:
        raise ValueError(f"tau * bound must be at most 2**31, got {2 * z:g}; take several steps of a smaller tau")
    # They are the law of |X|, where X is a difference of Poisson variables and has variance z. Bernstein's inequality
    # bounds its tail: beyond the last j a hundredth of the tolerance is left.
    a = math.log(200 / tolerance)
    j = np.arange(math.ceil(a / 3 + math.sqrt(a * a / 9 + 2 * a * z)) + 1)
    law = (2.0 - (j == 0)) * special.ive(j, z)
    tail = np.append(np.cumsum(law[:0:-1])[::-1], 0.0)  # what is left after j
    return ((-1.0) ** j * law)[: int((tail <= 0.99 * tolerance).argmax()) + 1]


def _indices(name: str, values: ArrayLike, width: int, num_nodes: int | None) -> tuple[NDArray[np.int64], int]:
    """Rows of nodes, and the number of nodes: the largest plus one unless it is given."""
    found = np.asarray(values)
    if found.size == 0:
        return np.zeros((0, width), dtype=np.int64), num_nodes or 0
    if found.ndim != 2 or found.shape[1] != width or not np.issubdtype(found.dtype, np.integer):
        came = f"shape {found.shape} of type {found.dtype}; transpose them if the nodes run along the first axis"
        raise ValueError(f"{name} must be integers of shape (number, {width}), got {came}")
    n = int(found.max()) + 1 if num_nodes is None else num_nodes
    if not 0 <= found.min() <= found.max() < n:
        raise ValueError(f"{name} must name nodes 0 to {n - 1}, got {found.min()} to {found.max()}")
    return found.astype(np.int64), n


def _inverse(values: Array) -> Array:
    """One over each value, zero where it is not positive."""
    return np.divide(1.0, values, out=np.zeros_like(values), where=values > 0)
