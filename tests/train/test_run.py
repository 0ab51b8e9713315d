"""Flags of the trainer, early stopping, what is monitored, and what levels are supervised by."""

import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from scalespaces import data, models
from scalespaces.data import _make as make
from scalespaces.train._checkpoints import load_checkpoint
from scalespaces.train._levels import supervise
from scalespaces.train._recipe import load_recipe
from scalespaces.train._run import make_network, train


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    images, labels = data.digits()
    make.write_sets(folder, data.mnist_scale(images, labels, counts=(96, 30, 30), scales=(0.9, 1.0)))
    return folder


def options(root: Path, *more: str) -> list[str]:
    small = '{"channels": [8, 8], "kernel_size": 3, "hidden": 16, "dropout": 0.2}'
    said = ["--model.name=s_cnn", f"--model.arguments={small}", "--model.lift.num_levels=2", "--data.kind=idx"]
    return [
        *said,
        f"--data.root={root}",
        "--data.batch_size=16",
        "--data.workers=0",
        "--trainer.epochs=2",
        "--optimizer.lr=0.01",
        *more,
    ]


@pytest.fixture(autouse=True)
def _as_it_was():
    yield
    torch.use_deterministic_algorithms(False)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(models.load(folder / "model.safetensors").state_dict())


def table(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))


@pytest.mark.parametrize(
    "flag",
    [
        "--trainer.precision=bf16-mixed",
        "--trainer.precision=64-true",
        "--trainer.deterministic=true",
        "--trainer.accumulate=4",
        "--trainer.channels_last=false",
        "--trainer.recompute=true",
        "--optimizer.name=adamw",
        "--optimizer.clip=0.1",
        "--levels.supervise=mean",
        "--levels.supervise=apart",
        "--levels.pool=probabilities",
        "--data.limit=32",
        "--trainer.valid_batches=1",
    ],
)
def test_flags(root, tmp_path, flag):
    result = train(load_recipe(None, options(root, flag)), tmp_path / "out")
    steps = 2 * (32 if "limit" in flag else 96) // 16
    assert result.steps == steps
    for tensor in weights(result.folder).values():
        assert tensor.isfinite().all()
    if "64" in flag:
        assert weights(result.folder)["linear.weight"].dtype == torch.float64


def test_computing_again_changes_nothing(root, tmp_path):
    said = options(root, "--trainer.max_steps=3")
    train(load_recipe(None, said), tmp_path / "kept")
    train(load_recipe(None, [*said, "--trainer.recompute=true"]), tmp_path / "again")
    torch.testing.assert_close(weights(tmp_path / "again"), weights(tmp_path / "kept"), rtol=0, atol=0)


def test_only_known_blocks_are_computed_again(root):
    arguments = ["--model.source=torch.nn:ReLU", "--data.kind=idx", f"--data.root={root}", "--trainer.recompute=true"]
    recipe = load_recipe(None, arguments)
    with pytest.raises(ValueError, match=r"trainer.recompute needs a network whose blocks are known, got Converted"):
        make_network(recipe, 1, 10)


@pytest.mark.slow
def test_compiled_training_is_training(root, tmp_path):
    said = options(root, "--model.arguments.dropout=0.0", "--optimizer.name=sgd", "--trainer.max_steps=3")
    train(load_recipe(None, said), tmp_path / "eager")
    train(load_recipe(None, [*said, "--trainer.compile=true"]), tmp_path / "compiled")
    one, two = weights(tmp_path / "eager"), weights(tmp_path / "compiled")
    for key in one:
        torch.testing.assert_close(two[key], one[key], rtol=1e-3, atol=1e-5)


def test_it_learns(root, tmp_path):
    """Digits, a few epochs: far better than chance, and the table says so."""
    result = train(load_recipe(None, options(root, "--trainer.epochs=12")), tmp_path / "out")
    assert result.best is not None
    assert result.best > 0.5
    rows = table(tmp_path / "out")
    assert [int(row["epoch"]) for row in rows] == list(range(12))
    assert float(rows[-1]["train/loss"]) < float(rows[0]["train/loss"]) / 2
    assert max(float(row["valid/accuracy"]) for row in rows) == pytest.approx(result.best)
    document = json.loads((tmp_path / "out" / "result.json").read_text())
    assert document["best"] == result.best


def test_best_epoch_is_what_is_saved(root, tmp_path):
    result = train(load_recipe(None, options(root, "--trainer.epochs=4", "--trainer.monitor=valid/nll")), tmp_path)
    rows = table(tmp_path)
    losses = [float(row["valid/nll"]) for row in rows]
    assert result.best_epoch == losses.index(min(losses))
    state = load_checkpoint(tmp_path / "best.ckpt")["state_dict"]
    for key, value in weights(tmp_path).items():
        assert torch.equal(state[f"network.{key}"], value)


def test_early_stopping(root, tmp_path):
    said = options(root, "--optimizer.lr=1e-12", "--trainer.epochs=50", "--trainer.patience=2")
    result = train(load_recipe(None, said), tmp_path)
    rows = table(tmp_path)
    assert 3 <= len(rows) < 50
    assert result.best_epoch is not None
    assert len(rows) == result.best_epoch + 3


def test_warmup_reaches_the_learning_rate(root, tmp_path, monkeypatch):
    rates = []
    original = torch.optim.Adam.step

    def spy(self, *args, **kwargs):
        rates.append(self.param_groups[0]["lr"])
        return original(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.Adam, "step", spy)
    train(load_recipe(None, options(root, "--optimizer.warmup=4", "--optimizer.lr_milestones=[1]")), tmp_path)
    assert rates == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01, 0.01, *[0.001] * 6])


def test_a_diverging_run_says_so(root, tmp_path):
    said = options(root, "--optimizer.name=sgd", "--optimizer.lr=1e30")
    with pytest.raises(ValueError, match=r"the loss is .* use a smaller lr"):
        train(load_recipe(None, said), tmp_path)


def test_checkpoints_run_nothing(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save({"state_dict": Evil()}, tmp_path / "last.ckpt")
    with pytest.raises(ValueError, match="more than tensors and plain values"):
        load_checkpoint(tmp_path / "last.ckpt")
    assert not (tmp_path / "ran").exists()
    (tmp_path / "short.ckpt").write_bytes((tmp_path / "last.ckpt").read_bytes()[:50])
    with pytest.raises(ValueError, match="no checkpoint, or a damaged one"):
        load_checkpoint(tmp_path / "short.ckpt")


def test_a_network_from_a_file_is_trained_on(root, tmp_path):
    train(load_recipe(None, options(root)), tmp_path / "first")
    said = options(root)[3:]
    file = f"--model.file={tmp_path / 'first' / 'model.safetensors'}"
    train(load_recipe(None, [file, *said, "--optimizer.lr=1e-30"]), tmp_path / "second")
    one, two = weights(tmp_path / "first"), weights(tmp_path / "second")
    parameters = [key for key in one if key.endswith(("weight", "bias"))]
    assert parameters
    for key in parameters:
        torch.testing.assert_close(two[key], one[key])


def test_class_255_counts(tmp_path):
    """Only masks have a number for pixels of no class."""
    generator = np.random.default_rng(0)
    labels = np.array([255, 0, 255, 1] * 4)
    made = data.ArrayImages(generator.integers(0, 256, (16, 20, 20), np.uint8), labels)
    make.write_sets(tmp_path / "data", {"train": made, "valid": made})
    said = options(tmp_path / "data", "--data.num_classes=256", "--trainer.max_steps=1")
    task = make_task(load_recipe(None, said))
    images, target = torch.rand(4, 1, 20, 20), torch.tensor([255, 255, 255, 255])
    assert task.ignored not in range(256)
    loss = supervise(task.network, images, target, "answer", task.ignored)
    assert loss > 0


def make_task(recipe):
    from scalespaces.train._run import make_network
    from scalespaces.train._tasks import Classification

    return Classification(make_network(recipe, 1, 256), recipe, 256)
