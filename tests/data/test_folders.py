"""Datasets of image files: samples are those of the files, and what is wrong is named or counted."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import flat, save_picture, truncate

from scalespaces.data import ClassFolders, LabeledFolder, MaskFolders


def firsts(dataset: Any) -> list[tuple[int, int]]:
    """The first pixel and the label of each sample."""
    return [(int(image[0, 0, 0]), int(label)) for image, label in dataset]


def test_class_folders(tmp_path):
    for name, value in (("cat", 1), ("dog/deeper", 2), ("ant", 3)):
        for i in range(value):
            save_picture(tmp_path / name / f"{i}.png", flat(10 * value + i))
    for hidden in (".hidden/a.png", "cat/.thumbnail.png"):
        save_picture(tmp_path / hidden)
    (tmp_path / "cat" / "notes.txt").touch()
    dataset = ClassFolders(tmp_path)
    assert dataset.classes == ["ant", "cat", "dog"]
    assert firsts(dataset) == [(30, 0), (31, 0), (32, 0), (10, 1), (20, 2), (21, 2)]
    assert dataset.labels.tolist() == [0, 0, 0, 1, 2, 2]


def test_sizes_are_brought_to_one(tmp_path):
    gradient = np.tile(np.linspace(0, 255, 64).round().astype(np.uint8), (32, 1))
    save_picture(tmp_path / "a" / "wide.png", gradient)
    save_picture(tmp_path / "a" / "tall.png", gradient.T.copy())
    tall, wide = (image for image, _ in ClassFolders(tmp_path, size=(8, 12)))
    assert wide.shape == tall.shape == (3, 8, 12)
    assert wide[0, 4].float().mean() == pytest.approx(127.5, abs=1)  # the center was kept
    with pytest.raises(ValueError, match=r"size is one number of pixels or \(height, width\)"):
        ClassFolders(tmp_path, size=0)


def test_class_folders_with_problems(tmp_path):
    with pytest.raises(ValueError, match=r"no images in"):
        ClassFolders(tmp_path)
    (tmp_path / "empty").mkdir()
    save_picture(tmp_path / "full" / "a.png")
    truncate(save_picture(tmp_path / "full" / "b.png"))
    save_picture(tmp_path / "stray.png")
    with pytest.raises(ValueError, match=r"stray.png' lies outside the class folders and 1 more problem; "):
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


@pytest.fixture
def patches(tmp_path) -> tuple[Path, Path]:
    for i, suffix in enumerate(["tif", "png", "tif"]):
        save_picture(tmp_path / "train" / f"p{i}.{suffix}", flat(50 + i, (96, 96, 3)))
    table = tmp_path / "labels.csv"
    table.write_text("id,label\np2,1\np0,0\np1.png,1\n")
    return tmp_path / "train", table


def test_a_folder_with_a_table(patches):
    assert firsts(LabeledFolder(*patches, num_classes=2)) == [(50, 0), (51, 1), (52, 1)]
    patches[1].write_bytes("\ufeffname,label,id\r\nx,1,p2\r\ny, 0 ,p0\r\nz,1,p1\r\n".encode())  # of a spreadsheet
    assert firsts(LabeledFolder(*patches, num_classes=2)) == [(50, 0), (51, 1), (52, 1)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"id,label\np0,0\np1,1\np2,2\n", r"labels.csv:4' has the label '2' for 'p2'; labels are from 0 to 1"),
        (b"id,label\np0,0\np1,1\np2,1.0\n", "has the label '1.0'"),
        (b"id,label\np0,0\np1,1\n", "p2.tif' has no label in"),
        (b"id,label\np0,0\np1,1\np2,0\np3,1\n", "labels.csv:5' names 'p3', which is not an image"),
        (b"id,label\np0,0\np1,1\np2,0\np2,1\n", "two labels for .*p2.tif': 0 and 1"),
        (b"id,label,label\np0,0,1\np1,1,0\np2,0,1\n", "columns id and label, got .*'label', 'label'.; name each once"),
        (b"id,label\np0,0\np1,1\np2," + b"9" * 5000, "has the label '9999"),
        (b"file,class\np0,0\n", "must have the columns id and label, got"),
        (b"id,label\np0,\xff\n", "labels.csv' is not a CSV file"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_tables_with_problems(patches, text, message):
    patches[1].write_bytes(text)
    with pytest.raises(ValueError, match=message):
        LabeledFolder(*patches, num_classes=2)


def test_tables_that_need_much_memory_are_refused(patches, monkeypatch):
    size = patches[1].stat().st_size
    monkeypatch.setenv("SCALESPACES_MAX_BYTES", str(16 * size - 1))
    with pytest.raises(ValueError, match=rf"labels.csv' needs {16 * size} bytes, more than .*SCALESPACES_MAX_BYTES"):
        LabeledFolder(*patches, num_classes=2)
    monkeypatch.setenv("SCALESPACES_MAX_BYTES", str(16 * size))
    assert len(LabeledFolder(*patches, num_classes=2)) == 3


def test_a_table_that_is_a_pipe_is_refused(patches):
    patches[1].unlink()
    os.mkfifo(patches[1])
    with pytest.raises(ValueError, match=r"labels.csv' is not a regular file"):
        LabeledFolder(*patches, num_classes=2)


def test_skipped_rows_are_counted_and_no_label_moves(patches):
    folder, table = patches
    table.write_text("id,label\np0,0\np1,7\np2,1\nabsent,1\n")
    save_picture(folder / "unlabeled.png", flat(0, (96, 96, 3)))
    with pytest.warns(UserWarning, match=r"left out 3 of 5"):
        dataset = LabeledFolder(folder, table, 2, on_error="skip")
    assert firsts(dataset) == [(50, 0), (52, 1)]
    assert (dataset.labels.tolist(), len(dataset.skipped)) == ([0, 1], 3)


def test_images_may_differ_in_size_but_not_share_a_name(patches):
    save_picture(patches[0] / "p0.tif", flat(0, (96, 95, 3)))
    assert LabeledFolder(*patches, num_classes=2)[0][0].shape == (3, 96, 95)
    save_picture(patches[0] / "p0.png")
    with pytest.raises(ValueError, match=r"p0.png' and .*p0.tif' have the same name"):
        LabeledFolder(*patches, num_classes=2)


def pair(folder: Path, name: str, mask: list[list[int]]) -> None:
    pixels = np.array(mask, np.uint8)
    save_picture(folder / "images" / f"{name}.jpg", flat(0, (*pixels.shape, 3)))
    save_picture(folder / "masks" / f"{name}.png", pixels)


def test_images_with_masks(tmp_path):
    pair(tmp_path, "good", [[0, 1], [2, 255]])
    folders = tmp_path / "images", tmp_path / "masks"
    image, mask = MaskFolders(*folders, 3)[0]
    assert (image.shape, mask.dtype, mask.tolist()) == ((3, 2, 2), torch.int64, [[0, 1], [2, 255]])
    with pytest.raises(ValueError, match=r"good.jpg' is 2 x 2 pixels, smaller than the crop, 2 x 3"):
        MaskFolders(*folders, 3, crop=(3, 2))[0]
    pair(tmp_path, "range", [[0, 1], [3, 255]])
    with pytest.raises(ValueError, match=r"class numbers in .*range.png' must be from 0 to 2, got 3"):
        MaskFolders(*folders, 3)[1]
    pair(tmp_path, "size", [[0, 0, 0], [0, 0, 0]])
    save_picture(tmp_path / "masks" / "size.png", flat(0, (2, 2)))
    with pytest.raises(ValueError, match=r"size.png' is 2 x 2 pixels, its image 3 x 2"):
        MaskFolders(*folders, 3)[2]
    save_picture(tmp_path / "images" / "alone.png")
    with pytest.raises(ValueError, match=r"alone.png' has no mask in .*; to leave such files out, set"):
        MaskFolders(*folders, 3)
    save_picture(tmp_path / "masks" / "widow.png")
    with pytest.warns(UserWarning, match=r"left out 4 of 5"):
        dataset = MaskFolders(*folders, 3, on_error="skip")
    assert [file.name for file, _ in dataset.samples] == ["good.jpg"]
    assert sorted(Path(f).name for f in dataset.skipped) == ["alone.png", "range.jpg", "size.jpg", "widow.png"]
    assert dataset.summary() == "1 of 2 x 2 pixels; classes 0: 25 %, 1: 25 %, 2: 25 %, 255: 25 %"
