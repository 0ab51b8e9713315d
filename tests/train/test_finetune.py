"""Fine-tuning: what is frozen stays, the head comes first, rates fall with depth, and trust is learned or fitted."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from training import last_weights, small_run, write_noise

from scalespaces import calibrate, models
from scalespaces._choices import SCALES
from scalespaces.data import to_unit
from scalespaces.train import _run, train
from scalespaces.train._data import open_split
from scalespaces.train._levels import answer
from scalespaces.train._recipe import Recipe, load_recipe
from scalespaces.train._run import make_network
from scalespaces.train._tasks import Task, depths
from tests.train.test_distributed import command, difference, finish, start
from tests.train.test_resume import Crash, assert_same, crash_at


def plain() -> nn.Module:
    body = [nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 10))


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return write_noise(tmp_path_factory.mktemp("data"), train=24, valid=10)


def options(root: Path, *more: str, converted: bool = False) -> list[str]:
    said = small_run(root, 8, "--optimizer.lr=0.01", "--optimizer.name=adamw", "--trainer.epochs=1", *more)
    other = [word for word in said if not word.startswith(("--model.name", "--model.arguments"))]
    return [f"--model.source={__name__}:plain", *other] if converted else said


def run(root: Path, out: Path, *more: str, converted: bool = False) -> tuple[Recipe, set[str], set[str]]:
    """Train. Returns the recipe, the names of what changed, and all names."""
    recipe = load_recipe(None, options(root, *more, converted=converted))
    train(recipe, out, allow_source=[__name__])
    old, new = make_network(recipe, 1, 10, [__name__]).state_dict(), last_weights(out)
    return recipe, {name for name in old if not torch.equal(old[name], new[f"network.{name}"])}, set(old)


@pytest.mark.parametrize("pattern", ["model.3.*", "3.*"])
def test_what_is_frozen_stays(root, tmp_path, pattern):
    _, new, names = run(root, tmp_path, f"--finetune.freeze=['{pattern}']", converted=True)
    assert names - new == {"model.3.weight", "model.3.bias"}


@pytest.mark.parametrize("converted", [False, True])
def test_the_head_comes_first(root, tmp_path, converted):
    _, new, names = run(root, tmp_path / "head", "--finetune.head_first=1", converted=converted)
    head = "model.7" if converted else "linear"
    assert new == {f"{head}.weight", f"{head}.bias"}
    assert run(root, tmp_path / "all", "--finetune.head_first=1", "--trainer.epochs=2", converted=converted)[1] == names


@pytest.mark.parametrize(("converted", "levels"), [(False, "model"), (False, "trust"), (True, "model")])
def test_rates_fall_with_depth(root, converted, levels):
    said = options(root, "--finetune.layer_decay=0.5", f"--levels.pool={levels}", converted=converted)
    recipe = load_recipe(None, [*said, "--finetune.freeze=['*.bias']"])
    task = Task(make_network(recipe, 1, 10, [__name__]), recipe, 10)
    (optimizer,), _ = task.configure_optimizers()
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    layers = [["model.0", "model.1"], ["model.3", "model.4"], ["model.7"]]  # norms are with their convolutions
    if not converted:
        layers = [["blocks.0"], ["blocks.1"], ["hidden", "norm"], ["linear", "scale_pool"]]
    for name, parameter in task.network.named_parameters():
        depth = next(n for n, some in enumerate(reversed(layers)) if any(name.startswith(f"{x}.") for x in some))
        assert rates.get(id(parameter)) == (None if name.endswith("bias") else 0.01 * 0.5**depth)
    assert optimizer.param_groups[0]["lr"] == 0.01, "the rate that is logged"


def test_layers_may_begin_with_a_norm():
    found = depths(models.create_model("densenet"), "linear")
    order = ["linear", "transitions.1", "transitions.0", "blocks.2", "blocks.1", "blocks.0"]
    assert found == {name: n for name in found for n, layer in enumerate(order) if name.startswith(f"{layer}.")}


@pytest.mark.parametrize("converted", [False, True])
def test_batch_norms_keep_their_statistics(root, tmp_path, converted):
    _, new, names = run(root, tmp_path, "--finetune.freeze_batchnorm=true", converted=converted)
    assert names - new == {name for name in names if "running" in name or "tracked" in name}


ALL = ["--finetune.head_first=1", "--finetune.layer_decay=0.5", "--finetune.freeze_batchnorm=true"]
ALL += ["--finetune.freeze=['blocks.0.conv.*']", "--trainer.epochs=2", "--levels.pool=trust"]


@pytest.fixture(scope="module")
def whole(root, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    run(root, out, *ALL, "--levels.supervise=mean")
    return out


@pytest.mark.parametrize(("place", "number"), [("step", 3), ("step", 4), ("step", 6), ("fit", 1)])
def test_a_crash_changes_nothing(root, tmp_path, monkeypatch, whole, place, number):
    crash_at(monkeypatch, *((Task, "training_step") if place == "step" else (_run, "fit_trust")), number)
    recipe = load_recipe(None, options(root, *ALL, "--levels.supervise=mean", "--trainer.checkpoint_every=1"))
    with pytest.raises(Crash):
        train(recipe, tmp_path)
    train(recipe, tmp_path, resume=True)
    assert_same(tmp_path, whole)


@pytest.mark.parametrize("precision", ["32-true", "64-true"])
def test_trust_is_fitted_to_the_best_network(root, tmp_path, precision):
    said = ["--levels.supervise=apart", "--data.jitter=[0.5, 2]", f"--trainer.precision={precision}"]
    recipe, _, _ = run(root, tmp_path / "trust", *said, "--levels.pool=trust")
    run(root, tmp_path / "plain", *said, "--levels.pool=probabilities")
    best = last_weights(tmp_path / "trust")  # of the only epoch
    assert_close(best, last_weights(tmp_path / "plain"), rtol=0, atol=0)
    expected: Any = make_network(recipe, 1, 10, [__name__]).to(best["network.linear.weight"].dtype)
    expected.load_state_dict({name.removeprefix("network."): value for name, value in best.items()})
    images = open_split(recipe.data, "train")
    shown, labels = [to_unit(image) for image, _ in images], [label for _, label in images]
    found = calibrate(expected, shown, labels, batch=8)
    file = models.load(tmp_path / "trust" / "model.safetensors")
    assert_close(dict(file.state_dict()), dict(expected.state_dict()), rtol=0, atol=0)
    batch = torch.stack(shown).to(expected.linear.weight)
    assert torch.equal(answer(file, batch, "trust"), expected.eval()(batch))
    document = json.loads((tmp_path / "trust" / "result.json").read_text())["trust"]
    assert document == vars(found) | {"rows": [list(row) for row in found.rows], "before": "probabilities"}


def test_trust_is_trained_with_the_network(root, tmp_path):
    _, new, names = run(root, tmp_path, "--levels.pool=trust", "--finetune.head_first=1", "--trainer.epochs=2")
    assert names - new == {"scale_pool.trust.second.bias"}, "the same for all levels, so it has no gradient"
    assert models.load(tmp_path / "model.safetensors").scale_pool.mode == "trust"
    assert "trust" not in json.loads((tmp_path / "result.json").read_text())


@pytest.mark.slow
def test_two_processes_follow_one(root, tmp_path):
    said = options(root, *ALL, "--levels.supervise=mean", "--optimizer.name=sgd", "--model.arguments.dropout=0.0")
    for n in (1, 2):
        finish(start(command(tmp_path / str(n), *said, processes=n)))
    assert difference(tmp_path / "2", tmp_path / "1") < 1e-4
    assert len(json.loads((tmp_path / "2" / "result.json").read_text())["trust"]["rows"]) == len(SCALES)
