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
    "_files": set(),
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


DOORS = {  # what opens files from outside, and the only modules that may call it
    ("pillow.open", "Image.open"): ("data._pixels", "data._complete"),
    ("h5py.File", "require('h5py', 'train').File"): ("data._pcam",),
    ("gzip.open", "gzip.GzipFile"): ("data._idx", "data._fetch"),
    ("csv.reader", "csv.DictReader"): ("data._folders",),
    ("yaml.parse", "yaml.compose", "yaml.load", "yaml.safe_load", "yaml.unsafe_load"): ("train._recipe",),
    ("torch.load",): ("train._checkpoints",),
    ("safetensors.safe_open",): ("models._files",),
    ("require('safetensors.torch', 'files').load_file",): ("train._levels",),  # of what it has just written
    ("np.load", "np.loadtxt", "np.genfromtxt", "np.fromfile", "np.memmap", "pickle.load", "pickle.loads"): (),
    ("zipfile.ZipFile", "tarfile.open", "torch.jit.load", "pd.read_csv", "cv2.imread", "json.load"): (),
}
ORIGINS = {"PIL", "h5py", "gzip", "csv", "yaml", "safetensors", "pickle", "zipfile", "tarfile", "cv2", "imageio"}


def openings(module: str, source: str) -> list[str]:
    """What a module calls, or imports by name, to open files that others may open."""
    tree = ast.parse(source)
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    wrong = [
        call
        for calls, homes in DOORS.items()
        for call in calls
        if call in called and module.removeprefix("scalespaces.") not in homes
    ]
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level]
    return wrong + [f"from {node.module}" for node in froms if (node.module or "").split(".")[0] in ORIGINS]


def test_outside_files_are_opened_behind_one_door_for_each_format():
    assert {module: found for module, _, source in modules() if (found := openings(module, source))} == {}
    assert openings("scalespaces.app._images", "def f(file):\n    return pillow.open(file)") == ["pillow.open"]
    assert openings("scalespaces.train._run", "from safetensors.torch import load_file") == ["from safetensors.torch"]
    everything = "\n".join(source for _, _, source in modules())
    for calls, homes in DOORS.items():  # every door is in use
        assert not homes or any(f"{call}(" in everything.replace('"', "'") for call in calls)


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
