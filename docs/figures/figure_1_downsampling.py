r"""
Figure 1: why blur before subsampling?
======================================

The paper's Figure 1, "How to correctly downsample an image": an image, every eighth pixel of it, the image blurred, and
every eighth pixel of that.
"""

import sys

import matplotlib.pyplot as plt
import torch

from scalespaces.data import photograph
from scalespaces.nn import Lift

# %%
# What you see: on the left an image, then a picture of 1/8 its size, once without and once with the blur that belongs
# to it. The photograph merely looks rough without it. The rings of the second row get finer outwards, by the time
# they reach the middles of the edges 8 pixels from crest to crest: there every eighth pixel finds the same crest
# again and again, and shows centers of rings where there are none. The blur leaves gray, the mean of what cannot be
# shown, but for faint ghosts that a zero-scale of 1/4 lets through.
#
# In the library, the blurred image and the small image are the same level of a scale-space, on a dense grid and on a
# pyramid.

half, level = 256, 3
position = torch.arange(-half, half + 1.0)
squared = position[:, None] ** 2 + position**2
rings = (0.5 + 0.5 * torch.cos(torch.pi * squared / (8 * half)))[None, None]

figure, axes = plt.subplots(2, 4, figsize=(8.4, 4.7), layout="constrained")
for row, image in zip(axes, [photograph(), rings], strict=True):
    small = image[..., :: 2**level, :: 2**level]
    blurred = Lift.paper(level + 1)(image).levels[level]
    correct = Lift.paper(level + 1, sampling="pyramid")(image).levels[level]
    for ax, picture in zip(row, [image, small, blurred, correct], strict=True):
        values = picture[0].permute(1, 2, 0).clamp(0, 1).numpy()
        squares = "antialiased" if picture.shape == image.shape else "nearest"
        ax.imshow(values, cmap="gray", vmin=0, vmax=1, interpolation=squares)
        ax.set(xticks=[], yticks=[])
for ax, title in zip(axes[0], ["image", "every 8th pixel", "blurred", "blurred, every 8th"], strict=True):
    ax.set_title(title, fontsize=11)
for path in sys.argv[1:]:
    figure.savefig(path)

# %%
# What differs from the paper: the photograph, and the rings, which are not in the paper. The blur is the paper's, a
# discrete Gaussian for a zero-scale of 1/4.

plt.show()
