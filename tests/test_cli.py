"""The command: every subcommand is listed and has help, and errors are one line with an exit code."""

import os
import runpy
import subprocess
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


HELP = """
import contextlib, io, sys
from scalespaces.cli import main
for line in sys.argv[1:]:
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main([*line.split(), "--help"])
    if found := {"torch", "lightning", "matplotlib"} & set(sys.modules):
        sys.exit(f"{line} --help imported {found}")
"""


def test_help_does_not_import_torch():
    commands = ["", *cli.COMMANDS, *(f"data {task}" for task in DATA)]
    done = subprocess.run([sys.executable, "-c", HELP, *commands], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


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
        (["cook"], "there is no command 'cook'"),
        (["trian"], "there is no command 'trian'; did you mean 'train'?"),
        (["train", "net.safetensors"], "scalespaces train net.safetensors --data.root FOLDER"),
        (["train", "--optimiser.lr", "1"], "did you mean 'optimizer.lr'?"),
        (
            ["train", "--model.name", "cnn", "--model.lift.samplin", "1", "--data.kind", "idx", "--data.root", "no"],
            "did you mean 'sampling'?",
        ),
        (["train", "--model.name", "s_cn", "--data.kind", "idx", "--data.root", "no"], "did you mean 's_cnn'?"),
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


def test_a_reader_that_has_enough_ends_the_command_quietly():
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "scalespaces", "models"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_small_images_name_the_option_and_files_have_info(tmp_path, capsys):
    pillow = pytest.importorskip("PIL.Image")
    network = scalespaces.models.create_model(
        "s_cnn", channels=(2, 2, 2), kernel_size=3, grid=1, lift={"num_levels": 6}
    )
    assert network.smallest_side > 16
    file, out = str(tmp_path / "net.safetensors"), str(tmp_path / "out.csv")
    scalespaces.models.save(network, file)
    pillow.new("L", (16, 16)).save(tmp_path / "small.png")
    assert main(["predict", file, str(tmp_path / "small.png"), "--out", out]) == 2
    side = network.smallest_side
    assert f"; use --size {side} {side} or more\n" in capsys.readouterr().err
    assert main(["predict", file, str(tmp_path / "small.png"), "--out", out, "--size", str(side), str(side)]) == 0
    assert "with 1 image; predicted '" in capsys.readouterr().out
    assert main(["info", file]) == 0
    assert "channels [2, 2, 2]" in capsys.readouterr().out
    assert "has its own settings; leave out --num-levels" in fails(capsys, "info", file, "--num-levels", "2")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("model: {name: s_cnn, arguments: {hidden: 3}}\ndata: {kind: idx, root: nowhere}\n")
    assert main(["info", str(recipe)]) == 0
    assert "hidden 3" in capsys.readouterr().out
