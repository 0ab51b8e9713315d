"""What the pages cite exists: links, tests, names, commands."""

import ast
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from command import run
from models.networks import ONNX

from benchmarks import __main__ as benchmarks
from scalespaces.cli import parse

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

SLOW = [ROOT / "docs" / "howto" / "export.md"]
RUN = [pytest.param(page, marks=pytest.mark.slow) if page in SLOW else page for page in PAGES[2:]]


def anchors(page: str) -> set[str]:
    """The anchors that GitHub gives headings."""
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def broken_links(text: str, page: Path) -> Iterator[str]:
    prose = re.sub(r"\$\$.*?\$\$|```.*?```|`[^`]*`", "", text, flags=re.DOTALL)  # [f](x) in formulas is no link
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"https?://", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if re.search(r"(^|/)\.\w", path) or (target != page and not target.exists()):  # .venv is nobody else's
            yield f"no such file: {link}"
        elif anchor and anchor not in anchors(text if target == page else target.read_text()):
            yield f"no such heading: {link}"


def missing_tests(text: str) -> Iterator[str]:
    for path, names in re.findall(r"(?<![\w/.])(tests/[\w/]+\.py)((?:::\w+)*)", text):
        file = ROOT / path
        if not file.exists():
            yield f"no such file: {path}"
            continue
        body = ast.parse(file.read_text()).body
        for name in names.split("::")[1:]:
            found = [node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name]
            if not found:
                yield f"no such test: {path}{names}"
                break
            body = found[0].body


def missing_names(text: str) -> Iterator[str]:
    for name in re.findall(r"(?<![\w/.])scalespaces(?:\.\w+)+", text):
        found = importlib.import_module("scalespaces")
        for part in name.split(".")[1:]:
            if not hasattr(found, part):
                yield f"no such name: {name}"
                break
            found = getattr(found, part)


def wrong_commands(text: str) -> Iterator[str]:
    for script, arguments in re.findall(r"\bpython ([\w/]+\.py)([^`\n]*)", text):
        file = ROOT / script
        if not file.exists():
            yield f"no such script: {script}"
            continue
        for flag in re.findall(r"--\w+", arguments):
            if flag not in file.read_text():
                yield f"no such option: {script} {flag}"
    parsers = {"scalespaces": parse, "python -m benchmarks": benchmarks.parse}
    for program, command in re.findall(rf"(?:^ *|`)({'|'.join(parsers)}) ([a-z][^`\n#]*)", text, re.MULTILINE):
        words = [word for word in shlex.split(command) if word != "--help"]
        try:
            parsers[program](words)
        except (SystemExit, ValueError, OSError):
            yield f"no such command: {program} {command.strip()}"
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:^ *|`)make ([a-z-]+)", text, re.MULTILINE):
        if not re.search(rf"^{target}:", makefile, re.MULTILINE):
            yield f"no such target: make {target}"


def problems(text: str, page: Path) -> list[str]:
    return [*broken_links(text, page), *missing_tests(text), *missing_names(text), *wrong_commands(text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_a_page_cites_exists(page):
    assert problems(page.read_text(), page) == []


@ONNX
@pytest.mark.parametrize(("epochs", "accuracy"), [(1, 0.3), pytest.param(3, 0.9, marks=pytest.mark.slow)])
def test_the_code_of_the_readme_runs(epochs, accuracy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGES[0].read_text(), re.DOTALL)
    (first_hour,) = (code for code in blocks if "range(3)" in code)
    names: dict = {}
    torch.manual_seed(0)
    exec(first_hour.replace("range(3)", f"range({epochs})"), names)
    found = names["network"].eval()(names["images"]).argmax(1)
    assert (found == names["labels"]).float().mean() > accuracy
    assert {path.name for path in tmp_path.iterdir()} == {"digits.pt", "digits.onnx"}
    for code in blocks:
        if code is not first_hour:
            exec(code, {})


@ONNX
@pytest.mark.slow
def test_the_commands_of_the_readme_run_from_top_to_bottom(tmp_path, monkeypatch):
    """Every line uses only what the lines above it have made. The app has its own tests, and would not end."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    (block,) = re.findall(r"```\n(scalespaces demo --quick.*?)```", PAGES[0].read_text(), re.DOTALL)
    lines = [words for line in block.splitlines() if (words := shlex.split(line, comments=True))]
    assert {"demo", "predict", "train", "evaluate", "export"} <= {words[1] for words in lines}
    for words in lines:
        given = [word for word in words[2:] if (tmp_path / word).exists()]
        assert words[1] != "app" or len(given) == 2
        if words[1] != "app":
            done = run(*words[1:], *["--trainer.epochs=1"] * (words[1] == "train"))
            assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "network.onnx").is_file()
    assert len((tmp_path / "out" / "predictions.csv").read_text().splitlines()) == 11


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_python_on_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(code, names)


NO_METHOD = "tests/theory/test_kernels.py::TestBinomial::test_no"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[a](nowhere.md)", "no such file: nowhere.md"),
        ("[a](../.venv/bin/python)", "no such file: ../.venv/bin/python"),
        ("[a](sampling.md#no-heading)", "no such heading: sampling.md#no-heading"),
        ("# One\n[a](#two)", "no such heading: #two"),
        ("`tests/test_nothing.py`", "no such file: tests/test_nothing.py"),
        (NO_METHOD, f"no such test: {NO_METHOD}"),
        ("`scalespaces.functional.nothing`", "no such name: scalespaces.functional.nothing"),
        ("`python examples/nothing.py`", "no such script: examples/nothing.py"),
        ("python docs/conf.py --nothing 3", "no such option: docs/conf.py --nothing"),
        ("`python -m benchmarks sampling --nothing`", "no such command: python -m benchmarks sampling --nothing"),
        ("`scalespaces equivariance --nothing`", "no such command: scalespaces equivariance --nothing"),
        ("`make nothing`", "no such target: make nothing"),
    ],
)
def test_the_check_sees_what_is_wrong(text, problem):
    assert problems(text, ROOT / "docs" / "sample.md") == [problem]


def test_every_erratum_that_is_tested_is_on_the_page_and_the_other_way_round():
    tests = ast.parse((ROOT / "tests" / "test_errata.py").read_text()).body
    names = {node.name for node in tests if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}
    assert names == set(re.findall(r"tests/test_errata\.py::(\w+)", (ROOT / "docs" / "errata.md").read_text()))
