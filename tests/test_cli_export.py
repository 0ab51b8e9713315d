"""scalespaces export: what it writes computes what the network does, and its errors are one line."""

import torch
from command import fails
from torch import nn

import scalespaces
from scalespaces.cli import main


def other_model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def test_export_of_a_converted_model(tmp_path, capsys, monkeypatch):
    source, path = tmp_path / "model.safetensors", tmp_path / "out" / "model.pt2"
    converted = scalespaces.convert(other_model(), {"num_levels": 2, "sampling": "dense"}).eval()
    converted.card = scalespaces.models.Card(["a", "b"], [0.5, 0.5, 0.5], [0.25, 0.25, 0.25])
    scalespaces.models.save(converted, source)
    assert "load(path, model=...)" in fails(capsys, "export", str(source), str(path))
    assert "a model is named by" in fails(capsys, "export", str(source), str(path), "--model", "torch.nn")
    monkeypatch.setattr(torch.nn, "other_model", other_model, raising=False)
    said = f"--allow-source torch --allow-source {__name__} "
    said += "--model torch.nn:other_model --size 12 17 --batch 2 --levels --normalize"
    assert main(["export", str(source), str(path), *said.split()]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"wrote {path}: image (2, 3, 12, 17) -> output, level_0, level_1; differs from PyTorch by ")
    assert "note: batch, height and width are fixed at 2, 12 and 17: dynamic sizes need a pyramid" in err
    assert "normalized" not in err
    image = torch.rand(2, 3, 12, 17)
    found = torch.export.load(path).module()(image)
    answer, levels = converted.answer_and_scores((image - 0.5) / 0.25)
    torch.testing.assert_close(list(found.values()), [answer, *levels.levels], rtol=1e-4, atol=1e-4)


def test_export_errors(tmp_path, capsys):
    source = str(tmp_path / "a")
    scalespaces.models.save(scalespaces.models.create_model("densenet", growth=(2,), num_layers=1), source)
    cases = {
        "model.png": "one of .onnx, .pt2, got '.png'",
        "model.pt2 --size 12": "--size: expected 2 arguments",
        "model.pt2 --batch 0": "expected a whole number of at least 1",
        "": "required: OUT",
    }
    for said, message in cases.items():
        assert message in fails(capsys, "export", source, *said.split())
    assert "does not exist" in fails(capsys, "export", "absent.safetensors", "model.pt2")
