"""How equivariant is a network? Measure it, and assert it.

Downscaling the image must shift the levels of the output: level k of the downscaled image is compared with level k + l
of the image. Errors are relative to the norm of the level, as in the paper, or to how much a channel varies from image
to image, which is stricter. Levels that see past the last level, or are finer than the image, are left out.
"""

from scalespaces.testing._equivariance import assert_equivariant, equivariance_error, translation_error
from scalespaces.testing._table import EquivarianceTable

__all__ = ["EquivarianceTable", "assert_equivariant", "equivariance_error", "translation_error"]
