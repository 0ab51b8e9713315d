"""Images to work on."""

from scalespaces.data.samples import photograph

__all__ = ["photograph"]
