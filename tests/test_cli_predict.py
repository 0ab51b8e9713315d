"""scalespaces predict: its files hold what the network says, are whole, and its errors are one line."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import fails
from pictures import noise, save_picture
from torch import Tensor, nn
from torch.testing import assert_close

import scalespaces
from scalespaces.cli import main
from scalespaces.data import to_unit
from scalespaces.data._cityscapes import CLASSES
from scalespaces.data._make import make_cityscapes
from scalespaces.data._pixels import read_mask, read_pixels
from scalespaces.functional import scale_pool
from scalespaces.models import Card
from scalespaces.models._registry import build
from scalespaces.train._palette import CITYSCAPES, palette
from scalespaces.train._predict import predict_mask

image_module = pytest.importorskip("PIL.Image")
pytest.importorskip("safetensors")


def classifier(path: Path, **arguments: Any) -> Any:
    small: dict[str, Any] = {"growth": (3, 3), "num_layers": 1, "filter_levels": 2, "init": "he"}
    model: Any = scalespaces.models.create_model("s_densenet", lift={"num_levels": 2}, **small, **arguments)
    nn.init.normal_(model.linear.weight, std=3)
    channels = arguments.get("in_channels", 3)
    model.card = Card(["normal", "tumor"], [0.5] * channels, [0.25] * channels)
    scalespaces.models.save(model, path)
    return model.eval()


def segmenter(path: Path, classes: Any = ("sky", "road", "mill")) -> Any:
    small: dict[str, Any] = {"width": 3, "init": "he", "num_classes": len(classes)}
    model: Any = scalespaces.models.create_model("s_resnet", lift={"num_levels": 2}, **small)
    nn.init.normal_(model.classifier.weight, std=1)
    model.card = Card(classes, [0.5] * 3, [0.25] * 3)
    scalespaces.models.save(model, path)
    return model.eval()


def shown(path: Path) -> Tensor:
    return (to_unit(read_pixels(path)) - 0.5) / 0.25


def tree(folder: Path) -> list[str]:
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())


@pytest.fixture
def model(tmp_path):
    return classifier(tmp_path / "model.safetensors")


@pytest.fixture
def images(tmp_path):
    """Files of every kind, of some sizes, in folders."""
    folder = tmp_path / "images"
    save_picture(folder / "b.png", noise(20, 24, 1))
    save_picture(folder / "a.jpg", noise(20, 24, 2), quality=95)
    save_picture(folder / "deep" / "c.tif", noise(31, 17, 3))
    save_picture(folder / "deep" / "er" / "d.JPEG", noise(20, 24, 4))
    save_picture(folder / "deep" / "e.tiff", noise(31, 17, 5), compression="tiff_lzw")
    save_picture(folder / ".hidden.png", noise(4, 4))
    (folder / "notes.txt").write_text("no image")
    return folder


# --- classification --------------------------------------------------------------------------------------------------


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize("batch", ["1", "3", "32"])
def test_the_table_holds_what_the_network_says(batch, model, images, tmp_path, capsys):
    out = tmp_path / "new" / "table.csv"
    assert main(["predict", str(tmp_path / "model.safetensors"), str(images), "--out", str(out), "--batch", batch]) == 0
    table = rows(out)
    names = ["a.jpg", "b.png", "deep/c.tif", "deep/e.tiff", "deep/er/d.JPEG"]
    assert [row["file"] for row in table] == [(images / name).as_posix() for name in names]
    counts = dict.fromkeys(model.card.classes, 0)
    for row, name in zip(table, names, strict=True):
        assert list(row) == ["file", "predicted", "normal", "tumor"]
        with torch.no_grad():
            expected = model(shown(images / name)[None])[0].softmax(0)
        assert_close(torch.tensor([float(row["normal"]), float(row["tumor"])]), expected, rtol=1e-4, atol=1e-6)
        assert row["predicted"] == model.card.classes[int(expected.argmax())]
        counts[row["predicted"]] += 1
    assert tree(out.parent) == ["table.csv"]
    said = capsys.readouterr().out
    assert said.startswith(f"wrote {out}: ")
    assert all(f"{number} {name}" in said for name, number in counts.items() if number)


def test_classes_without_names_are_numbers_and_levels_are_pooled(tmp_path, images):
    file, out = tmp_path / "model.safetensors", tmp_path / "table.csv"
    made: Any = classifier(file)
    made.card = Card()
    scalespaces.models.save(made, file)
    assert main(["predict", str(file), str(images / "b.png"), "--out", str(out), "--pool", "max"]) == 0
    (row,) = rows(out)
    assert list(row) == ["file", "predicted", "0", "1"]
    with torch.no_grad():
        expected = scale_pool(made.scores(to_unit(read_pixels(images / "b.png"))[None]), "max")[0].softmax(0)
    assert_close(torch.tensor([float(row["0"]), float(row["1"])]), expected, rtol=1e-4, atol=1e-6)


def test_converted_networks(tmp_path, images, capsys, monkeypatch):
    file, out = tmp_path / "model.safetensors", tmp_path / "table.csv"
    (tmp_path / "my_net.py").write_text(
        "from torch import nn\n"
        "def make():\n"
        "    layers = [nn.Conv2d(3, 5, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3)]\n"
        "    return nn.Sequential(*layers)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    converted: Any = scalespaces.convert(build("my_net:make"), {"num_levels": 2}).eval()
    scalespaces.models.save(converted, file)
    arguments = ["predict", str(file), str(images / "b.png"), "--out", str(out)]
    assert "give that model" in fails(capsys, *arguments)
    assert main([*arguments, "--model", "my_net:make"]) == 0
    with torch.no_grad():
        expected = converted(to_unit(read_pixels(images / "b.png"))[None])[0].softmax(0)
    found = [float(rows(out)[0][name]) for name in ("0", "1", "2")]
    assert_close(torch.tensor(found), expected, rtol=1e-4, atol=1e-6)


# --- segmentation ----------------------------------------------------------------------------------------------------


def test_masks_hold_what_the_network_says(images, tmp_path, capsys):
    file, out = tmp_path / "model.safetensors", tmp_path / "new" / "masks"
    made = segmenter(file)
    windows = ["--tile", "20", "--overlap", "8", "--batch", "3"]
    assert main(["predict", str(file), str(images), "--out", str(out), "--overlay", "--probabilities", *windows]) == 0
    assert capsys.readouterr().out == f"wrote 5 masks and legend.json into {out}\n"
    stems = {"a": "a.jpg", "b": "b.png", "deep/c": "deep/c.tif", "deep/e": "deep/e.tiff", "deep/er/d": "deep/er/d.JPEG"}
    kinds = (".png", ".overlay.png", ".npy")
    assert tree(out) == sorted(["legend.json", *(f"{stem}{kind}" for stem in stems for kind in kinds)])
    legend = json.loads((out / "legend.json").read_text())
    colors = [tuple(one["color"]) for one in legend["classes"]]
    assert [(one["number"], one["name"]) for one in legend["classes"]] == [(0, "sky"), (1, "road"), (2, "mill")]
    assert colors == list(palette(("sky", "road", "mill")))
    for stem, name in stems.items():
        expected = predict_mask(made, shown(images / name), tile=20, overlap=8)
        probabilities = torch.from_numpy(np.load(out / f"{stem}.npy"))
        assert_close(probabilities, expected, rtol=1e-4, atol=1e-6)
        mask = read_mask(out / f"{stem}.png")
        assert torch.equal(mask, probabilities.argmax(0))
        with image_module.open(out / f"{stem}.png") as picture:
            assert picture.mode == "P"
            painted = np.array(picture.convert("RGB"))
        assert (out / f"{stem}.png").read_bytes()[24:26] == b"\x08\x03"  # of 8 bits, with a palette
        np.testing.assert_array_equal(painted, np.array(colors, np.uint8)[mask])
        blended = (read_pixels(images / name).permute(1, 2, 0).numpy().astype(float) + painted) / 2
        overlay = read_pixels(out / f"{stem}.overlay.png").permute(1, 2, 0).numpy()
        assert np.abs(overlay - blended).max() <= 1
        entry = legend["images"][(images / name).as_posix()]
        assert (entry["mask"], entry["size"]) == (f"{stem}.png", list(mask.shape[::-1]))
        assert entry["share"] == pytest.approx(
            {name: (mask == n).double().mean().item() for n, name in enumerate(("sky", "road", "mill"))}
        )
        assert sum(entry["share"].values()) == pytest.approx(1)


def test_cityscapes_have_their_colors(tmp_path):
    assert palette(tuple(CLASSES)) == CITYSCAPES
    assert dict(zip(CLASSES, CITYSCAPES, strict=True))["sky"] == (70, 130, 180)
    assert len(set(CITYSCAPES)) == 19
    file, out = tmp_path / "model.safetensors", tmp_path / "masks"
    segmenter(file, tuple(CLASSES))
    make_cityscapes(tmp_path / "city", {"train": 1, "val": 2, "test": 1}, size=(32, 48))
    assert main(["predict", str(file), str(tmp_path / "city/leftImg8bit/val"), "--out", str(out)]) == 0
    assert len(list(out.rglob("*_leftImg8bit.png"))) == 2
    legend = json.loads((out / "legend.json").read_text())
    assert legend["classes"][13] == {"number": 13, "name": "car", "color": [0, 0, 142]}


@pytest.mark.parametrize("number", [1, 2, 19, 100, 256])
def test_other_classes_have_different_colors(number):
    colors = palette(list(map(str, range(number))))
    assert len(set(colors)) == number
    assert all(0 <= value <= 255 for color in colors for value in color)


# --- what is wrong ---------------------------------------------------------------------------------------------------


def test_what_is_there_is_not_overwritten_unasked(model, images, tmp_path, capsys):
    file, out = str(tmp_path / "model.safetensors"), tmp_path / "table.csv"
    out.write_text("mine")
    arguments = ["predict", file, str(images), "--out"]
    assert "exists; use --force" in fails(capsys, *arguments, str(out))
    assert out.read_text() == "mine"
    assert main([*arguments, str(out), "--force"]) == 0
    assert out.read_text().startswith("file,")
    capsys.readouterr()
    for wrong in (images / "a.jpg", file):
        assert "change --out" in fails(capsys, *arguments, str(wrong), "--force")
    assert "is a folder; name a file in it" in fails(capsys, *arguments, str(images), "--force")


def test_masks_overwrite_nothing_unasked(images, tmp_path, capsys):
    file, out = str(tmp_path / "model.safetensors"), tmp_path / "masks"
    segmenter(tmp_path / "model.safetensors")
    out.mkdir()
    arguments = ["predict", file, str(images), "--out", str(out)]
    assert main(arguments) == 0  # an empty folder is none
    assert capsys.readouterr().err == ""
    assert "exists; use --force" in fails(capsys, *arguments)
    assert main([*arguments, "--force"]) == 0
    capsys.readouterr()
    before = {name: (images / name).read_bytes() for name in tree(images)}
    assert "b.png' would be overwritten" in fails(capsys, "predict", file, str(images), "--out", str(images), "--force")
    assert "is a file" in fails(capsys, "predict", file, str(images), "--out", file, "--force")
    save_picture(images / "a.png", noise(20, 20))
    assert "would both be written as" in fails(capsys, "predict", file, str(images), "--out", str(tmp_path / "other"))
    (images / "a.png").unlink()
    assert not (tmp_path / "other").exists()
    assert {name: (images / name).read_bytes() for name in tree(images)} == before


@pytest.mark.parametrize("kind", [classifier, segmenter])
def test_images_that_cannot_be_used(kind, images, tmp_path, capsys):
    file, out = str(tmp_path / "model.safetensors"), tmp_path / "out"
    kind(tmp_path / "model.safetensors")
    small, text = save_picture(images / "small.png", noise(2, 40)), images / "text.png"
    arguments = ["predict", file, str(images), "--out", str(out)]
    said = fails(capsys, *arguments)
    assert f"the network cannot answer for '{small}', 40 x 2 pixels: " in said
    assert "pixels along each side" in said
    small.unlink()
    text.write_text("no image")
    assert f"'{text}' is not an image that Pillow reads" in fails(capsys, *arguments, "--force")
    assert not out.is_file()  # no table, no legend, nothing half-written
    assert all(name.endswith(".png") and not name.startswith(".") for name in tree(out))

    save_picture(images / "small.png", noise(2, 40))
    assert main([*arguments, "--skip-errors", "--force"]) == 0
    captured = capsys.readouterr()
    assert captured.err.count("left out: ") == 2
    assert captured.err.endswith("left out 2 of 7 images\n")
    assert str(small) in captured.err
    assert str(text) in captured.err
    number = len(rows(out)) if out.is_file() else len(json.loads((out / "legend.json").read_text())["images"])
    assert number == 5
    bad = ["predict", file, str(small), str(text), "--out", str(tmp_path / "none"), "--skip-errors"]
    assert "none of 2 images can be used; the first: " in fails(capsys, *bad)
    assert not list(tmp_path.rglob("none*"))


def test_an_interrupt_leaves_no_table(model, images, tmp_path, capsys, monkeypatch):
    def interrupted(*_, **__):
        yield images / "a.jpg", torch.tensor([0.5, 0.5])
        raise KeyboardInterrupt

    monkeypatch.setattr("scalespaces.train._predict.predict_classes", interrupted)
    out = tmp_path / "new" / "table.csv"
    assert main(["predict", str(tmp_path / "model.safetensors"), str(images), "--out", str(out)]) == 130
    assert tree(out.parent) == []


def test_errors(model, images, tmp_path, capsys):
    file, good, out = str(tmp_path / "model.safetensors"), str(images), ("--out", str(tmp_path / "out.csv"))
    (tmp_path / "empty").mkdir()
    cases = [
        ((file, good), "required: --out"),
        ((file, *out), "required: IMAGE"),
        ((file, str(tmp_path / "absent"), *out), f"there is no file or folder '{tmp_path / 'absent'}'"),
        ((file, str(tmp_path / "empty"), *out), "files that end in .png, .jpg"),
        ((str(tmp_path / "absent.safetensors"), good, *out), "does not exist"),
        ((__file__, good, *out), "is no safetensors file"),
        ((file, good, *out, "--model", "torch.nn:Identity"), "leave out the model"),
        ((file, good, *out, "--model", "nowhere:net"), "a model is named by"),
        ((file, good, *out, "--device", "abacus"), "there is no device 'abacus' here; use auto or one of cpu"),
        ((file, good, *out, "--pool", "min"), "invalid choice: 'min'"),
        ((file, good, *out, "--batch", "0"), "expected a whole number of at least 1"),
        ((file, good, *out, "--overlap", "-1"), "expected a whole number of at least 0"),
        ((file, good, *out, "--overlay"), "--overlay is for networks that answer for every pixel"),
        ((file, good, *out, "--tile", "64"), "--tile is for networks that answer for every pixel"),
    ]
    for arguments, message in cases:
        assert message in fails(capsys, "predict", *arguments)
    assert not (tmp_path / "out.csv").exists()
    segmenter(tmp_path / "model.safetensors")
    options = ("--out", str(tmp_path / "masks"), "--tile", "16", "--overlap", "16")
    assert "overlap must be less than the side of the windows" in fails(capsys, "predict", file, good, *options)
    classifier(tmp_path / "model.safetensors", in_channels=4)
    assert "images in files have 1 or 3 channels, and the network takes 4" in fails(capsys, "predict", file, good, *out)
