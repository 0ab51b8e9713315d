"""Pictures of scale-spaces, correlations, equivariance errors and quantities over scales (matplotlib, extra ``plot``).

All functions take a ``title`` and a ``path`` to write to, in any of matplotlib's formats, and return the figure. It is
new and unknown to pyplot, or the one given: ``into=plt.figure()`` is pyplot's, for ``plt.show``, and is resized.
"""

from scalespaces.plotting._figure import check_writable as check_writable
from scalespaces.plotting._levels import plot_correlation, plot_scale_space
from scalespaces.plotting._lines import plot_equivariance, plot_over_scales

__all__ = ["plot_correlation", "plot_equivariance", "plot_over_scales", "plot_scale_space"]
