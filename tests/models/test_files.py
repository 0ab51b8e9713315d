"""Files: what is written is what is read, and what cannot be trusted is refused before anything is built of it."""

import copy
import json
import os
import pickle
import struct
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from models.networks import NAMES, PRESETS, small
from torch import nn

import scalespaces
from scalespaces.models import Card, load, save
from scalespaces.models._files import FORMAT
from scalespaces.nn import Lift
from scalespaces.nn._lift import ARGUMENTS

safetensors_torch = pytest.importorskip("safetensors.torch")


class TinyNet(nn.Module):
    """Two convolutions that share their weight, and what else a file must hold."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 3, 3, padding=1)
        self.second = nn.Conv2d(3, 3, 3, padding=1)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm2d(3)
        self.fc = nn.Linear(3, 4)

    def forward(self, x: Any) -> Any:
        return self.fc(self.norm(self.second(self.first(x).relu())).mean((2, 3)))


def train_a_little(model: nn.Module) -> None:
    """Move the statistics and parameters away from where they start."""
    model.train()
    model(torch.rand(2, 3, 64, 64)).square().mean().backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * torch.sign(p.grad) if p.grad is not None else 0


def same(a: nn.Module, b: nn.Module) -> bool:
    left, right = a.state_dict(), b.state_dict()
    return left.keys() == right.keys() and all(
        left[key].dtype == right[key].dtype and torch.equal(left[key], right[key]) for key in left
    )


def raw(path: Any) -> tuple[dict[str, Any], bytes]:
    """Header and data of a safetensors file, read by its specification."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def write_raw(path: Any, header: dict[str, Any], data: bytes) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@PRESETS
@pytest.mark.parametrize("name", NAMES)
def test_a_file_alone_rebuilds_every_network(name, preset, tmp_path):
    model, path = small(name, preset=preset, lift={"zero_scale": 0.5}), tmp_path / "model.safetensors"
    train_a_little(model)
    model.card = Card(["a", "b", "c"], [0.1, 0.2, 0.3], [1, 2, 3])
    save(model, path)
    state = torch.random.get_rng_state()
    again = load(path)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert same(again, model)
    assert (again.config, again.lift.config) == (model.config, model.lift.config)
    assert Card.of(again) == model.card
    assert not any(module.training for module in again.modules())
    image = torch.rand(1, 3, 64, 64)
    assert torch.equal(again(image), model.eval()(image))
    assert list(tmp_path.iterdir()) == [path]


def test_what_the_file_holds(tmp_path):
    """The plain state_dict, and one entry of metadata that any reader of safetensors can have."""
    model, path = small("densenet"), tmp_path / "deep" / "model.safetensors"
    model.card = Card(["a", "b", "c"])
    save(model, path)
    in_training = path.read_bytes()
    save(model.eval(), path)
    assert path.read_bytes() == in_training
    header, _ = raw(path)
    document = json.loads(header.pop("__metadata__")["scalespaces"])
    assert header.keys() == model.state_dict().keys()
    assert document.pop("card") == {"classes": ["a", "b", "c"], "mean": [], "std": []}
    assert document == {"format": FORMAT, "version": scalespaces.__version__, "network": model.config}
    plain = safetensors_torch.load_file(path)
    small("densenet").load_state_dict(plain)


@pytest.mark.parametrize(
    "lift",
    [
        {"num_levels": np.int64(3), "first_level": np.int32(-1), "base": np.float64(1.5), "dims": np.int64(2)},
        {"zero_scale": np.float32(0.5), "truncation": np.float64(3), "sampling": np.float64(1.5)},
        {"base": np.array([[1.5, 0.0], [0.0, 1.5]]), "sampling": "dense"},
    ],
    ids=str,
)
def test_numpy_numbers_in_a_lift(lift, tmp_path):
    path = tmp_path / "model.safetensors"
    for model, other in (
        (small("s_cnn", lift=lift, window="plain"), None),
        (scalespaces.convert(TinyNet(), lift), TinyNet()),
        (scalespaces.convert(TinyNet(), Lift(**lift)), TinyNet()),
    ):
        save(model.eval(), path)
        again: Any = load(path) if other is None else load(path, model=other)
        assert again.config == model.config == json.loads(json.dumps(model.config))
        image = torch.rand(1, 3, 32, 32)
        assert torch.equal(again(image), model(image))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_data_types_are_kept(dtype, tmp_path):
    path, mixed = tmp_path / "model.safetensors", small("resnet").to(memory_format=torch.channels_last)
    mixed.classifier.to(dtype)
    save(mixed, path)
    assert same(load(path), mixed)
    assert next(load(path, device="meta").parameters()).is_meta
    model = small("s_densenet", scale_padding="valid").to(dtype).eval()
    save(model, path)
    again = load(path)
    assert same(again, model)
    assert again.lift.num_levels == model.lift.num_levels == 4 + 2 * 2
    assert [b.dtype for b in again.buffers()] == [b.dtype for b in model.buffers()]
    if dtype == torch.float64:
        image = torch.rand(1, 3, again.smallest_side, again.smallest_side, dtype=dtype)
        assert torch.equal(again(image), model(image))


@pytest.mark.slow
def test_compiled_networks_are_saved_as_they_are(tmp_path):
    model = small("densenet")
    compiled: Any = torch.compile(model)
    save(compiled, tmp_path / "model.safetensors")
    assert same(load(tmp_path / "model.safetensors"), model)


@pytest.mark.parametrize("interaction", [None, "all", ["second"]])
def test_converted_models(interaction, tmp_path):
    path = tmp_path / "model.safetensors"
    options: Any = {"interaction": interaction, "scale_pool": "max", "pool_before": "fc", "features": "norm"}
    converted = scalespaces.convert(TinyNet(), {"num_levels": 3, "zero_scale": 0.5}, **options)
    train_a_little(converted)
    save(converted, path)
    foreign = TinyNet()
    before = copy.deepcopy(foreign)
    again = load(path, model=foreign)
    assert same(again, converted)
    assert same(foreign, before)
    assert again.config == converted.config
    image = torch.rand(1, 3, 32, 32)
    assert torch.equal(again(image), converted.eval()(image))
    if interaction is None:
        model: Any = again.model
        assert model.first.weight is model.second.weight
    with pytest.raises(ValueError, match=r"conversion of a 'TinyNet'.*load\(path, model=...\)"):
        load(path)
    with pytest.raises(ValueError, match=r"not those of the model|matches none|is the name of a module"):
        load(path, model=nn.Sequential(nn.Conv2d(3, 3, 1)))


@pytest.mark.parametrize("source", [None, TinyNet()])
def test_other_numbers_of_levels(source, tmp_path):
    """The levels of the file are as they were; a level that is added is the last one of the image, downscaled."""
    path, image = tmp_path / "model.safetensors", torch.rand(1, 3, 96, 96)
    levels = {"num_levels": 2}
    model: Any = scalespaces.convert(source, levels) if source else small("s_resnet_no_interaction", lift=levels)
    save(model.eval(), path)
    own = model.lift.num_levels
    more, fewer = (load(path, source, num_levels=n).double() for n in (own + 1, own - 1))
    assert (more.lift.num_levels, more.config["lift"]["num_levels"]) == (own + 1, own + 1)
    image, scores = image.double(), model.double().scores(image.double()).levels
    seen = more.scores(image).levels
    for found in (seen, fewer.scores(image).levels):
        assert all(map(torch.equal, found, scores))
    assert len(seen) == own + 1
    torch.testing.assert_close(
        seen[own], load(path, source).double().scores(more.lift.downscale(image)).levels[own - 1]
    )
    save(more, path)
    assert load(path, source).lift.num_levels == own + 1
    for wrong, message in ((0, "num_levels"), (65, "64 at most")):
        with pytest.raises(ValueError, match=message):
            load(path, source, num_levels=wrong)


def with_card(card: Any) -> Any:
    model = small("densenet")
    model.card = card
    return model


def test_what_cannot_be_saved(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_text("old")
    changed = small("densenet")
    changed.linear = nn.Linear(changed.linear.in_features, 7)
    odd = small("densenet")
    odd.register_buffer("mask", torch.eye(3).to_sparse())
    with torch.device("meta"):
        empty = small("densenet")
    cases = [
        (nn.Linear(1, 1), "got a Linear with no config"),
        (scalespaces.models.DenseNet(), "got a DenseNet with no config"),
        (changed, r"'linear.bias' has shape \(7,\) instead of \(3,\)|'linear.weight' has shape"),
        (odd, "dense tensors"),
        (empty, "torch.strided, meta"),
        (with_card(Card(["a"])), "1 classes.*num_classes=3"),
        (with_card(Card(mean=[0], std=[1])), "in_channels=3"),
        (with_card({"classes": ["a"]}), "must be a Card, got dict"),
    ]
    for model, message in cases:
        with pytest.raises((ValueError, TypeError), match=message):
            save(model, path)
    assert (path.read_text(), list(tmp_path.iterdir())) == ("old", [path])
    with pytest.raises(IsADirectoryError):
        save(small("densenet"), tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "model.safetensors"
    save(small("s_densenet", growth=(1, 1)), path)
    return path


def altered(whole, path, **changes):
    """The file with other arguments, of the lift, too, or with another description when there is one."""
    header, data = raw(whole)
    document = json.loads(header["__metadata__"]["scalespaces"])
    description = changes.pop("description", None)
    if description is None:
        for key, value in changes.items():
            where = document if key in ("format", "card", "network", "conversion") else document["network"]
            where = where["lift"] if key in ARGUMENTS else where
            where[key] = value
        description = json.dumps(document)
    header["__metadata__"] = {"scalespaces": description}
    write_raw(path, header, data)
    return path


@given(st.integers(0, 10**6))
def test_truncated_files(whole, tmp_path_factory, where):
    content = whole.read_bytes()
    path = tmp_path_factory.mktemp("cut") / "cut.safetensors"
    path.write_bytes(content[: where % len(content)])
    with pytest.raises(ValueError, match="is not a safetensors file, or is damaged"):
        load(path)


def nested(depth: int) -> list[Any]:
    return [nested(depth - 1)] if depth else []


TOO_FAR = [("num_levels", 64), ("base", 1e9), ("base", [[1e9, 0.0], [0.0, 1e9]]), ("truncation", 1e9)]
TOO_FAR += [("zero_scale", 1e30), ("zero_scale", -1.0)]


class Bomb:
    """Unpickled, it would say so."""

    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit('executed')",))


def test_foreign_files(whole, tmp_path):
    path = tmp_path / "model.safetensors"
    for content in (b"", b"PK\x03\x04", pickle.dumps(Bomb()), struct.pack("<Q", 2**63) + b"{}", b"\0" * 100):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="is not a safetensors file, or is damaged"):
            load(path)
    safetensors_torch.save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match=r"scalespaces did not write it.*load_file"):
        load(path)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load(tmp_path / "absent.safetensors")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        load(tmp_path)
    with pytest.raises(ValueError, match="leave out the model"):
        load(whole, model=TinyNet())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(({"description": wrong}, "is not JSON") for wrong in ("not JSON", "[" * 10**5)),
        ({"description": "[]"}, "a list, not an object"),
        ({"description": " " * (2**20 + 1)}, "may have 1048576 characters"),
        ({"description": '{"format": 2}'}, "neither or both"),
        ({"conversion": {}}, "neither or both"),
        ({"network": []}, "neither or both"),
        *(({"format": wrong}, "its format is .*, of scalespaces .*reads format 2") for wrong in (1, 3, "2", True, 2.0)),
        ({"card": {"classes": ["a"]}}, "1 classes"),
        ({"card": {"eval": "1"}}, "a card has"),
        ({"card": {"mean": [10**400] * 3, "std": [1] * 3}}, "one finite number per channel"),
        ({"card": {"mean": [0] * 3, "std": [10**400] * 3}}, "one finite number per channel"),
        ({"card": {"classes": nested(800)}}, "different strings|recursion"),
        ({"card": nested(800)}, "a card has|recursion"),
        ({"growth": nested(800)}, "plain values|recursion"),
        ({"base": nested(800)}, "plain values|recursion"),
        ({"format": nested(800)}, "its format is|recursion"),
        ({"base": 10**400}, "may be|blur too far"),
        ({"zero_scale": 10**400}, "may be|blur too far"),
        ({"num_classes": 10**9}, "num_classes may be|num_classes is at most"),
        ({"name": "no_such_net"}, "no model is called 'no_such_net'"),
        ({"name": ["s_densenet"]}, "build no network"),
        ({"name": "resnet"}, "resnet takes no argument"),
        ({"num_levels": 10**9}, "num_levels may be 64 at most"),
        ({"description": '{"format": 2, "network": {"num_levels": 1' + 5000 * "0" + "}}"}, "is not JSON"),
        ({"num_levels": 2.5}, "num_levels must be an integer"),
        ({"base": float("inf")}, "base must be finite"),
        ({"growth": [10**9]}, "growth may be"),
        ({"growth": [1] * 1000}, "growth is too long"),
        ({"growth": {"a": 1}}, "plain values and lists"),
        ({"num_layers": 10**6}, "num_layers may be"),
        ({"num_classes": 4}, r"'linear\.(bias|weight)' has shape"),
        ({"num_layers": 4}, "is missing"),
        ({"num_layers": 2}, "is unknown"),
        ({"method": "exec"}, "method is one of"),
        ({"first_level": -(10**9)}, "first_level may be 64 at most"),
        ({"dims": 1}, "got a lift with dims=1"),
        ({"lift": None}, "its lift is an object of a lift's arguments"),
        ({"lift": {"num_levels": {"a": 1}}}, "plain values and lists"),
        ({"num_layers": 10**6, "lift": {"num_levels": 4, "num_layers": 1}}, "an object of a lift's arguments"),
        ({"num_levels": 12, "first_level": -11}, "too fine"),
        *(({key: value}, "blur too far") for key, value in TOO_FAR),
        ({"base": [[2.0, 0.0], [0.0, 2.0]], "zero_scale": 1e6, "truncation": 0.01}, "blur too far"),
        ({"base": [[1.5, 0.0, 0.0], [0.0, 1.5, 0.0], [0.0, 0.0, 1.5]]}, "a row for each of 2 axes, got 3"),
    ],
)
def test_hostile_descriptions(whole, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message) as caught:
        load(altered(whole, tmp_path / "a.safetensors", **changes))
    assert len(str(caught.value)) < 600


def test_a_full_disk_is_an_os_error(tmp_path):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))"
    network = "import sys; from scalespaces.models import create_model, save; network = create_model('cnn')"
    write = "try: save(network, sys.argv[1])\nexcept OSError as error: print(error)"
    command = [sys.executable, "-B", "-c", f"{limit}; {network}\n{write}", str(tmp_path / "a.safetensors")]
    found = subprocess.run(command, capture_output=True, text=True)
    assert "perhaps because the disk is full" in found.stdout, found.stderr
    assert not list(tmp_path.iterdir())


def test_pipes_are_refused(tmp_path):
    os.mkfifo(tmp_path / "a.safetensors")
    with pytest.raises(FileNotFoundError, match="not a regular file"):
        load(tmp_path / "a.safetensors")


def test_images_of_another_precision_are_refused():
    network, image = small("s_cnn").eval(), torch.zeros(1, 3, 32, 32)
    with pytest.raises(
        ValueError, match=r"data type, torch\.float32, got torch\.float64; use image\.to\(torch\.float32"
    ):
        network(image.double())
    with pytest.raises(ValueError, match=r"data type, torch\.float64, got torch\.float32"):
        network.double()(image)
    assert network(image.double()).dtype == torch.float64


def test_hostile_tensors(whole, tmp_path):
    path = tmp_path / "a.safetensors"
    header, data = raw(whole)
    name = "linear.bias"
    for change, message in [
        ({"dtype": "I32"}, "cannot stand for torch.float32"),
        ({"shape": [1, 3]}, "has shape"),
        ({"shape": [10**9]}, "damaged"),
        ({"data_offsets": [0, 10**12]}, "damaged"),
        ({"dtype": "PICKLE"}, "damaged"),
    ]:
        write_raw(path, header | {name: header[name] | change}, data)
        with pytest.raises(ValueError, match=message):
            load(path)


def test_hostile_conversions(tmp_path):
    path = tmp_path / "a.safetensors"
    save(scalespaces.convert(TinyNet(), {"num_levels": 2}), path)
    header, data = raw(path)
    for change, message in [
        ({"lift": {"truncation": 1e9}}, "blur too far"),
        ({"lift": {"kernel": "os.system"}}, "build no network"),
        ({"report": True}, "unexpected keyword argument 'report'"),
        ({"interaction": ["nothing"]}, "matches none"),
        ({"pool_before": 3}, "build no network"),
        ({"scale_pool": "exec"}, "scale_pool is one of"),
    ]:
        document = json.loads(header["__metadata__"]["scalespaces"])
        document["conversion"] |= change
        write_raw(path, header | {"__metadata__": {"scalespaces": json.dumps(document)}}, data)
        with pytest.raises(ValueError, match=message):
            load(path, model=TinyNet())
