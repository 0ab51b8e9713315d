"""The correlation for any semigroup, and semigroups other than scale."""

from scalespaces.semigroups._affine import AffineContractions
from scalespaces.semigroups._causal import CausalShifts, causal_downscale, causal_lift
from scalespaces.semigroups._graphs import Graph, graph_conv, graph_lift, graph_pool
from scalespaces.semigroups._lighting import Lighting
from scalespaces.semigroups._occlusions import Occlusions
from scalespaces.semigroups._p4 import P4, P4M, group_pool, p4_conv, transform_field
from scalespaces.semigroups._scale_translations import ScaleTranslations
from scalespaces.semigroups._semigroup import Lifted, Semigroup, semigroup_correlation, semigroup_lift
from scalespaces.semigroups._translations import Translations

__all__ = [
    "P4",
    "P4M",
    "AffineContractions",
    "CausalShifts",
    "Graph",
    "Lifted",
    "Lighting",
    "Occlusions",
    "ScaleTranslations",
    "Semigroup",
    "Translations",
    "causal_downscale",
    "causal_lift",
    "graph_conv",
    "graph_lift",
    "graph_pool",
    "group_pool",
    "p4_conv",
    "semigroup_correlation",
    "semigroup_lift",
    "transform_field",
]
