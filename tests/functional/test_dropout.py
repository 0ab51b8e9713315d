"""Dropout of whole levels, by its statistics."""

import math

import pytest
import torch
from torch.testing import assert_close

from scalespaces import ScaleSpace
from scalespaces.functional import scale_dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_drops_whole_levels_of_samples_independently(p):
    batch = 4000
    x = ScaleSpace((torch.ones(batch, 2, 3, 3), torch.ones(batch, 2, 2, 2)), steps=(1, 2))
    got = scale_dropout(x, p)
    assert got.steps == x.steps
    kept = []
    for level in got.levels:
        assert (level.flatten(1) == level[:, :1, 0, 0]).all()
        kept.append(level[:, 0, 0, 0] != 0)
        assert_close(level[kept[-1]], torch.full_like(level[kept[-1]], 1 / (1 - p)))
    error = 4 * math.sqrt(p * (1 - p) / batch)
    for mask in kept:
        assert mask.float().mean().item() == pytest.approx(1 - p, abs=error)
    assert (kept[0] & kept[1]).float().mean().item() == pytest.approx((1 - p) ** 2, abs=error)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_certainties(dtype):
    x = ScaleSpace((torch.randn(4, 3, 4, 4), torch.randn(4, 3, 2, 2)), steps=(1, 2)).to(dtype)
    assert scale_dropout(x, 0.0) is x
    assert scale_dropout(x, 0.5, training=False) is x
    for level in scale_dropout(x, 1.0).levels:
        assert level.dtype == dtype
        assert level.abs().max() == 0
    assert scale_dropout(x, 0.5).dtype == dtype


def test_gradient_and_refusals():
    """The gradient is that of what was kept."""
    f = torch.rand(8, 2, 3, dtype=torch.float64, requires_grad=True)
    (level,) = scale_dropout(ScaleSpace((f,)), 0.5).levels
    (grad,) = torch.autograd.grad(level.sum(), f)
    assert_close(grad, (level / f).detach())
    for p in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="p is a probability"):
            scale_dropout(ScaleSpace((torch.rand(2, 3, 4),)), p)
