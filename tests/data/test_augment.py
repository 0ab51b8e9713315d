"""PCam's augmentation against the same done pixel by pixel, and as a function of (seed, epoch, sample)."""

import colorsys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from scalespaces.data._augment import PCamAugment, move, recolor

images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (6, 3, 24, 24), dtype=np.uint8))


def naive_move(image: np.ndarray, turns: int, flip: int, down: int, right: int) -> np.ndarray:
    """Pad by reflection and cut what moved, then turn, then flip; (C, N, N)."""
    padded = np.pad(image, [(0, 0), (9, 9), (9, 9)], mode="reflect")
    n = image.shape[-1]
    moved = padded[:, 9 - down : 9 - down + n, 9 - right : 9 - right + n]
    turned = np.rot90(moved, turns, (1, 2))
    return turned[..., ::-1] if flip else turned


def naive_recolor(pixels: np.ndarray, brightness: float, saturation: float, hue: float, contrast: float) -> np.ndarray:
    """TensorFlow's adjust_brightness, _saturation, _hue and _contrast, one pixel after the other; (3, H, W)."""
    result = np.empty_like(pixels)
    for i, j in np.ndindex(*pixels.shape[1:]):
        h, s, v = colorsys.rgb_to_hsv(*np.clip(pixels[:, i, j] + brightness, 0, 1))
        result[:, i, j] = colorsys.hsv_to_rgb((h + hue) % 1, min(s * (1 + saturation), 1), v)
    mean = result.mean((1, 2), keepdims=True)
    return np.clip((result - mean) * (1 + contrast) + mean, 0, 1)


@pytest.mark.parametrize("side", [1, 2, 5, 24])  # moves are further than small images are large
@given(st.lists(st.tuples(*(st.integers(*b) for b in [(0, 3), (0, 1), (-9, 9), (-9, 9)])), min_size=6, max_size=6))
def test_moves_are_whole_pixels(side, places):
    small = images[:, :, :side, :side]
    moved = move(small, torch.tensor(places))
    for image, place, got in zip(small, places, moved, strict=True):
        np.testing.assert_array_equal(got, naive_move(image.numpy(), *place))


delta = st.floats(-1, 1, width=32)


@given(delta, delta, delta, delta)
def test_colors_change_as_with_tensorflow(brightness, saturation, hue, contrast):
    deltas = np.array([brightness * 64 / 255, saturation * 0.25, hue * 0.04, contrast * 0.75])
    pixels = images[:2, :, :6, :6].double() / 255
    got = recolor(pixels, *(torch.tensor([d, 0.0]).double() for d in deltas))
    np.testing.assert_allclose(got[0], naive_recolor(pixels[0].numpy(), *deltas), atol=1e-12)
    assert_close(got[1], pixels[1], rtol=0, atol=1e-12)


@given(
    *(st.floats(-limit, limit, width=32) for limit in (1.0, 2.0, 2.0, 2.0)),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_colors_change_as_with_kornia(brightness, saturation, hue, contrast, dtype):
    """By way of HSV and back, for greys, blacks, whites and pure colors, too, and changes of any size."""
    color, enhance = pytest.importorskip("kornia.color"), pytest.importorskip("kornia.enhance")
    corners = torch.cartesian_prod(*[torch.tensor([0.0, 0.5, 1.0])] * 3).T.reshape(3, 3, 9)
    pixels = torch.stack([corners, images[0, :, :3, :9] / 255, images[1, :, :3, :9] / 255]).to(dtype)
    deltas = [torch.tensor([d, 0.0, d / 3], dtype=dtype) for d in (brightness, saturation, hue, contrast)]
    hsv = color.rgb_to_hsv(enhance.adjust_brightness(pixels, deltas[0]))
    hsv = enhance.adjust_hue_raw(enhance.adjust_saturation_raw(hsv, 1 + deltas[1]), 2 * np.pi * deltas[2])
    changed = color.hsv_to_rgb(hsv)
    mean = changed.mean((2, 3), keepdim=True)
    expected = (mean + (1 + deltas[3])[:, None, None, None] * (changed - mean)).clamp(0, 1)
    before = pixels.clone()
    assert_close(recolor(pixels, *deltas), expected, rtol=0, atol=1e-5)
    assert torch.equal(pixels, before)


def test_a_batch_is_augmented_as_its_draws_say():
    augment = PCamAugment(seed=5)
    indices = torch.tensor([3, 1, 4, 159, 2, 6])
    places, colors = augment.draw(indices, epoch=2)
    out = augment(images, indices, epoch=2)
    assert out.dtype == torch.float32
    exact = augment(images.double() / 255, indices, epoch=2)
    assert exact.dtype == torch.float64
    assert_close(out, exact.float(), rtol=0, atol=1e-5)
    for image, place, color, got in zip(images, places.tolist(), colors.numpy(), out, strict=True):
        expected = naive_recolor(naive_move(image.numpy(), *place) / 255, *color)
        np.testing.assert_allclose(got, expected, atol=1e-5)


def test_samples_depend_on_seed_epoch_and_index_alone():
    augment = PCamAugment(seed=5)
    together = augment(images, range(6), epoch=1)
    order, state = [4, 0, 5], torch.get_rng_state()
    assert_close(augment(images[order], torch.tensor(order), epoch=1), together[order], rtol=0, atol=0)
    others = PCamAugment(seed=6)(images, range(6), 1), augment(images, range(6), 2), augment(images, range(1, 7), 1)
    for other in others:
        assert all(not torch.equal(a, b) for a, b in zip(other, together, strict=True))
    assert torch.equal(torch.get_rng_state(), state)


def test_draws_fill_the_papers_ranges():
    places, colors = PCamAugment().draw(range(4000), epoch=0)
    for column, values in zip(places.T, (range(4), range(2), range(-8, 9), range(-8, 9)), strict=True):
        shares = [(column == value).double().mean().item() for value in values]
        assert sum(shares) == pytest.approx(1)
        assert shares == pytest.approx([1 / len(values)] * len(values), abs=0.03)
    for column, limit in zip(colors.T, (64 / 255, 0.25, 0.04, 0.75), strict=True):
        assert 0.99 * limit < column.max() <= limit
        assert -limit <= column.min() < -0.99 * limit
        assert column.mean().abs() < 0.03 * limit


def test_wrong_batches_are_refused():
    with pytest.raises(ValueError, match=r"one index for each of 6 images is needed, got 5"):
        PCamAugment()(images, range(5), 0)
    with pytest.raises(ValueError, match=r"quarter turns need square images, got 23 x 24"):
        PCamAugment()(images[..., :23], range(6), 0)
