"""scalespaces calibrate: the file it writes trusts levels, and its errors are one line."""

import pytest
import torch
from command import fails
from pictures import noise, save_picture

import scalespaces
from scalespaces.cli import main
from scalespaces.models import Card
from scalespaces.train._data import DataOptions
from scalespaces.train._recipe import ModelOptions, Recipe

pytest.importorskip("safetensors")
CLASSES = ("cat", "dog")


@pytest.fixture
def folder(tmp_path):
    """A network, and 24 images in folders named after its classes."""
    small = {"channels": (3, 3), "kernel_size": 3, "lift": {"num_levels": 2}}
    model = scalespaces.models.create_model("s_cnn", num_classes=2, in_channels=3, **small)
    model.card = Card(CLASSES, [0.5] * 3, [0.25] * 3)
    scalespaces.models.save(model, tmp_path / "model.safetensors")
    for n in range(24):
        save_picture(tmp_path / "photos" / CLASSES[n % 2] / f"{n}.png", noise(40, 40, n))
    return tmp_path


@pytest.mark.parametrize("labels", [False, True])
def test_the_file_that_is_written_trusts_levels(folder, labels, capsys):
    source, photos = folder / "model.safetensors", folder / "photos"
    words = ["calibrate", str(source), "--images", str(photos), "--scales", "1", "2", *["--labels"] * labels]
    assert main(words) == 0
    written = folder / "model-calibrated.safetensors"
    out = capsys.readouterr().out
    assert out.startswith("accuracy in %" if labels else "agreement with the answer at scale 1 in %, 24 images")
    assert out.endswith(f"wrote {written}\n")
    before, after = (scalespaces.models.load(file) for file in (source, written))
    assert (before.scale_pool.mode, after.scale_pool.mode, after.card) == ("mean", "trust", before.card)
    image = torch.rand(1, 3, 40, 40)
    assert torch.equal(before.scores(image).levels[1], after.scores(image).levels[1])
    assert main(["predict", str(written), str(photos), "--out", str(folder / "p.csv"), "--pool", "trust"]) == 0
    capsys.readouterr()
    assert "exists" in fails(capsys, *words)


def test_images_are_resized_as_in_training(folder, monkeypatch):
    pytest.importorskip("jsonargparse")
    data = DataOptions(kind="class_folders", root="photos", num_classes=2, size=(32, 24))
    Recipe(ModelOptions(name="s_cnn"), data).save(folder / "recipe.yaml")
    sizes = []

    def calibrate(network, images, labels, **options):
        sizes.append({tuple(image.shape[-2:]) for image in images})
        raise ValueError("the images are seen")

    monkeypatch.setattr(scalespaces.models, "calibrate", calibrate)
    words = ["calibrate", str(folder / "model.safetensors"), "--images", str(folder / "photos")]
    assert main(words) == main([*words, "--size", "20", "28"]) == 2
    assert sizes == [{(32, 24)}, {(20, 28)}]


def test_errors(folder, capsys):
    file, photos = str(folder / "model.safetensors"), str(folder / "photos")
    assert "--images is a folder" in fails(capsys, "calibrate", file, "--images", file)
    assert "needs 20 images at least" in fails(capsys, "calibrate", file, "--images", f"{photos}/cat")
    (folder / "photos" / "cat").rename(folder / "photos" / "bird")
    message = fails(capsys, "calibrate", file, "--images", photos, "--labels")
    assert "folders are named after the network's classes (cat, dog), got " in message
    words = ["predict", file, photos, "--out", str(folder / "p.csv"), "--pool", "trust"]
    assert "needs a network that has learned which levels to trust" in fails(capsys, *words)
