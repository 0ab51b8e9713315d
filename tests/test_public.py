"""The public names: those of one list, each documented once, and no others."""

import importlib
import re
from pathlib import Path

import scalespaces

ROOT = Path(__file__).parents[1]
SOURCE = Path(scalespaces.__file__).parent
LIST = (Path(__file__).parent / "public_names.txt").read_text().split()
MODULES = ["space", "functional", "semigroups", "nn", "nn.init", "models", "data", "train", "testing", "plotting"]
MODULES += ["theory"]
COMMANDS = ("app", "cli", "demo", "__main__")  # which are run, and export nothing


def exported(module: str) -> list[str]:
    return [f"scalespaces.{module}.{name}" for name in importlib.import_module(f"scalespaces.{module}").__all__]


def test_the_list_is_what_the_modules_export_and_no_function_has_the_name_of_a_module():
    names = [
        name for module in MODULES for name in exported(module) if name.removeprefix("scalespaces.") not in MODULES
    ]
    assert sorted(names) == LIST
    assert len(LIST) <= 129, "a reader can hold the list"
    files = {path.stem for path in SOURCE.rglob("*.py")}
    assert [name for name in LIST if name.rpartition(".")[2] in files] == []


def test_the_top_level_repeats_names_and_adds_none():
    top = {name: getattr(scalespaces, name) for name in scalespaces.__all__}
    modules = {name for name, value in top.items() if hasattr(value, "__file__")}
    homes = {name.rpartition(".")[2] for name in LIST}
    assert modules <= set(MODULES)
    assert top.keys() - modules <= homes


def test_every_other_file_is_private_and_commands_export_nothing():
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        module = ".".join(part for part in parts if part != "__init__")
        private = any(part.startswith("_") and part != "__init__" for part in parts)
        assert private or module in ("", "foreign", *MODULES, *COMMANDS), module
    for module in COMMANDS[:-1]:
        assert importlib.import_module(f"scalespaces.{module}").__all__ in ([], ["main"])


def test_the_reference_documents_each_name_once_and_no_others():
    names = []
    for page in (ROOT / "docs" / "api").glob("*.rst"):
        module = ""
        for directive, name in re.findall(r"^\.\. ([\w:]+):: ([\w.]+)$", page.read_text(), re.MULTILINE):
            if directive in ("automodule", "currentmodule"):
                module = name
            elif directive.startswith("auto") or directive == "py:data":
                names.append(f"{module}.{name}")
    assert sorted(names) == LIST


def test_a_star_import_brings_what_is_public():
    for name in ("scalespaces", *(f"scalespaces.{module}" for module in MODULES)):
        found = {}
        exec(f"from {name} import *", found)
        assert sorted(found.keys() - {"__builtins__"}) == sorted(importlib.import_module(name).__all__)
