"""What lies outside an image: the padding modes, named as PyTorch does."""

from typing import Any, Literal

from ._arguments import check_choice

PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]

NUMPY_PADDING: dict[PaddingMode, Any] = {
    "zeros": "constant",
    "reflect": "reflect",
    "replicate": "edge",
    "circular": "wrap",
}
"""What ``numpy.pad`` calls the padding modes."""


def check_padding_mode(padding_mode: PaddingMode) -> PaddingMode:
    """Return the padding mode, or list the valid ones."""
    check_choice("padding_mode", padding_mode, NUMPY_PADDING)
    return padding_mode
