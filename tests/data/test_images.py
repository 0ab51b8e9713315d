"""Images and masks in files: pixels are those of the file, and files that cannot be read are named."""

import numpy as np
import pytest
import torch
from pictures import VALUES, save_picture, truncate
from torch.testing import assert_close

from scalespaces.data import photograph, read_image, to_unit
from scalespaces.data._pixels import read_mask, read_pixels

image_module = pytest.importorskip("PIL.Image")


def test_photograph_is_a_color_image_in_the_unit_interval_and_size_crops_its_center():
    image = photograph()
    assert (image.shape, image.dtype, image.is_contiguous()) == ((1, 3, 512, 512), torch.float32, True)
    assert 0 <= image.min() < image.max() <= 1
    red, _, blue = image[0]
    assert (red - blue).abs().mean() > 0.02  # not a gray image in three copies
    photograph(8).zero_()
    assert photograph(8).abs().sum() > 0, "every call returns a tensor of its own"
    for size in (1, 2, 255, 512):
        margin, crop = (512 - size) // 2, photograph(size)
        assert torch.equal(crop, image[..., margin : margin + size, margin : margin + size])
        assert crop.is_contiguous()
    with pytest.raises(ValueError, match="from 1 to 512, the image's smaller side, got 513"):
        photograph(513)


@pytest.mark.parametrize("suffix", ["png", "tif", "bmp", "ppm"])
def test_pixels_are_the_files(suffix, tmp_path):
    file = save_picture(tmp_path / f"a.{suffix}")
    pixels = read_pixels(file)
    assert (pixels.dtype, pixels.is_contiguous()) == (torch.uint8, True)
    np.testing.assert_array_equal(pixels.permute(1, 2, 0), VALUES)
    assert_close(read_image(file)[0], to_unit(pixels))
    assert_close(read_image(file, 3)[0], to_unit(pixels[:, 1:4, 1:4]))


def test_palettes_are_looked_up_in_images_and_not_in_masks(tmp_path):
    picture = image_module.fromarray(np.array([[0, 2], [1, 2]], np.uint8)).convert("P")
    picture.putpalette([9, 8, 7, 10, 20, 30, 255, 0, 1])
    picture.save(tmp_path / "palette.png")
    colors = read_pixels(tmp_path / "palette.png")
    assert colors[:, 0].T.tolist() == [[9, 8, 7], [255, 0, 1]]
    assert read_mask(tmp_path / "palette.png").tolist() == [[0, 2], [1, 2]]


@pytest.mark.parametrize("name", ["deep.png", "deep.tif"])
def test_sixteen_bits_are_refused_or_read_whole(name, tmp_path):
    deep = np.array([[0, 257], [40000, 65535]], np.uint16)
    file = save_picture(tmp_path / name, deep)
    with pytest.raises(ValueError, match=rf"{name}' has more than 8 bits per pixel .*deep=True"):
        read_pixels(file)
    assert_close(read_pixels(file, deep=True)[1], torch.from_numpy(deep / 65535).float())
    assert read_mask(file).tolist() == deep.tolist()


def test_other_depths(tmp_path):
    shallow = save_picture(tmp_path / "a.png")
    assert_close(read_pixels(shallow, deep=True), to_unit(read_pixels(shallow)))
    file = save_picture(tmp_path / "float.tif", np.array([[0.25, 1.5]], np.float32))
    assert read_pixels(file, deep=True)[2].tolist() == [[0.25, 1.5]]
    with pytest.raises(ValueError, match=r"wide.tif' has numbers beyond 16 bits"):
        read_pixels(save_picture(tmp_path / "wide.tif", np.array([[0, 70000]], np.int32)), deep=True)
    image_module.fromarray(np.array([[0, 255]], np.uint8)).convert("1").save(tmp_path / "bits.png")
    assert read_mask(tmp_path / "bits.png").tolist() == [[0, 1]]


@pytest.mark.parametrize("read", [read_image, read_pixels, read_mask])
def test_files_that_are_no_images_are_named(read, tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (40, 40), dtype=np.uint8)
    (tmp_path / "text.png").write_text("no image")
    for name in ("short.png", "short.tif"):
        truncate(save_picture(tmp_path / name, noise))
    for name in ("text.png", "short.png", "short.tif"):
        with pytest.raises(ValueError, match=f"{name}' is not an image that Pillow reads"):
            read(tmp_path / name)
    with pytest.raises(ValueError, match=r"cannot read .*absent.png': No such file"):
        read(tmp_path / "absent.png")


def test_to_unit():
    for dtype in (torch.float32, torch.float64):
        unit = torch.linspace(0, 1, 256, dtype=dtype)
        assert_close(to_unit(torch.arange(256, dtype=torch.uint8), dtype), unit)
        assert to_unit(unit) is unit
    with pytest.raises(ValueError, match=r"uint8 or floating point, got torch.int64"):
        to_unit(torch.arange(3))
