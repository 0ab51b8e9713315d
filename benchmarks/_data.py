"""Loading and augmentation, compared with h5py alone and with the training step they feed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from scalespaces import models
from scalespaces._extras import require
from scalespaces.bench import _plain as plain
from scalespaces.bench._case import Case, Contender, Settings, training_step
from scalespaces.data import PCam, to_unit
from scalespaces.data._augment import PCamAugment
from scalespaces.data._make import make_pcam
from scalespaces.data._pcam import pcam_file


class _PlainPatches(Dataset):
    """Patches of an HDF5 file that is open, and their labels: no checks, and one process only."""

    def __init__(self, patches: Any, labels: Tensor) -> None:
        self.patches, self.labels = patches, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self.patches[index]).permute(2, 0, 1), self.labels[index]


def cases(settings: Settings) -> Iterator[Case]:
    """All cases of the suite."""
    number, batch = (16, 4) if settings.quick else (1024, 32)
    h5py = require("h5py", "train")
    with tempfile.TemporaryDirectory() as folder:
        make_pcam(folder, {"train": number})
        ours = PCam(folder)
        with h5py.File(Path(folder) / pcam_file("train", "x")) as file:
            yield loading(ours, _PlainPatches(file["x"], ours.labels), batch)
        yield augmentation(settings, torch.stack([ours[index][0] for index in range(batch)]))


def loading(ours: PCam, theirs: Dataset, batch: int) -> Case:
    """An epoch in random order, in this process."""
    order = np.random.default_rng(0).permutation(len(ours)).tolist()

    def epoch(dataset: Dataset) -> Any:
        return lambda: sum(len(images) for images, _ in DataLoader(dataset, batch, sampler=order))

    contenders = (Contender("plain: h5py", epoch(theirs)), Contender("ours: PCam", epoch(ours), limit=1.0))
    return Case("data", f"reading {len(order)} PCam patches at random, batches of {batch}", contenders, training=False)


def augmentation(settings: Settings, images: Tensor) -> Case:
    """What the augmentation of a batch adds to a training step of the plain DenseNet."""
    model = models.create_model("densenet", growth=(2, 4, 8) if settings.quick else (12, 24, 48))
    network, augment, indices = settings.module(plain.DenseNet(model)), PCamAugment(), range(len(images))
    step = training_step(Contender("", network, (settings.tensor(*images.shape),)))
    contenders = (
        Contender("plain: DenseNet, training step", step),
        Contender("ours: PCamAugment", lambda: augment(images, indices, 0)),
        Contender("ours: to_unit alone", lambda: to_unit(images)),
    )
    return Case("data", f"augmenting {len(images)} patches, beside the step they feed", contenders, training=False)
