"""Random textures of eight kinds, drawn at any scale: nothing is ever resized."""

import math

import numpy as np
import torch
from scipy.spatial import KDTree
from torch import Tensor

ANGLES = {"stripes": [0], "checks": [0, 90], "dots": [0, 60, 120], "holes": [0, 60, 120]}  # of their plane waves
NOISES = {"waves": 180.0, "grain": 20.0}  # many waves, whose angles are drawn up to this one
POINTS = ("cells", "spots")  # borders between the cells around random points, and the points
KINDS = (*ANGLES, *NOISES, *POINTS)
PERIOD = 8  # of textures of scale 1, in pixels
REACH = 20  # of the lattice of points, in periods from the middle


def textures(number: int, scale: float, side: int, seed: int, noise: float) -> tuple[Tensor, Tensor]:
    """Textures of all kinds, ``(number, 1, side, side)``, and the numbers of their kinds.

    The noise is added to each pixel. Its standard deviation does not depend on the scale.
    """
    shown, kinds = np.empty((number, 1, side, side), np.float32), np.arange(number) % len(KINDS)
    for n, kind in enumerate(kinds):
        generator = np.random.default_rng((seed, n))
        contrast = generator.uniform(0.1, 0.2)
        shown[n] = 0.5 + contrast * _texture(KINDS[kind], scale, side, generator)
        shown[n] += noise * generator.standard_normal((side, side))
    return torch.from_numpy(shown), torch.from_numpy(kinds)


def _texture(kind: str, scale: float, side: int, generator: np.random.Generator) -> np.ndarray:
    period = PERIOD * scale * generator.uniform(0.9, 1.1)
    line = (np.arange(side) - (side - 1) / 2) / period  # from the middle, where every scale shows the same
    places = np.stack(np.meshgrid(line, line, indexing="ij"), -1) + generator.uniform(-1, 1, 2)
    if kind in POINTS:
        lattice = np.stack(np.meshgrid(*[np.arange(-REACH, REACH + 1.0)] * 2), -1).reshape(-1, 2)
        moved = lattice + generator.uniform(-0.5, 0.5, lattice.shape)
        nearest, second = np.moveaxis(KDTree(moved).query(places, 2)[0], -1, 0)
        away = (second - nearest) / 0.2 if kind == "cells" else nearest / 0.25
        return 2 * np.exp(-(away**2)) - 1
    angles, phases = np.radians(ANGLES.get(kind, [])), 0.0
    if kind in NOISES:
        angles, phases = np.radians(NOISES[kind]) * generator.uniform(-1, 1, 24), generator.uniform(0, 2 * np.pi, 24)
    angles = angles + generator.uniform(0, 2 * np.pi)
    waves = np.cos(2 * np.pi * places @ np.stack([np.cos(angles), np.sin(angles)]) + phases)
    return waves.sum(-1) / math.sqrt(len(angles)) * (-1 if kind == "holes" else 1)
