"""PyTorch's own layers on scale-spaces: importing this module fills the container's table of functions."""

from scalespaces.foreign import _norms, _resizing, _windows  # noqa: F401

__all__ = []
