r"""
3. Does a network recognize sizes it has not seen?
==================================================

Train on digits of *one* size, test on others. A CNN has never seen the others, and fails. A network on a scale-space
has seen them: what is new at one level is known at another.

Training needs nothing special: this page is a plain PyTorch loop. Run it with
``python docs/tutorial/3_training.py``. It needs the extra ``demo``. The command ``scalespaces demo`` runs a larger
version of this experiment, and compares more methods.
"""

from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor, nn

from scalespaces import models
from scalespaces.data import ArrayImages, digits, to_unit, unseen_scales
from scalespaces.functional import scale_pool
from scalespaces.plotting import plot_over_scales

EPOCHS = 10
SEED = 1
SIZES = (8, 11, 16, 23, 32)  # pixels

# %%
# Digits of one size
# ------------------
# scikit-learn comes with 1,797 handwritten digits of 8 x 8 pixels. For training they are shown twice as large, 16
# pixels, somewhere on a canvas of 24; for testing, other digits are shown at one to four times their size, 8 to 32
# pixels, on a canvas of 40. ``unseen_scales`` makes such sets, here of 1,000 digits to train with and 200 to test.

images, labels = digits()
counts = [1000, 200, 200]  # to train with, to validate (not used here), to test
train_set = unseen_scales(images, labels, train=2, tests=[], canvas=24, place="random", counts=counts)["train"]
sets = unseen_scales(images, labels, train=2, tests=[size / 8 for size in SIZES], canvas=40, counts=counts)
test_sets = {size: sets[f"test_{size / 8:g}"] for size in SIZES}

figure, axes = plt.subplots(1, len(SIZES) + 1, figsize=(8.4, 1.8), layout="constrained")
shown = {"training": train_set} | {f"test, {size} px": test_sets[size] for size in SIZES}
for ax, (title, dataset) in zip(axes, shown.items(), strict=True):
    ax.imshow(dataset.images[0, 0].numpy(), cmap="gray", vmin=0, vmax=255)
    ax.set(xticks=[], yticks=[])
    ax.set_title(title, fontsize=10)

# %%
# Two networks with the same parameters
# -------------------------------------
# ``cnn`` is a small CNN of three convolutions. ``s_cnn`` is the same CNN on five levels, half an octave apart: its
# base is :math:`\sqrt 2`. ``first_level=-2`` makes two of the levels finer than the image, so that there are levels on
# both sides of the trained size, one octave each way. Its filters have one level and are shared by all levels, so it
# has as many parameters as the CNN. Of all levels, the one with the largest logit answers.

shared = {"channels": (8, 16, 32), "kernel_size": 3, "grid": 1, "hidden": 64, "dropout": 0.3}


def network(name: str, **arguments: Any) -> models.ScaleNetwork:
    """A network whose weights are determined by the seed."""
    torch.manual_seed(SEED)
    return models.create_model(name, **shared, **arguments)


on_levels = {"lift": {"num_levels": 5, "first_level": -2}, "scale_pool": "max"}
for model in (network("cnn"), network("s_cnn", **on_levels)):
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{model.config['name']:6} {parameters:,} parameters, {model.lift.num_levels} level(s)")

# %%
# A plain loop
# ------------
# ``logits`` computes what goes into the loss. For the CNN that is its answer, ``model(images)``.


def train(model: models.ScaleNetwork, logits: Callable[[models.ScaleNetwork, Tensor], Tensor]) -> None:
    """Adam with a learning rate that rises and falls."""
    batch, count = 50, len(train_set)
    optimizer = torch.optim.Adam(model.parameters())
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=EPOCHS * -(-count // batch))
    model.train()
    for _ in range(EPOCHS):
        for chosen in torch.randperm(count).split(batch):
            optimizer.zero_grad()
            scores = logits(model, to_unit(train_set.images[chosen]))
            nn.functional.cross_entropy(scores, train_set.labels[chosen]).backward()
            optimizer.step()
            rates.step()
    model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, dataset: ArrayImages) -> float:
    """The share of a set that the model gets right."""
    found = torch.cat([model(to_unit(images)).argmax(1) for images in dataset.images.split(100)])
    return float((found == dataset.labels).float().mean())


# %%
# What should the levels learn?
# -----------------------------
# In tests, the most confident level answers: the network takes the maximum over levels. If you train *that* answer, the
# most confident level gets all of the gradient, and the others learn nothing: neither to be right, nor to be silent
# when they do not see a digit of the size they know. So let every level learn. ``model.scores(images)`` returns the
# logits of each level as a ``ScaleSpace``, and ``scale_pool`` takes their mean, which goes into the loss.


def answer(model: models.ScaleNetwork, images: Tensor) -> Tensor:
    """The network's answer."""
    return model(images)


def mean_of_levels(model: models.ScaleNetwork, images: Tensor) -> Tensor:
    """The mean of its levels' logits."""
    return scale_pool(model.scores(images))


runs = {
    "CNN": (network("cnn"), answer),
    "S-CNN, answer trained": (network("s_cnn", **on_levels), answer),
    "S-CNN, every level trained": (network("s_cnn", **on_levels), mean_of_levels),
}
lines = {}
for name, (model, logits) in runs.items():
    train(model, logits)
    lines[name] = [(size, accuracy(model, test_sets[size])) for size in SIZES]
    print(f"{name:27}", "  ".join(f"{size:2} px: {value:.3f}" for size, value in lines[name]), flush=True)

# %%
# What you see: accuracy against the size of the digits. All networks were trained at 16 pixels. The CNN is good at that
# size, and drops on either side, to little more than guessing at the ends. The networks on scale-spaces stay good: for
# them, most of these sizes are not new. At 8 pixels some of the shape of a digit is lost, and no network can get it
# back. How much is gained by training every level depends on the seed; try others.

figure = plot_over_scales(lines, into=plt.figure())
for ax in figure.axes:
    ax.set_xlabel("size of the digits, pixels")

# %%
# Which level answers?
# --------------------
# Fine levels should find small digits, and coarse levels large ones. Count, for each size, which level has the largest
# logit.

scale_cnn = runs["S-CNN, every level trained"][0]
shares = torch.zeros(len(SIZES), 5)
with torch.no_grad():
    for row, size in zip(shares, SIZES, strict=True):
        scores = scale_cnn.scores(to_unit(test_sets[size].images)).stack()  # (images, classes, levels)
        row += scores.amax(1).argmax(1).bincount(minlength=5) / len(scores)

figure, ax = plt.subplots(figsize=(5, 3.4), layout="constrained")
ax.imshow(shares.numpy(), cmap="viridis", vmin=0, vmax=1)
ax.set_xticks(range(5), [str(k) for k in range(-2, 3)])
ax.set_yticks(range(len(SIZES)), [f"{size} px" for size in SIZES])
ax.set(xlabel="level that answers", ylabel="size of the digits")
for (i, j), share in np.ndenumerate(shares.numpy()):
    ax.text(j, i, f"{100 * share:.0f} %", ha="center", va="center", color="white" if share < 0.6 else "black")

# %%
# What you see: the shares lie near the diagonal. The larger the digit, the coarser the level that answers.
#
# This has a cost. Levels finer than the image have more samples than the image, and take most of the time. And this is
# one seed on few digits: :doc:`/results` has MNIST, three seeds, other ways to handle scale, and costs.
#
# Where to go next
# ----------------
# :doc:`4_practice` does the same with a recipe and commands, on a folder of images.

plt.show()
