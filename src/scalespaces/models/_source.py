"""Models named on the command line, by the function that makes them."""

from __future__ import annotations

import ast
import importlib
import os
import sys
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from torch import nn


def build(place: str, arguments: Mapping[str, Any] | None = None) -> nn.Module:
    """Call the function or class at ``MODULE:FUNCTION`` and return the model it makes.

    Args:
        place: the module, which may be a file in the current directory, and the function in it; plain arguments may
            follow, as in ``"timm:create_model(model_name='resnet18', num_classes=3)"``.
        arguments: further arguments of the function, by name.

    Example:
        >>> build("torch.nn:Conv2d", {"in_channels": 3, "out_channels": 2, "kernel_size": 3})
        Conv2d(3, 2, kernel_size=(3, 3), stride=(1, 1))
    """
    place, given = _split(place)
    given |= arguments or {}
    module, _, name = place.partition(":")
    here = os.getcwd()  # where modules are found as well, as ``python -m`` does
    sys.path.insert(0, here)
    try:
        model = attrgetter(name)(importlib.import_module(module))(**given)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        takes = "the arguments " + ", ".join(given) if given else "no arguments"
        raise ValueError(
            f"a model is named by a function of {takes}, MODULE:FUNCTION, got {place!r}: {error}"
        ) from error
    finally:
        if here in sys.path:
            sys.path.remove(here)
    if not isinstance(model, nn.Module):
        raise ValueError(f"a model is named by what makes an nn.Module, got {place!r}, a {type(model).__name__}")
    return model


def _split(place: str) -> tuple[str, dict[str, Any]]:
    """The function's name, and the plain values in its parentheses."""
    name, opened, rest = place.partition("(")
    if not opened:
        return place, {}
    try:
        call = ast.parse(f"f({rest}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(keyword.arg is None for keyword in call.keywords):
            raise ValueError("arguments need names, as in (num_classes=3)")
        return name, {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"a model is named by MODULE:FUNCTION(name=value, ...), got {place!r}: {error}") from error
