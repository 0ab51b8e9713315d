"""Scalings: how exactly they compose, and on which images."""

from typing import Any

import numpy as np
import pytest
import torch

from scalespaces.semigroups import ScaleTranslations, semigroup_correlation

EXACT: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("method", ["direct", "cascade"])
def test_how_far_the_papers_scaling_is_from_a_semigroup(method):
    """S_1/4 against S_1/2 S_1/2: the paper's blur differs by its aliasing, the generator's powers do not at all."""
    f = torch.as_tensor(np.random.default_rng(0).normal(size=(1, 1, 32, 32)))
    errors = []
    for zero_scale in (0.25, 0.5, 1.0):
        scalings = ScaleTranslations((32, 32), 3, zero_scale=zero_scale, method=method)
        half, quarter = (1, (0, 0)), (2, (0, 0))
        expected = scalings.act(quarter, f)
        errors.append(float((scalings.act(half, scalings.act(half, f)) - expected).norm() / expected.norm()))
    if method == "cascade":
        assert max(errors) < 1e-14
    else:  # white noise is the worst case; a larger zero-scale lets less alias
        assert 0.5 > errors[0] > errors[1] > errors[2] > 1e-3


@pytest.mark.parametrize("padding_mode", ["zeros", "reflect", "replicate"])
def test_scalings_compose_away_from_the_borders(padding_mode):
    scalings = ScaleTranslations((96,), 3, padding_mode=padding_mode)
    f = rand(1, 1, 96)
    s, t = (1, (3,)), (1, (5,))
    twice, once = scalings.act(s, scalings.act(t, f)), scalings.act(scalings.compose(s, t), f)
    torch.testing.assert_close(twice[..., 4:16], once[..., 4:16], **EXACT)
    assert not torch.equal(twice, once)
    corner = scalings.act((1, (-2,)), f)[0, 0, 0]  # the first sample reads two before the first
    level = scalings.levels(f).levels[1][0, 0]
    assert corner == {"zeros": 0.0, "reflect": level[2], "replicate": level[0]}[padding_mode]


def test_scalings_see_images_of_every_size_they_make():
    """The layer on a downscaled image: the batched correlation, on a circular grid that is finer than the image."""
    scalings = ScaleTranslations((16, 16), 3)
    f, psi = rand(1, 2, 16, 16), rand(3, 2, 3, 3)
    whole = semigroup_correlation(f, psi, scalings)
    place = {s: i for i, s in enumerate(scalings.elements())}
    for t in ((1, (0, 0)), (1, (3, 5)), (2, (1, 2))):
        moved = semigroup_correlation(scalings.act(t, f), psi, scalings)
        inside = [s for s in scalings.elements() if scalings.compose(s, t) in place]
        assert len(inside) >= 256
        torch.testing.assert_close(
            moved[..., [place[s] for s in inside]], whole[..., [place[scalings.compose(s, t)] for s in inside]], **EXACT
        )
