"""Layers: each a thin module around one function of :mod:`scalespaces.functional`."""

from scalespaces.nn import init
from scalespaces.nn.conv import ScaleConv1d, ScaleConv2d, ScaleConv3d
from scalespaces.nn.lift import Lift
from scalespaces.nn.norm import ScaleBatchNorm, ScaleDropout
from scalespaces.nn.pool import (
    FeaturePyramid,
    GlobalPool,
    Resample,
    ScaleAvgPool,
    ScaleBlurPool,
    ScaleMaxPool,
    ScalePool,
)

__all__ = [
    "FeaturePyramid",
    "GlobalPool",
    "Lift",
    "Resample",
    "ScaleAvgPool",
    "ScaleBatchNorm",
    "ScaleBlurPool",
    "ScaleConv1d",
    "ScaleConv2d",
    "ScaleConv3d",
    "ScaleDropout",
    "ScaleMaxPool",
    "ScalePool",
    "init",
]
