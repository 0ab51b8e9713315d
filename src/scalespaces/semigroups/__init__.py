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

__all__ = ["Lifted", "Semigroup", "semigroup_correlation", "semigroup_lift"]
__all__ += ["AffineContractions", "Lighting", "Occlusions", "ScaleTranslations", "Translations"]
__all__ += ["CausalShifts", "causal_downscale", "causal_lift"]
__all__ += ["P4", "P4M", "group_pool", "p4_conv", "transform_field"]
__all__ += ["Graph", "graph_conv", "graph_lift", "graph_pool"]
