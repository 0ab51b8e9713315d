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
# What you see: on the left an image, then the same image at 1/8 of its size, without and with the blur that belongs to
# that size. Without it, the photograph merely looks rough. The rings in the second row become finer outwards; at the
# middle of each edge they are 8 pixels apart. There every eighth pixel hits the same part of a ring each time, so
# centers of rings appear where there are none. The blur leaves gray instead, the mean of what cannot be shown, and
# faint ghosts that a zero-scale of 1/4 lets through.
#
# In the library, the blurred image and the small image are the same level of a scale-space, on a dense grid and on a
# pyramid.

half, level = 256, 3
position = torch.arange(-half, half + 1.0)
squared = position[:, None] ** 2 + position**2
rings = (0.5 + 0.5 * torch.cos(torch.pi * squared / (8 * half)))[None, None]

figure, axes = plt.subplots(2, 4, figsize=(8.4, 4.7), layout="constrained")
for row, image in zip(axes, [photograph(), rings], strict=True):
    pictures = {
        "image": image,
        "every 8th pixel": image[..., :: 2**level, :: 2**level],
        "blurred": Lift.paper(level + 1)(image).levels[level],
        "blurred, every 8th": Lift.paper(level + 1, sampling="pyramid")(image).levels[level],
    }
    for ax, (title, picture) in zip(row, pictures.items(), strict=True):
        values = picture[0].permute(1, 2, 0).clamp(0, 1).numpy()
        squares = "antialiased" if picture.shape == image.shape else "nearest"
        ax.imshow(values, cmap="gray", vmin=0, vmax=1, interpolation=squares)
        ax.set(xticks=[], yticks=[])
        ax.set_title(title if image is not rings else "", fontsize=11)
for path in sys.argv[1:]:
    figure.savefig(path)

# %%
# What differs from the paper: the photograph, and the rings, which are not in the paper. The blur is the paper's, a
# discrete Gaussian for a zero-scale of 1/4.

plt.show()
