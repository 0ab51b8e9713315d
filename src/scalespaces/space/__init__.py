"""The container: levels on grids."""

from scalespaces.space._grid import Grid
from scalespaces.space._space import ScaleSpace

__all__ = ["Grid", "ScaleSpace"]

# Goes up on purpose, and last: whoever has the container must have torch's functions for it. See foreign.
import scalespaces.functional  # noqa: F401
