"""python -m benchmarks reproduce: commands that the command line accepts, run once each, and a table of all seeds."""

import subprocess
from argparse import Namespace

import pytest
from training import write_noise

from benchmarks import reproduce
from benchmarks.__main__ import main
from scalespaces import cli
from scalespaces.train import load_recipe


@pytest.mark.parametrize("budget", ["quick", "full"])
@pytest.mark.parametrize("study", reproduce.STUDIES)
def test_every_command_is_valid(study, budget, tmp_path):
    asked = Namespace(
        study=study, data="data", budget=budget, networks=None, devices=1, work=str(tmp_path), results=None
    )
    for seed in (0, 1):
        for (module, command, *words), made in reproduce.commands(reproduce.STUDIES[study], seed, asked):
            assert module == "scalespaces"
            assert made.is_relative_to(tmp_path)
            if command == "train":
                recipe, overrides = words[0], words[1 : words.index("--out")]
                assert load_recipe(reproduce.ROOT / recipe, overrides).seed == seed
            else:
                assert cli.parse([command, *words]).run is not None


def test_all_networks_of_a_study_have_the_same_budget():
    for study in reproduce.STUDIES.values():
        recipes = [load_recipe(reproduce.ROOT / "recipes" / text.split()[0]) for text in study.networks.values()]
        assert len({(str(r.optimizer), r.trainer.epochs, r.data.batch_size) for r in recipes}) == 1


@pytest.fixture
def small(monkeypatch, tmp_path):
    """A study of two small networks on noise."""
    write_noise(tmp_path / "data", 40, 20)
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/small.yaml").write_text(
        "model: {name: cnn, arguments: {channels: [4, 4], kernel_size: 3, hidden: 8}}\n"
    )
    study = reproduce.Study(
        data="noise",
        networks={"CNN": "small.yaml", "CNN, jitter": "small.yaml --data.jitter [0.5,1]"},
        train={"quick": "--data.kind idx --data.root {data} --data.batch_size 20 --data.workers 0 --trainer.epochs 1"},
        evaluate={"quick": "--kind idx --root {data} --splits valid --scales 1 2"},
        metrics=("accuracy", "nll"),
    )
    monkeypatch.setattr(reproduce, "ROOT", tmp_path)
    monkeypatch.setitem(reproduce.STUDIES, "pcam", study)
    return ["reproduce", "pcam", "--data", str(tmp_path / "data"), "--work", str(tmp_path / "work"), "--seeds", "2"]


@pytest.mark.slow
def test_a_study_runs_once_and_prints_its_tables(small, capsys, monkeypatch):
    assert main(small) == 0
    first = capsys.readouterr()
    assert "[6 of 6] scalespaces evaluate" in first.err
    assert first.out.count("| CNN, jitter | ") == 2
    assert "mean ± standard deviation over 2 seeds" in first.out
    monkeypatch.setattr(subprocess, "run", None)  # nothing is left to run
    assert main(small) == 0
    assert capsys.readouterr().out == first.out


def test_a_dry_run_runs_nothing(small, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(subprocess, "run", None)
    assert main([*small, "--dry-run", "--networks", "CNN"]) == 0
    assert capsys.readouterr().err.count("scalespaces train") == 2
    done = tmp_path / "results/pcam-quick/seed_0.json"
    done.parent.mkdir(parents=True)
    done.touch()
    assert main([*small, "--dry-run", "--results", str(tmp_path / "results")]) == 0
    commands = capsys.readouterr().err
    assert commands.count("scalespaces train") == 2, "seed 0 is done, its networks are not needed"
    assert "--data.root data " in commands, "paths in the checkout are relative to it"
    assert main([*small, "--dry-run", "--results", str(tmp_path / "results"), "--networks", "CNN"]) == 0
    assert capsys.readouterr().err.count("scalespaces train") == 2, "an evaluation of all is not one of some"


def test_a_failing_command_is_named(small, capsys, monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: Namespace(returncode=3))
    assert main(small) == 2
    assert "exit code 3 from: scalespaces train" in capsys.readouterr().err
    assert main([*small, "--networks", "VGG"]) == 2
    assert "networks of pcam are CNN; CNN, jitter, got VGG" in capsys.readouterr().err
