"""Every recipe that comes with the package runs, and what is wrong with one is said before anything runs."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
from torch import nn

from scalespaces import data, models
from scalespaces.cli import main
from scalespaces.data._idx import write_sets
from scalespaces.nn import Lift
from scalespaces.train._data import num_classes, open_split
from scalespaces.train._recipe import Recipe, load_recipe
from scalespaces.train._run import make_network, train
from tests.command import fails, run
from tests.models.networks import PARAMETERS
from tests.pictures import noise, save_picture, write_cityscapes, write_pcam

RECIPES = Path(__file__).parents[2] / "recipes"
NAMES = sorted(path.stem for path in RECIPES.glob("*.yaml"))


def foreign(num_classes: int = 10, in_channels: int = 3) -> nn.Module:
    """A plain CNN, as any package might have it."""
    stem = [nn.Conv2d(in_channels, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
    body = [nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*stem, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, num_classes))


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> dict[str, Path]:
    """Data in every format that a recipe reads."""
    folder = tmp_path_factory.mktemp("made")
    write_pcam(folder / "pcam", {"train": 12, "valid": 3, "test": 1})
    write_cityscapes(folder / "cityscapes", {"train": 4, "val": 1, "test": 1}, size=(72, 96))
    images, labels = data.digits()
    sets = data.unseen_scales(images, labels, (1.05, 3.5), [1.0], canvas=28, counts=(24, 10, 10))
    write_sets(folder / "mnist_scale", sets)
    sets = data.unseen_scales(images, labels, 3.5, [1.75, 3.5], canvas=56, counts=(24, 10, 10))
    write_sets(folder / "unseen_scale", sets)
    for n in range(24):
        save_picture(folder / "finetune" / "train" / f"class_{n % 3}" / f"{n}.png", noise(40 + n, 50, n))
    return {path.name: path for path in folder.iterdir()}


def small(name: str, made: dict[str, Path]) -> list[str]:
    """What makes a recipe small enough for a test: data made on the spot, few and small samples."""
    kind = next(kind for kind in made if name.startswith(kind))
    said = ["--data.root", str(made[kind]), "--data.batch_size=2", "--data.workers=0", "--trainer.max_steps=2"]
    if kind == "cityscapes":
        said += ["--data.crop=[64, 64]"]
    if kind == "finetune":
        # In the place of timm's network, which is not installed here; tests/zoo has the real one.
        said += [f"--model.source={__name__}:foreign", "--data.size=[64, 64]", '--model.arguments={"num_classes": 3}']
    return said


@pytest.mark.parametrize("name", NAMES)
def test_recipe_runs(name, made, tmp_path):
    recipe = load_recipe(RECIPES / f"{name}.yaml", small(name, made))
    result = train(recipe, tmp_path / "out", allow_source=[__name__])
    assert result.steps == 2
    source = foreign(3) if recipe.model.source else None
    network = models.load(result.folder / "model.safetensors", source)
    assert network.card.classes or recipe.data.kind == "idx"
    channels, classes = open_split(recipe.data)[0][0].shape[0], num_classes(recipe.data)
    fresh, prefix = (make_network(recipe, channels, classes), "") if source is None else (foreign(3), "model.")
    trained = dict(network.named_parameters())
    assert any(not torch.equal(value, trained[f"{prefix}{key}"]) for key, value in fresh.named_parameters())
    assert load_recipe(result.folder / "recipe.yaml") == recipe
    versions = json.loads((result.folder / "versions.json").read_text())
    assert (versions["torch"], versions["seed"]) == (version("torch"), recipe.seed)
    assert list((result.folder / "tensorboard").iterdir())


def test_there_is_a_recipe_for_every_network():
    assert set(models.list_models()) <= {load_recipe(RECIPES / f"{name}.yaml").model.name for name in NAMES}


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("finetune")])
def test_networks_and_schedules_are_those_of_the_paper(name):
    recipe = load_recipe(RECIPES / f"{name}.yaml")
    channels, classes = {"pcam": (3, 2), "cityscapes": (3, 19)}.get(recipe.data.kind, (1, 10))
    network: Any = make_network(recipe, channels, classes)
    changed = {"mnist_scale_s_cnn": 494_217, **dict.fromkeys([n for n in NAMES if n.startswith("unseen")], 37_706)}
    expected = changed.get(name, PARAMETERS[str(recipe.model.name)])
    assert sum(p.numel() for p in network.parameters()) == expected
    if name.startswith(("cityscapes", "pcam")):
        assert recipe.model.preset == "paper"
        assert network.lift.config == Lift.paper(4 if "_s_" in name else 1).config
        assert network.config["window"] == "plain"
        data, optimizer = recipe.data, recipe.optimizer
        found = (optimizer.name, optimizer.lr, data.batch_size, data.augment, data.crop)
        pcam = data.kind == "pcam"
        assert found == (("sgd", 0.1, 512, "pcam", None) if pcam else ("adam", 1e-3, 8, "none", (992, 992)))
        assert (recipe.trainer.epochs, optimizer.momentum) == (100, 0.9)
        assert (optimizer.lr_milestones, optimizer.lr_factor) == ([40, 80], 0.1)
    else:
        assert (network.lift.sampling, network.lift.method) == ("pyramid", "cascade")
    if name.startswith("unseen"):
        levels = Lift(6, 2**0.5, first_level=-1) if "_s_" in name else Lift(1)
        assert network.lift.config == levels.config


def test_the_lift_is_overridden_key_by_key():
    def lift_of(name: str, *said: str) -> Lift:
        network: Any = make_network(load_recipe(RECIPES / f"{name}.yaml", said), 3, 2)
        return network.lift

    five = lift_of("unseen_scale_s_cnn", "--model.lift.num_levels", "5")
    assert five.config == Lift(5, 2**0.5, first_level=-1).config
    assert lift_of("pcam_s_densenet", "--model.lift.num_levels=5").config == Lift.paper(5).config
    assert lift_of("pcam_s_densenet", "--model.preset", "recommended").config == Lift(4).config
    said = ["--model.lift.base", "1.5", "--model.lift.sampling", "2", "--model.lift.zero_scale=0.5"]
    said += ["--model.lift.kernel", "sampled_gaussian", "--model.lift.method=cascade"]
    wanted = Lift(4, 1.5, sampling=2, zero_scale=0.5, kernel="sampled_gaussian")
    assert lift_of("pcam_s_densenet", *said).config == wanted.config
    matrix = lift_of("pcam_s_densenet", "--model.lift.base", "[[1.5, 0.5], [0.0, 2.0]]")
    assert matrix.base == ((1.5, 0.5), (0.0, 2.0))
    whole = lift_of("pcam_s_densenet", '--model.lift={"num_levels": 3, "base": 3}')
    assert whole.config == Lift.paper(3, 3.0).config


def test_a_source_is_lifted_and_converted():
    said = [f"--model.source={__name__}:foreign", "--model.lift.num_levels", "3", "--data.kind=idx", "--data.root=x"]
    said += ['--model.convert={"interaction": ["0"], "features": "8"}', "--model.convert.scale_pool", "max"]
    network: Any = make_network(load_recipe(None, said), 3, 10, [__name__])
    assert network.lift.config == Lift(3).config
    config = {"interaction": ["0"], "scale_padding": "zeros", "scale_pool": "max", "pool_before": None, "features": "8"}
    assert network.config == {"lift": Lift(3).config, **config, "smallest_level": None}
    plain: Any = make_network(load_recipe(None, said[:5]), 3, 10, [__name__])
    assert plain.config["scale_pool"] == "mean"
    network = make_network(load_recipe(None, [*said, "--model.convert.pool_before=8"]), 3, 10, [__name__])
    assert network.config["pool_before"] == "8"
    with pytest.raises(ValueError, match="features is the name of a module, got '9'"):
        make_network(load_recipe(None, [*said, "--model.convert.features=9"]), 3, 10, [__name__])


PCAM = RECIPES / "pcam_s_densenet.yaml"


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (["--data.rot", "x"], "data.rot"),
        (["--data.batch_size", "many"], "data.batch_size"),
        (["--optimizer.name", "lion"], "optimizer.name"),
        (["--optimizer.lr", "-1"], "lr is above 0"),
        (["--trainer.epochs", "0"], "trainer.epochs"),
        (["--model.source", "timm:create_model"], "model.name must be given alone"),
        (["--model.lift", "4"], "model.lift"),
        (["--model.arguments.num_levels", "4"], "use model.lift.num_levels, not model.arguments.num_levels"),
        (["--model.arguments.lift", "{}"], "use model.lift, not model.arguments.lift"),
        (["--model.convert.scale_pool", "max"], "model.convert is for a model.source"),
        (["--seed", "-3"], "seed is from 0"),
        (["--finetune.layer_decay", "1.5"], "layer_decay above 0, at most 1, got 0, 1.5"),
    ],
)
def test_wrong_values_are_named(said, message):
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        load_recipe(PCAM, said)


IDX = "\ndata: {kind: idx, root: x}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: {name: cnn}\ndata: {kind: idx, rooot: x}\n", "rooot"),
        ("model: {name: cnn}\ndata: {kind: idx}\n", "data.root"),
        (IDX, "model.name, model.source or model.file is needed"),
        ("model: {name: cnn}" + IDX + "epochs: 3\n", "epochs"),
        ("model: {name: cnn", "parsing"),
        ("- a list\n", "config"),
        ("model: {name: cnn}\ndata: {kind: idx, root: x, root: y}\n", "duplicate key 'root'"),
        ("model: {source: a:b, convert: {base: 3}}" + IDX, "use model.lift.base, not model.convert.base"),
        ("model: {source: a:b, preset: paper}" + IDX, "model.preset is for a model.name"),
        ("model: {file: a, lift: {base: 3}}" + IDX, "model.lift is for a model.name or model.source"),
        ("model: {file: a, arguments: {width: 3}}" + IDX, "model.arguments are for a model.name or model.source"),
    ],
)
def test_wrong_files_are_refused(tmp_path, text, message):
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        load_recipe(file)


MANY = "".join(f"  key_{n}: 1\n" for n in range(20_000))
CODE = "{class_path: runs_when_imported.Thing}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: &a {name: cnn, arguments: {deeper: *a}}" + IDX, "may not have aliases"),
        ("a: &a [1, 1]\nb: &b [*a, *a]\nc: [*b, *b]\n", "may not have aliases"),
        ("a: &a {b: 1}\nb: &b {c: *a, d: *a}\n", "may not have aliases"),
        (f"model:\n name: cnn\n arguments: '{{a: &a [1, 1], b: [*a, *a]}}'{IDX}", "may not have aliases"),
        (
            "model:\n name: cnn\n arguments:\n" + MANY + IDX,
            "more than 2,048 values; to raise the limit, set SCALESPACES",
        ),
        ("model: " + "[" * 100_000, "more than 16 levels of nesting"),
        ("model: " + "{a: " * 100_000, "more than 16 levels of nesting"),
        ("#" * 2**21, "more than 1,048,576 bytes"),
        ("seed: " + "1:" * 5000 + "1\n", "values of more than 4,096 letters"),
        ("model: {name: cnn}\nseed: 1" + "0" * 4000 + IDX, "seed is from 0 to 2**63 - 1, got 1000"),
        ("model: {name: cnn}\noptimizer: {lr: 1" + "0" * 400 + "}" + IDX, "too large"),
        ("model: {name: cnn, arguments: {a: !!binary aGFsbG8=}}" + IDX, "may not have tags"),
        ("? {a: b}\n: c\n", "unknown key"),
        ("hello", "a recipe's config is keys and values"),
        ("", "a recipe's config is keys and values"),
        ("model: {name: cnn}\ntrainer:\n" + IDX, "trainer has keys and values"),
        ("model: {name: cnn}\nallow_source: [os]\n" + IDX, "unknown key 'allow_source'"),
        ("model: {name: cnn}\nout: x\n" + IDX, "unknown key 'out'"),
        ("recipe: other.yaml\n", "unknown key 'recipe'"),
        ("model: runs_when_imported.Thing" + IDX, "model has keys and values"),
        (f"model: {{name: cnn, arguments: {{a: {CODE}}}}}{IDX}", "may not have a key 'class_path'"),
        (f"model: {{name: cnn, arguments: {{a: [{CODE}]}}}}{IDX}", "may not have a key 'class_path'"),
        (f"model: {{name: cnn, arguments: {{a: '{CODE}'}}}}{IDX}", "may not have a key 'class_path'"),
        (f"model: {{name: cnn, arguments: '{{a: {CODE}}}'}}{IDX}", "may not have a key 'class_path'"),
        ("model.arguments.a.class_path: runs_when_imported.Thing\n", "may not have a key 'class_path'"),
        (
            "model: {name: cnn}\ndata: {kind: idx, root: x, num_classes: 1000000000}",
            "data.num_classes is at most 32,768",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_hostile_files_are_refused_at_once_and_run_nothing(tmp_path, monkeypatch, capsys, text, message):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "runs_when_imported.py").write_text("open('ran', 'w').close()\nclass Thing: pass\n")
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text(text)
    for words in (["recipe.yaml"], ["--recipe=recipe.yaml"]):
        assert message in fails(capsys, "train", *words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["recipe.yaml", "runs_when_imported.py"]


def test_good_recipes_may_look_strange(tmp_path, monkeypatch):
    file, patterns = tmp_path / "recipe.yaml", ["*.bias", "layer1.*", "&a", "[ab]*", "a: b"]
    file.write_text(f"model: {{name: cnn}}\nfinetune: {{freeze: {patterns}}}{IDX}")
    assert load_recipe(file).finetune.freeze == patterns
    monkeypatch.setenv("SCALESPACES_MAX_VALUES", "10")
    with pytest.raises(ValueError, match="more than 10 values"):
        load_recipe(file)


def test_pipes_and_files_for_a_section_are_refused(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe.yaml")
    for words in ([str(tmp_path / "pipe.yaml")], [f"--recipe={tmp_path / 'pipe.yaml'}"]):
        assert "not a regular file" in fails(capsys, "train", *words)
    assert "files go to --recipe" in fails(capsys, "train", "--model", "pipe.yaml")


def test_a_recipe_runs_no_code_and_cannot_allow_it(tmp_path, monkeypatch, capsys, made):
    monkeypatch.chdir(tmp_path)
    data = f"\ndata: {{kind: idx, root: {made['mnist_scale']}}}\n"
    Path("recipe.yaml").write_text("model: {source: 'os:system', arguments: {command: touch ran}}" + data)
    assert "if you trust that package, use --allow-source os" in fails(capsys, "train", "recipe.yaml")
    assert not Path("ran").exists()
    said = ["--allow-source", __name__, "--trainer.max_steps=1", "--data.workers=0", "--data.batch_size=2"]
    source = f"model: {{source: '{__name__}:foreign', arguments: {{in_channels: 1}}}}"
    Path("recipe.yaml").write_text(source + data)
    assert "--allow-source" in fails(capsys, "train", "recipe.yaml")
    assert main(["train", "recipe.yaml", *said]) == 0


HEAD, TRUST = ["--finetune.head_first=1"], ["--levels.pool=trust"]
ONE_LEVEL = ["--model.lift.num_levels=1", "--model.arguments.filter_levels=1"]


@pytest.mark.parametrize(
    ("said", "error", "message"),
    [
        (["--data.root", "nowhere"], FileNotFoundError, "data.root: there is no folder 'nowhere'"),
        (["--model.name", "s_densnet"], ValueError, "did you mean 's_densenet'"),
        (["--model.arguments.growht", "3"], ValueError, "model: s_densenet takes no argument 'growht'"),
        (["--model.lift.levels", "3"], ValueError, "model.lift has no key 'levels'; did you mean 'num_levels'"),
        (["--model.arguments.num_classes", "5"], ValueError, "set the number of classes"),
        (["--model.lift.num_levels", "1000000"], ValueError, "model: "),
        (["--model.name", "s_resnet"], ValueError, "use a network for classification"),
        (["--data.batch_size", "512"], ValueError, "use a smaller data.batch_size"),
        (["--trainer.monitor", "accuracy"], ValueError, "trainer.monitor is one of train/loss, valid/accuracy"),
        (["--model.lift.num_levels", "9", "--model.preset", "recommended"], ValueError, "fewer num_levels"),
        (["--finetune.freeze=['blocks.0']"], ValueError, "'blocks.0', which matches none; did you mean 'blocks.0.*'"),
        (["--finetune.freeze=['*']"], ValueError, "finetune.freeze leaves parameters to train, got *, which match all"),
        ([*HEAD, "--finetune.freeze=['linear.*']"], ValueError, "finetune.head_first trains linear, which"),
        ([*TRUST, *ONE_LEVEL], ValueError, "the network has one; use model.lift.num_levels"),
        ([*TRUST, "--levels.supervise=mean"], ValueError, "20 training images at least, got 12"),
    ],
)
def test_what_cannot_be_is_refused_before_training(made, tmp_path, said, error, message):
    with pytest.raises(error, match=re.escape(message)):
        train(load_recipe(PCAM, [*small("pcam", made), *said]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_command(made, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", str(PCAM), *small("pcam", made), "--data.batch_size=6", "--trainer.epochs=1"]) == 0
    out, err = capsys.readouterr()
    assert "best valid/accuracy" in out
    assert (tmp_path / "out" / "pcam_s_densenet" / "model.safetensors").is_file()
    assert not [line for line in err.splitlines() if "scalespaces" in line or "Warning" in line]
    said = fails(capsys, "train", str(PCAM), *small("pcam", made))
    assert said.startswith("scalespaces train: error: 'out/pcam_s_densenet' already contains a run; --resume")


def test_help_names_every_key(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    parts: Any = [
        (part, options) for part, options in get_type_hints(Recipe).items() if dataclasses.is_dataclass(options)
    ]
    keys = [f"--{part}.{entry.name}" for part, options in parts for entry in dataclasses.fields(options)]
    out = capsys.readouterr().out
    assert [key for key in [*keys, "--seed", "--out", "--resume", "--force"] if key not in out] == []


@pytest.mark.slow
def test_an_interrupted_command_says_so_and_goes_on(made, tmp_path):
    small_network = '{"channels": [4, 8], "kernel_size": 3, "hidden": 8}'
    said = [str(RECIPES / "mnist_scale_cnn.yaml"), *small("mnist_scale", made), f"--model.arguments={small_network}"]
    said += ["--trainer.max_steps=100000", "--trainer.epochs=100000", "--out", str(tmp_path / "out")]
    command = [sys.executable, "-m", "scalespaces", "train", *said]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "out" / "last.ckpt").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate()
    assert process.returncode == 130
    assert error.endswith("scalespaces train: interrupted\n")
    assert not list(tmp_path.rglob(".*-*.ckpt")), "a draft is left"
    assert run("train", *said, "--resume", "--trainer.max_steps=1").returncode == 0
