"""Scale-equivariant networks for PyTorch, after Worrall & Welling's Deep Scale-spaces."""

from typing import TYPE_CHECKING

from scalespaces._extras import late

if TYPE_CHECKING:
    from scalespaces import functional, models, nn, semigroups, space, testing, theory
    from scalespaces.functional import downscale, feature_pyramid, lift, resample, scale_shift
    from scalespaces.models import ConversionError, calibrate, convert
    from scalespaces.space import ScaleSpace
    from scalespaces.testing import assert_equivariant, equivariance_error

__version__ = "0.2.0.dev0"

__all__ = ["functional", "models", "nn", "semigroups", "space", "testing", "theory"]
__all__ += ["ScaleSpace", "downscale", "feature_pyramid", "lift", "resample", "scale_shift"]
__all__ += ["ConversionError", "assert_equivariant", "calibrate", "convert", "equivariance_error"]

# Imported when it is first used: torch takes seconds, and the command's help does without it.
_HOMES = dict.fromkeys(["downscale", "feature_pyramid", "lift", "resample", "scale_shift"], "functional")
_HOMES |= {"ScaleSpace": "space", **dict.fromkeys(["ConversionError", "calibrate", "convert"], "models")}
_HOMES |= dict.fromkeys(["assert_equivariant", "equivariance_error"], "testing")
_HOMES |= {name: name for name in __all__ if name not in _HOMES}
__getattr__, __dir__ = late(__name__, _HOMES)
