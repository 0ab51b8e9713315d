"""Exports: they compute what PyTorch does, at other sizes too, and say when they cannot."""

import copy
import json
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from models.cnns import Basic, ResNet, same
from models.networks import DYNAMIC, NAMES, ONNX
from torch import nn
from torch.testing import assert_close

import scalespaces
from scalespaces.models import Card, create_model, export

onnx: Any = pytest.importorskip("onnx")
onnxruntime: Any = pytest.importorskip("onnxruntime")

FORMATS = pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
CARD = Card(["a", "b"], [0.4, 0.5, 0.6], [0.2, 0.3, 0.4])


def tiny(**arguments: Any) -> Any:
    """Two levels, one layer."""
    fixed: dict[str, Any] = {"filter_levels": [2], "growth": (2,), "num_layers": 1}
    lift = {"num_levels": 2, **arguments.pop("lift", {})}
    return create_model("s_densenet", lift=lift, **{**fixed, **arguments}).eval()


def run(path: Any, image: torch.Tensor) -> dict[str, torch.Tensor]:
    """The outputs of the file, by name, with no help of ours."""
    if path.suffix == ".onnx":
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        outputs = session.run(None, {"image": image.numpy()})
        return {node.name: torch.from_numpy(out) for node, out in zip(session.get_outputs(), outputs, strict=True)}
    out = torch.export.load(path).module()(image)
    return out if isinstance(out, dict) else {"output": out}


def classifier() -> nn.Module:
    network = ResNet()
    network.layer2[1] = Basic(16, 16, 2)  # torch exports ceil_mode for sizes of one kind only
    return network


def assert_agrees(path: Any, model: Any, *shape: int) -> None:
    """The file computes what the network does."""
    image = torch.rand(shape)
    with torch.no_grad():
        expected = model(image)
    expected = dict(expected) if isinstance(expected, dict) else {"output": expected}
    assert_close(run(path, image), expected, rtol=1e-4, atol=1e-4)


class Segmenter(nn.Module):
    """A small U-Net of two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 4, 3, padding=1)
        self.bottom = nn.Conv2d(4, 4, 3, padding=1)
        self.up = nn.Conv2d(8, 2, 3, padding=1)

    def forward(self, x: Any) -> Any:
        skip = self.down(x).relu()
        below = self.bottom(nn.functional.max_pool2d(skip, 2)).relu()
        below = nn.functional.interpolate(below, size=skip.shape[-2:], mode="bilinear", align_corners=False)
        out = self.up(torch.cat([below, skip], 1))
        return OrderedDict(out=out, scores=out.mean((2, 3)))


@DYNAMIC
@pytest.mark.slow
@FORMATS
def test_free_sizes(suffix, tmp_path):
    path = tmp_path / "new" / f"model{suffix}"
    model = tiny()
    model.card = CARD
    before = copy.deepcopy(model.train().state_dict())
    state = torch.random.get_rng_state()
    exported = export(model, path, levels=True, normalize=True)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert model.training
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert exported.dynamic
    assert exported.shape == (None, 3, None, None)
    assert exported.outputs == ("output", "level_0", "level_1")
    assert exported.difference <= 1e-4
    assert (exported.notes, list(path.parent.iterdir())) == ((), [path])
    assert exported.smallest == 3  # the last level has two samples
    if suffix == ".onnx":
        graph = onnx.load(path).graph
        axes = [value.type.tensor_type.shape.dim for value in (*graph.input, *graph.output)]
        found = [[dim.dim_param or dim.dim_value for dim in dims] for dims in axes]
        assert found == [["batch", 3, "height", "width"], *[["batch", 2]] * 3]
    model.eval()
    for batch, height, width in [(1, 3, 3), (3, 20, 33), (2, 41, 18)]:
        image = torch.rand(batch, 3, height, width)
        answer, scores = model.answer_and_scores(CARD.normalize(image))
        found = run(path, image)
        assert list(found) == list(exported.outputs)
        assert_close(list(found.values()), [answer, *scores.levels], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lift", "reason"),
    [
        ({"base": 1.5}, "fixed at 1, 20 and 24: they are dynamic for base 2, but this is base 1.5"),
        ({"sampling": "dense"}, "dynamic sizes need a pyramid, but this is dense"),
        ({"sampling": 1.5}, "dynamic sizes need a pyramid, but this is 1.5"),
    ],
)
def test_other_networks_are_fixed_and_say_so(lift, reason, tmp_path):
    path, model = tmp_path / "model.onnx", tiny(lift=lift)
    exported = export(model, path, size=(20, 24))
    assert exported.shape == (1, 3, 20, 24)
    (note,) = exported.notes
    assert reason in note
    assert_agrees(path, model, 1, 3, 20, 24)


@ONNX
@pytest.mark.slow
def test_an_onnx_file_of_fixed_sizes(tmp_path):
    path, model = tmp_path / "model.onnx", tiny(num_classes=2).double()
    model.card = CARD
    exported = export(model, path, size=(15, 16), batch=2, static=True)
    assert (exported.shape, exported.smallest) == ((2, 3, 15, 16), None)
    assert not exported.dynamic
    (note,) = exported.notes
    assert "instead of torch.float64" in note
    assert_agrees(path, model.float(), 2, 3, 15, 16)
    proto = onnx.load(path)
    onnx.checker.check_model(proto, full_check=True)
    assert [(opset.domain, opset.version) for opset in proto.opset_import if not opset.domain] == [("", 18)]
    assert [value.name for value in (*proto.graph.input, *proto.graph.output)] == ["image", "output"]
    (entry,) = proto.metadata_props
    assert entry.key == "scalespaces"
    assert json.loads(entry.value) == {"card": CARD.to_json(), "normalizes": False, "smallest": None}


def test_a_pt2_file_of_fixed_sizes(tmp_path):
    path, model = tmp_path / "model.pt2", tiny(lift={"sampling": "dense"}).double()
    model.card = CARD
    exported = export(model, path, size=(15, 16))
    assert "fixed at 1, 15 and 16: dynamic sizes need a pyramid, but this is dense" in exported.notes[0]
    extra = {"scalespaces.json": ""}
    program = torch.export.load(path, extra_files=extra)
    assert json.loads(extra["scalespaces.json"])["card"] == CARD.to_json()
    image = torch.rand(1, 3, 15, 16, dtype=torch.float64)
    assert_close(program.module()(image), model(image))


@pytest.mark.parametrize(("change", "difference"), [(lambda x: x + 1e-3, "1.0e-03"), (lambda x: x / 0 * 0, "nan")])
def test_a_file_that_computes_something_else_is_not_written(change, difference, tmp_path, monkeypatch):
    path, read = tmp_path / "model.pt2", torch.export.load

    class Wrong:
        def __init__(self, path: Any) -> None:
            self.program = read(path)

        def module(self) -> Any:
            return lambda image: change(self.program.module()(image))

    path.write_text("old")
    monkeypatch.setattr(torch.export, "load", Wrong)
    with pytest.raises(ValueError, match=rf"differs from PyTorch by {difference} .*nothing was written"):
        export(tiny(), path, size=(16, 16), static=True)
    assert (path.read_text(), list(tmp_path.iterdir())) == ("old", [path])


def test_errors(tmp_path):
    cases: list[tuple[nn.Module, dict[str, Any], str]] = [
        (nn.Conv2d(3, 2, 1), {"levels": True}, "needs a network with levels, got a Conv2d; convert it first"),
        (tiny(), {"normalize": True}, "no normalization"),
        (tiny(), {"batch": 0}, "batch must be an integer >= 1, got 0"),
        (tiny(), {"size": (0, 3)}, "size must be an integer >= 1"),
        (tiny(growth=(2, 2), filter_levels=1), {"size": (2, 2), "static": True}, "images of at least 3 pixels"),
    ]
    for model, arguments, message in cases:
        with pytest.raises(ValueError, match=message):
            export(model, tmp_path / "model.pt2", **arguments)
    with pytest.raises(ValueError, match=r"one of \.onnx, \.pt2, got '\.png'"):
        export(tiny(), tmp_path / "model.png")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "folder.pt2").mkdir()
    with pytest.raises(IsADirectoryError):
        export(tiny(), tmp_path / "folder.pt2")


def converted(network: Callable[[], nn.Module], interaction: str | None) -> Any:
    return scalespaces.convert(network(), {"num_levels": 3}, interaction=interaction, scale_pool="mean")


FREE: list[Any] = [partial(create_model, name, lift={"base": 2.0}) for name in NAMES]
FREE += [partial(converted, network, which) for network in (classifier, Segmenter) for which in (None, "all")]


@pytest.mark.slow
@DYNAMIC
@FORMATS
@pytest.mark.parametrize("make", FREE, ids=lambda make: "-".join(map(str, make.args)))
def test_every_network_with_free_sizes(make, suffix, tmp_path):
    path, model = tmp_path / f"model{suffix}", make().eval()
    exported = export(model, path)
    assert (exported.dynamic, exported.notes) == (True, ())
    smallest = exported.smallest or 0
    for batch, height, width in [(1, smallest, smallest + 1), (3, smallest + 19, smallest + 4)]:
        assert_agrees(path, model, batch, model.in_channels, height, width)


@pytest.mark.parametrize("interaction", [None, "all"])
def test_padding_by_the_size_ends_with_a_fixed_size(interaction, tmp_path):
    """With free sizes torch would not end."""
    model = scalespaces.convert(same(), {"num_levels": 2}, interaction=interaction, scale_pool="mean").eval()
    exported = export(model, tmp_path / "model.pt2", size=(64, 48), levels=True)
    assert exported.shape == (1, 3, 64, 48)
    assert interaction or "DynamicSame computes its padding from the size" in exported.notes[0]
    image = torch.rand(1, 3, 64, 48)
    answer, scores = model.answer_and_scores(image)
    found = run(tmp_path / "model.pt2", image)
    assert_close([*found.values()], [answer, *scores.levels], rtol=1e-4, atol=1e-4)


def test_levels_that_are_too_small_are_left_out_of_an_export(tmp_path):
    network = nn.Sequential(nn.Conv2d(3, 4, 9), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    model = scalespaces.convert(network, {"num_levels": 3}, scale_pool="mean").eval()
    exported = export(model, tmp_path / "model.pt2", size=(24, 24), static=True, levels=True)
    assert exported.outputs == ("output", "level_0", "level_1")  # and not 6 x 6
