"""While foreign code runs on scale-spaces, refuse what it might silently get wrong."""

import linecache
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from types import FrameType

import torch

_STRICT: ContextVar[bool] = ContextVar("strict", default=False)


@contextmanager
def strictly() -> Iterator[None]:
    """Code run inside was not written for scale-spaces: tests for tensors, and flattened maps, are refused."""
    token = _STRICT.set(True)
    try:
        yield
    finally:
        _STRICT.reset(token)


def is_strict() -> bool:
    """Whether foreign code is running."""
    return not torch.compiler.is_compiling() and _STRICT.get()


def refuse_tests_for_tensors(frame: FrameType) -> None:
    """Refuse if the expression that this frame evaluates asks whether something is a Tensor."""
    indirect = frame.f_code.co_name == "is_tensor" and _package(frame) == "torch"
    asking = frame.f_back if indirect else frame
    if asking is None or _package(asking) in ("torch", "scalespaces"):
        return
    expression = "torch.is_tensor(...)" if indirect else _expression(asking)
    if not indirect and not all(re.search(rf"\b{word}\b", expression) for word in ("isinstance", "Tensor")):
        return
    wrong = f"{expression} asks whether a scale-space is a tensor; it is not, so the other branch would be taken"
    raise TypeError(f"{wrong}; remove the test, or test for lists instead")


def _package(frame: FrameType) -> str:
    return frame.f_globals.get("__name__", "").split(".")[0]


def _expression(frame: FrameType) -> str:
    """The source of what is being evaluated; without it, the names that the code uses."""
    spot = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), None)
    first, last, start, end = spot or (None, None, None, None)
    if first is None or last is None or start is None or end is None:
        first = last = frame.f_lineno
        start, end = 0, None
    lines = [linecache.getline(frame.f_code.co_filename, n, frame.f_globals) for n in range(first, last + 1)]
    if not any(lines):
        return f"isinstance(..., one of {', '.join(frame.f_code.co_names)})"
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    return " ".join(line.strip() for line in lines)
