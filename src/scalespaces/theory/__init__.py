"""The mathematics of scale-spaces in NumPy, float64: kernels, scales and semigroups."""

from scalespaces.theory._anisotropic import anisotropic_gaussian, gaussian_blur
from scalespaces.theory._causal import causal_kernel
from scalespaces.theory._graphs import cotangent_laplacian, graph_laplacian
from scalespaces.theory._kernels import Alpha, Kernel, binomial, discrete_gaussian, sampled_gaussian
from scalespaces.theory._scale import blur_covariance, blur_variance, level_variances
from scalespaces.theory._semigroups import ScaleTranslation, act, act_lifted

__all__ = [
    "Alpha",
    "Kernel",
    "ScaleTranslation",
    "act",
    "act_lifted",
    "anisotropic_gaussian",
    "binomial",
    "blur_covariance",
    "blur_variance",
    "causal_kernel",
    "cotangent_laplacian",
    "discrete_gaussian",
    "gaussian_blur",
    "graph_laplacian",
    "level_variances",
    "sampled_gaussian",
]
