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

from scalespaces import equivariance_error
from scalespaces.data import photograph
from scalespaces.models._convnet import random_network
from scalespaces.plotting import plot_equivariance
from scalespaces.testing._equivariance import extended

# %%
# The error is the paper's: with :math:`\Phi` for the network and :math:`S_{2^{-\ell}}` for a downscaling by
# :math:`2^\ell`,
#
# .. math:: L(2^{-\ell}, k) = \frac{\| \Phi[f](k + \ell, 2^\ell \cdot) - \Phi[S_{2^{-\ell}}[f]](k, \cdot) \|_2}
#                                  {\| \Phi[f](k + \ell, 2^\ell \cdot) \|_2}.
#
# The networks have 8 levels, as in the paper: a lift, then correlations with filters of 2 levels, and ReLUs. Each such
# layer looks one level further, so after :math:`n` layers the last :math:`n` levels have seen past the end: the
# truncation boundary is at :math:`8 - n`.
#
# There are two ways to make the levels: the paper's, one blur for each of them at every pixel, and the exact one of
# this library, level by level on a pyramid. The second runs in float64, so that no error can be rounding.

lifts = {
    "direct, dense (the paper)": ("direct", "dense", torch.float32),
    "cascade, pyramid (exact)": ("cascade", "pyramid", torch.float64),
}
image = extended(photograph(), 2**7)  # reflected borders look the same at all scales at 513 pixels, not at 512
rows = {name: [] for name in lifts}
for name, (method, sampling, dtype) in lifts.items():
    for layers in (1, 2, 3):
        network = random_network(layers, channels=16, num_levels=8, method=method, sampling=sampling).to(dtype)
        table = equivariance_error(network, image.to(dtype), downscaling=method)
        rows[name].append(table)
        mean, largest = table.before().mean(), table.before().max()
        print(f"{name:25}  {layers} layer(s): mean error {mean:.1e}, largest {largest:.1e}", flush=True)

# %%
# What you see: a panel for each network, a line for each downscaling :math:`\ell`, over the level :math:`k`. Filled
# points are errors before the truncation boundary, hollow ones past it, where they blow up. The dotted line is 0.01;
# the errors in the paper are below it. In the second row, the errors before the boundary are 0, not just small. They
# are drawn at the bottom, because a logarithmic axis has no 0.

figure = plot_equivariance(rows, *sys.argv[1:], title="Equivariance quality", into=plt.figure())

# %%
# What differs from the paper: it does not say how wide its networks are, nor which image it uses. Here they have 16
# channels, and the image is the photograph of Figure 2. The second row is not in the paper.

plt.show()
