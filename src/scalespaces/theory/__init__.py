"""The mathematics of scale-spaces in NumPy, float64: kernels, scales and semigroups."""

from scalespaces.theory._anisotropic import anisotropic_gaussian, gaussian_blur
from scalespaces.theory._graphs import cotangent_laplacian, graph_laplacian
from scalespaces.theory._kernels import Alpha, Kernel, binomial, causal_kernel, discrete_gaussian, sampled_gaussian
from scalespaces.theory._scale import blur_covariance, blur_variance, level_variances
from scalespaces.theory._semigroups import ScaleTranslation, act, act_lifted

__all__ = ["Alpha", "Kernel", "binomial", "causal_kernel", "discrete_gaussian", "sampled_gaussian"]
__all__ += ["anisotropic_gaussian", "blur_covariance", "blur_variance", "gaussian_blur", "level_variances"]
__all__ += ["ScaleTranslation", "act", "act_lifted", "cotangent_laplacian", "graph_laplacian"]
