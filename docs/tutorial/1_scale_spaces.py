r"""
1. What is a scale-space?
=========================

A photograph shows a face, and a speck of light in the eye of that face. Which of them you find depends on how closely
you look. A *scale-space* keeps all of these views: the image, and more and more blurred versions of it, its *levels*.

This page makes one, shows why blur and subsampling belong together, and ends with the property that everything else
rests on: **downscaling an image shifts its scale-space by a level**.

Run it with ``python docs/tutorial/1_scale_spaces.py``. It needs the extra ``plot``.
"""

import matplotlib.pyplot as plt
import torch

from scalespaces import downscale, lift, scale_shift
from scalespaces.data import photograph
from scalespaces.nn import Lift
from scalespaces.plotting import plot_scale_space
from scalespaces.theory import blur_variance

# %%
# Lift an image
# -------------
# Images are tensors ``(batch, channels, height, width)``, as everywhere in PyTorch. A ``Lift`` is a layer that turns
# one into a ``ScaleSpace``: a tensor for each level, and the positions of its samples. ``Lift.paper`` is the paper's
# lift, with every level at every pixel; the lift that the library recommends comes further down this page.

image = photograph()
space = Lift.paper(num_levels=5)(image)
print(space)

# %%
# What you see: level 0 is the photograph. Each further level has the detail of an image half the size of the one
# before. Lettering disappears first, then the features of the face; at level 4 only large shapes are left.

figure = plot_scale_space(space, zero_scale=0.25, into=plt.figure())

# %%
# How much blur?
# --------------
# An image has some blur of its own, because each of its pixels saw a patch of the world and not a point. The variance
# of this blur is the *zero-scale*, :math:`s_0`; the paper takes 1/4, a standard deviation of half a pixel. Make the
# image :math:`2^k` times smaller, and its own blur shrinks with it. To give it the blur of an ordinary image again, it
# must be blurred *first*, with variance
#
# .. math:: t_k = s_0 \, (4^k - 1).
#
# Level :math:`k` is just that: the image, blurred by a Gaussian of variance :math:`t_k`. Variances of Gaussians add up,
# so each level can also be made from the one before.

for k in range(5):
    print(f"level {k}: 1/{2**k} of the size, blurred by {blur_variance(2**k, zero_scale=0.25) ** 0.5:.2f} pixels")

# %%
# Why blur before subsampling?
# ----------------------------
# A pattern that gets finer to the right: at its end, each stripe is two pixels wide.

x = torch.arange(513.0)
pattern = (0.5 + 0.5 * torch.cos(torch.pi * x**2 / (4 * 513))).expand(1, 1, 96, 513)
naive = pattern[..., ::8, ::8]
correct = downscale(pattern, n=3)

figure, axes = plt.subplots(3, 1, figsize=(7.2, 5.2), layout="constrained")
titles = ["the pattern", "every eighth pixel of it", "blurred, then every eighth pixel"]
for ax, picture, title in zip(axes, [pattern, naive, correct], titles, strict=True):
    ax.imshow(picture[0, 0].numpy(), cmap="gray", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    ax.set(xticks=[], yticks=[])
    ax.set_title(title, loc="left", fontsize=11)

# %%
# What you see: on the left all three agree. A quarter of the way along, a stripe is as wide as a sample of the small
# image, which cannot show anything finer. Without blur, broad stripes appear that do not exist. This is *aliasing*.
# With the blur, stripes that are too fine fade to their mean.
#
# The same in numbers: the contrast in the right half, where the small image should show none.

half = correct.shape[-1] // 2
print(f"every eighth pixel:  {naive[..., half:].std():.3f}")
print(f"blurred before that: {correct[..., half:].std():.3f}")

# %%
# The zero-scale sets the trade-off: more blur means less aliasing, and less detail.

for zero_scale in (1 / 16, 1 / 4, 1):
    small = downscale(pattern, n=3, zero_scale=zero_scale)
    fine, coarse = small[..., half:].std(), small[..., : half // 4].std()
    print(f"zero-scale {zero_scale:6.4f}: contrast of what aliases {fine:.3f}, of what should stay {coarse:.3f}")

# %%
# Dense, or a pyramid
# -------------------
# A blurred level needs fewer samples, because neighbors are nearly equal. The paper keeps every pixel of every level,
# which the library calls *dense*. In a *pyramid*, the default, level :math:`k` has a sample every :math:`2^k`
# pixels. The function ``lift`` does the same as the layer ``Lift``.
#
# What you see: the two rows show the same levels, except for small differences that the end of this page explains. The
# smoother a level of the pyramid is, the smaller it is, so it costs little.

pyramid = lift(image, num_levels=5)
figure = plot_scale_space({"dense": space, "pyramid": pyramid}, into=plt.figure())
for name, levels in {"dense": space, "pyramid": pyramid}.items():
    samples = sum(level[0, 0].numel() for level in levels.levels)
    print(f"{name:8}{samples / image[0, 0].numel():5.2f} times the samples of the image")

# %%
# Downscaling is a shift along the levels
# ---------------------------------------
# Now halve the image and lift it. Level 0 of the small image is a picture of half the size with the usual blur. Level
# 1 of the large image, read at every second pixel, is the same picture. In the same way level 1 is the former level 2,
# and so on:
#
# .. math:: \text{lift}(D f)_k = \text{lift}(f)_{k+1}, \qquad D \text{: blur and take every second pixel}.
#
# ``scale_shift`` computes the right-hand side. How equal are the two sides? That depends on how levels are made.
# *Direct*, the paper's way, blurs the image with one large Gaussian for each level. *Cascade*, the default, makes each
# level from the one before, with :math:`D`. Blurs of sampled images do not quite add up as in theory, so in the direct
# lift the sides differ a little. In a cascade on a pyramid, both sides are the same computation.


def difference(method: str, sampling: str) -> float:
    """The largest difference between lifting the small image and shifting the large one's levels."""
    options = {"num_levels": 5, "method": method, "sampling": sampling}
    shifted = scale_shift(lift(image, **options), 1)
    lifted = lift(downscale(image, 1, method=method), **options)
    pairs = zip(shifted.levels, lifted.levels, strict=False)  # the last level of the small image has no counterpart
    return max(float((a - b).abs().max()) for a, b in pairs)


for method, sampling in [("direct", "dense"), ("cascade", "dense"), ("cascade", "pyramid")]:
    print(f"{method:8}{sampling:8} largest difference {difference(method, sampling):.2e}")
assert difference("cascade", "pyramid") == 0

# %%
# Exactly 0, at every pixel, borders included. (The dense cascade is exact as well, except at borders: if the image has
# an even size, every second pixel of it is mirrored at a different place.) A pyramid is less exact under translations,
# which :doc:`/sampling` measures.
#
# Where to go next
# ----------------
# A change of size is now a shift, and convolutions handle shifts well: :doc:`2_correlation` moves filters along levels
# as well as across the image.

plt.show()
