"""IDX files, splits and the sets of scales."""

import gzip
import struct
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from scalespaces.data import ArrayImages, digits, mnist_scale, unseen_scales
from scalespaces.data._idx import read_idx, read_idx_images, write_idx, write_sets
from scalespaces.data._scales import rescale, split_classes


def test_idx_as_its_description_says(tmp_path):
    """Two zero bytes, the type, the number of axes, their sizes from the high byte on, the data."""
    file = tmp_path / "a"
    file.write_bytes(bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 255]))
    assert read_idx(file).tolist() == [[1, 2, 3], [4, 5, 255]]
    file.write_bytes(bytes([0, 0, 0x0C, 1, 0, 0, 0, 1, 0, 0, 1, 2]))
    assert read_idx(file).tolist() == [258]
    file.write_bytes(gzip.compress(bytes([0, 0, 0x0D, 1, 0, 0, 0, 1]) + struct.pack(">f", 0.5), mtime=0))
    assert read_idx(file).tolist() == [0.5]


@given(
    st.sampled_from([np.uint8, np.int8, np.int16, np.int32, np.float32, np.float64]),
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
    st.sampled_from(["a", "a.gz"]),
)
def test_what_is_written_is_read(tmp_path_factory, dtype, shape, name):
    array = np.random.default_rng(0).integers(-100, 100, shape).astype(dtype)
    file = tmp_path_factory.mktemp("idx") / name
    write_idx(file, array)
    again, first = read_idx(file), file.read_bytes()
    assert again.dtype == array.dtype
    assert np.array_equal(again, array)
    write_idx(file, array)
    assert file.read_bytes() == first


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x89PNG\r\n", "is not an IDX file: it begins with"),
        (b"\0\0\x08\x03\0\0", "is not an IDX file"),
        (bytes([0, 0, 8, 1, 0, 0, 0, 5, 1, 2]), "should have 5 bytes of data, for 5, has 2"),
        (bytes([0, 0, 8, 1, 0, 0, 0, 1, 1, 2]), "should have 1 bytes of data, for 1, has 2"),
        (gzip.compress(b"\0" * 1000, mtime=0)[:-12], "is damaged"),
        (b"\x1f\x8bno gzip", "is damaged"),
        (gzip.compress(bytes([0, 0, 8, 1, 0xB2, 0xD0, 0x5E, 0]), mtime=0), "declares 3,000,000,000 bytes, more than"),
        (bytes([0, 0, 14, 3, *[255] * 12]), "declares .* bytes, more than 2,147,483,648; .*SCALESPACES_MAX_BYTES"),
        (bytes([0, 0, 8, 3, *[255] * 8, 0, 0, 0, 0]), "declares .* bytes, more than"),
        (bytes([0, 0, 8, 255, *[0, 0, 0, 1] * 255, 1]), "is not an IDX file"),
    ],
    ids=["PNG", "short header", "short", "long", "short gzip", "no gzip", "bomb", "large", "large and empty", "axes"],
)
def test_damaged_idx_files_are_refused(data, message, tmp_path):
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(ValueError, match=f"a' {message}"):
        read_idx(tmp_path / "a")
    with pytest.raises(ValueError, match=r"contains one of uint8, .*, got int64"):
        write_idx(tmp_path / "b", np.zeros(2, np.int64))


def test_an_idx_file_that_unpacks_to_more_than_it_declares_is_not_unpacked(tmp_path):
    """Zeros of 128 MiB, of which only the declared byte and one more are read."""
    packer = zlib.compressobj(9, wbits=31)
    packed = packer.compress(bytes([0, 0, 8, 1, 0, 0, 0, 1]))
    packed += b"".join(packer.compress(bytes(2**24)) for _ in range(8)) + packer.flush()
    (tmp_path / "a").write_bytes(packed)
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"should have 1 bytes of data, for 1, has \d+ or more"):
        read_idx(tmp_path / "a")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**22


@pytest.mark.parametrize(
    ("scales", "message"),
    [
        ([1, 2], "one scale for each of 3 images"),
        ([1, np.nan, 2], "finite"),
        ([1, 0, 2], "above 0"),
        ([[1, 2, 3]], "one"),
    ],
    ids=str,
)
def test_scales_that_do_not_fit_are_refused(scales, message, tmp_path):
    write_idx(tmp_path / "train-images-idx3-ubyte", np.zeros((3, 2, 2), np.uint8))
    write_idx(tmp_path / "train-labels-idx1-ubyte", np.zeros(3, np.uint8))
    write_idx(tmp_path / "train-scales-idx1-float", np.array(scales, np.float32))
    with pytest.raises(ValueError, match=f"train in .*{message}"):
        read_idx_images(tmp_path)


def test_mnists_names(tmp_path):
    images = np.arange(3 * 4 * 4, dtype=np.uint8).reshape(3, 4, 4)
    for split, suffix, number in (("train", ".gz", 3), ("t10k", "", 2)):
        write_idx(tmp_path / f"{split}-images-idx3-ubyte{suffix}", images[:number])
        write_idx(tmp_path / f"{split}-labels-idx1-ubyte{suffix}", np.array([1, 0, 9], np.uint8)[:number])
    train, test = (read_idx_images(tmp_path, split) for split in ("train", "test"))
    assert torch.equal(train[2][0][0], torch.from_numpy(images[2]))
    assert ([int(label) for _, label in train], len(test)) == ([1, 0, 9], 2)
    with pytest.raises(ValueError, match=r"train in .*must be from 0 to 8, got 9 at 2"):
        read_idx_images(tmp_path, "train", 9)


@given(st.lists(st.integers(0, 4), min_size=20, max_size=200), st.tuples(*[st.integers(0, 6)] * 3), st.integers(0, 9))
def test_splits_are_disjoint_exact_and_stratified(labels, counts, seed):
    labels = np.array(labels)
    sets = split_classes(labels, counts, seed)
    assert [len(s) for s in sets] == list(counts)
    assert len(set(np.concatenate(sets).tolist())) == sum(counts)
    for chosen in sets:
        assert all(abs((labels[chosen] == c).sum() - (labels == c).mean() * len(chosen)) < 2 for c in range(5))
    assert all(np.array_equal(a, b) for a, b in zip(sets, split_classes(labels, counts, seed), strict=True))


def cubic(x: np.ndarray, a: float) -> np.ndarray:
    """Keys' kernel."""
    x = np.abs(x)
    near = (a + 2) * x**3 - (a + 3) * x**2 + 1
    far = a * (x**3 - 5 * x**2 + 8 * x - 4)
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def naive_rescale(image, scale, canvas, shift, antialias):
    """The sum over the pixels of the image that interpolation is, along one axis after the other."""
    widen, a = (min(1.0, scale), -0.5) if antialias else (1.0, -1.0)  # as Pillow's resize, and its transform
    result = image.astype(float)
    for axis in (0, 1):
        n = image.shape[axis]
        where = (np.arange(canvas) + 0.5 - canvas / 2 - shift[axis]) / scale + n / 2 - 0.5
        reach = np.arange(-60, n + 60)
        weights = cubic(widen * (where[:, None] - reach), a)
        weights /= weights.sum(1, keepdims=True)
        weights = weights[:, 60 : 60 + n]
        result = np.moveaxis(np.tensordot(weights, result, (1, axis)), 0, axis)
    return np.clip(result, 0, 255)


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize(
    ("scale", "canvas", "shift"),
    [(1, 8, (0, 0)), (0.3, 8, (0, 0)), (2.7, 29, (3.3, -1)), (0.55, 13, (-2, 1.5)), (6, 16, (0, 0))],
)
def test_rescaling_is_bicubic_interpolation(scale, canvas, shift, antialias):
    image = np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)
    got = rescale(image, scale, canvas, shift, antialias=antialias)
    expected = naive_rescale(image, scale, canvas, shift, antialias)
    # Pillow rounds, between the axes too.
    np.testing.assert_allclose(got, expected, atol=2.5 if scale != 1 else 0)


def scales_of(dataset: ArrayImages) -> torch.Tensor:
    assert dataset.scales is not None
    return dataset.scales


def test_images_keep_their_labels_and_their_scales_are_recorded():
    images, labels = digits()
    options: Any = {"tests": [], "canvas": 16, "place": "random", "counts": (30, 0, 0), "seed": 4}
    dataset = unseen_scales(images, labels, (0.5, 2.0), **options)["train"]
    (chosen,) = split_classes(labels, (30,), 4)
    assert torch.equal(dataset.labels, torch.from_numpy(labels[chosen]))
    scales = scales_of(dataset).numpy()
    assert 0.5 <= scales.min() < 0.8 < 1.7 < scales.max() <= 2.0
    mass = dataset.images.double().sum((1, 2, 3)).numpy() / images[chosen].sum((1, 2))
    np.testing.assert_allclose(mass, scales**2, rtol=0.1)
    other = unseen_scales(images[::-1], labels[::-1], (0.5, 2.0), **options)["train"]
    assert np.array_equal(scales_of(other), scales)  # of the index, not of the image


def test_mnist_scale():
    images, labels = digits()
    sets = mnist_scale(images, labels, seed=1)
    counts = {"train": 289, "valid": 57, "test": 1449}  # 10:2:50
    assert {name: len(dataset) for name, dataset in sets.items()} == counts
    scales = torch.cat([scales_of(dataset) for dataset in sets.values()])
    assert 0.3 <= scales.min() <= scales.max() <= 1
    assert scales.mean() == pytest.approx(0.65, abs=0.02)
    parts = split_classes(labels, list(counts.values()), 1)
    for part, dataset in zip(parts, sets.values(), strict=True):
        shown = rescale(images[part[5]], float(scales_of(dataset)[5]), 8, antialias=False)
        assert np.array_equal(dataset.images[5, 0], shown)
    assert len({float(scales_of(dataset)[0]) for dataset in sets.values()}) == 3
    other = mnist_scale(images, labels, seed=2)
    assert not torch.equal(other["train"].labels, sets["train"].labels)


def test_mnist_scale_resized():
    """Finished images are resized; in the interior, as Pillow does it."""
    options = {"counts": (20, 5, 10), "scales": (0.8, 1.0)}
    small, large = mnist_scale(*digits(), **options), mnist_scale(*digits(), **options, size=20)
    for name, dataset in small.items():
        assert large[name].images.shape[1:] == (1, 20, 20)
        assert torch.equal(large[name].labels, dataset.labels)
        assert torch.equal(scales_of(large[name]), scales_of(dataset))
        for image, shown in zip(dataset.images[:, 0].numpy(), large[name].images[:, 0].numpy(), strict=True):
            expected = np.array(Image.fromarray(image).resize((20, 20), Image.Resampling.BICUBIC))
            np.testing.assert_allclose(shown[5:-5, 5:-5].astype(int), expected[5:-5, 5:-5].astype(int), atol=1)
    with pytest.raises(ValueError, match="size must be"):
        mnist_scale(*digits(), **options, size=0)


def test_unseen_scales_show_the_same_objects(tmp_path):
    sets = unseen_scales(*digits(), train=1.0, tests=[0.5, 2, (2.5, 4)], canvas=32, counts=(50, 10, 20))
    assert list(sets) == ["train", "valid", "test_0.5", "test_2", "test_2.5-4"]
    ranged = unseen_scales(*digits(), train=(1.0, 2.0), tests=[(1.0, 2.0)], canvas=32, counts=(5, 5, 5))
    assert len({float(scales_of(dataset)[0]) for dataset in ranged.values()}) == 3
    assert torch.equal(sets["test_0.5"].labels, sets["test_2"].labels)
    small, large = (sets[name].images.double().mean((1, 2, 3)) for name in ("test_0.5", "test_2"))
    np.testing.assert_allclose(large / small, 16, rtol=0.3)
    write_sets(tmp_path, sets)
    again = read_idx_images(tmp_path, "test_2.5-4")
    assert torch.equal(again.images, sets["test_2.5-4"].images)
    assert 2.5 <= scales_of(again).min() <= scales_of(again).max() <= 4
    with pytest.raises(FileExistsError, match=r"exist"):
        write_sets(tmp_path, sets)
    write_idx(tmp_path / "t10k-images-idx3-ubyte.gz", np.zeros((1, 2, 2), np.uint8))
    write_sets(tmp_path, {"train": sets["train"]}, force=True)
    left = sorted(file.name.split("-idx")[0] for file in tmp_path.iterdir())
    assert left == ["t10k-images", "train-images", "train-labels", "train-scales"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"train": 0.0}, "scale.* above 0"),
        ({"train": (2.0, 1.0)}, "got 2.0 to 1.0"),
        ({"tests": [1, 1.0]}, "test scales must differ, got 1, 1"),
        ({"counts": (1000, 1000, 1000)}, "ask for fewer"),
    ],
    ids=str,
)
def test_scales_that_cannot_be_are_refused(arguments, message):
    images, labels = digits()
    with pytest.raises(ValueError, match=message):
        unseen_scales(images, labels, **{"train": 1.0, "tests": [2.0], "canvas": 8, "counts": (2, 2, 2)} | arguments)
