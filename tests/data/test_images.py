import numpy as np
import pytest
import torch
from torch.testing import assert_close

from scalespaces.data import photograph, read_image


def test_photograph_is_a_color_image_in_the_unit_interval():
    image = photograph()
    assert image.shape == (1, 3, 512, 512)
    assert image.dtype == torch.float32
    assert image.is_contiguous()
    assert image.min() >= 0
    assert image.max() <= 1
    assert image.std() > 0.1
    red, _, blue = image[0]
    assert (red - blue).abs().mean() > 0.02  # not a gray image in three copies


@pytest.mark.parametrize("size", [1, 2, 255, 256, 511, 512])
def test_size_crops_the_center(size):
    whole, crop = photograph(), photograph(size)
    margin = (512 - size) // 2
    assert crop.shape == (1, 3, size, size)
    assert crop.is_contiguous()
    assert_close(crop, whole[..., margin : margin + size, margin : margin + size], rtol=0, atol=0)


def test_every_call_returns_a_tensor_of_its_own():
    photograph(8).zero_()
    assert photograph(8).abs().sum() > 0


@pytest.mark.parametrize("size", [0, -1, 513])
def test_a_size_that_does_not_fit_is_refused(size):
    with pytest.raises(ValueError, match=f"from 1 to 512, the image's smaller side, got {size}"):
        photograph(size)


def test_files_are_read_as_they_are(tmp_path):
    image_module = pytest.importorskip("PIL.Image")
    values = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)
    image_module.fromarray(values).save(tmp_path / "small.png")
    image = read_image(tmp_path / "small.png")
    assert_close(image[0].permute(1, 2, 0) * 255, torch.from_numpy(values).float())
    assert read_image(tmp_path / "small.png", 3).shape == (1, 3, 3, 3)
    with pytest.raises(ValueError, match=r"cannot read"):
        read_image(tmp_path / "missing.png")
