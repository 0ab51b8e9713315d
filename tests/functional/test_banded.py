"""Products with bands against explicit matrices, against SciPy, and against the convolutions they stand for."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from reference import MODES, SCIPY_MODES
from scipy import ndimage
from torch.testing import assert_close

from scalespaces.functional._fast._banded import Band, block_rows, multiply, toeplitz_band
from scalespaces.functional._lift import Stage, blur_by_convolution
from scalespaces.space._numbers import count
from scalespaces.theory._arguments import NUMPY_PADDING, PaddingMode

# One block up to 128 samples and several beyond; most are no multiple of any block.
SIZES = (1, 2, 3, 5, 17, 40, 127, 128, 129, 131, 160, 163, 251, 300)

modes = st.sampled_from(MODES)
sizes = st.sampled_from(SIZES)
radii = st.sampled_from([0, 1, 2, 4, 9, 16, 21])
ratios = st.sampled_from([1, 2, 3, 4, 8])
spacings = st.sampled_from([1, 2, 3])
rng = np.random.default_rng(0)


def tensor(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor(rng.standard_normal(shape), dtype=dtype)


def matrix(taps: torch.Tensor, n: int, ratio: int, spacing: int, mode: PaddingMode) -> np.ndarray:
    """Row i adds up what each tap reads around sample ``ratio * i`` of the padded axis."""
    reach = spacing * (len(taps) // 2)
    fill: dict[str, Any] = {"constant_values": n} if mode == "zeros" else {}
    place = np.pad(np.arange(n), reach, mode=NUMPY_PADDING[mode], **fill)
    rows = []
    for center in range(reach, reach + n, ratio):
        row = np.zeros(n + 1)
        for tap, weight in enumerate(taps.tolist()):
            row[place[center + spacing * tap - reach]] += weight
        rows.append(row[:n])
    return np.array(rows)


def bands(taps: torch.Tensor, shape: tuple[int, ...], ratio: int = 1, spacing: int = 1) -> list[Band]:
    return [toeplitz_band(taps, n, ratio, spacing) for n in shape]


class TestOneAxis:
    @given(sizes, radii, ratios, spacings, modes, st.sampled_from([(1, 1), (2, 3), (5, 4)]))
    def test_is_the_matrix_and_its_gradient_the_transpose(self, n, radius, ratio, spacing, mode, lines):
        """Fewer than sixteen lines, and more, take different ways."""
        taps, f = tensor(2 * radius + 1), tensor(*lines, n).requires_grad_()
        got = multiply(f, bands(taps, (n,), ratio, spacing), mode)
        rows, back = matrix(taps, n, ratio, spacing, mode), tensor(*got.shape)
        assert_allclose(got.detach().numpy(), f.detach().numpy() @ rows.T, rtol=1e-12, atol=1e-12)
        (grad,) = torch.autograd.grad(got, f, back)
        assert_allclose(grad.numpy(), back.numpy() @ rows, rtol=1e-12, atol=1e-12)


class TestAxes:
    @pytest.mark.parametrize("shape", [(6, 7), (140, 3), (3, 140), (150, 133), (4, 5, 6), (3, 130, 2), (2, 3, 150)])
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize(("ratio", "spacing"), [(1, 1), (3, 1), (2, 2)])
    def test_one_after_another_and_the_gradient_the_adjoint(self, shape, mode, ratio, spacing):
        """Of the products, and of the convolutions they stand for."""
        for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
            taps, f = tensor(9, dtype=dtype), tensor(2, 2, *shape, dtype=dtype).requires_grad_()
            spread, blurred, convolved = np.zeros(8 * spacing + 1), f.detach().double().numpy(), f
            spread[::spacing] = taps
            for axis in range(2, f.ndim):
                blurred = ndimage.correlate1d(blurred, spread, axis=axis, mode=SCIPY_MODES[mode])
                stage = Stage(0, ratio, spacing, 1.0, None)
                convolved = blur_by_convolution(convolved, taps, stage, mode, [axis])
            expected = torch.tensor(blurred[(..., *[slice(None, None, ratio)] * len(shape))], dtype=dtype)
            for got in (multiply(f, bands(taps, shape, ratio, spacing), mode), convolved):
                assert_close(got, expected, rtol=tolerance, atol=tolerance * expected.abs().max().item())
                y = torch.randn_like(got)
                (back,) = torch.autograd.grad(got, f, y)
                size = float(got.detach().norm() * y.norm())
                assert_close((got * y).sum(), (f * back).sum(), rtol=tolerance, atol=tolerance * size)

    def test_images_of_a_batch_do_not_meet(self):
        f, taps = tensor(3, 2, 20, 140), tensor(9)
        f[1] = torch.nan
        out = multiply(f, bands(taps, (20, 140)), "reflect")
        assert out[[0, 2]].isfinite().all()
        assert out[1].isnan().all()


@given(st.integers(1, 5000), st.floats(1, 64), st.integers(0, 400))
def test_several_blocks_never_pad_by_the_whole_axis(n, ratio, reach):
    """Reflections go no further, and less than half of the work is thrown away."""
    b, rows = block_rows(n, ratio, reach), count(n, ratio)
    number = -(-rows // b)
    assert b == rows or (reach < n and (number * b - 1) * ratio + reach + 1 - n < n and number * b < 2 * rows + b)
    assert toeplitz_band(torch.ones(33), 4096).blocks.numel() < 4096  # one block, shared by all rows
