"""Padding modes, with the names PyTorch gives them: what lies outside an image."""

from typing import Any, Literal

from scalespaces.theory._arguments import check_choice

PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]

NUMPY_PADDING: dict[str, Any] = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
"""The names ``numpy.pad`` gives them."""


def check_padding_mode(padding_mode: PaddingMode) -> PaddingMode:
    """Return the padding mode if it is valid; the error lists the valid ones."""
    return check_choice("padding_mode", padding_mode, NUMPY_PADDING)
