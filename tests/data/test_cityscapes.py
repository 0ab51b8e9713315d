"""Cityscapes' tree: labelIds become the 19 classes, and nothing becomes a wrong one."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import city_file, save_picture, write_cityscapes

from scalespaces.data import Cityscapes
from scalespaces.data._folders import train_ids
from scalespaces.data._pixels import read_mask


@pytest.fixture
def tree(tmp_path) -> Path:
    write_cityscapes(tmp_path, {"train": 3, "val": 2, "test": 1}, size=(32, 64))
    return tmp_path


def annotation(tree: Path, i: int) -> Path:
    return city_file(tree, "gtFine", "train", i)


def test_ids_become_classes():
    # The numbers that the benchmark evaluates, in the order of its classes.
    evaluated = [7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33]
    expected = [evaluated.index(i) if i in evaluated else 255 for i in range(34)]
    assert train_ids().tolist() == expected


def test_scenes_are_read_with_their_own_annotation(tree):
    dataset = Cityscapes(tree)
    assert len(dataset) == 3
    for i in range(3):
        image, mask = dataset[i]
        assert (image.shape, image.dtype, mask.dtype) == ((3, 32, 64), torch.uint8, torch.int64)
        assert torch.equal(mask, train_ids()[read_mask(annotation(tree, i))])
    assert len(Cityscapes(tree, "val")) == 2
    assert (Cityscapes(tree, "test")[0][1] == 255).all()


def test_problems_are_named_or_counted(tree):
    ids = read_mask(annotation(tree, 0)).numpy().astype(np.uint8)
    ids[3, 5] = 34
    save_picture(annotation(tree, 0), ids)
    with pytest.raises(ValueError, match=r"000000_000019_gtFine_labelIds.png' must be .* 33, got 34 at \(3, 5\)"):
        Cityscapes(tree)[0]
    save_picture(annotation(tree, 1), np.stack([ids] * 3, -1))
    with pytest.raises(ValueError, match=r"000001_000019_gtFine_labelIds.png' is not a mask: it has mode RGB"):
        Cityscapes(tree)[1]
    annotation(tree, 2).unlink()
    with pytest.raises(ValueError, match=r"000002_000019_leftImg8bit.png' has no annotation: no file .*labelIds.png'"):
        Cityscapes(tree)
    with pytest.raises(ValueError, match=r"no images in"), pytest.warns(UserWarning, match=r"left out 3 of 3"):
        Cityscapes(tree, on_error="skip")
    write_cityscapes(tree, {"train": 3}, size=(32, 64))
    annotation(tree, 1).unlink()
    with pytest.warns(UserWarning, match=r"left out 1 of 3"):
        dataset = Cityscapes(tree, on_error="skip")
    assert torch.equal(dataset[1][1], train_ids()[read_mask(annotation(tree, 2))])
    with pytest.raises(ValueError, match=r"split is one of train, val, test, got 'valid'"):
        Cityscapes(tree, "valid")
    with pytest.raises(NotADirectoryError, match=r"no folder"):
        Cityscapes(tree / "gtFine")
    save_picture(tree / "leftImg8bit/train/town/other.png")
    with pytest.raises(ValueError, match=r"other.png' is not called \*_leftImg8bit.png"):
        Cityscapes(tree)


@pytest.mark.parametrize(("number", "dtype"), [(-1, np.int32), (-40, np.int32), (255, np.uint8)])
def test_numbers_below_0_do_not_become_classes(tree, number, dtype):
    ids = read_mask(annotation(tree, 0)).numpy().astype(dtype)
    ids[3, 5] = number
    stream = io.BytesIO()
    pytest.importorskip("PIL.Image").fromarray(ids).save(stream, "TIFF")
    annotation(tree, 0).write_bytes(stream.getvalue())
    with pytest.raises(ValueError, match=rf"labelIds.png' must be from 0 to 33, got {number} at \(3, 5\)"):
        Cityscapes(tree)[0]
