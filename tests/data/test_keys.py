"""Random numbers are a function of (seed, epoch, sample): not of the order, the workers or the process."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from pictures import save_picture
from torch.utils.data import DataLoader

from scalespaces.data import ArrayImages, MaskFolders
from scalespaces.data._keys import keyed_generator

keys = st.tuples(*[st.integers(0, 2**40)] * 3)


@pytest.fixture
def scenes(tmp_path) -> MaskFolders:
    """Images whose pixels tell where they are, and masks that agree with them."""
    generator = np.random.default_rng(0)
    for name in "abcdefg":
        ids = generator.integers(0, 200, (20, 30), dtype=np.uint8)
        save_picture(tmp_path / "images" / f"{name}.png", np.stack([ids] * 3, -1))
        save_picture(tmp_path / "masks" / f"{name}.png", ids)
    return MaskFolders(tmp_path / "images", tmp_path / "masks", 200, crop=(9, 12), flip=True, seed=3)


@given(keys, keys)
@example((2**32, 5, 0), (0, 1, 5))
def test_equal_keys_equal_numbers_other_keys_others(a, b):
    draws = [keyed_generator(*key).integers(0, 2**60, 4) for key in (a, a, b)]
    assert np.array_equal(draws[0], draws[1])
    assert np.array_equal(draws[0], draws[2]) == (a == b)


def test_crops_reach_every_place_and_flip_half(scenes):
    scenes.crop = (19, 29)
    whole = MaskFolders(scenes.root, scenes.root.parent / "masks", 200)[0][1]
    cuts = {(top, left): whole[top : top + 19, left : left + 29] for top in (0, 1) for left in (0, 1)}
    seen = []
    for epoch in range(120):
        scenes.set_epoch(epoch)
        image, mask = scenes[0]
        assert torch.equal(image[0].long(), mask)
        for place, cut in cuts.items():
            seen += [(place, flip) for flip in (0, 1) if torch.equal(cut.flip(-1) if flip else cut, mask)]
    assert len(seen) == 120
    assert all(seen.count((place, flip)) > 5 for place in cuts for flip in (0, 1))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_order_workers_and_pickling_do_not_matter(scenes):
    loader, found = DataLoader(scenes, batch_size=None, num_workers=2, persistent_workers=True), []
    for epoch in (2, 7):  # persistent workers see it, too
        scenes.set_epoch(epoch)
        found.append([scenes[i] for i in range(len(scenes))])
        assert torch.equal(scenes[-1][0], found[-1][-1][0])
        backwards = [scenes[i] for i in reversed(range(len(scenes)))][::-1]
        copied = pickle.loads(pickle.dumps(scenes))
        for other in (backwards, [copied[i] for i in range(len(scenes))], list(loader)):
            assert all(all(map(torch.equal, one, same)) for one, same in zip(found[-1], other, strict=True))
    assert not any(torch.equal(one[0], later[0]) for one, later in zip(*found, strict=True))
    with pytest.raises(IndexError):
        scenes[7]
    with pytest.raises(ValueError, match=r"epoch must be at least 0, got -1"):
        scenes.set_epoch(-1)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((2, 4, 4), np.float32), np.zeros(2, np.int64), "images are uint8"),
        (np.zeros((2, 4), np.uint8), np.zeros(2, np.int64), r"\(N, C, H, W\)"),
        (np.zeros((2, 4, 4), np.uint8), np.zeros(3, np.int64), "one label for each of 2 images"),
        (np.zeros((2, 4, 4), np.uint8), np.array([0, 10]), "from 0 to 9, got 10 at 1 and 0 more"),
        (np.zeros((2, 4, 4), np.uint8), np.array([0.5, 0]), "whole numbers"),
    ],
    ids=str,
)
def test_arrays_that_do_not_fit_are_refused(images, labels, message):
    with pytest.raises(ValueError, match=message):
        ArrayImages(images, labels, 10)
