"""The mathematics of scale-spaces in NumPy, float64: kernels, scales and semigroups."""

from ._anisotropic import anisotropic_gaussian, gaussian_blur
from ._causal import causal_delay, causal_kernel, check_causal_base, check_causal_padding
from ._checks import NUMPY_PADDING, PaddingMode, check_choice, check_integer, check_padding_mode, check_real
from ._graphs import adjacency, chebyshev_heat, cotangent_laplacian, graph_laplacian, lumped_mass, spectral_bound
from ._kernels import (
    KERNELS,
    Alpha,
    Binomial,
    DiscreteGaussian,
    Kernel,
    SampledGaussian,
    binomial,
    discrete_gaussian,
    get_kernel,
    sampled_gaussian,
)
from ._scale import (
    Base,
    blur_covariance,
    blur_variance,
    check_base,
    check_zero_scale,
    expansion,
    level_variances,
)
from ._semigroups import ScaleTranslation, act, act_lifted, compose_affine_action

__all__ = [
    "KERNELS",
    "NUMPY_PADDING",
    "Alpha",
    "Base",
    "Binomial",
    "DiscreteGaussian",
    "Kernel",
    "PaddingMode",
    "SampledGaussian",
    "ScaleTranslation",
    "act",
    "act_lifted",
    "adjacency",
    "anisotropic_gaussian",
    "binomial",
    "blur_covariance",
    "blur_variance",
    "causal_delay",
    "causal_kernel",
    "chebyshev_heat",
    "check_base",
    "check_causal_base",
    "check_causal_padding",
    "check_choice",
    "check_integer",
    "check_padding_mode",
    "check_real",
    "check_zero_scale",
    "compose_affine_action",
    "cotangent_laplacian",
    "discrete_gaussian",
    "expansion",
    "gaussian_blur",
    "get_kernel",
    "graph_laplacian",
    "level_variances",
    "lumped_mass",
    "sampled_gaussian",
    "spectral_bound",
]
