r"""
Figure 4: how equivariant is it?
================================

The paper's Figure 4, "Equivariance quality": downscale the image, or shift the levels of its features, and compare, for
networks of 1, 2 and 3 layers with random weights.

With a path as its argument, this script writes the picture there:
``python docs/figures/figure_4_equivariance.py equivariance.png``.
"""

import sys

import matplotlib.pyplot as plt
import torch
from torch import nn

from scalespaces import equivariance_error
from scalespaces.data import photograph
from scalespaces.nn import Lift, ScaleConv2d
from scalespaces.plotting import plot_equivariance

# %%
# The error is the paper's: with :math:`\Phi` for the network and :math:`S_{2^{-\ell}}` for a downscaling by
# :math:`2^\ell`,
#
# .. math:: L(2^{-\ell}, k) = \frac{\| \Phi[f](k + \ell, 2^\ell \cdot) - \Phi[S_{2^{-\ell}}[f]](k, \cdot) \|_2}
#                                  {\| \Phi[f](k + \ell, 2^\ell \cdot) \|_2}.
#
# The networks have 8 levels, as the paper's, and filters of 2 levels. A layer of these looks one level further, so
# after :math:`n` layers the last :math:`n` levels have seen past the end: the truncation boundary is at :math:`8 -
# n`.

LEVELS, WIDTH, DEPTHS = 8, 16, (1, 2, 3)


def network(layers: int, lift: Lift) -> nn.Sequential:
    """A lift, then correlations with filters of 2 levels and ReLUs; the weights are random."""
    torch.manual_seed(0)
    modules: list[nn.Module] = [lift]
    for channels in [3, *[WIDTH] * (layers - 1)]:
        modules += [ScaleConv2d(channels, WIDTH, (2, 3, 3), bias=False, padding_mode="reflect"), nn.ReLU()]
    return nn.Sequential(*modules)


# %%
# Two ways to make the levels: the paper's, one blur for each of them at every pixel, and this library's exact one,
# level by level on a pyramid. The second runs in float64, so that rounding cannot be taken for anything else.

# Reflected borders look the same at all scales if the side is 1 more than a multiple of 2^7: 513, not 512.
image = nn.functional.pad(photograph(), (0, 1, 0, 1), mode="reflect")
boundaries = [LEVELS - layers for layers in DEPTHS]
lifts = {
    "direct, dense (the paper)": (Lift.paper(LEVELS), torch.float32),
    "cascade, pyramid (exact)": (Lift(LEVELS), torch.float64),
}
rows = {name: [] for name in lifts}
for name, (lift, dtype) in lifts.items():
    for layers, boundary in zip(DEPTHS, boundaries, strict=True):
        model = network(layers, lift).to(dtype)
        table = equivariance_error(model, image.to(dtype), downscaling=lift.method)
        rows[name].append(table)
        mean, largest = table.before(boundary).mean(), table.before(boundary).max()
        print(f"{name:25}  {layers} layer(s): mean error {mean:.1e}, largest {largest:.1e}", flush=True)

# %%
# What you see: a panel for each network, a line for each downscaling :math:`\ell`, over the level :math:`k`. Full
# points are errors before the truncation boundary, hollow ones past it, where they blow up. The dotted line is the
# 0.01 below which the paper sees its errors. In the second row errors before the boundary are 0, not small; they are
# drawn at the bottom, for a logarithmic axis has no 0.

title = "Equivariance quality"
figure = plot_equivariance(rows, *sys.argv[1:], boundaries=boundaries, title=title, into=plt.figure())

# %%
# What differs from the paper: it does not say how wide its networks are, nor which image it takes; here they have 16
# channels, and the image is the photograph of Figure 2. The second row is not in the paper.

plt.show()
