"""Images to work on."""

from scalespaces.data.images import photograph, read_image

__all__ = ["photograph", "read_image"]
