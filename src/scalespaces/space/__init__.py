"""The container: levels on grids."""

from scalespaces.space._space import ScaleSpace

__all__ = [
    "ScaleSpace",
]
