"""Whatever is dropped on the page: an image comes out small, upright and in color, or a message that helps."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from scalespaces.app._images import MOST_BYTES, SIDE, example_for, first_picture, read_picture


def colors(height: int = 6, width: int = 9) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def written(path: Path, picture: Image.Image, **options) -> Path:
    picture.save(path, **options)
    return path


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def pixels(image: torch.Tensor) -> np.ndarray:
    return (image[0].permute(1, 2, 0) * 255).round().byte().numpy()


def test_examples_beside_a_network_are_found(tmp_path):
    assert example_for(tmp_path / "network.safetensors") is None
    (tmp_path / "examples").mkdir()
    for name in ("b.png", "a.png"):
        written(tmp_path / "examples" / name, Image.fromarray(colors()))
    found = example_for(tmp_path / "network.safetensors")
    assert found is not None
    assert found.name == "a.png"


def test_pixels_are_those_of_the_file(tmp_path):
    found = read_picture(written(tmp_path / "a.png", Image.fromarray(colors())))
    np.testing.assert_array_equal(pixels(found.image), colors())
    assert (found.name, found.note, found.image.dtype) == ("a.png", "", torch.float32)
    assert read_picture(written(tmp_path / "b.png", Image.new("1", (1, 1), 1))).image.tolist() == [[[[1]]] * 3]
    assert first_picture().image.shape == (1, 3, 512, 512)
    first, second = (Image.new("L", (5, 5), shade) for shade in (10, 200))
    found = read_picture(written(tmp_path / "a.gif", first, save_all=True, append_images=[second]))
    assert pixels(found.image)[0, 0].tolist() == [10, 10, 10], "the first of several frames"


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "CMYK"])
def test_every_mode_becomes_color(tmp_path, mode):
    picture = Image.fromarray(colors(40, 30)).convert(mode)
    found = read_picture(written(tmp_path / "a.tif", picture))
    np.testing.assert_array_equal(pixels(found.image), np.array(picture.convert("RGB")))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_parts_are_white(tmp_path, mode):
    if mode == "P":
        picture, options = Image.new("P", (4, 4), 1), {"transparency": 0}
        picture.putpalette([255, 0, 0, 0, 0, 255])
        picture.putpixel((1, 2), 0)
    else:
        layer, options = Image.new("RGBA", (4, 4), (0, 0, 255, 255)), {}
        layer.putpixel((1, 2), (255, 0, 0, 0))
        picture = layer.convert(mode)
    found = read_picture(written(tmp_path / "a.png", picture, **options))
    assert pixels(found.image)[2, 1].tolist() == [255, 255, 255]
    assert pixels(found.image)[0, 0].tolist() != [255, 255, 255]


@pytest.mark.parametrize(("dtype", "suffix"), [(np.uint16, ".png"), (np.uint16, ".tif"), (np.float32, ".tif")])
def test_more_than_8_bits_keep_their_steps(tmp_path, dtype, suffix):
    values = (np.arange(4096).reshape(64, 64)).astype(dtype)  # 12 bits: dark, if it were divided by 65535
    found = read_picture(written(tmp_path / f"a{suffix}", Image.fromarray(values)))
    torch.testing.assert_close(found.image[0, 1], torch.from_numpy(values.astype(np.float32)) / 4095)


def test_negative_and_missing_values(tmp_path):
    values = np.linspace(-1, 3, 16, dtype=np.float32).reshape(4, 4)
    found = read_picture(written(tmp_path / "a.tif", Image.fromarray(values)))
    assert (float(found.image.min()), float(found.image.max())) == (0, 1)
    values[0, 0] = np.nan
    with pytest.raises(ValueError, match=r"'b\.tif' has pixels that are not finite"):
        read_picture(written(tmp_path / "b.tif", Image.fromarray(values)))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_stand_upright(tmp_path, orientation):
    """What a camera wrote on its side comes out as it was seen."""
    upright = Image.fromarray(colors())
    back = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # Pillow's transposes that exif_transpose undoes
    stored = upright.transpose(Image.Transpose(back[orientation])) if orientation > 1 else upright
    found = read_picture(written(tmp_path / "a.png", stored, exif=turned(orientation)))
    np.testing.assert_array_equal(pixels(found.image), colors())


@pytest.mark.parametrize("file", ["a.png", "a.jpg", "turned.jpg", "huge.jpg"])
def test_large_images_are_reduced(tmp_path, file):
    width, height = (8200, 8200) if file == "huge.jpg" else (3000, 1000)
    picture, exif = Image.new("L", (width, height)), turned(6 if file == "turned.jpg" else 1)
    found = read_picture(written(tmp_path / file, picture, exif=exif))
    width, height = (height, width) if file == "turned.jpg" else (width, height)
    assert max(found.image.shape) == SIDE
    assert found.image.shape[2] / found.image.shape[3] == pytest.approx(height / width, rel=0.01)
    assert found.note == f"reduced from {width} × {height} pixels"


def bomb(path: Path, width: int, height: int) -> Path:
    """A small PNG that says it is huge."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = chunk(b"IDAT", zlib.compress(bytes(10**5)))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + data + chunk(b"IEND", b""))
    return path


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("words.png", b"these are words", "is not an image, or of an unknown kind; PNG, JPEG"),
        ("model.pt", b"\x80\x02}q\x00.", "is not an image, or of an unknown kind"),
        # This would start another program.
        ("a.eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", "is a EPS file; PNG"),
    ],
)
def test_no_image_at_all(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=rf"^'{name}' {message}") as caught:
        read_picture(tmp_path / name)
    assert str(tmp_path) not in str(caught.value)


def test_missing_files_folders_and_files_that_are_too_large(tmp_path):
    for size in (8200, 60000):
        with pytest.raises(ValueError, match=r"^'bomb\.png' has .* pixels.*reduce it$"):
            read_picture(bomb(tmp_path / "bomb.png", size, size))
    for path in (tmp_path / "none.png", tmp_path):
        with pytest.raises(ValueError, match=f"^cannot read '{path.name}': "):
            read_picture(path)
    with (tmp_path / "heavy.png").open("wb") as file:
        file.truncate(MOST_BYTES + 2**20)
    with pytest.raises(ValueError, match=r"^'heavy\.png' has 65 MiB, but images may have at most 64; reduce it"):
        read_picture(tmp_path / "heavy.png")


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".webp", ".gif", ".tif", ".bmp"])
@given(part=st.floats(0, 0.95), flips=st.lists(st.integers(0, 10**6), max_size=8))
def test_broken_files_are_read_or_refused(tmp_path_factory, suffix, part, flips):
    """Cut off or with wrong bytes: an image, or a ValueError that names the file and not its folder."""
    folder = tmp_path_factory.mktemp("broken")
    file = written(folder / f"whole{suffix}", Image.fromarray(colors(32, 32)))
    data = bytearray(file.read_bytes())
    data = data[: int(part * len(data))] if not flips else data
    for place in flips:
        data[place % len(data)] ^= 0xFF
    (folder / f"broken{suffix}").write_bytes(data)
    image, message = torch.zeros(1, 3, 1, 1), ""
    try:
        image = read_picture(folder / f"broken{suffix}").image
    except ValueError as error:
        message = str(error)
    assert not message or f"'broken{suffix}'" in message
    assert str(folder) not in message
    assert image.isfinite().all()
    assert 1 <= max(image.shape[2:]) <= SIDE
