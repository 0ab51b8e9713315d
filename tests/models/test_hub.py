"""Networks in folders and on the Hub, whose calls are replaced by a folder on this machine."""

import inspect
import json
import shutil
import sys
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import scalespaces
from scalespaces.models import Card, create_model, from_pretrained, push_to_hub, save_pretrained

IMAGE = torch.rand(1, 1, 28, 28)
CNN = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)).eval()


@pytest.fixture
def network() -> Any:
    made = create_model("s_cnn", num_classes=3, lift={"num_levels": 2}, channels=(4, 8), kernel_size=3).eval()
    made.card = Card(classes=["cat", "```\\n# dog", "fox"], mean=[0.5], std=[0.25])
    return made


class Hub:
    """A stand-in for huggingface_hub: repositories are folders, and calls are kept."""

    def __init__(self, root: Path) -> None:
        self.root, self.calls = root, []

    def HfApi(self, **arguments: Any) -> "Hub":
        self.calls.append(("HfApi", arguments))
        return self

    def create_repo(self, **arguments: Any) -> None:
        self.calls.append(("create_repo", arguments))
        (self.root / arguments["repo_id"]).mkdir(parents=True, exist_ok=arguments["exist_ok"])

    def file_exists(self, **arguments: Any) -> bool:
        self.calls.append(("file_exists", arguments))
        return (self.root / arguments["repo_id"] / arguments["filename"]).exists()

    def upload_folder(self, **arguments: Any) -> Any:
        self.calls.append(("upload_folder", arguments))
        for file in Path(arguments["folder_path"]).iterdir():
            if not any(fnmatch(file.name, pattern) for pattern in arguments["ignore_patterns"] or []):
                shutil.copy(file, self.root / arguments["repo_id"])
        return SimpleNamespace(commit_url=f"hub/{arguments['repo_id']}/commit/1")

    def snapshot_download(self, **arguments: Any) -> str:
        self.calls.append(("snapshot_download", arguments))
        return str(self.root / arguments["repo_id"])


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Hub:
    made = Hub(tmp_path / "hub")
    monkeypatch.setitem(sys.modules, "huggingface_hub", made)
    return made


def metadata(folder: Path) -> dict[str, Any]:
    _, front, _ = (folder / "README.md").read_text().split("---\n", 2)
    return {name: json.loads(value) for name, value in (line.split(": ", 1) for line in front.splitlines())}


def test_a_folder_gives_the_same_network_and_tells_people_about_it(network, tmp_path):
    save_pretrained(network, tmp_path / "new" / "digits", license="mit")
    again = from_pretrained(tmp_path / "new" / "digits")
    assert torch.equal(network(IMAGE), again(IMAGE))
    assert again.card == network.card
    found = metadata(tmp_path / "new" / "digits")
    assert (found["library_name"], found["pipeline_tag"], found["license"]) == (
        "scalespaces",
        "image-classification",
        "mit",
    )
    text = (tmp_path / "new" / "digits" / "README.md").read_text()
    assert f"{sum(p.numel() for p in network.parameters()):,}" in text
    assert "mean [0.5], std [0.25]" in text
    listed = text.split("```json\n")[1].rsplit("\n```", 1)[0]
    assert json.loads(listed) == list(network.card.classes)
    save_pretrained(create_model("s_resnet"), tmp_path / "pixels")
    assert metadata(tmp_path / "pixels")["pipeline_tag"] == "image-segmentation"
    assert "license" not in metadata(tmp_path / "pixels")


def test_a_converted_network_needs_its_model(tmp_path):
    converted = scalespaces.convert(CNN, {"num_levels": 2})
    save_pretrained(converted, tmp_path)
    assert "pipeline_tag" not in metadata(tmp_path)
    assert "model=YOUR_MODEL" in (tmp_path / "README.md").read_text()
    image = torch.rand(1, 3, 32, 32)
    assert torch.equal(from_pretrained(tmp_path, model=CNN)(image), converted(image))
    with pytest.raises(ValueError, match="give that model"):
        from_pretrained(tmp_path)


def test_there_and_back_by_way_of_the_hub(network, hub):
    assert push_to_hub(network, "someone/digits", private=True, token="t") == "hub/someone/digits/commit/1"
    again = from_pretrained("someone/digits", revision="main")
    assert torch.equal(network(IMAGE), again(IMAGE))
    calls = dict(hub.calls)
    assert (calls["HfApi"], calls["create_repo"]["private"]) == ({"token": "t"}, True)
    assert calls["snapshot_download"]["allow_patterns"] == ["model.safetensors"]  # and no pickles
    assert calls["snapshot_download"]["revision"] == "main"
    card = hub.root / "someone" / "digits" / "README.md"
    card.write_text("mine")
    push_to_hub(network, "someone/digits")
    assert card.read_text() == "mine"


def test_our_checks_hold(network, hub, tmp_path):
    with pytest.raises(ValueError, match="can be saved, got a Linear"):
        push_to_hub(nn.Linear(2, 2), "someone/other")
    assert "create_repo" not in dict(hub.calls)  # nothing was created
    push_to_hub(network, "someone/digits")
    weights = hub.root / "someone" / "digits" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    with pytest.raises(ValueError, match="damaged"):
        from_pretrained("someone/digits")
    weights.unlink()
    (weights.parent / "pytorch_model.bin").write_bytes(b"a pickle")
    with pytest.raises(FileNotFoundError, match=r"'someone/digits' has no file model\.safetensors"):
        from_pretrained("someone/digits")
    (tmp_path / "README.md").write_text("mine")
    save_pretrained(network, tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"


def test_without_the_extra_only_folders_work(network, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    save_pretrained(network, tmp_path)
    assert from_pretrained(tmp_path).card == network.card
    for use in (lambda: from_pretrained("someone/digits"), lambda: push_to_hub(network, "someone/digits")):
        with pytest.raises(ImportError, match=r"scalespaces\[hub\]"):
            use()


@pytest.mark.extra("huggingface_hub")
def test_the_stand_in_is_called_as_the_library_is(network, hub, monkeypatch):
    push_to_hub(network, "someone/digits")
    from_pretrained("someone/digits")
    monkeypatch.delitem(sys.modules, "huggingface_hub")
    library = pytest.importorskip("huggingface_hub")
    for name, arguments in hub.calls:
        function = getattr(library, name, None) or getattr(library.HfApi(), name)
        inspect.signature(function).bind(**arguments)
