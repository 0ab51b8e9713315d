"""Windows of slides are what Pillow reads, and damaged files are refused with one line."""

import struct
from typing import Any

import numpy as np
import pytest
from pictures import noise, save_picture
from slides import write_slide, write_sparse
from torch.testing import assert_close

from scalespaces.data._slides import Slide, is_slide
from scalespaces.train._predict import read_channels

tifffile = pytest.importorskip("tifffile")
pytest.importorskip("imagecodecs")


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kind", ["rgb", "gray", "16 bits", "float", "inverted", "transparent", "jpeg", "pyramid"])
def test_a_window_is_that_of_the_whole_image(kind, channels, tmp_path):
    pixels = np.kron(noise(9, 11), np.ones((20, 20, 1), np.uint8))[:170, :203]
    options: Any = {"inverted": {"photometric": "miniswhite"}, "jpeg": {"compression": "jpeg"}}.get(kind, {})
    pixels = {
        "gray": pixels[..., 0],
        "inverted": pixels[..., 0],
        "16 bits": pixels[..., 0].astype(np.uint16) * 211,
        "float": pixels[..., 0].astype(np.float32) / 99,
        "transparent": np.dstack([pixels, pixels[..., 0]]),
    }.get(kind, pixels)
    if kind == "transparent":
        options = {"extrasamples": ["unassalpha"]}
    file = write_slide(tmp_path / "a.tif", pixels, **options)
    if kind == "pyramid":
        write_slide(tmp_path / "a.tif", np.ascontiguousarray(pixels[::2, ::2]), append=True)
    whole = read_channels(file, channels)
    with Slide(file) as slide:
        assert (slide.height, slide.width) == (170, 203)
        for top, left, height, width in ((0, 0, 170, 203), (63, 64, 65, 64), (130, 100, 40, 103), (5, 7, 1, 1)):
            window = slide.read(top, left, height, width, channels)
            expected = whole[:, top : top + height, left : left + width]
            # JPEG decoders may differ in the last bit.
            assert_close(window, expected, rtol=0, atol=3 / 255 if kind == "jpeg" else 0)


def test_tiles_that_are_left_out_are_empty_and_zero(tmp_path):
    with Slide(write_sparse(tmp_path / "a.tif", 300, 64, {6})) as slide:  # second row, second column
        assert not slide.is_empty(64, 64, 64, 64)
        assert slide.is_empty(128, 64, 172, 236)
        assert not slide.is_empty(127, 64, 64, 64)
        window = slide.read(100, 100, 60, 60)
        assert window[:, :28, :28].any()
        assert not window[:, 28:].any()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"resolution": (40000, 20000), "resolutionunit": "CENTIMETER"}, (0.25, 0.5)),
        ({"resolution": (25400, 25400), "resolutionunit": "INCH"}, (1.0, 1.0)),
        ({"description": "Aperio Image |AppMag = 20|MPP = 0.4990|Left = 3"}, (0.499, 0.499)),
        ({"description": '<OME><Pixels PhysicalSizeX="0.5" PhysicalSizeY="250" PhysicalSizeXUnit="nm"/></OME>'}, None),
        ({}, None),
    ],
)
def test_the_size_of_pixels(options, expected, tmp_path):
    if expected is None and options:
        expected = (0.0005, 0.25)
    with Slide(write_slide(tmp_path / "a.tif", noise(70, 70), **options)) as slide:
        assert slide.pixel_size == (expected if expected is None else pytest.approx(expected))


def test_what_is_a_slide(tmp_path, monkeypatch):
    tiled, plain = write_slide(tmp_path / "a.tif", noise(70, 70)), save_picture(tmp_path / "b.tif", noise(70, 70))
    big = write_slide(tmp_path / "c.tif", noise(70, 70), bigtiff=True, byteorder=">")
    (tmp_path / "d.svs").touch()
    (tmp_path / "e.tif").write_bytes(b"II*\0\xff\xff\xff\xff")
    assert not any(is_slide(file) for file in (tiled, plain, big, tmp_path / "e.tif"))
    monkeypatch.setenv("SCALESPACES_MAX_PIXELS", "4899")
    assert [is_slide(file) for file in sorted(tmp_path.iterdir())] == [True, False, True, True, False]


def test_what_cannot_be_read_is_one_line(tmp_path):
    def refuses(file, match):
        with pytest.raises(ValueError, match=match) as error:
            Slide(file)
        assert str(file) in str(error.value)

    refuses(save_picture(tmp_path / "strips.tif", noise(70, 70)), "is not tiled")
    refuses(save_picture(tmp_path / "png.tif", noise(70, 70), format="PNG"), "is not a tiled TIFF")
    refuses(
        write_slide(tmp_path / "stack.tif", np.stack([noise(70, 70)] * 3), photometric="rgb"),
        "3 images of the same size",
    )
    refuses(write_slide(tmp_path / "double.tif", np.zeros((70, 70))), "float64; convert it")
    refuses(
        write_slide(
            tmp_path / "palette.tif",
            noise(70, 70)[..., 0],
            photometric="palette",
            colormap=np.zeros((3, 256), np.uint16),
        ),
        "convert it",
    )
    whole = write_slide(tmp_path / "whole.tif", noise(70, 70))
    with tifffile.TiffFile(whole) as file:
        tag = file.pages[0].tags[256]
        offset = tag.valueoffset
    data = bytearray(whole.read_bytes())
    data[offset : offset + 4] = struct.pack(
        "<I" if tag.dtype == 4 else "<HH", *([2**31] if tag.dtype == 4 else [65535, 0])
    )
    whole.write_bytes(data)
    refuses(whole, "is cut off: its pixels need .* tiles, it has 4")
    cut = write_slide(tmp_path / "cut.tif", noise(200, 200), compression=None)
    cut.write_bytes(cut.read_bytes()[:-5000])
    refuses(cut, "is cut off: its tiles end at byte")
