"""Scale-spaces on a mesh: heat diffusion lifts a signal on a bumpy sphere, and a small network commutes with it.

Run it with ``python examples/mesh.py --out out``; it takes a few seconds and writes one picture.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from scalespaces._extras import require
from scalespaces._files import replacing
from scalespaces.nn import GraphConv, GraphLift
from scalespaces.semigroups import Graph, graph_lift

LEVELS, TAU = 6, 0.005  # tau is in units of area; the sphere has about 4 pi


def icosphere(subdivisions: int) -> tuple[NDArray, NDArray]:
    """Vertices on the unit sphere and faces: an icosahedron, each triangle split into four ``subdivisions`` times."""
    g = (1 + 5**0.5) / 2
    corners = [(0, a, b * g) for a in (-1, 1) for b in (-1, 1)]
    vertices = np.array([np.roll(corner, shift) for shift in range(3) for corner in corners])
    near = np.isclose(np.linalg.norm(vertices[:, None] - vertices, axis=-1), 2)
    triples = [(i, j, k) for i, j in np.argwhere(near) for k in np.flatnonzero(near[i] & near[j]) if i < j < k]
    # Counter-clockwise, seen from outside.
    faces = np.array([t if np.linalg.det(vertices[list(t)]) > 0 else t[::-1] for t in triples])
    for _ in range(subdivisions):
        edges = np.sort(np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]]), 1)
        edges, place = np.unique(edges, axis=0, return_inverse=True)
        a, b, c = faces.T
        ab, bc, ca = place.reshape(3, -1) + len(vertices)
        vertices = np.concatenate([vertices, vertices[edges].mean(1)])
        faces = np.concatenate([np.stack(t, 1) for t in ((a, ab, ca), (b, bc, ab), (c, ca, bc), (ab, bc, ca))])
    return vertices / np.linalg.norm(vertices, axis=1, keepdims=True), faces


def bumpy_sphere(subdivisions: int) -> tuple[NDArray, NDArray]:
    """A sphere with bumps, so that no symmetry helps."""
    vertices, faces = icosphere(subdivisions)
    x, y, z = vertices.T
    radius = 1 + 0.15 * np.sin(5 * x + 1) * np.sin(4 * y) + 0.1 * np.cos(6 * z + x)
    return vertices * radius[:, None], faces


def signal(vertices: NDArray) -> Tensor:
    """Stripes and noise, ``(1, 1, N)``."""
    noise = np.random.default_rng(0).standard_normal(len(vertices))
    return torch.tensor(np.sign(np.sin(7 * vertices[:, 0]) * np.sin(7 * vertices[:, 2])) + 0.5 * noise)[None, None]


class Network(nn.Module):
    """Two correlations with filters of two levels, on a lifted signal; the weights are random."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = GraphLift(LEVELS, TAU)
        self.first = GraphConv(1, 16, kernel_size=2, scale_padding="valid")
        self.norm = nn.BatchNorm2d(16)
        self.second = GraphConv(16, 8, kernel_size=2, scale_padding="valid")

    def forward(self, f: Tensor, graph: Graph) -> Tensor:
        return self.second(self.norm(self.first(self.lift(f, graph), graph)).relu(), graph)


def errors(f: Tensor, graph: Graph) -> list[float]:
    """How far level k of the diffused signal's features is from level k + 1 of the signal's, relative to the latter."""
    torch.manual_seed(0)
    network = Network().to(f.dtype).eval()
    with torch.no_grad():
        once = graph_lift(f, 2, TAU, graph=graph)[:, :, 1]
        features, diffused = network(f, graph), network(once, graph)
    expected, got = features[:, :, 1:], diffused[:, :, :-1]
    return [float((e - g).norm() / e.norm()) for e, g in zip(expected.unbind(2), got.unbind(2), strict=True)]


def draw(path: Path, vertices: NDArray, faces: NDArray, levels: Tensor) -> None:
    """The levels side by side, each triangle in the color of the mean of its corners."""
    matplotlib: Any = require("matplotlib", "plot")
    require("mpl_toolkits.mplot3d", "plot")
    figure_module: Any = require("matplotlib.figure", "plot")
    figure = figure_module.Figure(figsize=(3 * len(levels), 3.2), layout="constrained")
    for k, level in enumerate(levels):
        axes = figure.add_subplot(1, len(levels), k + 1, projection="3d")
        surface = axes.plot_trisurf(*vertices.T, triangles=faces, edgecolor="none", antialiased=False)
        surface.set_array(None)
        values = level.numpy()[faces].mean(1)
        surface.set_facecolor(matplotlib.colormaps["coolwarm"](0.5 + 0.5 * values / levels.abs().max().item()))
        axes.text2D(0.5, 0.04, f"k = {k}", transform=axes.transAxes, horizontalalignment="center")
        axes.set_box_aspect((1, 1, 1), zoom=1.5)
        axes.set_axis_off()
    with replacing(path) as draft:
        figure.savefig(draft, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the picture (default: out)")
    parser.add_argument("--subdivisions", type=int, default=4, help="of the icosahedron (default: 4, 2562 nodes)")
    arguments = parser.parse_args()

    vertices, faces = bumpy_sphere(arguments.subdivisions)
    graph, f = Graph.from_mesh(vertices, faces), signal(vertices)
    print(f"Lifting a signal on {graph.num_nodes} nodes to {LEVELS} levels, tau = {TAU} ...", flush=True)
    draw(arguments.out / "mesh.png", vertices, faces, graph_lift(f, 4, TAU, graph=graph)[0, 0])

    print("\nEquivariance error: network(diffused signal), level k, against network(signal), level k + 1")
    print("  " + "".join(f"{f'k = {k}':>12}" for k in range(LEVELS - 3)))
    for name, dtype in (("float32", torch.float32), ("float64", torch.float64)):
        print(f"  {name}" + "".join(f"{error:12.1e}" for error in errors(f.to(dtype), graph)), flush=True)

    print(f"\nNow look at\n  {arguments.out / 'mesh.png'}")


if __name__ == "__main__":
    main()
