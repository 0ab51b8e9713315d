"""Run the command in tests."""

import subprocess
import sys

from scalespaces.cli import main


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "scalespaces", *arguments], capture_output=True, text=True)


def fails(capsys, *arguments: str) -> str:
    """The one line of a command that fails and says nothing else."""
    try:
        code = main(arguments)
    except SystemExit as exit:
        code = exit.code
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert err.startswith("scalespaces")
    assert ": error: " in err
    assert err.count("\n") == 1
    assert err.endswith("\n")
    return err
