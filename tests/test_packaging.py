"""The wheel as users get it, and what importing it loads."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    # Nothing of this process's Python settings: the child must find the package by itself.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    result = subprocess.run(list(map(str, command)), cwd=cwd, env=clean | env, capture_output=True, text=True)
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def clean_install(wheel: Path, folder: Path) -> Path:
    """Install a wheel with no extras into a new environment and return its Python."""
    uv = shutil.which("uv", path=Path(sys.executable).parent) or shutil.which("uv")
    python = folder / "bin" / "python"
    arguments = ["-q", "-c", ROOT / "constraints.txt", wheel]
    if uv is None:
        run(sys.executable, "-m", "venv", folder, cwd=folder.parent)
        run(python, "-m", "pip", "install", *arguments, cwd=folder.parent)
        return python
    # uv does not read pip's variable.
    links = {"UV_FIND_LINKS": os.environ["PIP_FIND_LINKS"]} if "PIP_FIND_LINKS" in os.environ else {}
    run(uv, "venv", "-q", "--python", sys.executable, folder, cwd=folder.parent)
    run(uv, "pip", "install", "--python", python, *arguments, cwd=folder.parent, **links)
    return python


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "scalespaces/py.typed" in names
    assert "scalespaces/data/astronaut.jpg" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"scalespaces"}


def test_the_wheel_works_without_extras(wheel, tmp_path):
    python = clean_install(wheel, tmp_path / "venv")
    script = """
import importlib.util, pathlib, sys
import scalespaces
from scalespaces.data import photograph
assert pathlib.Path(scalespaces.__file__).is_relative_to(sys.prefix), scalespaces.__file__
assert importlib.util.find_spec("matplotlib") is None and importlib.util.find_spec("PIL") is None
try:
    photograph()
except ImportError as error:
    print(error)
"""
    out = run(python, "-W", "error", "-c", script, cwd=tmp_path)
    assert out.strip() == (
        "PIL.Image is needed for this and is not installed; install it with: pip install 'scalespaces[plot]'"
    )


def test_importing_loads_no_more_than_the_core_needs(tmp_path):
    script = """
import sys
import numpy, scipy.special, torch
before = set(sys.modules)
import scalespaces
print(*sorted(set(sys.modules) - before))
"""
    loaded = run(sys.executable, "-W", "error", "-c", script, cwd=tmp_path).split()
    foreign = {name.split(".")[0] for name in loaded} - {"scalespaces", "numpy", "scipy", "torch"}
    assert foreign - sys.stdlib_module_names == set()  # not matplotlib, PIL, hypothesis, pytest, sympy...
    heavy = ("torch._dynamo", "torch._inductor", "scipy.signal", "scipy.stats", "scipy.ndimage", "scipy.optimize")
    assert [name for name in loaded if name.startswith(heavy)] == []
