"""Predictions are those of the network on each image alone, whole, whatever the batches and windows."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pictures import noise, save_picture
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import scalespaces
from scalespaces.data._pixels import read_pixels
from scalespaces.models import Card
from scalespaces.train import _predict as predict
from scalespaces.train._predict import describe_answers, predict_classes, predict_mask, predict_rows, read_channels

image_module = pytest.importorskip("PIL.Image")


class Whole(nn.Module):
    """Answers for images as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        return 20 * self.conv(images).relu().mean((2, 3))


class Coarse(nn.Module):
    """Answers on blocks of 8 x 8 pixels, each of which sees its neighbors."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        blocks = self.conv(F.avg_pool2d(images, 8, ceil_mode=True, count_include_pad=False))
        pixels = 9 * blocks.repeat_interleave(8, -1).repeat_interleave(8, -2)
        return pixels[..., : images.shape[2], : images.shape[3]]


class Nonlocal(nn.Module):
    """Every pixel's answer depends on all that is seen at once."""

    def __init__(self, channels: int = 2) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, channels))

    def forward(self, images: Tensor) -> Tensor:
        return torch.einsum("kc,bchw->bkhw", self.weight, images + 3 * images[..., :1, :1])


def local(radius: int = 2, classes: int = 3) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(2, 4, 3, padding=1), nn.Tanh()]
    for _ in range(radius - 2):
        layers += [nn.Conv2d(4, 4, 3, padding=1), nn.Tanh()]
    return nn.Sequential(*layers, nn.Conv2d(4, classes, 3, padding=1)).double().eval()


@given(st.integers(3, 60), st.integers(3, 60), st.integers(16, 40), st.integers(2, 3), st.integers(1, 5))
def test_windows_make_no_difference_to_what_sees_less_than_they_overlap(height, width, tile, radius, batch):
    model, image = local(radius), torch.randn(2, height, width, dtype=torch.float64)
    tiled = predict_mask(model, image, tile=tile, overlap=4 * radius, batch=batch)
    assert_close(tiled, model(image[None])[0].softmax(0))
    assert_close(tiled.sum(0), torch.ones(height, width).double())


@given(st.integers(100, 400), st.integers(100, 400))
def test_windows_start_on_the_grids_of_coarse_networks(height, width):
    model, image = Coarse().eval(), torch.randn(3, height, width)  # which sees 23 pixels of a window that ends anywhere
    assert_close(predict_mask(model, image, tile=150, overlap=96), model(image[None])[0].softmax(0))


def blend_by_loops(model: nn.Module, image: Tensor, tile: int, overlap: int) -> Tensor:
    """The mean of the windows' answers at each pixel, with weights that fall off linearly from their centers."""
    y, x = (predict.Axis(n, tile, overlap) for n in image.shape[1:])
    total, weights = torch.zeros(3, *image.shape[1:]).double(), torch.zeros(image.shape[1:]).double()
    for top, first in zip(y.places, y.starts, strict=True):
        for left, second in zip(x.places, x.starts, strict=True):
            seen = image[:, first : first + y.window, second : second + x.window]
            answers = model(seen[None])[0].softmax(0)
            for i in range(top, top + y.trusted):
                for j in range(left, left + x.trusted):
                    sides = ((i - top, y.trusted), (j - left, x.trusted))
                    weight = math.prod(1 - abs(p - (n - 1) / 2) / ((n + 1) / 2) for p, n in sides)
                    total[:, i, j] += weight * answers[:, i - first, j - second]
                    weights[i, j] += weight
    return total / weights


@pytest.mark.parametrize(("size", "tile", "overlap"), [((30, 17), 11, 5), ((9, 40), 12, 11), ((25, 25), 10, 0)])
def test_windows_are_blended_as_loops_blend_them(size, tile, overlap):
    model, image = Nonlocal().double().eval(), torch.rand(2, *size, dtype=torch.float64)
    with torch.no_grad():
        expected = blend_by_loops(model, image, tile, overlap)
    found = predict_mask(model, image, tile=tile, overlap=overlap, batch=2)
    assert_close(found, expected)
    assert_close(found.sum(0), torch.ones(size).double())
    assert (found - model(image[None])[0].softmax(0)).abs().max() > 0.01  # such a network sees the windows


def test_images_are_seen_whole_or_in_windows(monkeypatch):
    monkeypatch.setattr(predict, "WHOLE", 48 * 40)
    monkeypatch.setattr(predict, "TILE", 32)
    seen: list[tuple[int, ...]] = []
    model = nn.Conv2d(1, 2, 1).eval()
    model.register_forward_pre_hook(lambda _, inputs: seen.append(tuple(inputs[0].shape)))
    predict_mask(model, torch.rand(1, 48, 40))
    assert seen == [(1, 1, 48, 40)]
    seen.clear()
    predict_mask(model, torch.rand(1, 48, 41))
    assert len(seen) > 1
    assert all(b * h * w <= 48 * 40 and max(h, w) < 36 for b, _, h, w in seen)
    seen.clear()
    predict_mask(model, torch.rand(1, 48, 41), tile=(48, 41))
    predict_mask(model, torch.rand(1, 32, 64), tile=16, overlap=0, batch=3)
    assert set(seen) == {(1, 1, 48, 41), (3, 1, 16, 16), (1, 1, 16, 16)}


@pytest.mark.parametrize("kind", ["color", "gray", "deep"])
@pytest.mark.parametrize("tile", [24, 64])
def test_parts_of_a_file_are_normalized_when_they_are_seen(kind, tile, tmp_path):
    """The bits are those of the image that is normalized as a whole, which takes four times the memory."""
    pixels = noise(40, 56) if kind == "color" else noise(40, 56)[..., 0]
    pixels = pixels.astype(np.uint16) * 257 if kind == "deep" else pixels
    model: Any = Coarse().eval()
    file = save_picture(tmp_path / "picture.png", pixels)
    model.card = Card(mean=[0.4, 0.5, 0.6], std=[0.2, 0.3, 0.4])
    raw, whole = read_channels(file, 3, raw=True), read_channels(file, 3)
    assert raw.dtype == (torch.float32 if kind == "deep" else torch.uint8)
    rows = predict_rows(model, raw, tile=tile, see=partial(predict.to_input, model))
    expected = predict_mask(model, predict.to_input(model, whole), tile=tile)
    assert_close(torch.cat(list(rows), 1), expected, rtol=0, atol=0)


def test_rows_come_from_the_top_a_few_at_a_time():
    model, image = local(), torch.randn(2, 100, 30).double()
    rows = list(predict_rows(model, image, tile=24, overlap=8))
    assert len(rows) > 4
    assert max(row.shape[1] for row in rows) <= 24
    assert_close(torch.cat(rows, 1), predict_mask(model, image))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tile": 8, "overlap": 8}, "overlap must be less than the side of the windows, 8, got 8"),
        ({"tile": 0}, "tile is one number of pixels"),
        ({"tile": 8, "batch": 0}, "batch must be"),
    ],
)
def test_wrong_windows(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        predict_mask(local(), torch.rand(2, 20, 20).double(), **options)


def test_few_large_images_are_seen_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(predict, "WHOLE", 250)
    model, batches = Whole().eval(), []
    model.register_forward_pre_hook(lambda _, inputs: batches.append(len(inputs[0])))
    files = [save_picture(tmp_path / f"{i}.png", noise(10, 10, i)) for i in range(7)]
    assert len(list(predict_classes(model, files))) == 7
    assert batches == [3, 3, 1]


@pytest.mark.parametrize("suffix", ["png", "jpg", "tif", "bmp"])
@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "CMYK", "1"])
def test_every_picture_is_grey_or_color(mode, suffix, tmp_path):
    picture = image_module.fromarray(noise(7, 9)).convert(mode)
    try:
        picture.save(tmp_path / f"a.{suffix}")
    except (OSError, ValueError):
        pytest.skip(f"{suffix} holds no {mode}")
    with image_module.open(tmp_path / f"a.{suffix}") as read:
        colors = torch.from_numpy(np.array(read.convert("RGB"))).permute(2, 0, 1)
    assert_close(read_channels(tmp_path / f"a.{suffix}", 3), colors.float() / 255)
    gray = read_channels(tmp_path / f"a.{suffix}", 1)
    assert gray.shape == (1, 7, 9)
    luma = torch.einsum("c,chw->hw", torch.tensor([0.299, 0.587, 0.114]), colors.float())
    assert (255 * gray[0] - luma).abs().max() < 0.51
    assert_close(255 * gray, (255 * gray).round())


def test_sixteen_bits_are_read_whole(tmp_path):
    deep = np.arange(0, 65536, 1311, dtype=np.uint16).reshape(5, 10)
    for channels, suffix in ((1, "png"), (3, "png"), (1, "tif"), (3, "tif")):
        expected = torch.from_numpy(deep / 65535).float().expand(channels, 5, 10)
        assert_close(read_channels(save_picture(tmp_path / f"a.{suffix}", deep), channels), expected)


def test_images_are_brought_to_the_networks_channels_and_precision():
    assert predict.channels_of(scalespaces.convert(nn.Sequential(nn.Conv2d(1, 2, 3)), {"num_levels": 2})) == 1
    model: Any = nn.Identity()
    assert predict.channels_of(model) == 3
    model.card = Card(mean=[0.5], std=[0.5])
    assert predict.channels_of(model) == 1
    model = nn.Conv2d(1, 2, 1).double()
    model.card = Card(mean=[0.5], std=[0.25])
    assert_close(predict.to_input(model, torch.ones(1, 2, 2)), torch.full((1, 2, 2), 2.0).double())
    half = nn.Conv2d(3, 2, 1).to(torch.bfloat16).eval()
    assert predict_mask(half, predict.to_input(half, torch.rand(3, 4, 4))).dtype == torch.float32


def test_answers_are_described():
    models: Any = scalespaces.models
    named = models.create_model("s_densenet", lift={"num_levels": 3}).eval()
    named.card = Card(["cat", "dog"])
    assert describe_answers(named) == (("cat", "dog"), False)
    assert describe_answers(models.create_model("s_resnet").eval()) == (tuple(map(str, range(19))), True)
    deep = nn.Sequential(*(nn.Conv2d(3, 3, 7, stride=2) for _ in range(4)), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert describe_answers(deep.eval()) == (("0", "1", "2"), False)  # smaller images than 128 do not do
    named.card = Card(["one"])
    for model, message in (
        (named, "card has 1 classes, but its answers 2"),
        (nn.Conv2d(3, 3, 3).eval(), r"networks answer with logits .*, got \(1, 3, 1022, 1022\)"),
        (nn.LSTM(32, 3).eval(), "the network does not answer for 1024 x 1024 pixels"),
        (nn.Conv2d(3, 1, 1).eval(), "two classes or more, but the network has 1"),
        (nn.Conv2d(3, 2, 1), r"call model.eval\(\) first"),
    ):
        with pytest.raises(ValueError, match=message):
            describe_answers(model)


def test_answers_that_are_not_finite_and_networks_of_the_other_kind_are_refused(tmp_path):
    file, model = save_picture(tmp_path / "a.png", noise(8, 8)), Whole().eval()
    nn.init.constant_(model.conv.weight, torch.nan)
    with pytest.raises(ValueError, match=r"a.png', 8 x 8 pixels: its scores are not finite"):
        list(predict_classes(model, [file]))
    skipped: dict[str, str] = {}
    assert list(predict_classes(model, [file], skipped=skipped)) == []
    assert list(skipped) == [str(file)]
    with pytest.raises(ValueError, match="answers for every pixel; use predict_mask"):
        list(predict_classes(nn.Conv2d(3, 2, 1).eval(), [file]))
    with pytest.raises(ValueError, match="answers for images as a whole; use predict_classes"):
        predict_mask(Whole().eval(), torch.rand(3, 8, 8))
    with pytest.raises(ValueError, match=r"a.png', 8 x 8 pixels: .*call model.eval\(\) first"):
        list(predict_classes(Whole(), [file]))


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_brought_to_a_size(tmp_path, channels):
    file = save_picture(tmp_path / "image.png", noise(30, 40))
    expected = read_pixels(file, size=(12, 16))
    gray = image_module.fromarray(expected.permute(1, 2, 0).numpy()).convert("L")
    expected = expected / 255 if channels == 3 else torch.from_numpy(np.array(gray))[None] / 255
    assert_close(read_channels(file, channels, (12, 16)), expected, atol=1 / 255, rtol=0)
