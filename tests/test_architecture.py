"""The arrows between the parts of the package."""

import ast
from pathlib import Path

import pytest

import scalespaces

ROOT = Path(scalespaces.__file__).parent
LOWER = {  # part: the parts of ours it may import, beside itself
    "_extras": set(),
    "_files": set(),
    "_html": {"_extras"},
    "_progress": set(),
    "_tables": set(),
    "_torch": set(),
    "_measure": {"theory"},
    "theory": {"_extras"},
}
LOWER["space"] = {"_extras", "_torch", "theory"}
LOWER["functional"] = LOWER["space"] | {"space"}
LOWER["foreign"] = LOWER["semigroups"] = LOWER["functional"] | {"functional"}
LOWER["nn"] = LOWER["testing"] = LOWER["semigroups"] | {"semigroups"}
LOWER["models"] = LOWER["nn"] | {"nn", "_files", "_progress", "_tables"}
LOWER["data"] = {"_extras", "_files", "_progress"}
LOWER["train"] = LOWER["models"] | {"models", "data", "_tables"}
LOWER["plotting"] = LOWER["testing"] | {"_files", "testing"}
LOWER["app"] = LOWER["demo"] = LOWER["train"] | LOWER["plotting"] | {"train", "plotting", "_measure", "_html"}
LOWER["cli"] = set(LOWER) | {""}
LOWER["__main__"] = {"cli"}
# The export list, scalespaces/__init__.py.
LOWER[""] = set(LOWER) - {"cli", "__main__", "plotting", "app", "demo"}


def imports(module: str, is_package: bool, source: str) -> set[str]:
    """Return the absolute names a module imports, wherever in it and however they are written."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")
            above = above[: len(above) + is_package - node.level] if node.level else []
            origin = ".".join([*above, *filter(None, [node.module])])
            found |= {f"{origin}.{alias.name}" for alias in node.names}
    return found


def part(name: str) -> str | None:
    """Return the part of ours a dotted name belongs to: "" for the package itself, None for what is not ours."""
    head, _, rest = name.partition(".")
    first = rest.split(".")[0]
    if head != "scalespaces":
        return None
    return first if first in LOWER or (ROOT / first).is_dir() or (ROOT / f"{first}.py").is_file() else ""


def complaints(module: str, is_package: bool, source: str) -> list[str]:
    here, names = part(module), imports(module, is_package, source)
    if here not in LOWER:
        return [f"{module} is in no part that this test knows"]
    allowed = LOWER[here] | {here}
    bad = {name for name in names if part(name) is not None and part(name) not in allowed}
    if here == "theory":
        bad |= {name for name in names if name.split(".")[0] == "torch"}
    return [f"{module} must not import {name}" for name in sorted(bad)]


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        dotted = ".".join(["scalespaces", *path.relative_to(ROOT).with_suffix("").parts])
        yield dotted.removesuffix(".__init__"), path.name == "__init__.py", path.read_text(encoding="utf-8")


def test_imports_follow_the_arrows_and_no_module_is_called_utils():
    assert [line for module in modules() for line in complaints(*module)] == []
    assert [name for name, _, _ in modules() if "utils" in name] == []


ORDER = {  # inside the rooms of the core, a file imports only files to its left
    "space": "_strict _numbers _grid _per_level _axes _levelwise _space",
    "functional": "_constants _fast._choice _fast._blocks _fast._finer _sampling _correlate _fast._fold _fast._banded "
    "_moments _fast._batch_norm _resample _norm _pool _trust _conv _lift",
    "foreign": "_register _resizing _windows _norms",
}


def test_the_files_of_the_core_are_in_order():
    files = {module: imports(module, package, source) for module, package, source in modules() if not package}
    for room, text in ORDER.items():
        names = [f"scalespaces.{room}.{name}" for name in text.split()]
        assert {name for name in files if name.startswith(f"scalespaces.{room}.")} == set(names)
        for index, name in enumerate(names):
            later = tuple(f"{other}." for other in names[index + 1 :])
            assert [found for found in files[name] if found.startswith(later)] == []


def test_no_file_imports_itself_by_way_of_others():
    files = {module: imports(module, package, source) for module, package, source in modules() if not package}
    above = {
        module: {file for file in files for name in names if name == file or name.startswith(f"{file}.")} - {module}
        for module, names in files.items()
    }
    while free := [module for module, needed in above.items() if not needed & above.keys()]:
        for module in free:
            del above[module]
    assert sorted(above) == []


def test_fast_paths_are_behind_one_door():
    for module, package, source in modules():
        inside = module.startswith("scalespaces.functional.")
        used = [name for name in imports(module, package, source) if name.startswith("scalespaces.functional._fast")]
        assert inside or used == [], module


@pytest.mark.parametrize(
    ("wrong", "module", "is_package", "source"),
    [
        (1, "scalespaces.theory._kernels", False, "from torch import nn"),
        (1, "scalespaces.theory._kernels", False, "from .. import functional"),
        (1, "scalespaces.theory", True, "from ..functional import lift"),
        (1, "scalespaces.functional._lift", False, "def f():\n    import scalespaces.nn"),
        (1, "scalespaces.functional._lift", False, "from scalespaces import lift"),
        (1, "scalespaces.data.samples", False, "from scalespaces.nn import Lift"),
        (0, "scalespaces.functional", True, "from ._lift import lift\nfrom . import _lift\nimport torch"),
        (0, "scalespaces.functional._lift", False, "from ..theory import _kernels\nfrom .._extras import require"),
        (0, "scalespaces", True, "from scalespaces.nn import Lift\nfrom . import theory\nfrom .functional import lift"),
    ],
)
def test_the_check_sees_wrong_arrows_and_lets_right_ones_pass(wrong, module, is_package, source):
    assert len(complaints(module, is_package, source)) == wrong
