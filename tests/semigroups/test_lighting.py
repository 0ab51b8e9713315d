"""Light, and the normalization that removes it."""

from typing import Any

import pytest
import torch

from scalespaces.semigroups import Lifted, Lighting

EXACT: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize(("over", "axes"), [("space", (2, 3)), ("channels", (1,))])
def test_normalization_forgets_the_light_and_is_idempotent(over, axes):
    light, f = Lighting(over=over), rand(2, 3, 6, 5)
    normal = light.act((1.0, 0.0, True), f)
    mean, deviation = normal.mean(axes), normal.std(axes, correction=0)
    torch.testing.assert_close(mean, torch.zeros_like(mean), **EXACT)
    torch.testing.assert_close(deviation, torch.ones_like(deviation), **EXACT)
    torch.testing.assert_close(light.act((1.0, 0.0, True), normal), normal, **EXACT)
    torch.testing.assert_close(light.act((1.0, 0.0, True), 3 * f - 7), normal, **EXACT)
    assert light.act((2.0, 1.0, True), torch.full((1, 1, 4, 4), 0.3)).eq(1).all()


def test_products_of_numbers_are_found_up_to_rounding():
    """0.1 * 0.2 is not 0.02 in floating point."""
    light = Lighting((1.0, 0.1, 0.2, 0.02))
    f = torch.arange(1.0, 9.0).reshape(1, 1, 8)
    shifted = Lifted(light).act((0.2, 0.0, False), f)
    places = [light.elements().index((gain, 0.0, False)) for gain in (1.0, 0.1)]
    values = [f[0, 0, light.elements().index((gain, 0.0, False))] for gain in (0.2, 0.02)]
    assert shifted[0, 0, places].tolist() == values


@pytest.mark.parametrize("over", ["space", "channels"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_what_does_not_vary_is_normalized_to_zero_and_has_a_gradient(over, dtype):
    f = (0.2 * torch.rand(2, 3, 5, 6, dtype=torch.float64) + 0.8).to(dtype)
    if over == "space":
        f[:, 1] = 0.3
    else:
        f[:, :, 2, 3] = 0.3
    f.requires_grad_()
    out = Lighting(over=over).act((1.0, 0.0, True), f)
    constant = out[:, 1] if over == "space" else out[:, :, 2, 3]
    assert constant.eq(0).all()
    assert out.detach().double().std() > 0.5
    out.square().sum().backward()
    assert f.grad is not None
    assert f.grad.isfinite().all()
