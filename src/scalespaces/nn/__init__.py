"""Layers: each a thin module around one function of :mod:`scalespaces.functional`."""

from scalespaces.nn import init
from scalespaces.nn.causal import CausalLift
from scalespaces.nn.checkpoint import checkpoint
from scalespaces.nn.conv import ScaleConv1d, ScaleConv2d, ScaleConv3d
from scalespaces.nn.graph import GraphConv, GraphLift, GraphPool
from scalespaces.nn.lift import Lift
from scalespaces.nn.norm import ScaleBatchNorm, ScaleDropout, synchronise
from scalespaces.nn.p4 import (
    P4BatchNorm,
    P4Conv2d,
    P4MBatchNorm,
    P4MConv2d,
    P4MPool,
    P4Pool,
    ScaleP4Conv2d,
    ScaleP4MConv2d,
)
from scalespaces.nn.pool import (
    FeaturePyramid,
    GlobalPool,
    Resample,
    ScaleAvgPool,
    ScaleBlurPool,
    ScaleMaxPool,
    ScalePool,
)
from scalespaces.nn.semigroup import SemigroupConv

__all__ = [
    "CausalLift",
    "FeaturePyramid",
    "GlobalPool",
    "GraphConv",
    "GraphLift",
    "GraphPool",
    "Lift",
    "P4BatchNorm",
    "P4Conv2d",
    "P4MBatchNorm",
    "P4MConv2d",
    "P4MPool",
    "P4Pool",
    "Resample",
    "ScaleAvgPool",
    "ScaleBatchNorm",
    "ScaleBlurPool",
    "ScaleConv1d",
    "ScaleConv2d",
    "ScaleConv3d",
    "ScaleDropout",
    "ScaleMaxPool",
    "ScaleP4Conv2d",
    "ScaleP4MConv2d",
    "ScalePool",
    "SemigroupConv",
    "checkpoint",
    "init",
    "synchronise",
]
