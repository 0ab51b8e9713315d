r"""
5. Can the model I have do that?
================================

Few people start from nothing. ``scalespaces.convert`` takes a model as it is, from timm, torchvision or your own code,
and runs it on the levels of images with the same parameters. This page converts a ResNet-18 from timm, fine-tunes it,
and saves it.

Run it with ``python docs/tutorial/5_conversion.py``. It needs the extras ``demo`` and ``files``, and timm:
``pip install timm``.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import timm
import torch
from torch import Tensor, nn

from scalespaces import ConversionError, convert, downscale, models
from scalespaces.data import digits, photograph, to_unit, unseen_scales
from scalespaces.functional import scale_pool

EPOCHS = 6
torch.manual_seed(0)

# %%
# Convert
# -------
# In practice use ``pretrained=True``, which downloads weights; without them, this page runs anywhere. Conversion puts
# a lift in front of the model and a pooling over levels behind it. In between, the model runs, unchanged, on one level
# after the other.

resnet = timm.create_model("resnet18", pretrained=False, num_classes=10).eval()
network = convert(resnet, {"num_levels": 3})
for name, model in {"before": resnet, "after": network}.items():
    print(f"{name:7}{sum(p.numel() for p in model.parameters()):,} parameters")

# %%
# Nothing is lost: the answer is what the model computed before, until you choose otherwise. Level :math:`k` is what it
# computes from the image, downscaled :math:`k` times.

image = photograph()
with torch.no_grad():
    assert torch.equal(network(image), resnet(image))
    for k, level in enumerate(network.scores(image).levels):
        error = (level - resnet(downscale(image, k))).abs().max()
        print(f"level {k}: differs from the ResNet on the image at 1/{2**k} of its size by {error:.1e}")
        assert error < 1e-5

# %%
# What converts, and what does not
# --------------------------------
# Whatever takes images of several sizes: CNNs, and transformers as well. A model that is built for images of one size
# cannot run on levels of several sizes. It is refused with an error that says what to do.

small = image[..., :224, :224]
any_size = {"dynamic_img_size": True, "dynamic_img_pad": True}
for name, options in {"convnext_atto": {}, "deit_tiny_patch16_224": any_size, "vit_tiny_patch16_224": {}}.items():
    model = timm.create_model(name, pretrained=False, **options).eval()
    try:
        with torch.no_grad():
            scores = convert(model, {"num_levels": 3}).scores(small)
        print(f"{name}: {scores.num_levels} levels of {tuple(scores.levels[0].shape)}")
    except ConversionError as error:
        print(f"{name} is refused: {str(error).splitlines()[-1]}")

# %%
# Levels that talk to each other
# ------------------------------
# As converted, each level is on its own until they are pooled. ``interaction`` lets some convolutions look at the
# next level, too. Their new weights start at 0, so nothing changes until training finds a use for them.

talking = convert(resnet, {"num_levels": 3}, interaction=["layer4.*.conv2"])
with torch.no_grad():
    assert torch.allclose(talking(image), network(image), atol=1e-5)
print(talking.extra_repr())

# %%
# Fine-tune
# ---------
# It is an ``nn.Module`` like any other. Train it on 400 digits of 16 pixels on a canvas of 32, at two levels; as in
# :doc:`3_training`, the loss is that of the mean of the levels' logits. (With random weights and so few digits, this
# shows the steps to take, not what accuracy to expect.)

counts = [400, 100, 200]
train_set = unseen_scales(*digits(), train=2, tests=[], canvas=32, counts=counts)["train"]
network = convert(resnet, {"num_levels": 2}).train()


def rgb(images: Tensor) -> Tensor:
    """Gray images in three channels, as the model takes them."""
    return to_unit(images).expand(-1, 3, -1, -1)


optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
for epoch in range(EPOCHS):
    total = 0.0
    for chosen in torch.randperm(len(train_set)).split(25):
        optimizer.zero_grad()
        scores = scale_pool(network.scores(rgb(train_set.images[chosen])))
        loss = nn.functional.cross_entropy(scores, train_set.labels[chosen])
        loss.backward()
        optimizer.step()
        total += loss.item() * len(chosen) / len(train_set)
    print(f"epoch {epoch}: loss {total:.3f}", flush=True)

# %%
# The same pictures, twice as large
# ---------------------------------
# Now test with other digits, and with the same pictures at twice the size: digits of 32 pixels on a canvas of 64.
# Level 0 is the fine-tuned ResNet as it would be without levels.

network.eval()
logits = {}
for size in (16, 32):
    test = unseen_scales(*digits(), train=2, tests=[size / 8], canvas=2 * size, counts=counts)[f"test_{size / 8:g}"]
    with torch.no_grad():
        logits[size] = network.scores(rgb(test.images)).levels
    right = [
        f"level {k}: {(level.argmax(1) == test.labels).float().mean():.3f}" for k, level in enumerate(logits[size])
    ]
    print(f"digits of {size} pixels, accuracy of", ", ".join(right))

figure, axes = plt.subplots(1, 2, figsize=(8.2, 3.0), sharey=True, layout="constrained")
for ax, (size, levels) in zip(axes, logits.items(), strict=True):
    for k, (level, color) in enumerate(zip(levels, ("#0072B2", "#D55E00"), strict=True)):
        ax.bar(torch.arange(10).numpy() + 0.4 * k - 0.2, level[0].numpy(), 0.4, color=color, label=f"level {k}")
    ax.set_xticks(range(10))
    ax.set_title(f"a digit of {size} pixels", fontsize=11)
    ax.set_xlabel("class")
axes[0].set(ylabel="logit", ylim=(-15, 15))
legend = axes[1].legend(frameon=False)

# %%
# What you see: the logits of one digit (longer bars are cut off), at the trained size on the left and at twice that
# size on the right. Level 1 on the right is level 0 on the left, except for what enlarging the picture has changed: a
# change of size has become a shift. Level 0 on the right is the plain ResNet's answer for a size it does not know.
#
# That is what conversion guarantees. How the levels are combined is up to you: with ``scale_pool="image"``, which is
# the default, level 0 answers, with ``"mean"`` all of them, and with ``"max"`` the most confident. A level that should
# be silent at sizes it does not know must learn that, as in :doc:`3_training`.

# %%
# Save and load
# -------------
# The file contains the weights and the arguments of the conversion, but not timm's code. To load it, pass the model
# that it was made from, with any weights.

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "digits.safetensors"
    models.save(network, path)
    loaded = models.load(path, model=timm.create_model("resnet18", num_classes=10))
with torch.no_grad():
    assert torch.equal(loaded(image), network(image))
print(f"loaded: a {type(loaded.model).__name__} on {loaded.lift.num_levels} levels")

# %%
# Commands take this model as a name::
#
#   scalespaces predict digits.safetensors photos --out predictions.csv \
#     --model 'timm:create_model(model_name="resnet18", num_classes=10)'
#
# Where to go next
# ----------------
# ``recipes/finetune_converted.yaml`` fine-tunes a pretrained model on a folder of your own, with the commands of
# :doc:`4_practice`. :doc:`/sampling` helps to choose the levels.

plt.show()
