"""Flags of the trainer, early stopping, what is monitored, and what levels are supervised by."""

import json
import os
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch.testing import assert_close
from training import metrics_of, small_run

from scalespaces import data, models
from scalespaces._torch import is_channels_last
from scalespaces.data._idx import write_sets
from scalespaces.nn import ScaleBatchNorm
from scalespaces.train._batches import KeyedBatches
from scalespaces.train._checkpoints import AtomicCheckpoints
from scalespaces.train._data import open_split
from scalespaces.train._levels import supervise
from scalespaces.train._recipe import load_recipe
from scalespaces.train._run import Result, make_network, train
from scalespaces.train._scales import draw_scales, zoom, zoom_masks
from scalespaces.train._tasks import Task


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    images, labels = data.digits()
    write_sets(folder, data.mnist_scale(images, labels, counts=(96, 30, 30), scales=(0.9, 1.0)))
    return folder


def options(root: Path, *more: str) -> list[str]:
    return small_run(root, 16, "--model.arguments.dropout=0.2", "--trainer.epochs=2", "--optimizer.lr=0.01", *more)


def run(root: Path, out: Path, *more: str) -> Result:
    return train(load_recipe(None, options(root, *more)), out)


@pytest.fixture(autouse=True)
def _as_it_was():
    yield
    torch.use_deterministic_algorithms(False)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(models.load(folder / "model.safetensors").state_dict())


@pytest.mark.parametrize(
    "flags",
    [
        "--trainer.precision=bf16-mixed --levels.supervise=mean --trainer.valid_batches=1",
        "--trainer.precision=64-true --levels.supervise=apart",
        "--trainer.deterministic=true --trainer.accumulate=4 --levels.pool=probabilities",
        "--trainer.channels_last=false --optimizer.name=adamw --optimizer.clip=0.1 --data.limit=32",
    ],
)
def test_flags(root, tmp_path, flags):
    assert run(root, tmp_path, *flags.split()).steps == 2 * (32 if "limit" in flags else 96) // 16
    found = weights(tmp_path)
    assert all(tensor.isfinite().all() for tensor in found.values())
    assert found["linear.weight"].dtype == (torch.float64 if "64" in flags else torch.float32)


def test_computing_again_changes_nothing_and_is_for_known_blocks(root, tmp_path):
    run(root, tmp_path / "kept", "--trainer.max_steps=3")
    run(root, tmp_path / "again", "--trainer.max_steps=3", "--trainer.recompute=true")
    assert_close(weights(tmp_path / "again"), weights(tmp_path / "kept"), rtol=0, atol=0)
    arguments = ["--model.source=torch.nn:ReLU", "--data.kind=idx", f"--data.root={root}", "--trainer.recompute=true"]
    with pytest.raises(ValueError, match=r"trainer.recompute needs a network whose blocks are known, got Converted"):
        make_network(load_recipe(None, arguments), 1, 10, ["torch"])


@pytest.mark.slow
def test_compiled_training_is_training(root, tmp_path):
    said = ["--model.arguments.dropout=0.0", "--optimizer.name=sgd", "--trainer.max_steps=3"]
    run(root, tmp_path / "eager", *said)
    run(root, tmp_path / "compiled", *said, "--trainer.compile=true")
    assert_close(weights(tmp_path / "compiled"), weights(tmp_path / "eager"), rtol=1e-3, atol=1e-5)


def test_it_learns_and_saves_the_best_epoch(root, tmp_path):
    """Digits, a few epochs: far better than chance, and the table says so."""
    result = run(root, tmp_path, "--trainer.epochs=12", "--trainer.monitor=valid/nll")
    rows = metrics_of(tmp_path)
    losses = [row["valid/nll"] for row in rows]
    assert max(row["valid/accuracy"] for row in rows) > 0.5
    assert [row["epoch"] for row in rows] == list(range(12))
    assert rows[-1]["train/loss"] < rows[0]["train/loss"] / 2
    assert (result.best, result.best_epoch) == (pytest.approx(min(losses)), losses.index(min(losses)))
    assert json.loads((tmp_path / "result.json").read_text())["best"] == result.best
    state = AtomicCheckpoints().load_checkpoint(tmp_path / "best.ckpt")["state_dict"]
    for key, value in weights(tmp_path).items():
        assert torch.equal(state[f"network.{key}"], value)


def test_warmup_reaches_the_learning_rate(root, tmp_path, monkeypatch):
    rates = []
    original = torch.optim.Adam.step

    def spy(self, *args, **kwargs):
        rates.append(self.param_groups[0]["lr"])
        return original(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.Adam, "step", spy)
    run(root, tmp_path, "--optimizer.warmup=4", "--optimizer.lr_milestones=[1]")
    assert rates == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01, 0.01, *[0.001] * 6])


def test_a_diverging_run_says_so(root, tmp_path):
    with pytest.raises(ValueError, match=r"the loss is .* use a smaller lr"):
        run(root, tmp_path, "--optimizer.name=sgd", "--optimizer.lr=1e30")


def test_checkpoints_run_nothing(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save({"state_dict": Evil()}, tmp_path / "last.ckpt")
    with pytest.raises(ValueError, match="more than tensors and plain values"):
        AtomicCheckpoints().load_checkpoint(tmp_path / "last.ckpt")
    assert not (tmp_path / "ran").exists()
    (tmp_path / "short.ckpt").write_bytes((tmp_path / "last.ckpt").read_bytes()[:50])
    with pytest.raises(ValueError, match="not a checkpoint, or is damaged"):
        AtomicCheckpoints().load_checkpoint(tmp_path / "short.ckpt")


def test_a_network_from_a_file_is_trained_on(root, tmp_path):
    run(root, tmp_path / "first")
    file = f"--model.file={tmp_path / 'first' / 'model.safetensors'}"
    said = [word for word in options(root) if not word.startswith("--model")]
    train(load_recipe(None, [file, *said, "--optimizer.lr=1e-30"]), tmp_path / "second")
    one, two = weights(tmp_path / "first"), weights(tmp_path / "second")
    parameters = [key for key in one if key.endswith(("weight", "bias"))]
    assert parameters
    assert_close({key: two[key] for key in parameters}, {key: one[key] for key in parameters})


def test_class_255_counts(root):
    """Only masks have a number for pixels of no class."""
    recipe = load_recipe(None, options(root, "--data.num_classes=256"))
    task = Task(make_network(recipe, 1, 256), recipe, 256)
    assert task.ignored not in range(256)
    images, target = torch.rand(4, 1, 20, 20), torch.tensor([255, 255, 255, 255])
    assert supervise(task.network, images, target, "answer", task.ignored) > 0


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("last", [True, False])
def test_channels_last_reaches_every_layer(root, channels, last):
    """One channel is contiguous and channels last at once: the filters must tell which is meant."""
    recipe = load_recipe(None, options(root, f"--trainer.channels_last={str(last).lower()}"))
    task, found = Task(make_network(recipe, channels, 10), recipe, 10), []
    task.configure_model()
    for block in cast(models.ConvNet, task.network).blocks:
        block.register_forward_hook(lambda module, given, out: found.extend(map(is_channels_last, out.levels)))
    task.network(task._normalize(torch.rand(2, channels, 40, 40)))
    assert set(found) == {last}


@pytest.mark.parametrize("fill", ["zeros", "reflect"])
def test_jitter_moves_masks_with_their_images(root, fill):
    said = ["--model.name=s_resnet", "--model.arguments.width=3", "--data.kind=masks", f"--data.root={root}"]
    recipe = load_recipe(None, [*said, "--data.jitter=[0.5, 2]", f"--data.jitter_fill={fill}", "--seed=7"])
    task = Task(make_network(recipe, 3, 3), recipe, 3)
    images, masks, indices = torch.rand(2, 3, 16, 16), torch.randint(0, 3, (2, 16, 16)), torch.tensor([5, 17])
    factors = draw_scales(indices, epoch=0, seed=7, low=0.5, high=2.0)
    found = task._prepare(images, masks, indices)
    assert_close(found, (zoom(images, factors, fill), zoom_masks(masks, factors, task.ignored)))


@pytest.mark.parametrize("number", [4, None])
def test_batch_norms_are_measured_with_the_weights_that_are_saved(root, tmp_path, number):
    said = options(root, "--trainer.epochs=1", f"--trainer.norm_batches={number or 'null'}")
    recipe = load_recipe(None, said)
    train(recipe, tmp_path)
    network = models.load(tmp_path / "model.safetensors")
    norms: dict[str, Any] = {n: module for n, module in network.named_modules() if isinstance(module, ScaleBatchNorm)}
    saved = {name: (norm.running_mean.clone(), norm.running_var.clone()) for name, norm in norms.items()}
    assert all(norm.momentum == 0.1 and norm.num_batches_tracked == 6 for norm in norms.values())
    seen = {name: [] for name in norms}

    def note(name):
        def hook(module, inputs):
            moments = [(level.mean((0, *range(2, level.ndim))), level) for level in inputs[0].levels]
            mean = torch.stack([m for m, _ in moments]).mean(0)
            squares = [
                ((x - mean.view(1, -1, *[1] * (x.ndim - 2))) ** 2).mean((0, *range(2, x.ndim))) for _, x in moments
            ]
            count = sum(x.numel() // x.shape[1] for _, x in moments)
            seen[name].append((mean, torch.stack(squares).mean(0) * count / (count - 1)))

        return hook

    for name, norm in norms.items():
        norm.train().register_forward_pre_hook(note(name))
    train_set = open_split(recipe.data, seed=recipe.seed)
    batches = list(KeyedBatches(train_set, 16, recipe.seed))[-(number or 4) :]
    with torch.no_grad():
        for batch in batches:
            network(data.to_unit(torch.stack([train_set[n][0] for n in batch])))
    expected = {
        name: tuple(torch.stack(part).mean(0) for part in zip(*found, strict=True)) for name, found in seen.items()
    }
    if number is None:  # running averages are of older weights
        with pytest.raises(AssertionError):
            assert_close(saved, expected, rtol=1e-4, atol=1e-5)
    else:
        assert_close(saved, expected, rtol=1e-4, atol=1e-5)
