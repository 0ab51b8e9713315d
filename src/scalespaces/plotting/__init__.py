"""Pictures of scale-spaces, correlations, equivariance errors and quantities over scales (matplotlib, extra ``plot``).

All functions take a ``title``, a ``path`` to write the figure to, in any of matplotlib's formats, and a figure to draw
into: ``into=plt.figure()`` is one of pyplot's, for ``plt.show``, and is resized. By default the figure is new and
unknown to pyplot. They return the figure.
"""

from scalespaces.plotting._figure import check_writable as check_writable
from scalespaces.plotting._levels import plot_correlation, plot_scale_space
from scalespaces.plotting._lines import plot_equivariance, plot_over_scales

__all__ = ["plot_correlation", "plot_equivariance", "plot_over_scales", "plot_scale_space"]
