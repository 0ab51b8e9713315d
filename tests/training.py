"""Small runs of training, for tests."""

import csv
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from scalespaces.data import ArrayImages
from scalespaces.data._idx import write_sets
from scalespaces.train._checkpoints import AtomicCheckpoints


def small_run(root: Path, batch: int, *more: str) -> list[str]:
    """Options of ``scalespaces train`` for a small network on IDX files."""
    arguments = '{"channels": [4, 8], "kernel_size": 3, "hidden": 16}'
    network = ["--model.name=s_cnn", f"--model.arguments={arguments}", "--model.lift.num_levels=2"]
    return [*network, "--data.kind=idx", f"--data.root={root}", f"--data.batch_size={batch}", "--data.workers=0", *more]


def last_weights(folder: Path) -> dict[str, Tensor]:
    """The network in the last checkpoint."""
    state = AtomicCheckpoints().load_checkpoint(folder / "last.ckpt")["state_dict"]
    return {key: value for key, value in state.items() if key.startswith("network.")}


def last_moments(folder: Path) -> dict[str, Tensor]:
    """The optimizer's moments in the last checkpoint."""
    state = AtomicCheckpoints().load_checkpoint(folder / "last.ckpt")["optimizer_states"][0]["state"]
    return {f"{n}.{key}": torch.as_tensor(value) for n, entry in state.items() for key, value in entry.items()}


def metrics_of(folder: Path) -> list[dict[str, float]]:
    """The lines of metrics.csv."""
    rows = csv.DictReader((folder / "metrics.csv").read_text().splitlines())
    return [{key: float(value) for key, value in row.items()} for row in rows]


def assert_same(one: Path, other: Path) -> None:
    """Two runs have the same last weights and moments, and the same results, bit for bit."""
    mine, theirs = (last_weights(folder) | last_moments(folder) for folder in (one, other))
    assert mine.keys() == theirs.keys()
    assert [key for key in mine if not torch.equal(mine[key], theirs[key])] == []
    for name in ("metrics.csv", "model.safetensors", "result.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes()


def write_noise(folder: Path, train: int, valid: int) -> Path:
    """IDX files of so many random images of ten classes."""
    generator = np.random.default_rng(0)
    numbers = {"train": train, "valid": valid}
    images = {name: generator.integers(0, 256, (n, 20, 20), np.uint8) for name, n in numbers.items()}
    write_sets(folder, {name: ArrayImages(some, np.arange(len(some)) % 10) for name, some in images.items()})
    return folder
