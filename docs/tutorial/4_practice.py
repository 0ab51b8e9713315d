r"""
4. How do I use it in practice?
===============================

The previous page had its own training loop. In practice there is a folder of images to train on, and another program
that should run the network. This page goes all the way, with commands that you could type yourself: a folder of PNG
files, a *recipe*, training, evaluation at other sizes, prediction, and export to ONNX.

Run it with ``python docs/tutorial/4_practice.py``. It needs the extras ``train``, ``export`` and ``demo``.
"""

import contextlib
import shlex
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import onnxruntime
import torch
from PIL import Image

from scalespaces import models
from scalespaces.cli import main
from scalespaces.data import digits, read_image, unseen_scales

EPOCHS = 10
scratch = tempfile.TemporaryDirectory()
folder = Path(scratch.name)

# %%
# A folder of images
# ------------------
# There is one folder for each set, and in it one folder for each class. The digits for training and validation have 16
# pixels. The digits for testing are others, of half, the same and twice that size.

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
counts = [1000, 150, 150]
images, labels = digits()
sets = unseen_scales(images, labels, train=2, tests=[], canvas=24, place="random", counts=counts)
tests = unseen_scales(images, labels, train=2, tests=[1, 2, 4], canvas=40, counts=counts)
sets |= {f"test_{scale / 2:g}": tests[f"test_{scale}"] for scale in (1, 2, 4)}
for name, dataset in sets.items():
    for n, (image, label) in enumerate(zip(dataset.images, dataset.labels, strict=True)):
        file = folder / "digits" / name / NAMES[label] / f"{n:04}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0].numpy()).save(file)
    print(f"digits/{name}: {len(dataset)} images")

# %%
# A recipe
# --------
# A recipe is a YAML file that describes a whole experiment. This one trains the small CNN on three levels, an octave
# apart, one of them finer than the image. The network is trained on the mean of the levels' logits, and answers with
# their maximum. Keys that are left out have defaults, and a misspelled key is an error. ``recipes/`` contains those for
# the paper.

recipe = f"""
model:
  name: s_cnn
  lift: {{num_levels: 3, first_level: -1, base: 2}}
  arguments: {{channels: [8, 16, 32], kernel_size: 3, grid: 1, hidden: 64, dropout: 0.3, scale_pool: max}}
data:
  kind: class_folders
  root: digits
  batch_size: 50
  workers: 0
optimizer:
  lr: 0.01
  warmup: 20
  lr_milestones: [{EPOCHS - 2}]
levels:
  supervise: mean
trainer:
  epochs: {EPOCHS}
  accelerator: cpu
"""

# %%
# Train
# -----
# Any key of the recipe can also be given on the command line. The plain CNN uses the same recipe, except for its name
# and its levels: it has only one.


def scalespaces(command: str) -> None:
    """Run the command as a shell would."""
    print(f"$ scalespaces {command}", flush=True)
    with contextlib.chdir(folder):
        if code := main(shlex.split(command)):
            raise SystemExit(code)


(folder / "digits.yaml").write_text(recipe)
scalespaces("train digits.yaml --out s_cnn")
plain = "{channels: [8, 16, 32], kernel_size: 3, grid: 1, hidden: 64, dropout: 0.3}"
scalespaces(
    f"train digits.yaml --out cnn --model.name cnn --model.lift {{}} --model.arguments '{plain}' "
    "--levels.supervise answer"
)

# %%
# The folder of a run has its recipe, its metrics, checkpoints to resume from (``--resume``), and the network of the
# best epoch, ``model.safetensors``: a file that records which network it contains and the names of its classes.

print(*sorted(file.name for file in (folder / "s_cnn").iterdir() if file.is_file()), sep="\n")

# %%
# Evaluate
# --------
# The sets have the trained size, half and twice that size; a set's name ends with its scale. The last column is the
# time for an image, relative to the CNN.

networks = "cnn/model.safetensors s_cnn/model.safetensors --names CNN S-CNN"
where = "--kind class_folders --root digits --splits test_0.5 test_1 test_2 --workers 0"
scalespaces(f"evaluate {networks} {where}")

# %%
# Predict
# -------
# The input is files, the output a table: the class of each image and the probabilities of all classes.

scalespaces("predict s_cnn/model.safetensors digits/test_2/seven --out predictions.csv")
for line in (folder / "predictions.csv").read_text().splitlines()[:4]:
    print(",".join(line.split(",")[:2]))

# %%
# Which level answers
# -------------------
# ``load`` reads the network from its file. ``scale_map`` gives the level at which it found what it predicts: for a
# classifier one number per image, for a segmentation network a map.
#
# Level -1 is the image twice as large, level 1 the image half as large. So the level should rise with the digits' size:

network = models.load(folder / "s_cnn" / "model.safetensors")
for scale in ("0.5", "1", "2"):
    files = sorted((folder / "digits" / f"test_{scale}").glob("*/*.png"))
    with torch.no_grad():
        found = network.scale_map(torch.cat([read_image(file) for file in files]))[:, 0, 0]
    print(f"size {scale}: level {found.double().mean():.2f}, the mean of {len(files)} digits")

# %%
# What you see: three digits at three sizes, and above each the prediction and the level that made it.

figure, axes = plt.subplots(3, 3, figsize=(6, 6.6), layout="constrained")
for row, scale in zip(axes, ("0.5", "1", "2"), strict=True):
    for ax, name in zip(row, ("two", "five", "seven"), strict=True):
        image = read_image(sorted((folder / "digits" / f"test_{scale}" / name).glob("*.png"))[0])
        with torch.no_grad():
            predicted, level = network(image).argmax().item(), network.scale_map(image)[0, 0, 0].item()
        ax.imshow(image[0].permute(1, 2, 0).numpy())
        ax.set(xticks=[], yticks=[])
        ax.set_title(f"{network.card.classes[predicted]}, level {level}", fontsize=10)
    row[0].set_ylabel(f"size {scale}")

# %%
# Export
# ------
# ONNX runs without PyTorch. With a base of 2, height and width stay dynamic: one file for images of any size. The
# command runs the exported network on random images and compares it with PyTorch before the file appears.

scalespaces("export s_cnn/model.safetensors s_cnn.onnx")

session = onnxruntime.InferenceSession(folder / "s_cnn.onnx", providers=["CPUExecutionProvider"])
for size in (40, 64):
    image = torch.rand(1, 3, size, size)
    with torch.no_grad():
        expected = network(image).numpy()
    got = np.asarray(session.run(["output"], {"image": image.numpy()})[0])
    print(f"{size} x {size}: ONNX differs from PyTorch by {np.abs(got - expected).max():.1e}")
    assert np.allclose(got, expected, atol=1e-4)

# %%
# Where to go next
# ----------------
# :doc:`5_conversion` starts from a network that you have already. :doc:`/scaling` covers many devices and interrupted
# runs. ``scalespaces train --help`` lists all the keys of a recipe.

scratch.cleanup()
plt.show()
