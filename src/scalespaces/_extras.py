"""Late imports: of optional dependencies, where the error for a missing one names it; and of a package's own names."""

import importlib
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any


def require(module: str, extra: str) -> ModuleType:
    """Import a module, or name the extra of this package that installs it; other import errors pass through.

    Example:
        >>> require("absent", "plot")
        Traceback (most recent call last):
        ...
        ImportError: absent is needed for this and is not installed; install it with: pip install 'scalespaces[plot]'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # error.name is what was not found: the module or its package, unless one of *its* imports is missing.
        if error.name is None or not (module == error.name or module.startswith(error.name + ".")):
            raise
        way = f"install it with: pip install 'scalespaces[{extra}]'"
        raise ImportError(f"{module} is needed for this and is not installed; {way}", name=module) from error


def late(
    package: str, homes: Mapping[str, str], needs: Mapping[str, tuple[str, str]] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions ``__getattr__`` and ``__dir__`` of a package that imports a name's module at the name's first use.

    Args:
        package: its name.
        homes: the module below the package that has each name; for a module, its own name.
        needs: a module that must be installed for one of these, and the extra that installs it.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if (home := homes[name]) in (needs or {}):
            require(*(needs or {})[home])
        module = importlib.import_module(f"{package}.{home}")
        return module if name == home else getattr(module, name)

    return get, lambda: sorted({*vars(sys.modules[package]), *homes})
