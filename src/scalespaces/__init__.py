"""Scale-equivariant networks for PyTorch, after Worrall & Welling's Deep Scale-spaces."""

import scalespaces.foreign  # noqa: F401  lets torch's own functions run on the container
from scalespaces import functional, models, nn, semigroups, space, testing, theory
from scalespaces.functional import downscale, feature_pyramid, lift, resample, scale_shift
from scalespaces.models import ConversionError, calibrate, convert
from scalespaces.space import ScaleSpace
from scalespaces.testing import assert_equivariant, equivariance_error

__version__ = "0.2.0.dev0"

__all__ = ["functional", "models", "nn", "semigroups", "space", "testing", "theory"]
__all__ += ["ScaleSpace", "downscale", "feature_pyramid", "lift", "resample", "scale_shift"]
__all__ += ["ConversionError", "assert_equivariant", "calibrate", "convert", "equivariance_error"]
