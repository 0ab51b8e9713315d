"""What is done about scale: images resized, answers of several scales put together, and scale jitter."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from scalespaces.models import create_model
from scalespaces.models._calibrate import rescale_batch
from scalespaces.train._scales import MultiScale, draw_scales, zoom, zoom_masks


@given(st.integers(3, 20), st.integers(3, 20), st.floats(0.3, 3.5))
def test_rescaled_images_are_pillows(height, width, scale):
    """Pillow's resize of float images, without its overshoots."""
    image = torch.rand(1, 1, height, width, generator=torch.Generator().manual_seed(height))
    found = rescale_batch(image, scale)
    size = [max(1, round(n * scale)) for n in (height, width)]
    picture = Image.fromarray(image[0, 0].numpy()).resize(size[::-1], Image.Resampling.BICUBIC)
    expected = torch.from_numpy(np.array(picture)).clamp(image.min(), image.max())
    assert found.shape == (1, 1, *size)
    assert_close(found[0, 0], expected, atol=1e-5, rtol=1e-5)


def test_scale_one_is_the_identity_and_too_small_a_scale_is_named():
    images = torch.rand(2, 3, 9, 7)
    assert rescale_batch(images, 1) is images
    assert rescale_batch(images, 1.01) is images  # the size stays
    assert rescale_batch(images.bfloat16(), 0.5).dtype == torch.bfloat16
    model = create_model("densenet", growth=(4, 4), num_layers=1, lift={"num_levels": 3}).eval()
    with pytest.raises(ValueError, match=r"at scale 0.25, images of 16 x 24 pixels are 4 x 6: .* at least 5 pixels"):
        MultiScale(model, [1, 0.25])(torch.rand(1, 3, 16, 24))


class Means(nn.Module):
    """Logits from the values of the image and its size, or from every pixel."""

    def __init__(self, dense: bool = False) -> None:
        super().__init__()
        self.dense, self.sizes = dense, []

    def forward(self, images: Tensor) -> Tensor:
        self.sizes.append(tuple(images.shape[2:]))
        x = images if self.dense else images.mean((2, 3), keepdim=True) * images.shape[3]
        logits = 3 * torch.sin(x * torch.tensor([11, 23, 37])[:, None, None])
        return logits if self.dense else logits.flatten(1)


SCALES = [0.5, 1, 2]
UNKNOWN: Any = "median"


@pytest.mark.parametrize("how", ["mean", "select"])
@pytest.mark.parametrize("dense", [False, True])
def test_the_mean_of_probabilities_and_the_most_certain_scale(how, dense):
    """Masks come back at the size of the image."""
    images, model = torch.rand(32, 1, 8, 12, dtype=torch.float64), Means(dense)
    found = MultiScale(model, SCALES, how)(images)
    assert model.sizes == [(4, 6), (8, 12), (16, 24)]
    answers = [model(rescale_batch(images, s)).softmax(1) for s in SCALES]
    if dense:
        options: Any = {"mode": "bilinear", "antialias": True}
        answers = [F.interpolate(p, (8, 12), **options) for p in answers]
    expected = sum(answers) / 3
    if how == "select":
        entropies = [[-(p[b] * p[b].log()).sum(0).mean().item() for p in answers] for b in range(32)]
        chosen = [int(np.argmin(some)) for some in entropies]
        assert dense or len(set(chosen)) > 1
        expected = torch.stack([answers[best][b] for b, best in enumerate(chosen)])
    assert_close(found.exp(), expected)
    assert_close(MultiScale(model, [1], how)(images), model(images).log_softmax(1))


def test_certain_answers_stay_finite():
    certain = nn.Conv2d(1, 2, 1)
    certain.load_state_dict({"weight": torch.zeros(2, 1, 1, 1), "bias": torch.tensor([500.0, -500.0])})
    for how in ("mean", "select"):
        assert MultiScale(certain, SCALES, how)(torch.rand(2, 1, 8, 8)).isfinite().all()


def triangle(image: np.ndarray, factor: float, fill: str) -> np.ndarray:
    """Every pixel by itself: the triangle around where it comes from, as wide as pixels are apart."""
    height, width = image.shape
    wide = max(1.0, 1 / factor)

    def pixel(i: int, j: int) -> float:
        inside = 0 <= i < height and 0 <= j < width
        if fill == "reflect" or inside:
            i, j = (abs((k + n - 1) % max(2 * n - 2, 1) - n + 1) for k, n in ((i, height), (j, width)))
            return float(image[i, j])
        return 0.0

    def taps(n: int, at: int) -> list[tuple[int, float]]:
        middle = (n - 1) / 2
        u = middle + (at - middle) / factor
        weights = {k: max(0.0, 1 - abs(k - u) / wide) for k in range(math.floor(u - wide), math.ceil(u + wide) + 1)}
        total = sum(weights.values())
        return [(k, w / total) for k, w in weights.items() if w]

    found = np.zeros_like(image)
    for i in range(height):
        for j in range(width):
            found[i, j] = sum(a * b * pixel(k, m) for k, a in taps(height, i) for m, b in taps(width, j))
    return found


@given(st.integers(1, 9), st.integers(1, 9), st.floats(0.2, 4.0), st.sampled_from(["zeros", "reflect"]))
def test_zoom_is_the_loop(height, width, factor, fill):
    image = torch.rand(1, 2, height, width, generator=torch.Generator().manual_seed(width), dtype=torch.float64)
    found = zoom(image, torch.tensor([factor]), fill)
    for channel in range(2):
        expected = triangle(image[0, channel].numpy(), factor, fill)
        assert_close(found[0, channel], torch.from_numpy(expected))


def test_every_image_has_its_own_factor_and_one_is_the_identity():
    images, masks, factors = torch.rand(3, 1, 10, 12), torch.randint(0, 5, (3, 10, 12)), torch.tensor([0.5, 1.0, 1.7])
    found = zoom(images, factors)
    for b in range(3):
        assert_close(found[b : b + 1], zoom(images[b : b + 1], factors[b : b + 1]))
    assert_close((found[1], zoom_masks(masks, factors)[1]), (images[1], masks[1]))
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(zoom(images, factors), found)


@given(st.integers(1, 9), st.integers(1, 9), st.floats(0.2, 4.0))
def test_masks_take_the_nearest_pixel(height, width, factor):
    masks = torch.randint(0, 5, (1, height, width))
    found = zoom_masks(masks, torch.tensor([factor], dtype=torch.float64))
    for i in range(height):
        for j in range(width):
            u, v = ((n - 1) / 2 + (k - (n - 1) / 2) / factor for k, n in ((i, height), (j, width)))
            k, m = math.floor(u + 0.5), math.floor(v + 0.5)
            inside = 0 <= k < height and 0 <= m < width
            assert found[0, i, j] == (masks[0, k, m] if inside else 255)


def test_factors_are_drawn_by_seed_epoch_and_sample_uniform_on_a_logarithmic_axis():
    indices, order = torch.tensor([5, 3, 17, 0, 1, 2]), torch.tensor([3, 0, 5, 1, 4, 2])
    found = draw_scales(indices, epoch=2, seed=7)
    assert_close(draw_scales(indices[order].tolist(), 2, 7, 0.5, 2.0), found[order])
    for epoch, seed in ((3, 7), (2, 8)):
        assert not (draw_scales(indices, epoch, seed) == found).any()
    factors = draw_scales(range(4000), 0, 0, 0.25, 4.0).log2()
    assert -2 <= factors.min() <= factors.max() <= 2
    counts = torch.histc(factors, 8, -2, 2)
    assert ((counts - 500).abs() < 5 * math.sqrt(500)).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rescale_batch(torch.zeros(1, 1, 4, 4), 0), "scale must be a finite number > 0"),
        (lambda: rescale_batch(torch.zeros(1, 1, 4, 4), math.nan), "scale must be a finite number > 0"),
        (lambda: MultiScale(nn.Identity(), []), "at least one scale"),
        (lambda: MultiScale(nn.Identity(), [1, -1]), "scale must be a finite number > 0"),
        (lambda: MultiScale(nn.Identity(), [1], UNKNOWN), "how is one of mean, select"),
        (lambda: draw_scales([1], 0, low=0), "low must be a finite number > 0"),
        (lambda: draw_scales([1], 0, low=2, high=1), "high must be a finite number >= low, which is 2"),
        (lambda: zoom(torch.zeros(1, 1, 4, 4), torch.ones(1), UNKNOWN), "fill is one of zeros, reflect"),
    ],
)
def test_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
