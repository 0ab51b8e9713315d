"""scalespaces export: what it writes computes what the network does, and its errors are one line."""

from pathlib import Path
from typing import Any

import pytest
import torch
from command import fails
from torch import nn

import scalespaces
from scalespaces.cli import main

pytest.importorskip("safetensors")


def saved(path: Path, sampling: str = "pyramid") -> Any:
    small: dict[str, Any] = {"growth": (2,), "num_layers": 1, "filter_levels": [2]}
    model: Any = scalespaces.models.create_model("s_densenet", lift={"num_levels": 2, "sampling": sampling}, **small)
    model.card = scalespaces.models.Card(["a", "b"], [0.5, 0.5, 0.5], [0.25, 0.25, 0.25])
    scalespaces.models.save(model, path)
    return model.eval()


def other_model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def test_export_of_fixed_sizes_says_so(tmp_path, capsys):
    source, path = tmp_path / "model.safetensors", tmp_path / "out" / "model.pt2"
    model = saved(source, "dense")
    arguments = ["export", str(source), str(path), "--size", "12", "17", "--batch", "2", "--levels", "--normalize"]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"wrote {path}: image (2, 3, 12, 17) -> output, level_0, level_1; differs from PyTorch by ")
    assert "note: batch, height and width are fixed at 2, 12 and 17: they are free in pyramid sampling" in err
    assert "normalized" not in err
    image = torch.rand(2, 3, 12, 17)
    found = torch.export.load(path).module()(image)
    answer, levels = model.answer_and_scores((image - 0.5) / 0.25)
    torch.testing.assert_close(list(found.values()), [answer, *levels.levels], rtol=1e-4, atol=1e-4)


def test_export_of_a_converted_model(tmp_path, capsys, monkeypatch):
    source, path = tmp_path / "model.safetensors", tmp_path / "model.pt2"
    converted = scalespaces.convert(other_model(), {"num_levels": 2}).eval()
    scalespaces.models.save(converted, source)
    assert "load(path, model=...)" in fails(capsys, "export", str(source), str(path))
    for wrong in ("no_such_module:net", "torch.nn:NoSuchNet", "torch.nn:Conv2d", "torch.nn", "builtins:dict"):
        assert "a model is named by" in fails(capsys, "export", str(source), str(path), "--model", wrong)
    monkeypatch.setattr(torch.nn, "other_model", other_model, raising=False)
    size = ("--static", "--size", "16", "20")
    assert main(["export", str(source), str(path), "--model", "torch.nn:other_model", *size]) == 0
    image = torch.rand(1, 3, 16, 20)
    torch.testing.assert_close(torch.export.load(path).module()(image), converted(image))


def test_export_errors(tmp_path, capsys):
    source = tmp_path / "model.safetensors"
    saved(source)
    cases = [
        ((str(source), "model.png"), "one of .onnx, .pt2, got '.png'"),
        ((str(tmp_path / "absent.safetensors"), "model.pt2"), "does not exist"),
        ((__file__, "model.pt2"), "is no safetensors file"),
        ((str(source), "model.pt2", "--size", "12"), "--size: expected 2 arguments"),
        ((str(source), "model.pt2", "--batch", "0"), "expected a whole number of at least 1"),
        ((str(source), "model.pt2", "--model", "torch.nn:Identity"), "leave out the model"),
        ((str(source), str(tmp_path)), "one of .onnx, .pt2"),
        ((str(source),), "required: OUT"),
    ]
    for arguments, message in cases:
        assert message in fails(capsys, "export", *arguments)
