"""Pure functions on scale-spaces."""

from scalespaces.functional.conv import scale_conv
from scalespaces.functional.lift import LiftPlan, apply_lift, downscale, lift, plan_lift
from scalespaces.functional.norm import batch_moments, scale_batch_norm, scale_dropout
from scalespaces.functional.pool import avg_pool, blur_pool, global_pool, max_pool, scale_pool
from scalespaces.functional.resample import feature_pyramid, resample, scale_shift
from scalespaces.functional.space import ScaleSpace

__all__ = [
    "LiftPlan",
    "ScaleSpace",
    "apply_lift",
    "avg_pool",
    "batch_moments",
    "blur_pool",
    "downscale",
    "feature_pyramid",
    "global_pool",
    "lift",
    "max_pool",
    "plan_lift",
    "resample",
    "scale_batch_norm",
    "scale_conv",
    "scale_dropout",
    "scale_pool",
    "scale_shift",
]
