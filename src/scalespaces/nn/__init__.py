"""Layers: each a thin module around one function of :mod:`scalespaces.functional` or :mod:`scalespaces.semigroups`."""

from scalespaces.nn import init
from scalespaces.nn._checkpoint import checkpoint
from scalespaces.nn._conv import ScaleConv1d, ScaleConv2d, ScaleConv3d
from scalespaces.nn._lift import CausalLift, Lift
from scalespaces.nn._norm import ScaleBatchNorm, ScaleDropout, synchronize
from scalespaces.nn._p4 import P4BatchNorm, P4Conv2d, P4MBatchNorm, P4MConv2d, P4MPool, P4Pool
from scalespaces.nn._pool import GlobalPool, Resample, ScaleAvgPool, ScaleBlurPool, ScaleMaxPool, ScalePool, Trust
from scalespaces.nn._semigroups import GraphConv, GraphLift, GraphPool, SemigroupConv

__all__ = ["CausalLift", "GraphLift", "Lift"]
__all__ += ["GraphConv", "P4Conv2d", "P4MConv2d", "ScaleConv1d", "ScaleConv2d", "ScaleConv3d", "SemigroupConv"]
__all__ += ["P4BatchNorm", "P4MBatchNorm", "ScaleBatchNorm", "ScaleDropout", "synchronize"]
__all__ += ["GlobalPool", "GraphPool", "P4MPool", "P4Pool", "ScaleAvgPool", "ScaleBlurPool", "ScaleMaxPool"]
__all__ += ["Resample", "ScalePool", "Trust"]
__all__ += ["checkpoint", "init"]
