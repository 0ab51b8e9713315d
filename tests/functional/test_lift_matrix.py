"""Lifts whose base is a matrix, against loops and SciPy."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from reference import MATRICES, MODES, QUINCUNX, SCIPY_MODES, assert_levels, image, paper_lift
from scipy import ndimage

from scalespaces import downscale, theory
from scalespaces.theory._arguments import NUMPY_PADDING

BASES = pytest.mark.parametrize("base", MATRICES.values(), ids=MATRICES)


def correlate_by_loops(f: np.ndarray, taps: np.ndarray, matrix: np.ndarray, mode: Any) -> np.ndarray:
    """The sum over y of h(y) f(z + M y); NumPy pads far enough for every tap."""
    radii, far, kind = np.array(taps.shape) // 2, 40, NUMPY_PADDING[mode]
    padded, out = np.pad(f, far, mode=kind), np.zeros_like(f)
    for z in np.ndindex(*f.shape):
        for tap in np.ndindex(*taps.shape):
            place = far + np.array(z) + np.rint(matrix @ (np.array(tap) - radii)).astype(int)
            out[z] += taps[tap] * padded[tuple(place)]
    return out


@BASES
@pytest.mark.parametrize("mode", MODES)
class TestMatrixBase:
    def test_direct(self, base, mode):
        f, C = image(6, 7), np.array(base)
        x = paper_lift(f, 3, base, padding_mode=mode)
        assert x.base == base
        for k, level in enumerate(x.levels):
            power = np.linalg.matrix_power(C, k)
            taps = theory.anisotropic_gaussian(0.25 * (power @ power.T - np.eye(2)))
            for channel in range(2):
                expected = ndimage.correlate(f[0, channel].numpy(), taps, mode=SCIPY_MODES[mode])
                assert_allclose(level[0, channel].numpy(), expected, atol=1e-12)

    def test_cascade(self, base, mode):
        f, C = image(5, 6)[:, :1], np.array(base)
        taps = theory.anisotropic_gaussian(0.25 * (C @ C.T - np.eye(2)))
        expected = [f[0, 0].numpy()]
        for k in range(2):
            expected.append(correlate_by_loops(expected[-1], taps, np.linalg.matrix_power(C, k), mode))
        x = paper_lift(f, 3, base, method="cascade", padding_mode=mode)
        assert_levels([level[0, 0] for level in x.levels], expected)


class TestMatrixLaws:
    @BASES
    @pytest.mark.parametrize("method", ["direct", "cascade"])
    def test_covariance_of_the_impulse_response(self, base, method):
        n = 61
        impulse = torch.zeros(1, 1, n, n, dtype=torch.float64)
        impulse[0, 0, n // 2, n // 2] = 1
        x = paper_lift(impulse, 3, base, method=method)
        place = np.indices((n, n)).reshape(2, -1) - n // 2
        for k, level in enumerate(x.levels):
            power = np.linalg.matrix_power(np.array(base), k)
            weights = level.numpy().ravel()
            assert_allclose(place @ weights, 0, atol=1e-10)
            expected = 0.25 * (power @ power.T - np.eye(2))
            assert_allclose((place * weights) @ place.T, expected, rtol=0.05, atol=1e-10)

    @BASES
    def test_downscaling_reads_the_level_on_its_lattice(self, base):
        f = image(9, 7)
        for n in (0, 1, 2):
            level = paper_lift(f, n + 1, base, method="cascade").levels[n][0].numpy()
            power = np.linalg.matrix_power(np.array(base), n)
            inverse = np.linalg.inv(power)
            places = [
                i for i in itertools.product(range(9), range(7)) if np.allclose(inverse @ i, np.rint(inverse @ i))
            ]
            got = downscale(f, n, base)[0].numpy()
            expected = np.array([level[:, *place] for place in places])
            nonzero = got.reshape(2, -1).T
            nonzero = nonzero[np.any(nonzero != 0, axis=1)]
            assert_allclose(sorted(nonzero.tolist()), sorted(expected.tolist()), atol=1e-12)

    def test_lattices_commute_with_zeros_outside(self):
        """Quincunx twice is every second pixel, so the law can be read off without turning anything."""
        x = paper_lift(image(9, 9), 4, QUINCUNX, method="cascade", padding_mode="zeros")
        y = paper_lift(x.levels[2][:, :, ::2, ::2], 2, QUINCUNX, method="cascade", padding_mode="zeros")
        assert_levels([y.levels[1]], [x.levels[3][:, :, ::2, ::2]])
