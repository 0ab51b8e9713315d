"""How equivariant is a network? Measure it, and assert it."""

from scalespaces.testing._equivariance import assert_equivariant, equivariance_error, translation_error
from scalespaces.testing._table import EquivarianceTable

__all__ = ["EquivarianceTable", "assert_equivariant", "equivariance_error", "translation_error"]
