"""Every reader of files: what is there is read right, and what is wrong is named."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scalespaces.data import ClassFolders, LabeledFolder, MaskFolders, PCamFolder, to_unit
from scalespaces.data._pixels import read_mask, read_pixels

image_module = pytest.importorskip("PIL.Image")
VALUES = np.arange(6 * 5 * 3, dtype=np.uint8).reshape(6, 5, 3)


def write(path: Path, pixels: np.ndarray = VALUES, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image_module.fromarray(pixels).save(path, **options)
    return path


def truncate(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:-30])
    return path


# --- pixels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["png", "tif", "bmp", "ppm"])
def test_pixels_are_the_files(suffix, tmp_path):
    pixels = read_pixels(write(tmp_path / f"a.{suffix}"))
    assert pixels.dtype == torch.uint8
    assert pixels.is_contiguous()
    np.testing.assert_array_equal(pixels.permute(1, 2, 0), VALUES)


def test_palettes_are_looked_up_in_images_and_not_in_masks(tmp_path):
    picture = image_module.fromarray(np.array([[0, 2], [1, 2]], np.uint8)).convert("P")
    picture.putpalette([9, 8, 7, 10, 20, 30, 255, 0, 1])
    picture.save(tmp_path / "palette.png")
    colors = read_pixels(tmp_path / "palette.png")
    assert colors[:, 0, 0].tolist() == [9, 8, 7]
    assert colors[:, 0, 1].tolist() == [255, 0, 1]
    assert read_mask(tmp_path / "palette.png").tolist() == [[0, 2], [1, 2]]


def test_sixteen_bits_are_refused_or_read_whole(tmp_path):
    deep = np.array([[0, 257], [40000, 65535]], np.uint16)
    write(tmp_path / "deep.png", deep)
    write(tmp_path / "deep.tif", deep)
    for name in ("deep.png", "deep.tif"):
        with pytest.raises(ValueError, match=rf"{name}' has more than 8 bits per pixel .*deep=True"):
            read_pixels(tmp_path / name)
        pixels = read_pixels(tmp_path / name, deep=True)
        torch.testing.assert_close(pixels[1], torch.from_numpy(deep / 65535).float())
        assert read_mask(tmp_path / name).tolist() == deep.tolist()
    shallow = read_pixels(write(tmp_path / "a.png"), deep=True)
    torch.testing.assert_close(shallow, to_unit(read_pixels(tmp_path / "a.png")))
    write(tmp_path / "float.tif", np.array([[0.25, 1.5]], np.float32))
    assert read_pixels(tmp_path / "float.tif", deep=True)[2].tolist() == [[0.25, 1.5]]
    write(tmp_path / "wide.tif", np.array([[0, 70000]], np.int32))
    with pytest.raises(ValueError, match=r"wide.tif' has numbers beyond 16 bits"):
        read_pixels(tmp_path / "wide.tif", deep=True)


def test_masks_are_no_colors(tmp_path):
    with pytest.raises(ValueError, match=r"a.png' is no mask: it has mode RGB"):
        read_mask(write(tmp_path / "a.png"))
    bits = image_module.fromarray(np.array([[0, 255]], np.uint8)).convert("1")
    bits.save(tmp_path / "bits.png")
    assert read_mask(tmp_path / "bits.png").tolist() == [[0, 1]]


@pytest.mark.parametrize("read", [read_pixels, read_mask])
def test_files_that_are_no_images_are_named(read, tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (40, 40), dtype=np.uint8)
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "empty.png").touch()
    truncate(write(tmp_path / "short.png", noise))
    truncate(write(tmp_path / "short.tif", noise))
    for name in ("text.png", "empty.png", "short.png", "short.tif"):
        with pytest.raises(ValueError, match=f"{name}' is not an image that Pillow reads"):
            read(tmp_path / name)
    with pytest.raises(ValueError, match=r"cannot read .*absent.png': No such file"):
        read(tmp_path / "absent.png")


def test_to_unit():
    bytes = torch.arange(256, dtype=torch.uint8)
    torch.testing.assert_close(to_unit(bytes), torch.linspace(0, 1, 256))
    assert to_unit(bytes, torch.float64).dtype == torch.float64
    assert to_unit(torch.tensor([0.5])).tolist() == [0.5]
    with pytest.raises(ValueError, match=r"uint8 or floating point, got torch.int64"):
        to_unit(torch.arange(3))


# --- a folder for each class -----------------------------------------------------------------------------------------


def test_class_folders(tmp_path):
    for name, value in (("cat", 1), ("dog/deeper", 2), ("ant", 3)):
        for i in range(value):
            write(tmp_path / name / f"{i}.png", np.full((4, 4, 3), 10 * value + i, np.uint8))
    write(tmp_path / ".hidden" / "a.png")
    write(tmp_path / "cat" / ".thumbnail.png")
    (tmp_path / "cat" / "notes.txt").touch()
    dataset = ClassFolders(tmp_path)
    assert dataset.classes == ["ant", "cat", "dog"]
    assert [(int(label), int(image[0, 0, 0])) for image, label in dataset] == [
        (0, 30), (0, 31), (0, 32), (1, 10), (2, 20), (2, 21),
    ]  # fmt: skip


def test_sizes_are_brought_to_one(tmp_path):
    gradient = np.tile(np.linspace(0, 255, 64).round().astype(np.uint8), (32, 1))
    write(tmp_path / "a" / "wide.png", gradient)
    write(tmp_path / "a" / "tall.png", gradient.T.copy())
    tall, wide = (image for image, _ in ClassFolders(tmp_path, size=(8, 12)))
    assert wide.shape == tall.shape == (3, 8, 12)
    assert wide[0, 4].float().mean() == pytest.approx(127.5, abs=1)  # the center was kept
    assert (wide[0, 4].diff() > 0).all()
    with pytest.raises(ValueError, match=r"size is one number of pixels or \(height, width\)"):
        ClassFolders(tmp_path, size=0)


def test_class_folders_with_problems(tmp_path):
    with pytest.raises(NotADirectoryError, match=r"no folder"):
        ClassFolders(tmp_path / "absent")
    with pytest.raises(ValueError, match=r"no images in"):
        ClassFolders(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty' is a class without images"):
        ClassFolders(tmp_path)
    write(tmp_path / "full" / "a.png")
    truncate(write(tmp_path / "full" / "b.png"))
    write(tmp_path / "stray.png")
    with pytest.raises(ValueError, match=r"stray.png' lies outside of the folders of the classes and 1 more problems"):
        ClassFolders(tmp_path)
    with pytest.warns(UserWarning, match=r"left out 3 of 4 in"):
        dataset = ClassFolders(tmp_path, on_error="skip")
    assert (dataset.classes, len(dataset), int(dataset[0][1])) == (["full"], 1, 0)
    assert sorted(Path(file).name for file in dataset.skipped) == ["b.png", "empty", "stray.png"]
    shutil.rmtree(tmp_path / "empty")
    (tmp_path / "stray.png").unlink()
    with pytest.raises(ValueError, match=r"b.png' is not an image that Pillow reads"):
        ClassFolders(tmp_path)[1]
    wrong: Any = "ignore"
    with pytest.raises(ValueError, match=r"on_error is one of raise, skip, got 'ignore'"):
        ClassFolders(tmp_path, on_error=wrong)


# --- a table of labels -----------------------------------------------------------------------------------------------


@pytest.fixture
def patches(tmp_path) -> tuple[Path, Path]:
    for i, suffix in enumerate(["tif", "png", "tif"]):
        write(tmp_path / "train" / f"p{i}.{suffix}", np.full((96, 96, 3), 50 + i, np.uint8))
    table = tmp_path / "labels.csv"
    table.write_text("id,label\np2,1\np0,0\np1.png,1\n")
    return tmp_path / "train", table


def test_pcam_as_a_folder(patches):
    dataset = PCamFolder(*patches)
    assert [(int(image[0, 0, 0]), int(label)) for image, label in dataset] == [(50, 0), (51, 1), (52, 1)]


def test_a_table_from_a_spreadsheet(patches):
    patches[1].write_bytes("\ufeffname,label,id\r\nx,1,p2\r\ny, 0 ,p0\r\nz,1,p1\r\n".encode())
    assert [int(label) for _, label in PCamFolder(*patches)] == [0, 1, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,label\np0,0\np1,1\np2,2\n", r"labels.csv:4' has the label '2' for 'p2'; labels are from 0 to 1"),
        ("id,label\np0,0\np1,1\np2,-1\n", "has the label '-1'"),
        ("id,label\np0,0\np1,1\np2,\n", "has the label ''"),
        ("id,label\np0,0\np1,1\np2,1.0\n", "has the label '1.0'"),
        ("id,label\np0,0\np1,1\n", "p2.tif' has no label in"),
        ("id,label\np0,0\np1,1\np2,0\np3,1\n", "labels.csv:5' names 'p3', which is no image"),
        ("id,label\np0,0\np1,1\np2,0\np2,1\n", "two labels for .*p2.tif': 0 and 1"),
        ("file,class\np0,0\n", "must have the columns id and label, got"),
        ("", "must have the columns id and label"),
    ],
    ids=str,
)
def test_tables_with_problems(patches, text, message):
    patches[1].write_text(text)
    with pytest.raises(ValueError, match=message):
        PCamFolder(*patches)


def test_skipped_rows_are_counted_and_no_label_moves(patches):
    folder, table = patches
    table.write_text("id,label\np0,0\np1,7\np2,1\nabsent,1\n")
    write(folder / "unlabeled.png", np.zeros((96, 96, 3), np.uint8))
    with pytest.warns(UserWarning, match=r"left out 3 of 5"):
        dataset = PCamFolder(folder, table, on_error="skip")
    assert [(int(image[0, 0, 0]), int(label)) for image, label in dataset] == [(50, 0), (52, 1)]
    assert len(dataset.skipped) == 3


def test_patches_of_another_size_are_refused(patches):
    write(patches[0] / "p0.tif", np.zeros((96, 95, 3), np.uint8))
    with pytest.raises(ValueError, match=r"p0.tif' is 95 x 96 pixels; patches are 96 x 96"):
        PCamFolder(*patches)[0]
    assert LabeledFolder(*patches, num_classes=2)[0][0].shape == (3, 96, 95)


def test_names_that_differ_in_suffix_only_are_refused(patches):
    write(patches[0] / "p0.png", np.zeros((96, 96, 3), np.uint8))
    with pytest.raises(ValueError, match=r"p0.png' and .*p0.tif' have the same name"):
        PCamFolder(*patches)


# --- images and masks ------------------------------------------------------------------------------------------------


def pair(folder: Path, name: str, mask: np.ndarray) -> None:
    write(folder / "images" / f"{name}.jpg", np.zeros((*mask.shape, 3), np.uint8))
    write(folder / "masks" / f"{name}.png", mask)


def test_masks_beside_images(tmp_path):
    pair(tmp_path, "a", np.array([[0, 1], [2, 255]], np.uint8))
    image, mask = MaskFolders(tmp_path / "images", tmp_path / "masks", 3)[0]
    assert image.shape == (3, 2, 2)
    assert mask.dtype == torch.int64
    assert mask.tolist() == [[0, 1], [2, 255]]


def test_masks_with_problems(tmp_path):
    folders = tmp_path / "images", tmp_path / "masks"
    pair(tmp_path, "good", np.array([[0, 1], [2, 255]], np.uint8))
    pair(tmp_path, "range", np.array([[0, 1], [3, 255]], np.uint8))
    with pytest.raises(ValueError, match=r"class numbers in .*range.png' must be from 0 to 2, got 3"):
        MaskFolders(*folders, 3)[1]
    pair(tmp_path, "size", np.zeros((2, 3), np.uint8))
    write(tmp_path / "masks" / "size.png", np.zeros((2, 2), np.uint8))
    with pytest.raises(ValueError, match=r"size.png' is 2 x 2 pixels, its image 3 x 2"):
        MaskFolders(*folders, 3)[2]
    write(tmp_path / "images" / "alone.png")
    with pytest.raises(ValueError, match=r"alone.png' has no mask in .*; on_error='skip' leaves such files out"):
        MaskFolders(*folders, 3)
    write(tmp_path / "masks" / "widow.png")
    with pytest.warns(UserWarning, match=r"left out 4 of 5"):
        dataset = MaskFolders(*folders, 3, on_error="skip")
    assert [sample[0].name for sample in dataset.samples] == ["good.jpg"]
    assert sorted(Path(f).name for f in dataset.skipped) == ["alone.png", "range.jpg", "size.jpg", "widow.png"]
    assert "4 of" not in dataset.summary()
    assert "255: 25 %" in dataset.summary()


def test_crops_larger_than_an_image_are_refused(tmp_path):
    pair(tmp_path, "a", np.zeros((4, 5), np.uint8))
    with pytest.raises(ValueError, match=r"a.jpg' is 5 x 4 pixels, smaller than the crop, 5 x 6"):
        MaskFolders(tmp_path / "images", tmp_path / "masks", 3, crop=(6, 5))[0]
