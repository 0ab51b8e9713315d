"""The command: every subcommand is listed and has help, and errors are one line with an exit code."""

import runpy
import sys
import types

import pytest
from command import fails

import scalespaces
from scalespaces import cli
from scalespaces.cli import main

DATA = ["fetch", "make", "make mnist-scale", "make unseen-scale", "check", "repack"]


@pytest.mark.parametrize("command", ["", *cli.COMMANDS, *(f"data {task}" for task in DATA)])
def test_help(command, capsys):
    arguments = command.split()
    with pytest.raises(SystemExit) as exit:
        main([*arguments, "--help"])
    assert exit.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith(" ".join(["usage: scalespaces", *arguments, "["]))
    assert "SUPPRESS" not in out
    assert "(default: None)" not in out
    if command in ("data", "data make"):  # no task prints the same
        assert main(arguments) == 0
        assert capsys.readouterr().out == out
    if command == "":
        for name, about in cli.COMMANDS.items():
            assert f" {name} " in out
            assert " ".join(about.split()) in " ".join(out.split())
        assert main([]) == 0  # no command prints the same
        assert capsys.readouterr().out == out
        with pytest.raises(SystemExit):
            main(["--version"])
        assert capsys.readouterr().out == f"scalespaces {scalespaces.__version__}\n"


def test_python_m(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["scalespaces", "equivariance", "--image", "no file.png"])
    with pytest.raises(SystemExit) as exit:
        runpy.run_module("scalespaces", run_name="__main__")
    assert exit.value.code == 2
    message = "scalespaces equivariance: error: cannot read 'no file.png': No such file or directory\n"
    assert capsys.readouterr() == ("", message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cook"], "invalid choice: 'cook'"),
        (["--vers"], "unrecognized arguments: --vers"),
        (["predict", "a", "b", "--ou", "c"], "required: --out"),
        (["data", "check", ".", "--class", "3"], "unrecognized arguments: --class 3"),
        (["train", "--trainer.max_step", "3"], "trainer.max_step"),
    ],
    ids=" ".join,
)
def test_commands_and_options_are_given_in_full(arguments, message, capsys):
    assert message in fails(capsys, *arguments)


def test_exit_codes(monkeypatch, capsys):
    """A command gets every word after its name as it is. Errors exit with 2, an interrupt with 130."""
    seen = []

    def cook(args):
        seen.append(args.words)
        if "bad" in args.words:
            raise ValueError("not\n  this")
        if "stop" in args.words:
            raise KeyboardInterrupt

    own = types.SimpleNamespace(parse=lambda words: types.SimpleNamespace(run=cook, words=words))
    monkeypatch.setitem(sys.modules, "scalespaces.cli._cook", own)
    monkeypatch.setitem(cli.COMMANDS, "cook", "by a recipe")
    for words in (["--config", "a.yaml", "--x.y=1", "z"], ["--help"], ["--version"], ["a", "--", "--", "-1"], []):
        assert (main(["cook", *words]), seen[-1]) == (0, words)
    assert fails(capsys, "cook", "bad") == "scalespaces cook: error: not this\n"
    assert (main(["cook", "stop"]), capsys.readouterr().err) == (130, "scalespaces cook: interrupted\n")
