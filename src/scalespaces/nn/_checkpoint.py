"""Activation checkpointing: memory for time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch

_AGAIN: ContextVar[bool] = ContextVar("again", default=False)


def checkpoint(block: Callable[..., Any], *inputs: Any) -> Any:
    """Run a block and keep nothing but its inputs; the rest is computed again when the gradient needs it.

    As ``torch.utils.checkpoint.checkpoint``, but that running statistics of :class:`~scalespaces.nn.ScaleBatchNorm`
    are not moved a second time: training is the same, with less memory and about a third more time. Compiled by
    torch.compile it is the block itself, since the compiler chooses what to keep.

    Example:
        >>> block = scalespaces.nn.ScaleConv2d(3, 8, (2, 3, 3))
        >>> x = scalespaces.lift(torch.rand(2, 3, 16, 16), num_levels=3)
        >>> checkpoint(block, x).shape[:2]
        (2, 8)
    """
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():  # compilers choose by themselves what to keep
        return block(*inputs)
    from torch.utils.checkpoint import checkpoint as run  # imports SymPy in torch 2.6

    return run(block, *inputs, use_reentrant=False, context_fn=lambda: (contextlib.nullcontext(), _Again()))


def is_computed_again() -> bool:
    """Whether this is a second run, for the gradient."""
    return not torch.compiler.is_compiling() and _AGAIN.get()


class _Again:
    """Entered for every gradient that is taken."""

    def __enter__(self) -> None:
        self.token = _AGAIN.set(True)

    def __exit__(self, *error: object) -> None:
        _AGAIN.reset(self.token)
