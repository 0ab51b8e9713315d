"""Pure functions on scale-spaces."""

from scalespaces.functional import _torch_functions  # noqa: F401  fills the container's table
from scalespaces.functional._actions import (
    P4,
    P4M,
    AffineContractions,
    CausalShifts,
    Lighting,
    Occlusions,
    ScaleTranslations,
    Translations,
)
from scalespaces.functional._causal import causal_downscale, causal_lift
from scalespaces.functional._conv import scale_conv
from scalespaces.functional._graph import Graph, graph_conv, graph_lift, graph_pool
from scalespaces.functional._lift import downscale, lift
from scalespaces.functional._norm import scale_batch_norm, scale_dropout
from scalespaces.functional._p4 import group_pool, p4_conv, transform_field, transform_image
from scalespaces.functional._pool import avg_pool, blur_pool, global_pool, max_pool, scale_pool
from scalespaces.functional._resample import feature_pyramid, resample, scale_shift
from scalespaces.functional._semigroup import Lifted, Semigroup, semigroup_correlation, semigroup_lift
from scalespaces.functional._space import ScaleSpace

__all__ = [
    "P4",
    "P4M",
    "AffineContractions",
    "CausalShifts",
    "Graph",
    "Lifted",
    "Lighting",
    "Occlusions",
    "ScaleSpace",
    "ScaleTranslations",
    "Semigroup",
    "Translations",
    "avg_pool",
    "blur_pool",
    "causal_downscale",
    "causal_lift",
    "downscale",
    "feature_pyramid",
    "global_pool",
    "graph_conv",
    "graph_lift",
    "graph_pool",
    "group_pool",
    "lift",
    "max_pool",
    "p4_conv",
    "resample",
    "scale_batch_norm",
    "scale_conv",
    "scale_dropout",
    "scale_pool",
    "scale_shift",
    "semigroup_correlation",
    "semigroup_lift",
    "transform_field",
    "transform_image",
]
