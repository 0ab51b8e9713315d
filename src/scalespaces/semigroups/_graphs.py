r"""Scale-spaces on graphs and meshes, with heat diffusion as the semigroup.

Level :math:`k` of a signal on the nodes is :math:`e^{-k \tau L} f`. A lifted signal is a plain tensor ``(B, C, S, N)``
of S levels at N nodes, so ``nn.ReLU``, ``nn.BatchNorm2d`` and ``nn.Dropout`` work on it unchanged.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn import functional as F

from scalespaces._torch import constant, register_pytree
from scalespaces.functional._conv import check_scale_padding
from scalespaces.functional._sampling import take
from scalespaces.theory._arguments import check_choice, check_integer
from scalespaces.theory._graphs import chebyshev_heat, edges_laplacian, mesh_laplacian, spectral_bound

POOL_MODES = ("mean", "max")
POOL_AXES = {"both": (2, 3), "levels": 2, "nodes": 3}
_FIRST = 64.0  # the largest tau * bound of the first polynomial


@dataclass(frozen=True, eq=False)
class Graph:
    r"""An undirected graph with a Laplacian, as tensors; built by ``from_edges``, ``from_mesh`` or ``from_laplacian``.

    .. math:: (L f)_i = r_i f_i + \sum_j w_{ij} (f_i - f_j), \qquad (P f)_i = f_i - \sum_j p_{ij} (f_i - f_j)

    Because of the differences, constants stay exact to the last bit (where :math:`r = 0`), in any precision. Results
    have the dtype of the signal. A batch of graphs is their disjoint union.

    Attributes:
        edges: ``(2, E)``, nodes i and j of each edge, once.
        weights: ``(2, E)``, :math:`w_{ij} = -L_{ij}` and :math:`w_{ji} = -L_{ji}`.
        means: ``(2, E)``, :math:`p_{ij}` and :math:`p_{ji}`: the positive weights, divided by their sum at each node.
        mass: ``(N,)``, under which L is symmetric; :math:`\sum_i m_i f_i` is conserved where :math:`r = 0`.
        rowsums: ``(N,)``, :math:`r_i = \sum_j L_{ij}`; None when all are zero.
        bound: of the spectrum of L.

    Example:
        >>> Graph.from_edges([(0, 1), (1, 2)]).average(torch.tensor([0.0, 1.0, 4.0]))
        tensor([1., 2., 1.])
    """

    edges: Tensor
    weights: Tensor
    means: Tensor
    mass: Tensor
    rowsums: Tensor | None
    bound: float

    @classmethod
    def from_edges(
        cls,
        edges: ArrayLike,
        weights: ArrayLike | None = None,
        num_nodes: int | None = None,
        normalization: str = "none",
    ) -> Self:
        """An undirected graph; arguments as in :func:`scalespaces.theory.graph_laplacian`.

        Edges are pairs, ``(E, 2)``; for an ``edge_index`` of shape ``(2, E)`` pass ``edge_index.T``.
        """
        return cls.from_laplacian(*edges_laplacian(edges, weights, num_nodes, normalization))

    @classmethod
    def from_mesh(cls, vertices: ArrayLike, faces: ArrayLike) -> Self:
        """A triangle mesh, with :func:`scalespaces.theory.cotangent_laplacian`; the mass is the area."""
        return cls.from_laplacian(*mesh_laplacian(vertices, faces))

    @classmethod
    def from_laplacian(cls, laplacian: Any, mass: ArrayLike | None = None) -> Self:
        """Any positive semidefinite matrix that is symmetric under a mass.

        Only pairs of nodes are checked. Negative eigenvalues that pass this check make the diffusion wrong.

        Args:
            laplacian: ``(N, N)``, of SciPy (sparse), torch (sparse or dense) or NumPy.
            mass: ``(N,)`` numbers >= 0 with ``mass[i] * L[i, j] == mass[j] * L[j, i]``; ones by default. For a random
                walk these are the degrees, for a mesh the areas.
        """
        matrix, eps, device = _as_scipy(laplacian)
        n = matrix.shape[0]
        m = np.ones(n) if mass is None else np.asarray(mass, dtype=np.float64)
        if m.shape != (n,) or not (np.isfinite(m) & (m >= 0)).all():
            raise ValueError(f"mass must be a finite number >= 0 for each of {n} nodes, got {m} of shape {m.shape}")
        flow = _check_flow(matrix, m, 64 * eps)
        sums = np.asarray(matrix.sum(axis=1))
        sums[np.abs(sums) <= 64 * eps * abs(matrix).sum(axis=1)] = 0.0

        ends = np.stack([flow.row, flow.col]).astype(np.int64)
        weights = flow.data / m[ends]
        means = np.maximum(weights, 0.0)
        total = np.bincount(ends.ravel(), means.ravel(), n)
        means = means / np.where(total > 0, total, 1.0)[ends]
        arrays = (ends, weights, means, m, sums if sums.any() else None)
        tensors: Any = [None if array is None else torch.tensor(array, device=device) for array in arrays]
        return cls(*tensors, bound=spectral_bound(matrix))

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.mass.shape[0]

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """On another device, or with another dtype: float64 (as built), or float32 for devices without float64."""
        if dtype not in (None, torch.float32, torch.float64):
            raise ValueError(f"a graph is of dtype float32 or float64, got {dtype}; signals may be of any")
        tensors = {name: getattr(self, name) for name in _TENSORS if getattr(self, name) is not None}
        return replace(self, **{k: t.to(device, dtype if t.is_floating_point() else None) for k, t in tensors.items()})

    def laplace(self, f: Tensor) -> Tensor:
        """L f, for ``(..., N)``."""
        return _nodes_last(self._laplace(self._nodes_first(f)), f)

    def average(self, f: Tensor) -> Tensor:
        """P f, the mean over the neighbors, for ``(..., N)``; an isolated node keeps its value."""
        x = self._nodes_first(f)
        return _nodes_last(x - self._differences(x, self.means), f)

    def _laplace(self, x: Tensor) -> Tensor:
        out = self._differences(x, self.weights)
        return out if self.rowsums is None else out + self.rowsums.to(x.dtype).unsqueeze(1) * x

    def _differences(self, x: Tensor, weights: Tensor) -> Tensor:
        r"""The sums of :math:`w_{ij} (x_i - x_j)` at every node i, for ``(N, M)``."""
        i, j = self.edges
        there, back = weights.to(x.dtype).unsqueeze(2)
        difference = take(x, 0, i) - take(x, 0, j)
        out = torch.zeros_like(x).scatter_add(0, i.unsqueeze(1).expand_as(difference), difference * there)
        return out.scatter_add(0, j.unsqueeze(1).expand_as(difference), difference * -back)

    def _nodes_first(self, f: Tensor) -> Tensor:
        if not f.is_floating_point() or f.ndim == 0 or f.shape[-1] != self.num_nodes:
            rule = f"a signal on this graph is of floating point and has {self.num_nodes} nodes along its last axis"
            raise ValueError(f"{rule}, got shape {tuple(f.shape)} of type {f.dtype}")
        if f.device != self.mass.device:
            devices = f"{f.device} and {self.mass.device}"
            raise ValueError(f"signal and graph must be on the same device, got {devices}; use graph.to(device)")
        x = f.float() if f.dtype in (torch.float16, torch.bfloat16) else f
        return x.reshape(-1, self.num_nodes).t().contiguous()


def heat(f: Tensor, graph: Graph, tau: float) -> Tensor:
    r"""Diffuse a signal for the time ``tau``: :math:`e^{-\tau L} f`.

    .. math:: e^{-\tau L} = \sum_j p_j S_j, \qquad S_j = T_j(1 - A), \quad A = 2 L / \text{bound}

    :math:`p_j` are the absolute values of the Chebyshev coefficients, which sum to one; the series ends where its
    remainder is below the precision of the signal. With :math:`D_j = S_j - S_{j-1}` the recurrence of the polynomials
    is :math:`D_{j+1} = D_j - 2 A S_j`, which keeps smooth signals at full precision, and constants to the last bit. A
    large ``tau`` is split into steps of doubling length. Errors are about 1e-12 of the largest value in float64 and
    below 1e-6 in float32; where rows of L do not sum to zero, float32 errors grow with ``tau``.
    """
    x = graph._nodes_first(f)
    for tails in _tails(float(tau), graph.bound, torch.finfo(x.dtype).eps):
        # x plus the differences D, each times the sum of the coefficients of the S it is part of. The recurrence is in
        # the changes S - x: they are small where x is smooth, and so is their rounding.
        scale = 2 / graph.bound
        start = scale * graph._laplace(x)
        difference = change = -start
        out = tails[0] * difference
        for tail in tails[1:]:
            difference = difference - 2 * (start + scale * graph._laplace(change))
            change = change + difference
            out = out + tail * difference
        x = x + out
    return _nodes_last(x, f)


def graph_lift(f: Tensor, num_levels: int = 4, tau: float = 1.0, *, graph: Graph) -> Tensor:
    r"""Lift a signal on the nodes: level :math:`k` is :math:`e^{-k \tau L} f`.

    Each level is the one before it, diffused for the time ``tau``. So lifting level 1 gives the levels of ``f`` from
    the second on: bit for bit on a CPU, and up to rounding on devices that sum in no fixed order.

    Args:
        f: ``(B, C, N)`` on the nodes of ``graph``; the result is ``(B, C, num_levels, N)``.
        tau: time from one level to the next; its unit is one over the weights of the graph, on a mesh area.
    """
    check_integer("num_levels", num_levels, 1)
    _check(f, 3, "a signal (B, C, N)")
    _check_graph(graph)
    levels = [f]
    for _ in range(num_levels - 1):
        levels.append(heat(levels[-1], graph, tau))
    return torch.stack(levels, 2)


def graph_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, graph: Graph, scale_padding: str = "zeros"
) -> Tensor:
    r"""Correlate over levels and neighbors.

    .. math:: [\psi \star f]^o_k = \sum_i \sum_{\ell \ge 0}
        \left( \psi^{i,o}_{\ell,0} + \psi^{i,o}_{\ell,1} P \right) f^i_{k+\ell}

    with the mean over neighbors :math:`P` of :class:`Graph`. It is the same at every level, so it commutes with the
    shift of levels; it depends on the graph only through L, so it commutes with permutations of the nodes.

    Args:
        x: ``(B, C_in, S, N)`` on the nodes of ``graph``.
        weight, bias: ``(C_out, C_in, k, 2)`` and ``(C_out,)``.
        scale_padding: ``"zeros"``, ``"replicate"`` or ``"valid"``, as in :func:`scalespaces.functional.scale_conv`.
    """
    _check(x, 4, "levels (B, C, S, N)")
    _check_graph(graph)
    channels, depth = x.shape[1], weight.shape[2] if weight.ndim == 4 else 0
    if not depth or weight.shape[3] != 2 or weight.shape[1] != channels:
        raise ValueError(f"{channels} channels need a weight (C_out, {channels}, k, 2), got {tuple(weight.shape)}")
    check_scale_padding(scale_padding, x.shape[2], depth)
    both = torch.cat([x, graph.average(x)], 1)
    if scale_padding == "zeros":
        both = F.pad(both, (0, 0, 0, depth - 1))
    elif scale_padding == "replicate":
        both = torch.cat([both, both[:, :, -1:].expand(-1, -1, depth - 1, -1)], 2)
    return F.conv2d(both, torch.cat([weight[..., :1], weight[..., 1:]], 1), bias)


def graph_pool(x: Tensor, mode: str = "mean", *, graph: Graph | None = None, over: str = "both") -> Tensor:
    """The ``"mean"`` or ``"max"`` of levels ``(B, C, S, N)`` over levels, nodes or both.

    Args:
        x, mode: the levels, and which of the two.
        graph: if given, means over nodes are weighted by its mass, on a mesh by area: diffusion conserves such means
            (not with the symmetric normalization).
        over: ``"both"`` leaves ``(B, C)``, ``"levels"`` ``(B, C, N)``, ``"nodes"`` ``(B, C, S)``.
    """
    _check(x, 4, "levels (B, C, S, N)")
    check_choice("mode", mode, POOL_MODES)
    check_choice("over", over, POOL_AXES)
    if mode == "max":
        return x.amax(POOL_AXES[over])
    x = x if over == "nodes" else x.mean(2)
    if over == "levels" or graph is None:
        return x if over == "levels" else x.mean(-1)
    _check_graph(graph)
    return (x * (graph.mass / graph.mass.sum()).to(x.dtype)).sum(-1)


@constant
@lru_cache(maxsize=256)
def _tails(tau: float, bound: float, eps: float) -> tuple[tuple[float, ...], ...]:
    """The sums of :math:`p_j, p_{j+1}, ...` from j = 1 on, for each of several times that add up to tau."""
    # Each time is as long as all before it together: when the long ones begin the signal is smooth, and rounding small.
    doublings = max(0, math.ceil(math.log2(max(tau * bound, 1.0) / _FIRST))) if math.isfinite(tau) else 0
    first = tau / 2**doublings
    times = [first] + [first * 2**i for i in range(doublings)]
    laws = [np.abs(chebyshev_heat(time, bound, eps / 8)) for time in times]
    return tuple(tuple(np.cumsum(law[:0:-1])[::-1].tolist()) for law in laws if len(law) > 1)


def _nodes_last(x: Tensor, f: Tensor) -> Tensor:
    return x.t().reshape(f.shape).to(f.dtype)


def _check(x: object, ndim: int, what: str) -> None:
    if not isinstance(x, Tensor) or x.ndim != ndim:
        got = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"expected {what}, got {got}" + ("; lift signals with graph_lift first" if ndim == 4 else ""))


def _check_graph(graph: object) -> None:
    if not isinstance(graph, Graph):
        raise TypeError(f"graph must be a Graph, got {type(graph).__name__}; use Graph.from_edges or Graph.from_mesh")


def _as_scipy(matrix: Any) -> tuple[Any, float, torch.device]:
    """The matrix as a sparse one of SciPy, the precision it was given in, and its device."""
    from scipy import sparse

    eps, device = float(np.finfo(np.float64).eps), torch.device("cpu")
    if isinstance(matrix, Tensor):
        eps = torch.finfo(matrix.dtype).eps if matrix.is_floating_point() else eps
        device, found = matrix.device, matrix.detach().to_sparse_coo().coalesce().cpu()
        values, index = found.values().double().numpy(), found.indices().numpy()
        matrix = sparse.coo_array((values, tuple(index)), shape=tuple(found.shape))
    elif getattr(matrix, "dtype", None) == np.float32:
        eps = float(np.finfo(np.float32).eps)
    result: Any = sparse.csr_array(matrix, dtype=np.float64)
    if result.shape != (result.shape[0],) * 2 or not result.shape[0] or not np.isfinite(result.data).all():
        raise ValueError(f"a Laplacian is a square matrix of finite numbers, got shape {result.shape}")
    result.sum_duplicates()
    result.eliminate_zeros()
    return result, eps, device


def _check_flow(matrix: Any, mass: np.ndarray, tolerance: float) -> Any:
    """The flow between nodes, ``-mass[i] * L[i, j]`` for i < j, of a matrix that may be a Laplacian under this mass."""
    from scipy import sparse

    weighed: Any = sparse.diags_array(mass) @ matrix
    if abs(weighed - weighed.T).max() > tolerance * abs(weighed).max() or matrix[mass == 0].nnz:
        rule = "a Laplacian is symmetric under its mass, mass[i] * L[i, j] == mass[j] * L[j, i], which this one is not"
        raise ValueError(f"{rule}; pass its mass (for a random walk the degrees), or make a directed graph undirected")
    diagonal, flow = weighed.diagonal(), sparse.triu(-(weighed + weighed.T) / 2, 1).tocoo()
    if diagonal.min() < 0 or (flow.data**2 > diagonal[flow.row] * diagonal[flow.col] * (1 + tolerance)).any():
        remedy = "the Laplacian of an adjacency matrix W is D - W, with D the diagonal of its row sums"
        raise ValueError(f"a Laplacian is positive semidefinite, which this matrix is not; {remedy}")
    return flow


_TENSORS = ("edges", "weights", "means", "mass", "rowsums")

register_pytree(
    Graph,
    lambda graph: ([getattr(graph, name) for name in _TENSORS], graph.bound),
    lambda tensors, bound: Graph(*tensors, bound=bound),
    _TENSORS,
)
