"""Networks in folders with a model card, and on the Hugging Face Hub: functions over :func:`save` and :func:`load`."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from torch import nn

from scalespaces._extras import require
from scalespaces._files import replacing
from scalespaces._torch import uncompiled
from scalespaces.models._convert import Converted
from scalespaces.models._files import Device, load, save
from scalespaces.models._network import Card, ScaleNetwork
from scalespaces.models._paper import ResNet

_WEIGHTS, _README = "model.safetensors", "README.md"


def save_pretrained(model: nn.Module, folder: str | os.PathLike[str], *, license: str | None = None) -> None:
    """Write a network into a folder, as :func:`save` does, with a model card for people, ``README.md``.

    A ``README.md`` that is there already is left as it is.

    Args:
        model: see :func:`save`.
        folder: is created if needed; it gets the files ``model.safetensors`` and ``README.md``.
        license: of the network, by its identifier on the Hub, such as ``"mit"``. Default: not stated.
    """
    folder = Path(folder)
    save(model, folder / _WEIGHTS)
    if not (folder / _README).exists():
        with replacing(folder / _README) as draft:
            draft.write_text(_describe(uncompiled(model), license), encoding="utf-8")


def from_pretrained(
    source: str | os.PathLike[str],
    model: nn.Module | None = None,
    *,
    revision: str | None = None,
    token: str | None = None,
    device: Device = "cpu",
) -> ScaleNetwork:
    """Load a network from a folder of :func:`save_pretrained`, or from a repository on the Hub (extra ``hub``).

    Only ``model.safetensors`` is downloaded. It is read by :func:`load`, with all its checks: no code in it is run, its
    tensors must be exactly those of the network, and pickled files are never read.

    Args:
        source: a folder, or the name of a repository, such as ``"someone/digits"``.
        model: for a converted network, the model it was made from.
        revision: branch, tag or commit of the repository.
        token: for a private repository. Default: the one that ``hf auth login`` has saved.
        device: where to put the network.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> save_pretrained(scalespaces.models.create_model("densenet", num_classes=5), folder)
        >>> from_pretrained(folder)(torch.zeros(1, 3, 96, 96)).shape
        torch.Size([1, 5])
    """
    folder = Path(source)
    if not folder.is_dir():
        hub = require("huggingface_hub", "hub")
        wanted = {"repo_id": os.fspath(source), "revision": revision, "token": token, "allow_patterns": [_WEIGHTS]}
        folder = Path(hub.snapshot_download(**wanted))
    if not (folder / _WEIGHTS).is_file():
        raise FileNotFoundError(f"{os.fspath(source)!r} has no file {_WEIGHTS}; save_pretrained writes one")
    path = folder / _WEIGHTS
    return load(path, device=device) if model is None else load(path, model, device=device)


def push_to_hub(
    model: nn.Module,
    name: str,
    *,
    license: str | None = None,
    private: bool | None = None,
    token: str | None = None,
    message: str = "Add a network saved by scalespaces",
) -> str:
    """Upload a network and its model card to a repository on the Hub (extra ``hub``), and return the commit's address.

    A model card that the repository has already is left as it is.

    Args:
        model: see :func:`save`.
        name: of the repository, such as ``"someone/digits"``; it is created if needed.
        license: see :func:`save_pretrained`.
        private: whether a new repository is private. Default: as the account's settings say.
        token: with the right to write. Default: the one that ``hf auth login`` has saved.
        message: of the commit.
    """
    api = require("huggingface_hub", "hub").HfApi(token=token)
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(model, folder, license=license)  # refuses what cannot be saved before anything is created
        api.create_repo(repo_id=name, private=private, exist_ok=True)
        kept = [_README] if api.file_exists(repo_id=name, filename=_README) else None
        done = api.upload_folder(repo_id=name, folder_path=folder, commit_message=message, ignore_patterns=kept)
    return str(done.commit_url)


def _describe(model: Any, license: str | None) -> str:
    """The model card: metadata that the Hub reads, what the network is, and how to use it."""
    card, lift, converted = Card.of(model), model.lift, isinstance(model, Converted)
    facts: dict[str, Any] = {"library_name": "scalespaces", "tags": ["scale-equivariance", "pytorch"]}
    if not converted:
        facts["pipeline_tag"] = "image-segmentation" if isinstance(model, ResNet) else "image-classification"
    if license is not None:
        facts["license"] = license
    kind = f"a {type(model.model).__name__}, converted" if converted else f"`{model.config['name']}`"
    rows = {
        "network": kind,
        "parameters": f"{sum(p.numel() for p in model.parameters()):,}",
        "levels": f"{lift.num_levels}, from level {lift.first_level}, {lift.method}, sampling {lift.sampling}",
        "levels are combined by": model.scale_pool.mode,
        "images": f"{model.in_channels} channels, {model.smallest_side} pixels a side or more",
        "normalization": f"mean {list(card.mean)}, std {list(card.std)}" if card.mean else "none",
    }
    more = ", model=YOUR_MODEL" if converted else ""
    front = "".join(f"{name}: {json.dumps(value)}\n" for name, value in facts.items())  # JSON is YAML, too
    parts = [f"---\n{front}---", "# A scale-equivariant network", "| | |\n|---|---|"]
    parts[-1] += "".join(f"\n| {name} | {value} |" for name, value in rows.items())
    parts += ["It was saved by [scalespaces](https://pypi.org/project/scalespaces), which loads it:"]
    use = f'from scalespaces.models import from_pretrained\n\nnetwork = from_pretrained("THIS_REPOSITORY"{more})'
    parts += [f"```python\n{use}\nanswer = network(network.card.normalize(image))  # image: (B, C, H, W), 0 to 1\n```"]
    if card.classes:
        parts += [f"## Classes\n\n```json\n{json.dumps(list(card.classes), indent=0)}\n```"]
    return "\n\n".join(parts) + "\n"
