"""Images and masks in files: pixels are those of the file, and files that cannot be read are named."""

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import VALUES, save_picture, truncate
from torch.testing import assert_close

from scalespaces.data import photograph, read_image, to_unit
from scalespaces.data._pixels import FORMATS, SUFFIXES, read_mask, read_pixels

image_module = pytest.importorskip("PIL.Image")
READERS = [read_image, read_pixels, read_mask]


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


@pytest.mark.parametrize("read", READERS)
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


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"


@pytest.mark.parametrize("read", READERS)
def test_formats_that_start_programs_are_refused(read, tmp_path, monkeypatch):
    eps = pytest.importorskip("PIL.EpsImagePlugin")
    monkeypatch.setattr(eps, "Ghostscript", lambda *_, **__: pytest.fail("Ghostscript was started"))
    (tmp_path / "a.png").write_bytes(EPS)
    with pytest.raises(ValueError, match=r"a.png' is not an image .* none of PNG, JPEG, TIFF, BMP, WEBP, PPM"):
        read(tmp_path / "a.png")


def test_every_suffix_has_its_format():
    assert {image_module.registered_extensions()[suffix] for suffix in SUFFIXES} == set(FORMATS)


@pytest.mark.parametrize("read", READERS)
def test_pipes_are_refused_at_once(read, tmp_path):
    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"a.png' is not a regular file"):
        read(tmp_path / "a.png")


def png(width: int, height: int, rows: int) -> bytes:
    """A gray PNG of zeros that has so many rows, whatever it declares."""
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))]
    chunks += [(b"IDAT", zlib.compress(bytes((width + 1) * rows))), (b"IEND", b"")]
    pieces = [struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(pieces)


def tiff(width: int, height: int, data: bytes, **tags: int) -> bytes:
    """A gray TIFF of 8 bits with one strip, whatever it declares; more tags by number, as in ``t278=5``."""
    strip = {"t258": 8, "t259": 1, "t262": 1, "t273": 8, "t277": 1, "t279": len(data)}
    entries = sorted((int(tag[1:]), n) for tag, n in ({"t256": width, "t257": height} | strip | tags).items())
    directory = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", tag, 4, 1, n) for tag, n in entries)
    return b"II*\0" + struct.pack("<I", 8 + len(data)) + data + directory + bytes(4)


@pytest.mark.parametrize("read", READERS)
def test_sizes_that_files_declare_are_not_believed(read, tmp_path, monkeypatch):
    new = image_module.core.new
    monkeypatch.setattr(image_module.core, "new", lambda mode, size: new(mode, size) if max(size) < 99 else 1 / 0)
    tile = {"t259": 8, "t322": 30_000, "t323": 30_000, "t324": 8, "t325": 9}
    huge = {
        "a.png": png(13_000, 13_000, 1),
        "b.png": png(30_000, 30_000, 1),
        "c.tif": tiff(13_000, 13_000, b"0"),
        "d.tif": tiff(16, 16, zlib.compress(bytes(256)), **tile),
    }
    for name, data in huge.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=rf"{name}' .*SCALESPACES_MAX_PIXELS"):
            read(tmp_path / name)
    (tmp_path / "e.tif").write_bytes(tiff(9_000, 9_000, b"0"))
    with pytest.raises(ValueError, match=r"e.tif' is cut off .* need 1 .* and 81,000,000 bytes, it has 1 and"):
        read(tmp_path / "e.tif")


def test_limits_come_from_the_environment(tmp_path, monkeypatch):
    file = save_picture(tmp_path / "a.png")
    monkeypatch.setenv("SCALESPACES_MAX_PIXELS", "29")
    with pytest.raises(ValueError, match=r"a.png' declares 30 pixels, more than 29; .* set SCALESPACES_MAX_PIXELS"):
        read_pixels(file)
    monkeypatch.setattr(image_module, "MAX_IMAGE_PIXELS", 10)  # Pillow's own limit, which follows
    monkeypatch.setenv("SCALESPACES_MAX_PIXELS", "30")
    assert read_pixels(file).shape == (3, 6, 5)
    monkeypatch.setenv("SCALESPACES_MAX_PIXELS", "many")
    with pytest.raises(
        ValueError, match=r"SCALESPACES_MAX_PIXELS in the environment must be a whole number, got 'many'"
    ):
        read_pixels(file)


@pytest.mark.parametrize("read", READERS)
def test_rows_that_are_missing_are_not_black(read, tmp_path):
    (tmp_path / "whole.tif").write_bytes(tiff(4, 6, bytes(24), t278=3))
    with pytest.raises(ValueError, match=r"whole.tif' is cut off .* need 2 strips or tiles .* it has 1 and"):
        read(tmp_path / "whole.tif")
    (tmp_path / "whole.tif").write_bytes(tiff(4, 6, bytes(24), t278=6))
    assert read(tmp_path / "whole.tif").shape[-2:] == (6, 4)


def declare_rows(file: Path, rows: int) -> Path:
    """Let the header of a PNG or JPEG declare another number of rows."""
    data = bytearray(file.read_bytes())
    if file.suffix == ".png":
        data[20:24] = rows.to_bytes(4)
        data[29:33] = zlib.crc32(data[12:29]).to_bytes(4)
    else:
        start = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
        data[start + 5 : start + 7] = rows.to_bytes(2)
    file.write_bytes(data)
    return file


ENDINGS = {"a.png": {}, "a.jpg": {}, "progressive.jpg": {"progressive": True}, "sampled.jpg": {"subsampling": 0}}


@pytest.mark.parametrize("shape", [(16, 12, 3), (33, 200, 3), (64, 70), (16, 300, 3)])
@pytest.mark.parametrize("name", ENDINGS)
def test_images_with_fewer_rows_than_they_declare_are_refused(name, shape, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    for values in (pixels, np.zeros_like(pixels), np.full_like(pixels, 128)):
        file = save_picture(tmp_path / name, values, **ENDINGS[name])
        assert read_pixels(file).shape[1] == shape[0]
        with pytest.raises(ValueError, match="is cut off or damaged: it does not hold the"):
            read_pixels(declare_rows(file, shape[0] + 40))


def test_a_small_png_that_declares_many_rows_is_refused_before_it_is_decoded(tmp_path):
    file = declare_rows(save_picture(tmp_path / "a.png"), 4_000_000)
    with pytest.raises(ValueError, match="bytes cannot hold 5 x 4000000 pixels"):
        read_mask(file)


def test_a_png_whose_data_never_end_is_refused(tmp_path):
    """Its rows are there, but nothing says that they are right."""
    file = save_picture(tmp_path / "a.png", np.zeros((4, 4), np.uint8))
    pixels = zlib.compress(bytes(40))[:-4]
    data = bytearray(file.read_bytes())
    start = data.index(b"IDAT") - 4
    checksum = zlib.crc32(b"IDAT" + pixels).to_bytes(4)
    end = bytes(data[data.index(b"IEND") - 4 :])
    file.write_bytes(bytes(data[:start]) + len(pixels).to_bytes(4) + b"IDAT" + pixels + checksum + end)
    with pytest.raises(ValueError, match=r"a\.png' is cut off or damaged"):
        read_mask(file)


@pytest.mark.parametrize("compression", [None, "tiff_lzw", "tiff_adobe_deflate", "packbits"])
def test_a_tiff_that_does_not_say_its_bits_is_refused(compression, tmp_path):
    """Its pixels would be read as if they had one bit: classes 0 and 1 that the file does not hold."""
    file = save_picture(tmp_path / "a.tif", np.full((4, 4), 2, np.uint8), compression=compression)
    data = file.read_bytes()
    assert data.count(struct.pack("<HHI", 258, 3, 1)) == 1
    file.write_bytes(data.replace(struct.pack("<HHI", 258, 3, 1), struct.pack("<HHI", 65000, 3, 1)))
    for read in READERS:
        with pytest.raises(ValueError, match=r"a\.tif' does not say how many bits its pixels have"):
            read(file)


def test_a_tiff_that_holds_more_than_its_bits_is_refused(tmp_path):
    """Damaged so that it declares one bit per pixel, it would be read as classes 0 and 1."""
    file = save_picture(tmp_path / "a.tif", np.full((12, 16), 2, np.uint8))
    data, said = file.read_bytes(), struct.pack("<HHIH", 258, 3, 1, 8)
    assert data.count(said) == 1
    file.write_bytes(data.replace(said, struct.pack("<HHIH", 258, 3, 1, 1)))
    for read in READERS:
        with pytest.raises(ValueError, match=r"how many bits its pixels have \(tag 258\), or too few"):
            read(file)


@pytest.mark.parametrize("lost", [[258, 279], [279]])
def test_a_tiff_that_does_not_say_how_many_bytes_it_holds_is_refused(lost, tmp_path):
    """Nothing is left to compare its bits with, and bytes that are no pixels would be read as classes."""
    data = tiff(12, 16, np.full((12, 16), 2, np.uint8).tobytes())
    for tag in lost:
        assert data.count(struct.pack("<HHI", tag, 4, 1)) == 1
        data = data.replace(struct.pack("<HHI", tag, 4, 1), struct.pack("<HHI", 65000, 4, 1))
    (tmp_path / "a.tif").write_bytes(data)
    for read in READERS:
        with pytest.raises(ValueError, match=r"a\.tif' is cut off or damaged: its pixels need 1 strips"):
            read(tmp_path / "a.tif")


def test_a_tiff_that_holds_less_than_its_bits_is_refused(tmp_path):
    """Damaged so that it declares 16 bits per pixel, it would be read on into bytes that are no pixels."""
    (tmp_path / "a.tif").write_bytes(tiff(12, 16, bytes(192), t258=16) + bytes(400))
    for read in READERS:
        with pytest.raises(ValueError, match="1 strips or tiles and 384 bytes, it has 1 and 192"):
            read(tmp_path / "a.tif")


@pytest.mark.parametrize("compression", [None, "tiff_lzw", "group3", "group4"])
def test_images_of_one_bit_are_read(compression, tmp_path):
    bits = np.arange(320).reshape(16, 20) % 3 == 0
    file = save_picture(tmp_path / "a.tif", bits, compression=compression)
    np.testing.assert_array_equal(read_mask(file), bits)
