r"""Heat on graphs and meshes: Laplacians :math:`L`, bounds of their spectra, and polynomials for :math:`e^{-\tau L}`.

Every Laplacian here is symmetric and positive semidefinite under some mass, :math:`m_i L_{ij} = m_j L_{ji}`, so that
:math:`\{e^{-k \tau L}\}_{k \ge 0}` is a semigroup of blurs. SciPy is imported where it is used.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scalespaces.theory._arguments import Array, check_choice, check_integer, check_real

if TYPE_CHECKING:
    from scipy.sparse import csr_array

NORMALIZATIONS = ("none", "symmetric", "random_walk")


def adjacency(edges: ArrayLike, weights: ArrayLike | None = None, num_nodes: int | None = None) -> csr_array:
    r"""Return the symmetric matrix of weights :math:`W` of an undirected graph.

    Args:
        edges: ``(E, 2)`` pairs of nodes; each edge once, or every one in both directions with equal weights. Repeated
            edges add up; a directed graph, with some edges in both directions and others not, is refused.
        weights: one number >= 0 per edge; ones when left out.
        num_nodes: one more than the largest node when left out; larger for isolated nodes at the end.

    Example:
        >>> adjacency([(0, 1), (1, 2)], [1.0, 3.0]).toarray()
        array([[0., 1., 0.],
               [1., 0., 3.],
               [0., 3., 0.]])
    """
    from scipy import sparse

    pairs = _indices("edges", edges, 2)
    values = np.ones(len(pairs)) if weights is None else np.asarray(weights, dtype=np.float64)
    if values.shape != (len(pairs),) or not (np.isfinite(values) & (values >= 0)).all():
        raise ValueError(
            f"weights are finite numbers >= 0, one for each of {len(pairs)} edges, got {values} of shape {values.shape}"
        )
    if num_nodes is None and not len(pairs):
        raise ValueError("the number of nodes of a graph without edges is unknown; pass num_nodes")
    n = int(pairs.max()) + 1 if num_nodes is None else check_integer("num_nodes", num_nodes, 1)
    _check_range("edges", pairs, n)
    matrix: Any = sparse.csr_array((values, tuple(pairs.T)), shape=(n, n))
    loops = sparse.diags_array(matrix.diagonal()).tocsr()
    matrix = matrix - loops
    matrix.eliminate_zeros()
    pattern = matrix.astype(bool)
    if not pattern.multiply(pattern.T).nnz:
        matrix = matrix + matrix.T
    elif abs(matrix - matrix.T).max() > 1e-12 * matrix.max():
        raise ValueError(
            "edges are undirected: list each once, or all in both directions with equal weights, got some with a "
            "reverse of another weight or none; for a directed graph add up the weights of the two directions"
        )
    return sparse.csr_array((matrix + matrix.T) / 2 + loops)


def graph_laplacian(
    edges: ArrayLike, weights: ArrayLike | None = None, num_nodes: int | None = None, normalization: str = "none"
) -> csr_array:
    r"""Return the Laplacian of an undirected graph.

    .. math:: L = D - W, \qquad D^{-1/2} (D - W) D^{-1/2} \qquad \text{or} \qquad D^{-1} (D - W)

    for the normalizations ``"none"``, ``"symmetric"`` and ``"random_walk"``; :math:`D` holds the row sums of
    :math:`W`. Isolated nodes have rows of zeros: their heat stays. A self-loop counts once in :math:`D`, so it only
    matters when normalized, where it slows its node down.

    Args:
        edges: pairs of nodes, each edge once, or all in both directions.
        weights: one number per edge; 1 when left out.
        num_nodes: number of nodes; the largest node plus one when left out.
        normalization: under the first two heat is conserved as :math:`\sum_i f_i` and
            :math:`\sum_i \sqrt{D_{ii}} f_i`, under the last as :math:`\sum_i D_{ii} f_i`. Constants stay what they are
            under the first and the last.

    Example:
        >>> graph_laplacian([(0, 1), (1, 2)]).toarray()
        array([[ 1., -1.,  0.],
               [-1.,  2., -1.],
               [ 0., -1.,  1.]])
    """
    from scipy import sparse

    check_choice("normalization", normalization, NORMALIZATIONS)
    matrix: Any = adjacency(edges, weights, num_nodes)
    degree = matrix.sum(axis=1)
    laplacian = sparse.diags_array(degree) - matrix
    power = {"none": 0.0, "symmetric": 0.5, "random_walk": 1.0}[normalization]
    inverse = np.divide(1.0, degree, out=np.zeros_like(degree), where=degree > 0)
    if power:
        laplacian = sparse.diags_array(inverse**power) @ laplacian
    if normalization == "symmetric":
        laplacian = laplacian @ sparse.diags_array(inverse**power)
    return sparse.csr_array(laplacian)


def cotangent_laplacian(vertices: ArrayLike, faces: ArrayLike) -> csr_array:
    r"""Return the Laplacian of a triangle mesh, by linear finite elements with lumped mass.

    .. math:: (L f)_i = \frac{1}{m_i} \sum_j \frac{\cot \alpha_{ij} + \cot \beta_{ij}}{2} (f_i - f_j)

    with the angles opposite to the edge :math:`ij`, and a third of the area around node i as its mass
    (``lumped_mass``). An edge of the boundary has one such angle: no heat flows out. Angles beyond 90 degrees may
    make weights negative; the matrix stays positive semidefinite and heat is conserved, but then a value may
    overshoot those around it: where that matters, flip edges until the mesh is Delaunay.

    Args:
        vertices: ``(N, 3)`` or ``(N, 2)`` positions; those in no face have rows of zeros.
        faces: ``(F, 3)`` nodes of the triangles; triangles without area are refused.

    Example:
        >>> cotangent_laplacian([(0, 0), (1, 0), (0, 1)], [(0, 1, 2)]).toarray() + 0.0
        array([[ 6., -3., -3.],
               [-3.,  3.,  0.],
               [-3.,  0.,  3.]])
    """
    from scipy import sparse

    positions, triangles, cotangents, areas = _corners(vertices, faces)
    n = len(positions)
    mass = _lump(n, triangles, areas)
    ends = np.roll(triangles, -1, 1).ravel(), np.roll(triangles, -2, 1).ravel()  # of the edge opposite to each corner
    half: Any = sparse.csr_array((cotangents.ravel() / 2, ends), shape=(n, n))
    weights = half + half.T
    stiffness = sparse.diags_array(weights.sum(axis=1)) - weights
    inverse = np.divide(1.0, mass, out=np.zeros_like(mass), where=mass > 0)
    return sparse.csr_array(sparse.diags_array(inverse) @ stiffness)


def lumped_mass(vertices: ArrayLike, faces: ArrayLike) -> Array:
    """Return a third of the area of the triangles around each vertex.

    Example:
        >>> lumped_mass([(0, 0), (3, 0), (0, 2)], [(0, 1, 2)])
        array([1., 1., 1.])
    """
    positions, triangles, _, areas = _corners(vertices, faces)
    return _lump(len(positions), triangles, areas)


def spectral_bound(laplacian: Any, steps: int = 20) -> float:
    r"""Return an upper bound of all :math:`|\lambda|` of a sparse matrix.

    For every :math:`x > 0` (Collatz and Wielandt)

    .. math:: \max |\lambda| \le \max_i \frac{(|L| x)_i}{x_i}

    With :math:`x = 1` this is Gershgorin's bound; some steps of the power method improve it.

    Example:
        >>> round(spectral_bound(graph_laplacian([(0, 1), (0, 2), (0, 3), (0, 4)])), 6)  # Gershgorin: 8
        5.0
    """
    magnitude = abs(laplacian)
    x, bound = np.ones(magnitude.shape[0]), math.inf
    for _ in range(steps):
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

    The :math:`|c_j|` sum to one, so those left out sum to the largest possible error: ``tolerance``, at most. Some
    :math:`\sqrt{2 z \log(2 / \text{tolerance})}` are needed for large :math:`z`.

    Example:
        >>> chebyshev_heat(1.0, 2.0, 1e-2).round(4)
        array([ 0.4658, -0.4158,  0.0999, -0.0163])
        >>> len(chebyshev_heat(100.0, 2.0))
        86
    """
    from scipy import special

    z = check_real("tau", tau, ">= 0", lambda t: t >= 0) * check_real("bound", bound, ">= 0", lambda b: b >= 0) / 2
    if z > 2**30:
        raise ValueError(f"tau * bound must be at most 2**31, got {2 * z:g}; take several steps of a smaller tau")
    check_real("tolerance", tolerance, "in (0, 1)", lambda e: 0 < e < 1)
    # They are the law of |X|, X of variance z (a difference of Poisson variables): Bernstein bounds its tail. Beyond
    # the last j, a hundredth of the tolerance is left.
    a = math.log(200 / tolerance)
    j = np.arange(math.ceil(a / 3 + math.sqrt(a * a / 9 + 2 * a * z)) + 1)
    law = (2.0 - (j == 0)) * special.ive(j, z)
    tail = np.append(np.cumsum(law[:0:-1])[::-1], 0.0)  # what is left after j
    return ((-1.0) ** j * law)[: int((tail <= 0.99 * tolerance).argmax()) + 1]


def _indices(name: str, values: ArrayLike, width: int) -> NDArray[np.int64]:
    found = np.asarray(values)
    if found.size == 0:
        return np.zeros((0, width), dtype=np.int64)
    if found.ndim != 2 or found.shape[1] != width or not np.issubdtype(found.dtype, np.integer):
        raise ValueError(
            f"{name} are integers of shape (number, {width}), got shape {found.shape} of type {found.dtype}; "
            "transpose them if the nodes run along the first axis"
        )
    return found.astype(np.int64)


def _check_range(name: str, found: NDArray[np.int64], num_nodes: int) -> None:
    if found.size and not 0 <= found.min() <= found.max() < num_nodes:
        raise ValueError(f"{name} name nodes 0 to {num_nodes - 1}, got {found.min()} to {found.max()}")


def _corners(vertices: ArrayLike, faces: ArrayLike) -> tuple[Array, NDArray[np.int64], Array, Array]:
    """Vertices and faces, the cotangent at every corner of every face, and the areas."""
    positions, triangles = np.asarray(vertices, dtype=np.float64), _indices("faces", faces, 3)
    if (
        positions.ndim != 2
        or positions.shape[1] not in (2, 3)
        or not len(positions)
        or not np.isfinite(positions).all()
    ):
        raise ValueError(f"vertices are finite positions of shape (N, 3) or (N, 2), got shape {positions.shape}")
    _check_range("faces", triangles, len(positions))
    corner = np.pad(positions, ((0, 0), (0, 3 - positions.shape[1])))[triangles]
    u, v = np.roll(corner, -1, 1) - corner, np.roll(corner, -2, 1) - corner
    cross = np.linalg.norm(np.cross(u, v), axis=-1)  # twice the area
    flat = np.flatnonzero(cross.min(1) <= 1e-12 * (u * u).sum(-1).max(1))
    if len(flat):
        raise ValueError(
            f"triangles must have an area, got {len(flat)} without, the first at index {flat[0]}; remove them, and "
            "merge vertices that coincide"
        )
    return positions, triangles, (u * v).sum(-1) / cross, cross[:, 0] / 2


def _lump(num_nodes: int, triangles: NDArray[np.int64], areas: Array) -> Array:
    mass = np.zeros(num_nodes)
    np.add.at(mass, triangles, areas[:, None] / 3)
    return mass
