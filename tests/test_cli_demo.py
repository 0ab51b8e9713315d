"""The command ``scalespaces demo``."""

import json
import signal
import subprocess
import sys

import pytest
from command import fails, run

from scalespaces import models
from scalespaces.app._images import example_for

WRONG = {"--epochs=0": "at least 1, got '0'", "--seed=-1": "--seed", "--plot=figure.xyz": "got the path 'figure.xyz'"}


def test_mistakes_are_found_before_the_work(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for said, words in WRONG.items():
        assert words in fails(capsys, "demo", said)
    for name in ("report.html", "results.json", "network.safetensors"):
        (tmp_path / name / name).mkdir(parents=True)
        assert "is a folder" in fails(capsys, "demo", "--out", str(tmp_path / name))
    (tmp_path / "taken").write_text("")
    assert "is not a folder" in fails(capsys, "demo", "--out", str(tmp_path / "taken"))


@pytest.mark.slow
def test_it_writes_a_report_numbers_and_a_network(tmp_path):
    done = run("demo", "--quick", "--full", "--out", str(tmp_path), "--plot", str(tmp_path / "accuracy.svg"))
    assert done.returncode == 0, done.stderr
    assert f"Now look at {tmp_path / 'report.html'}" in done.stdout
    written = ["accuracy.svg", "examples", "network.safetensors", "report.html", "results.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == written
    assert sorted(path.name for path in (tmp_path / "examples").iterdir()) == [f"digit_{n}.png" for n in range(10)]
    assert example_for(tmp_path / "network.safetensors") is not None
    document = json.loads((tmp_path / "results.json").read_text())
    assert document["seeds"] == [0, 1, 2]
    for method in document["methods"]:
        assert len(method["accuracy"]) == 3
        shown = f"{100 * sum(row[0] for row in method['accuracy']) / 3:.1f}"
        assert shown in done.stdout
        assert f"{shown} ±" in (tmp_path / "report.html").read_text()
    network = models.load(tmp_path / "network.safetensors")
    assert network.card.classes == tuple("0123456789")


@pytest.mark.slow
def test_interrupted_it_leaves_nothing(tmp_path):
    command = [sys.executable, "-m", "scalespaces", "demo", "--out", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("training the CNN")  # the first network is done
    process.send_signal(signal.SIGINT)
    _, error = process.communicate()
    assert (process.returncode, error.splitlines()[-1]) == (130, "scalespaces demo: interrupted")
    assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == []
