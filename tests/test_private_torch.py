"""Private names of PyTorch may change with any release, so they are all in one file."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HOME = "src/scalespaces/_torch.py"
USED = {  # in HOME; whoever updates PyTorch looks these up
    "_dynamo_marked_constant",
    "_dynamo_static_indices",
    "torch._C._are_functorch_transforms_active",
    "torch._C._functorch.is_legacy_batchedtensor",
    "torch._C._get_tracing_state",
    "torch.autograd.forward_ad._current_level",
    "torch.fx.experimental.symbolic_shapes.guard_scalar",
    "torch.fx.experimental.symbolic_shapes.statically_known_true",
    "torch.nn.modules.batchnorm._NormBase",
    "torch.utils._python_dispatch.TorchDispatchMode",
    "torch.utils._pytree.GetAttrKey",
    "torch.utils._pytree.SequenceKey",
    "torch.utils._pytree.register_pytree_node",
    "torch.utils._pytree.tree_leaves",
    "torch.utils.data._utils.collate.default_collate_fn_map",
}


def is_private(path: str) -> bool:
    """Whether a dotted path is PyTorch's and private: a part has an underscore in front, or it is experimental."""
    first, *rest = path.split(".")
    hidden = any(part.startswith("_") and not part.startswith("__") for part in rest)
    return first == "torch" and (hidden or path.startswith("torch.fx.experimental"))


def private_names(source: str) -> set[str]:
    """The private names of PyTorch that a module uses, by their dotted paths; the longest of each chain."""
    tree = ast.parse(source)
    bound: dict[str, str] = {}  # a name in this module, and what it stands for
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            bound |= {
                a.asname or a.name.split(".")[0]: a.name if a.asname else a.name.split(".")[0] for a in node.names
            }
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            bound |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}

    def path(node: ast.AST) -> str:
        if isinstance(node, ast.Attribute):
            return f"{path(node.value)}.{node.attr}"
        return bound.get(node.id, "") if isinstance(node, ast.Name) else ""

    found = {name for name in bound.values() if is_private(name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if is_private(alias.name)}
        elif isinstance(node, ast.Attribute):
            found |= {name for name in [path(node)] if is_private(name)}
            found |= set(re.findall(r"^_dynamo_\w+$", node.attr))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):  # vars(x)["_dynamo_..."]
            found |= set(re.findall(r"^_dynamo_\w+$", node.value))
    return {name for name in found if not any(other.startswith(f"{name}.") for other in found)}


def files() -> dict[str, str]:
    """The package and what users copy from."""
    paths = [path for folder in ("src", "examples", "docs") for path in (ROOT / folder).rglob("*.py")]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in sorted(paths)}


def test_private_names_of_torch_are_in_one_file():
    found = {name: names for name, source in files().items() if (names := private_names(source))}
    assert (found.pop(HOME), found) == (USED, {})


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import torch\ntorch._C._get_tracing_state()", {"torch._C._get_tracing_state"}),
        ("import torch._dynamo as d\nd.reset()", {"torch._dynamo.reset"}),
        ("from torch.utils import _pytree as tree\ntree.tree_map", {"torch.utils._pytree.tree_map"}),
        ("def f():\n    from torch.fx.experimental.proxy_tensor import make_fx", None),
        ("import torch.nn.functional as F\nF._canonical_mask", {"torch.nn.functional._canonical_mask"}),
        ("x._dynamo_static_indices = {0}", {"_dynamo_static_indices"}),
        ("vars(x)['_dynamo_static_indices'] = {0}", {"_dynamo_static_indices"}),
        ("import torch\ntorch.__version__, torch.nn.Module.forward", set()),
        ("from scalespaces._torch import constant\nimport numpy as np\nnp._core", set()),
        ("from ._torch import constant\nself._torch._dynamo", set()),
    ],
)
def test_the_check_sees_private_names_and_nothing_else(source, names):
    found = private_names(source)
    assert len(found) == 1 if names is None else found == names
