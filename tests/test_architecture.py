"""The arrows between the parts of the package."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import scalespaces

ROOT = Path(scalespaces.__file__).parent
LOWER = {  # part: the parts of ours it may import, beside itself
    "_choices": set(),
    "_extras": set(),
    "_files": {"_extras"},
    "_html": {"_extras"},
    "_progress": set(),
    "_tables": set(),
    "_torch": set(),
    "_measure": {"theory"},
    "theory": {"_extras"},
}
LOWER["space"] = {"_choices", "_extras", "_torch", "theory"}
LOWER["functional"] = LOWER["space"] | {"space"}
LOWER["foreign"] = LOWER["semigroups"] = LOWER["functional"] | {"functional"}
LOWER["nn"] = LOWER["testing"] = LOWER["semigroups"] | {"semigroups"}
LOWER["models"] = LOWER["nn"] | {"nn", "_files", "_progress", "_tables"}
LOWER["data"] = {"_choices", "_extras", "_files", "_progress"}
LOWER["train"] = LOWER["models"] | {"models", "data", "_tables"}
LOWER["plotting"] = LOWER["testing"] | {"_files", "testing"}
LOWER["app"] = LOWER["demo"] = LOWER["train"] | LOWER["plotting"] | {"train", "plotting", "_measure", "_html"}
LOWER["cli"] = set(LOWER) | {""}
LOWER["__main__"] = {"cli"}
# The container comes with torch's functions for it: the last lines of two export lists load the rooms above them.
UP = {("scalespaces.space", "scalespaces.functional"), ("scalespaces.functional", "scalespaces.foreign")}
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
    bad = {name for name in names if part(name) is not None and part(name) not in allowed and (module, name) not in UP}
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


IMPORT_ALONE = """
import os, sys
assert "torch" not in sys.modules
import torch  # once; every room is then imported alone, in a process of its own
for room in sys.argv[1:]:
    if os.fork() == 0:
        __import__(f"scalespaces.{room}")
        os._exit("conv2d" not in sys.modules["scalespaces.space._levelwise"].TORCH_FUNCTIONS)
    if os.wait()[1]:
        sys.exit(room)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_torchs_functions_know_the_container_whichever_room_is_imported_first():
    rooms = [
        "space",
        "space._grid",
        "functional",
        "functional._conv",
        "semigroups",
        "foreign",
        "nn",
        "models",
        "testing",
    ]
    subprocess.run([sys.executable, "-c", f"import scalespaces\n{IMPORT_ALONE}", *rooms], check=True)


DOOR = "scalespaces._files"
OPENERS = {  # functions and methods that open files; of their own, modules only parse what the door has opened
    "open", "read_bytes", "read_text", "File", "safe_open", "load_file", "TiffFile", "imread", "GzipFile", "ZipFile",
    "DictReader", "reader", "fromfile", "memmap", "loadtxt", "genfromtxt", "safe_load", "unsafe_load", "read_csv",
    "fdopen", "file_digest", "load",
}  # fmt: skip
WRITING = {"w", "wb", "ab"}
INSIDE = {  # openers of the same name, and files that are ours
    "load", "models.load", "self.load",  # networks and samples, which go through the door
    "torch.export.load",  # what was just written
    "webbrowser.open", "os.open", "gr.File",  # a page of ours; the null device; a field of the app
    "resources.files('scalespaces.app').joinpath('style.css').read_text",
    "resources.files('scalespaces.demo').joinpath('page', name).read_text",
    "info.read_text",  # of the processor
}  # fmt: skip


def openings(source: str) -> list[str]:
    """What a module calls, or imports by name, to open files for reading."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and not str(node.module).startswith("scalespaces."):
            names = [alias.name for alias in node.names if alias.name in OPENERS]
            found += [f"from {node.module} import {name}" for name in names]
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            modes = {word.value for word in ast.walk(node) if isinstance(word, ast.Constant)}
            text = ast.unparse(node.func)
            if name in OPENERS and text not in INSIDE and not modes & WRITING:
                found.append(text)
    return found


def test_files_from_outside_are_opened_by_one_module():
    found = {module: openings(source) for module, _, source in modules()}
    assert len(found.pop(DOOR)) > 5
    assert {module: names for module, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "line",
    [
        "pillow.open(file)",
        "open(path)",
        "path.open('rb')",
        "Path(path).read_bytes()",
        "require('h5py', 'train').File(path, 'r')",
        "torch.load(path)",
        "yaml.safe_load(text)",
        "from safetensors.torch import load_file",
        "from gzip import open as unpack",
        "with tifffile.TiffFile(path) as file: pass",
    ],
)
def test_the_check_sees_files_that_are_opened(line):
    assert len(openings(line)) == 1


def test_the_check_lets_writing_and_what_is_ours_pass():
    assert openings("path.open('w', newline='')\nh5py.File(draft, 'w')\nfrom scalespaces.models import load") == []


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
