"""The wheel as users get it, what importing it loads, and what pyproject.toml promises."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import scalespaces

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


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


def test_every_link_works_away_from_the_repository(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = Parser().parsestr(archive.read(name).decode())
    repository = PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["custom"]["repository"]
    assert {url.split(", ")[1].startswith(repository) for url in metadata.get_all("Project-URL", [])} == {True}
    links = re.findall(r"\]\(([^)]*)\)", re.sub(r"```.*?```", "", str(metadata.get_payload()), flags=re.DOTALL))
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    ours = [link.removeprefix(repository) for link in links if link.startswith(repository)]
    assert f"/raw/v{scalespaces.__version__}/docs/images/demo.png" in ours
    paths = [re.sub(rf"^/(raw|blob)/v{re.escape(scalespaces.__version__)}/|#.*$", "", link) for link in ours]
    assert [path for path in paths if not (ROOT / path).exists()] == []
    patterns = ("*.md", "*.toml", "*.py", "*.cff", "docs/**/*.md", "src/**/*.py")
    places = [path.name for pattern in patterns for path in ROOT.glob(pattern) if repository in path.read_text()]
    assert places == ["pyproject.toml"]


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
    message = "PIL.Image is needed for this and is not installed; install it with: pip install 'scalespaces[plot]'"
    assert out.strip() == message


HEAVY = {"lightning", "torchmetrics", "jsonargparse", "yaml", "PIL", "h5py", "matplotlib", "kornia", "rich", "onnx"}
HEAVY |= {"gradio", "sklearn", "tifffile", "imagecodecs"}


def test_nothing_is_loaded_before_it_is_used(tmp_path):
    steps = ["import numpy, scipy.special, torch", "import scalespaces", "import scalespaces.train"]
    steps += ["from scalespaces.train import evaluate, predict", "from scalespaces.cli import main; main([])"]
    steps += ["from scalespaces.train import Recipe, load_recipe"]
    script = f"import sys\nfor step in {steps}:\n    exec(step)\n    print('loaded', *sys.modules)"
    out = run(sys.executable, "-W", "error", "-c", script, cwd=tmp_path)
    before, core, package, functions, commands, recipes = map(str.split, re.findall("^loaded (.*)$", out, re.MULTILINE))
    foreign = {name.split(".")[0] for name in {*core} - {*before}} - {"scalespaces", "numpy", "scipy", "torch"}
    assert foreign - sys.stdlib_module_names == set()  # not matplotlib, PIL, hypothesis, pytest, sympy...
    heavy = ("torch._dynamo", "torch._inductor", "scipy.signal", "scipy.stats", "scipy.ndimage", "scipy.optimize")
    assert [name for name in {*core} - {*before} if name.startswith((*heavy, "scalespaces.train"))] == []
    assert HEAVY.isdisjoint([*package, *functions, *commands])
    assert "scalespaces.cli._demo" not in commands
    assert {"lightning", "torchmetrics"}.isdisjoint(recipes)


def test_the_oldest_versions_are_the_lower_bounds():
    """Every ``>=`` in ``pyproject.toml`` is a pin in ``constraints-oldest.txt``, which make test-oldest installs."""
    project = PYPROJECT["project"]
    listed = project["dependencies"] + [one for extra in project["optional-dependencies"].values() for one in extra]
    bounds = {r.name: part.version for r in map(Requirement, listed) for part in r.specifier if part.operator == ">="}
    lines = (ROOT / "constraints-oldest.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert set(bounds) - set(pins) == set()
    assert {name: pins[name] for name in bounds if pins[name] not in SpecifierSet(f"=={bounds[name]}.*")} == {}


def test_every_promised_python_is_tested():
    yaml = pytest.importorskip("yaml")
    workflow = ROOT / ".github" / "workflows" / "ci.yml"
    if not workflow.exists():
        pytest.skip("the source distribution has no workflows")
    tested = yaml.safe_load(workflow.read_text())["jobs"]["test"]["strategy"]["matrix"]["python"]
    promised = [c.rsplit(" ", 1)[1] for c in PYPROJECT["project"]["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert (tested, PYPROJECT["project"]["requires-python"]) == (promised, f">={promised[0]}")


def test_the_changelog_begins_with_this_version():
    sections = re.findall(r"^## (\S+)(.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    version, unreleased = sections[0][0], "unreleased" in sections[0][1]
    assert scalespaces.__version__ == version + ".dev0" * unreleased
