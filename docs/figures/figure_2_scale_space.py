r"""
Figure 2: what does a scale-space look like?
============================================

The paper's Figure 2, "A Scale-space": an image and its blurred versions, with scales that are powers of two.

With a path as its argument, this script writes the picture there:
``python docs/figures/figure_2_scale_space.py scale_space.jpg``.
"""

import sys

import matplotlib.pyplot as plt

from scalespaces.data import photograph
from scalespaces.nn import Lift
from scalespaces.plotting import plot_scale_space

# %%
# What you see: five levels of a photograph, twice. The upper row is the paper's: each level has all pixels. The lower
# row shows the same levels on grids as coarse as the levels are smooth, with all pixels drawn at the same size. Above
# each level are the size of its grid, the step from sample to sample and the standard deviation of its blur, both in
# pixels of the image.

image = photograph()
spaces = {"dense": Lift.paper(5)(image), "pyramid": Lift.paper(5, sampling="pyramid")(image)}
title = "One photograph, five levels of scale"
figure = plot_scale_space(spaces, *sys.argv[1:], zero_scale=0.25, title=title, into=plt.figure())

# %%
# What differs from the paper: it draws a stack in perspective, and no pyramid.

plt.show()
