"""The command: its numbers are the library's, its files are whole, its errors are one line."""

import subprocess
import sys
import types

import pytest
from command import fails, run

import scalespaces
from scalespaces import cli
from scalespaces.cli import build_parser, main
from scalespaces.cli._arguments import add_own


@pytest.mark.parametrize(
    "arguments", [["--help"], *([name, "--help"] for name in ("equivariance", "models", "info", "export", "predict"))]
)
def test_help(arguments, capsys):
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: scalespaces")
    assert arguments[0] == "--help" or arguments[0] in out
    assert "None" not in out
    assert "SUPPRESS" not in out


def test_the_parser_loads_nothing_heavy():
    heavy = {"lightning", "torchmetrics", "jsonargparse", "matplotlib", "kornia", "h5py", "rich", "PIL", "onnx"}
    heavy |= {"gradio", "sklearn"}
    code = "import sys; from scalespaces.cli import build_parser; build_parser(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert heavy.isdisjoint(loaded)


def test_version(capsys):
    with pytest.raises(SystemExit) as exit:
        main(["--version"])
    assert exit.value.code == 0
    assert capsys.readouterr().out == f"scalespaces {scalespaces.__version__}\n"


def test_no_command_prints_the_help(capsys):
    assert main([]) == 0
    assert capsys.readouterr().out == build_parser().format_help()


def test_python_m():
    assert run("--version").stdout == f"scalespaces {scalespaces.__version__}\n"
    wrong = run("equivariance", "--image", "no such file.png")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == (
        "scalespaces equivariance: error: cannot read 'no such file.png': No such file or directory\n"
    )


def test_a_command_of_ones_own_arguments(monkeypatch, capsys):
    """It gets every word as it came, is listed, and fails as the others do."""
    got = []

    def run_own(arguments):
        got.append(arguments)
        if "bad" in arguments:
            raise ValueError("not\n  this")
        if "stop" in arguments:
            raise KeyboardInterrupt

    own = types.SimpleNamespace(add=lambda commands: add_own(commands, "cook", run_own, "by a recipe"))
    monkeypatch.setattr(cli, "COMMANDS", (*cli.COMMANDS, own))
    for words in (
        ["--config", "a.yaml", "--x.y=1", "z"],
        ["--help"],
        ["-h"],
        ["--version"],
        ["a", "--", "--", "-1"],
        [],
    ):
        assert main(["cook", *words]) == 0
        assert got[-1] == words
    assert "cook" in build_parser().format_help()
    assert "by a recipe" in build_parser().format_help()
    assert capsys.readouterr().out == ""
    assert fails(capsys, "cook", "bad") == "scalespaces cook: error: not this\n"
    assert main(["cook", "stop"]) == 130
    assert capsys.readouterr().err == "scalespaces cook: interrupted\n"
