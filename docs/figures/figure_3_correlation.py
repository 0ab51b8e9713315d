r"""
Figure 3: what does a correlation touch?
========================================

The paper's Figure 3, "Scale correlation schematic": the same input three times, each time with the samples that one
level of the output depends on.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

from scalespaces import lift
from scalespaces.nn import Lift, ScaleConv2d
from scalespaces.plotting import plot_correlation

# %%
# .. math:: g_k(z) = [\psi \star f]_k(z) = \sum_{\ell \ge 0} \sum_y \psi_\ell(y) \, f_{k+\ell}(2^k y + z)
#
# Nothing here is drawn by hand. A layer whose filters are ones, of 2 levels and 3 x 3 taps, runs on an image of
# 17 x 17 pixels. The output in the middle is differentiated, and the samples whose derivative is not 0 are colored.
#
# What you see: from one output level to the next, the taps are twice as far apart, and the filter has climbed by one
# level. No output depends on levels finer than its own. Output level 3, which is not shown, would need a level 4.

layer = ScaleConv2d(1, 1, kernel_size=(2, 3, 3), bias=False)
nn.init.ones_(layer.weight)
image = torch.zeros(1, 1, 17, 17)
title = "dense, as in the paper"
figure = plot_correlation(layer, Lift.paper(4)(image), levels=3, title=title, into=plt.figure())

# %%
# The same on a pyramid: each square is a sample, drawn where it lies in the image. At every level the filter covers
# 3 x 3 neighbors, like an ordinary one. Its second level meets a grid twice as coarse and interpolates between the
# samples: each tap is spread over the samples around it, and samples with less weight are paler.

pyramid = lift(image, num_levels=4)
figure = plot_correlation(layer, pyramid, levels=3, title="pyramid", into=plt.figure())

# %%
# What differs from the paper: the colors, one for each output level instead of green filters; and the pyramid.

plt.show()
