"""The container: levels on grids."""

from scalespaces.space._grid import Grid
from scalespaces.space._space import ScaleSpace

__all__ = ["Grid", "ScaleSpace"]
