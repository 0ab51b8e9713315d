"""Optional dependencies, imported where they are used; the error for a missing one names it."""

import importlib
from types import ModuleType


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
