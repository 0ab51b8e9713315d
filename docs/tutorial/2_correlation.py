r"""
2. How do filters move over scale and space?
============================================

A convolution commutes with translations: move the image, and its features move with it. That is why a CNN that has
learned to find an eye on the left finds it on the right. This page does the same for size. Filters move across the
image *and* along the levels of its scale-space. So the features of a smaller image are the same features, one level
further down.

Run it with ``python docs/tutorial/2_correlation.py``. It needs the extra ``plot``.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

from scalespaces import assert_equivariant, downscale, equivariance_error, lift
from scalespaces.data import photograph
from scalespaces.nn import Lift, ScaleAvgPool, ScaleBatchNorm, ScaleConv2d, ScalePool
from scalespaces.plotting import plot_correlation, plot_equivariance, plot_scale_space

torch.manual_seed(0)
image = photograph()

# %%
# The correlation
# ---------------
# Write :math:`f_k` for level :math:`k` of a scale-space, and :math:`\psi` for a filter, which has levels, too. The
# output at level :math:`k` and position :math:`z` is
#
# .. math:: g_k(z) = \sum_{\ell \ge 0} \sum_y \psi_\ell(y) \, f_{k+\ell}(2^k y + z).
#
# Two things happen as :math:`k` grows. The filter is *dilated*: its taps :math:`y` lie :math:`2^k` pixels apart,
# because the parts of a larger object are further apart. And it *climbs*: filter level :math:`\ell` meets level
# :math:`k + \ell` of the image, because these parts are larger themselves, and show on coarser levels.
#
# What you see: on the left, the input levels three times, with the samples that the outputs on the right depend on,
# found by taking gradients of a real layer. Its filters have 2 levels of 3 x 3 taps. The levels are those of the
# paper's lift, which has every level at every pixel.

layer = ScaleConv2d(1, 1, kernel_size=(2, 3, 3), bias=False)
nn.init.ones_(layer.weight)
small = torch.zeros(1, 1, 17, 17)
figure = plot_correlation(layer, Lift.paper(4)(small), levels=3, title="dense", into=plt.figure())

# %%
# On a pyramid, the default, samples :math:`2^k` pixels apart are neighbors, and a dilated filter is an ordinary one.
# The second level of the filter meets a coarser grid, between whose samples the library interpolates: the paler tiles
# weigh less.

figure = plot_correlation(layer, lift(small, num_levels=4), levels=3, title="pyramid", into=plt.figure())

# %%
# Filters of one level
# --------------------
# ``ScaleConv2d(in, out, (1, 3, 3))`` is the plain case: one ordinary filter, used at all levels. It has the weights of
# an ``nn.Conv2d``, and does at level :math:`k` what the ``nn.Conv2d`` does to the image downscaled :math:`k` times.

convolution = nn.Conv2d(3, 16, 3, padding=1)
layer = ScaleConv2d(3, 16, kernel_size=(1, 3, 3))
layer.load_state_dict(convolution.state_dict())
output = layer(lift(image, num_levels=4))
for k, level in enumerate(output.levels):
    error = (level - convolution(downscale(image, k))).abs().max()
    print(f"level {k}, {tuple(level.shape)}: differs from the plain convolution by {error:.1e}")

# %%
# Filters of two levels
# ---------------------
# With ``kernel_size=(2, 3, 3)`` a filter also sees the next level. So it can tell an edge that remains at a coarser
# level from one that was only texture. At the last level, such filters look past the end. ``scale_padding`` chooses
# what they find there: zeros (the paper's choice, and the default) or the last level again. With ``"valid"`` the output
# has one level less, and all of its levels are right.
#
# A network of them
# -----------------
# Between the layers, torch's own modules run level by level. ``ScaleBatchNorm`` takes its statistics over all levels,
# with one scale and shift for all, and ``ScaleAvgPool`` pools each level on its own grid. Neither treats one level
# differently from another, and that is all that equivariance needs.


def network(scale_padding: str) -> nn.Sequential:
    """Two correlations over scale and space, on a pyramid of six levels."""
    torch.manual_seed(0)
    return nn.Sequential(
        Lift(num_levels=6),
        ScaleConv2d(3, 16, (2, 3, 3), scale_padding=scale_padding),
        ScaleBatchNorm(16),
        nn.ReLU(),
        ScaleAvgPool(2),
        ScaleConv2d(16, 16, (2, 3, 3), scale_padding=scale_padding),
    ).eval()


features = network("valid")
print(features(image))

# %%
# A change of size is a shift
# ---------------------------
# Let the network see the photograph, and the photograph at half the size.
#
# What you see: one channel of the features. Each row shows the levels for one picture, from level 0 on, every level
# stretched to the size of its image. The lower row is the upper one, moved by one place and half as large.

with torch.no_grad():
    rows = {"the image": features(image), "half the size": features(downscale(image))}
figure = plot_scale_space(rows, channel=9, size="physical", into=plt.figure())

# %%
# ``assert_equivariant`` fails unless this holds at every pixel of every level, for every downscaling that leaves a
# level; it belongs in the tests of your own networks. ``equivariance_error`` gives the numbers. It is the paper's
# measure: how far level :math:`k` of the network on the image, downscaled :math:`\ell` times, is from level
# :math:`k + \ell` on the image,
#
# .. math:: L(\ell, k) = \frac{\| \Phi[f]_{k+\ell} - \Phi[D^\ell f]_k \|}{\| \Phi[f]_{k+\ell} \|}.

assert_equivariant(features, image)
print(equivariance_error(features, image))

# %%
# The truncation boundary
# -----------------------
# The same network with zeros past the last level has two more levels, but these are not right. Each of the two layers
# looks one level further, so the last two levels have seen zeros instead of the image. The smaller image has its last
# level elsewhere, so the two sides differ there. The table contains these levels and names them; ``assert_equivariant``
# leaves them out.

tables = [equivariance_error(network("zeros"), image, shifts=[1, 2, 3]), equivariance_error(features, image)]
print(tables[0])
figure = plot_equivariance(tables, columns=["zeros", "valid"], reference=None, into=plt.figure())

# %%
# What you see: hollow points, past the boundary :math:`k + \ell = 4`, are errors about as large as the features. All
# others are 0, drawn at the bottom because the axis is logarithmic. With ``"valid"``, only levels without errors are
# returned. The paper keeps the boundary in check by using filters of one level in most layers; ``"valid"`` removes it.
#
# One answer for all levels
# -------------------------
# A classifier needs an answer that does *not* change with size. ``ScalePool`` takes the maximum or mean over levels.
# After that it no longer matters at which level something was found.

head = nn.Sequential(nn.ReLU(), ScaleConv2d(16, 10, (1, 1, 1)), ScalePool("max"), nn.AdaptiveMaxPool2d(1), nn.Flatten())
print(head(features(image)).shape)

# %%
# Where to go next
# ----------------
# Does this help in practice? :doc:`3_training` trains a network on digits of one size and tests it on others.
# The paper, equation by equation, is in :doc:`/theory`.

plt.show()
