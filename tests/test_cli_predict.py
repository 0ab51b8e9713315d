"""scalespaces predict: its files hold what the network says, are whole, and its errors are one line."""

import csv
import json
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
from scalespaces.data._folders import CITY_CLASSES
from scalespaces.data._pixels import read_mask, read_pixels
from scalespaces.models import Card
from scalespaces.train._predict import palette, predict_mask

image_module = pytest.importorskip("PIL.Image")


def saved(path: Path, name: str, head: str, classes: Any, channels: int = 3, **small: Any) -> Any:
    options: Any = {"num_classes": len(classes), "in_channels": channels, "init": "he", "lift": {"num_levels": 2}}
    model: Any = scalespaces.models.create_model(name, **options, **small)
    nn.init.normal_(getattr(model, head).weight, std=3)
    model.card = Card(classes, [0.5] * channels, [0.25] * channels)
    scalespaces.models.save(model, path)
    return model.eval()


def classifier(path: Path, channels: int = 3) -> Any:
    small: dict[str, Any] = {"growth": (3, 3), "num_layers": 1, "filter_levels": 2}
    return saved(path, "s_densenet", "linear", ("normal", "tumor"), channels, **small)


def segmenter(path: Path, classes: Any = ("sky", "road", "mill")) -> Any:
    return saved(path, "s_resnet", "classifier", classes, width=3)


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


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize("batch", ["3", "32"])
def test_the_table_holds_what_the_network_says(batch, model, images, tmp_path, capsys):
    out = tmp_path / "new" / "table.csv"
    assert main(["predict", str(tmp_path / "model.safetensors"), str(images), "--out", str(out), "--batch", batch]) == 0
    table = rows(out)
    names = ["a.jpg", "b.png", "deep/c.tif", "deep/e.tiff", "deep/er/d.JPEG"]
    assert [row["file"] for row in table] == [(images / name).as_posix() for name in names]
    counts = dict.fromkeys(model.card.classes, 0)
    for row, name in zip(table, names, strict=True):
        assert list(row) == ["file", "predicted", "level", "normal", "tumor"]
        with torch.no_grad():
            expected = model(shown(images / name)[None])[0].softmax(0)
            levels = torch.stack(model.scores(shown(images / name)[None]).levels)[:, 0]
        assert int(row["level"]) == int(levels[:, expected.argmax()].argmax())
        assert_close(torch.tensor([float(row["normal"]), float(row["tumor"])]), expected, rtol=1e-4, atol=1e-6)
        assert row["predicted"] == model.card.classes[int(expected.argmax())]
        counts[row["predicted"]] += 1
    assert tree(out.parent) == ["table.csv"]
    said = capsys.readouterr().out
    assert said.startswith(f"wrote {out} with 5 images; predicted ")
    assert all(f"{name!r} {number} time" in said for name, number in counts.items() if number)


def test_masks_hold_what_the_network_says(images, tmp_path, capsys):
    file, out = tmp_path / "model.safetensors", tmp_path / "new" / "masks"
    made = segmenter(file)
    windows = ["--tile", "20", "--overlap", "8", "--batch", "3"]
    assert main(["predict", str(file), str(images), "--out", str(out), "--overlay", *windows]) == 0
    assert capsys.readouterr().out == f"wrote 5 masks and legend.json into {out}\n"
    stems = {"a": "a.jpg", "b": "b.png", "deep/c": "deep/c.tif", "deep/e": "deep/e.tiff", "deep/er/d": "deep/er/d.JPEG"}
    kinds = (".png", ".overlay.png")
    assert tree(out) == sorted(["legend.json", *(f"{stem}{kind}" for stem in stems for kind in kinds)])
    legend = json.loads((out / "legend.json").read_text())
    colors = [tuple(one["color"]) for one in legend["classes"]]
    assert [(one["number"], one["name"]) for one in legend["classes"]] == [(0, "sky"), (1, "road"), (2, "mill")]
    assert colors == list(palette(("sky", "road", "mill")))
    for stem, name in stems.items():
        expected = predict_mask(made, shown(images / name), tile=20, overlap=8)
        mask = read_mask(out / f"{stem}.png")
        assert torch.equal(mask, expected.argmax(0))
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
        share = {name: (mask == n).double().mean().item() for n, name in enumerate(made.card.classes)}
        assert entry["share"] == pytest.approx(share)


def test_classes_have_different_colors():
    for classes in (CITY_CLASSES, *(range(n) for n in (1, 2, 19, 100, 256))):
        colors = palette(tuple(map(str, classes)))
        assert len(set(colors)) == len(classes)
        assert all(0 <= value <= 255 for color in colors for value in color)
    own = dict(zip(CITY_CLASSES, palette(tuple(CITY_CLASSES)), strict=True))
    assert (own["sky"], own["car"]) == ((70, 130, 180), (0, 0, 142))


@pytest.mark.parametrize("kind", [classifier, segmenter])
def test_nothing_is_overwritten_unasked(kind, images, tmp_path, capsys):
    file, out, table = str(tmp_path / "model.safetensors"), tmp_path / "out", kind is classifier
    kind(tmp_path / "model.safetensors")
    arguments = ["predict", file, str(images), "--out"]
    if table:
        out.write_text("mine")
    else:
        out.mkdir()
        assert main([*arguments, str(out)]) == 0  # an empty folder is none
        assert capsys.readouterr().err == ""
    kept = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert "exists; use --force" in fails(capsys, *arguments, str(out))
    wrong = [(images, "is a folder; name a file in it" if table else "b.png' would be overwritten")]
    wrong += [(place, "change --out" if table else "file") for place in (images / "a.jpg", Path(file))]
    for place, message in wrong:
        assert message in fails(capsys, *arguments, str(place), "--force")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == kept
    assert main([*arguments, str(out), "--force"]) == 0
    capsys.readouterr()
    if not table:
        save_picture(images / "a.png", noise(20, 20))
        assert "would both be written as" in fails(capsys, *arguments, str(tmp_path / "other"))
        assert not (tmp_path / "other").exists()


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


def test_errors(model, images, tmp_path, capsys):
    file, good, out = str(tmp_path / "model.safetensors"), str(images), ("--out", str(tmp_path / "out.csv"))
    (tmp_path / "empty").mkdir()
    cases = [
        ((file, good), "required: --out"),
        ((file, *out), "required: IMAGE"),
        ((file, str(tmp_path / "absent"), *out), f"no file or folder '{tmp_path / 'absent'}'"),
        ((file, str(tmp_path / "empty"), *out), "files that end in .png, .jpg"),
        ((__file__, good, *out), "is not a safetensors file"),
        ((file, good, *out, "--model", "torch.nn:Identity", "--allow-source", "torch"), "leave out the model"),
        ((file, good, *out, "--device", "abacus"), "no device 'abacus' is available; use auto or one of cpu"),
        ((file, good, *out, "--batch", "0"), "expected a whole number of at least 1"),
        ((file, good, *out, "--overlay"), "--overlay is for networks that answer for every pixel"),
        ((file, good, *out, "--tile", "64"), "--tile is for networks that answer for every pixel"),
    ]
    for arguments, message in cases:
        assert message in fails(capsys, "predict", *arguments)
    assert not (tmp_path / "out.csv").exists()
    classifier(tmp_path / "model.safetensors", channels=4)
    assert "images in files have 1 or 3 channels, but the network takes 4" in fails(capsys, "predict", file, good, *out)
