"""Layers: each a thin module around one function of :mod:`scalespaces.functional` or :mod:`scalespaces.semigroups`."""

from scalespaces.nn import init
from scalespaces.nn._checkpoint import checkpoint
from scalespaces.nn._conv import ScaleConv1d, ScaleConv2d, ScaleConv3d
from scalespaces.nn._graph import GraphConv, GraphLift, GraphPool
from scalespaces.nn._lift import CausalLift, Lift
from scalespaces.nn._norm import ScaleBatchNorm, ScaleDropout, synchronize
from scalespaces.nn._p4 import P4BatchNorm, P4Conv2d, P4MBatchNorm, P4MConv2d, P4MPool, P4Pool
from scalespaces.nn._pool import GlobalPool, Resample, ScaleAvgPool, ScaleBlurPool, ScaleMaxPool, ScalePool
from scalespaces.nn._semigroup import SemigroupConv
from scalespaces.nn._trust import Trust

__all__ = [
    "CausalLift",
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
    "ScalePool",
    "SemigroupConv",
    "Trust",
    "checkpoint",
    "init",
    "synchronize",
]
