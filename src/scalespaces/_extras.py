"""Optional dependencies: imported where they are used, and missed by name."""

import importlib
from types import ModuleType


def require(module: str, extra: str) -> ModuleType:
    """Import ``module``, or say which extra of this package installs it.

    Args:
        module: Dotted name of the module.
        extra: The extra of ``pyproject.toml`` that brings it.

    Raises:
        ImportError: If the module is not installed. A module that is installed and fails to import for a
            reason of its own raises its own error.

    Example:
        >>> require("math", "plot").floor(1.5)
        1
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
        raise ImportError(
            f"{module} is needed for this and is not installed; install it with: pip install 'scalespaces[{extra}]'",
            name=module,
        ) from error
