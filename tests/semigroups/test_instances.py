"""Single semigroups: how exactly scalings and contractions compose, and light and its normalization."""

import numpy as np
import pytest
import torch
from algebra import CLOSE, rand
from torch.testing import assert_close

from scalespaces import semigroups as sg
from scalespaces.theory import ScaleTranslation, act


@pytest.mark.parametrize("method", ["direct", "cascade"])
def test_how_far_the_papers_scaling_is_from_a_semigroup(method):
    """S_1/4 against S_1/2 S_1/2: the paper's blur differs by its aliasing, the generator's powers do not at all."""
    f = torch.as_tensor(np.random.default_rng(0).normal(size=(1, 1, 32, 32)))
    errors = []
    for zero_scale in (0.25, 0.5, 1.0):
        scalings = sg.ScaleTranslations((32, 32), 3, zero_scale=zero_scale, method=method)
        half, quarter = (1, (0, 0)), (2, (0, 0))
        expected = scalings.act(quarter, f)
        errors.append(float((scalings.act(half, scalings.act(half, f)) - expected).norm() / expected.norm()))
    if method == "cascade":
        assert max(errors) < 1e-14
    else:  # white noise is the worst case; a larger zero-scale lets less alias
        assert 0.5 > errors[0] > errors[1] > errors[2] > 1e-3


@pytest.mark.parametrize("padding_mode", ["zeros", "reflect", "replicate"])
def test_scalings_compose_away_from_the_borders(padding_mode):
    scalings = sg.ScaleTranslations((96,), 3, padding_mode=padding_mode)
    f = rand(1, 1, 96)
    s, t = (1, (3,)), (1, (5,))
    twice, once = scalings.act(s, scalings.act(t, f)), scalings.act(scalings.compose(s, t), f)
    assert_close(twice[..., 4:16], once[..., 4:16], **CLOSE)
    assert not torch.equal(twice, once)
    corner = scalings.act((1, (-2,)), f)[0, 0, 0]  # the first sample reads two before the first
    level = scalings.levels(f).levels[1][0, 0]
    assert corner == {"zeros": 0.0, "reflect": level[2], "replicate": level[0]}[padding_mode]


def blob(size: int) -> torch.Tensor:
    """A smooth image that is zero towards the borders."""
    x = torch.arange(size, dtype=torch.float64) - (size - 1) / 2
    r = (x[:, None] ** 2 + 0.5 * (x[None] - 3) ** 2 + 0.3 * x[:, None] * x[None]) / (size / 6) ** 2
    return (torch.exp(-r) * (1 + 0.5 * torch.sin(x[:, None] / 2)))[None, None]


MATRICES = {
    "isotropic": (np.eye(2) / 2, np.eye(2) / 2),
    "anisotropic": (np.diag([0.5, 1.0]), np.diag([0.8, 0.6])),
    "turned": (0.7 * np.array([[0.8, -0.6], [0.6, 0.8]]), np.diag([0.5, 0.9])),
    "sheared": (0.6 * np.array([[1.0, 0.4], [0.0, 1.0]]), 0.75 * np.array([[1.0, 0.0], [-0.3, 1.0]])),
}


@pytest.mark.parametrize("name", MATRICES)
def test_how_far_affine_contractions_are_from_a_semigroup(name):
    """Within 2 % on this image; the correlation inherits the bound. benchmarks/semigroups.py has more."""
    A, B = MATRICES[name]
    f = blob(65)
    center = np.array([32.0, 32.0])
    s, t = (ScaleTranslation(M, center - np.linalg.solve(M, center)) for M in (A, B))  # about the middle
    psi = rand(2, 1, 65, 65)
    for zero_scale in (0.25, 1.0):
        contractions = sg.AffineContractions([A, B], [(0, 0)], zero_scale)
        once, twice = contractions.act(s @ t, f), contractions.act(s, contractions.act(t, f))
        assert (once - twice).norm() < 0.02 * once.norm()
        before = sg.semigroup_correlation(contractions.act(t, f), psi, contractions, elements=[s])
        after = sg.semigroup_correlation(f, psi, contractions, elements=[contractions.compose(s, t)])
        assert (before - after).norm() <= 0.02 * psi.norm() * once.norm()  # Cauchy and Schwarz


@pytest.mark.parametrize("padding_mode", ["zeros", "reflect", "replicate"])
def test_affine_contractions_agree_with_scipy(padding_mode):
    """Inside the image, as what is read outside is zero here."""
    f = rand(1, 1, 33, 33)
    A = 0.6 * np.array([[1.0, 0.4], [0.0, 1.0]])
    s, sigma = ScaleTranslation(A, [2.5, 11.0]), [[0.5, 0.1], [0.1, 0.4]]
    got = sg.AffineContractions([A], [(0, 0)], sigma, padding_mode).act(s, f)
    expected = act(f[0, 0], s, sigma, shape=(33, 33), padding_mode=padding_mode)
    x = np.linalg.solve(A, np.indices((33, 33)).reshape(2, -1)) + s.z[:, None]
    inside = ((x >= 0) & (x <= 32)).all(0).reshape(33, 33)
    assert inside.sum() > 100
    np.testing.assert_allclose(got[0, 0].numpy()[inside], expected[inside], atol=1e-10)


def test_affine_orbits_are_what_the_action_says_and_gradients():
    contractions = sg.AffineContractions([np.eye(2) / 2, np.diag([0.5, 0.9])], [(0, 0), (1, 2), (3.5, 0.25)])
    f = rand(2, 3, 9, 8)
    assert_close(contractions.orbit(f, (3, 2)), sg.Semigroup.full_orbit(contractions, f, (3, 2)), **CLOSE)
    identity, g = ScaleTranslation(1.0, [0, 0]), rand(1, 2, 6)
    assert_close(sg.Lifted(contractions, [identity]).act(identity, g), g, **CLOSE)
    s, t = (ScaleTranslation(1.0, z) for z in ([1, 2], [2, 3]))  # whole shifts are exact
    assert_close(contractions.act(s, contractions.act(t, f)), contractions.act(s @ t, f), **CLOSE)
    contractions = sg.AffineContractions([np.eye(2), 0.6 * np.array([[1.0, 0.4], [0.0, 1.0]])], [(0, 0), (1.5, 0.5)])
    f, psi = rand(1, 2, 5, 4).requires_grad_(), rand(1, 2, 2, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda psi, f: sg.semigroup_correlation(f, psi, contractions), (psi, f))


@pytest.mark.parametrize(("over", "axes"), [("space", (2, 3)), ("channels", (1,))])
def test_normalization_forgets_the_light_and_is_idempotent(over, axes):
    light, f = sg.Lighting(over=over), rand(2, 3, 6, 5)
    normal = light.act((1.0, 0.0, True), f)
    mean, deviation = normal.mean(axes), normal.std(axes, correction=0)
    assert_close(mean, torch.zeros_like(mean), **CLOSE)
    assert_close(deviation, torch.ones_like(deviation), **CLOSE)
    assert_close(light.act((1.0, 0.0, True), normal), normal, **CLOSE)
    assert_close(light.act((1.0, 0.0, True), 3 * f - 7), normal, **CLOSE)
    assert light.act((2.0, 1.0, True), torch.full((1, 1, 4, 4), 0.3)).eq(1).all()


def test_products_of_numbers_are_found_up_to_rounding():
    """0.1 * 0.2 is not 0.02 in floating point."""
    light = sg.Lighting((1.0, 0.1, 0.2, 0.02))
    f = torch.arange(1.0, 9.0).reshape(1, 1, 8)
    shifted = sg.Lifted(light).act((0.2, 0.0, False), f)
    places = [light.elements().index((gain, 0.0, False)) for gain in (1.0, 0.1)]
    values = [f[0, 0, light.elements().index((gain, 0.0, False))] for gain in (0.2, 0.02)]
    assert shifted[0, 0, places].tolist() == values


@pytest.mark.parametrize("over", ["space", "channels"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_what_does_not_vary_is_normalized_to_zero_and_has_a_gradient(over, dtype):
    f = (0.2 * torch.rand(2, 3, 5, 6, dtype=torch.float64) + 0.8).to(dtype)
    constant = (slice(None), 1) if over == "space" else (..., 2, 3)
    f[constant] = 0.3
    f.requires_grad_()
    out = sg.Lighting(over=over).act((1.0, 0.0, True), f)
    assert out[constant].eq(0).all()
    assert out.detach().double().std() > 0.5
    out.square().sum().backward()
    assert f.grad is not None
    assert f.grad.isfinite().all()
