"""Loading compared with h5py alone, and loading and augmentation compared with the training step they feed."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks._case import Case, Contender, Settings, training_step
from benchmarks._rivals import rival
from scalespaces._extras import require
from scalespaces.data import PCam, to_unit
from scalespaces.data._augment import PCamAugment, move, recolor
from scalespaces.data._pcam import pcam_file
from scalespaces.models import create_model


class _PlainPatches(Dataset):
    """Patches of an open HDF5 file and their labels: no checks, and one process only."""

    def __init__(self, patches: Any, labels: Tensor) -> None:
        self.patches, self.labels = patches, labels

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self.patches[index]).permute(2, 0, 1), self.labels[index]


def cases(settings: Settings) -> Iterator[Case]:
    number, batch = (16, 4) if settings.quick else (1024, 32)
    order = np.random.default_rng(0).permutation(number).tolist()

    def epoch(dataset: Dataset, sampler: list[int] = order) -> Any:
        """Reading in this process, in that order."""
        return lambda: sum(len(images) for images, _ in DataLoader(dataset, batch, sampler=sampler))

    with tempfile.TemporaryDirectory() as folder:
        h5py: Any = require("h5py", "train")
        patches = np.random.default_rng(0).integers(0, 256, (number, 96, 96, 3), dtype=np.uint8)
        for part, values in (("x", patches), ("y", np.arange(number, dtype=np.uint8).reshape(-1, 1, 1, 1) % 2)):
            with h5py.File(Path(folder) / pcam_file("train", part), "w") as file:
                file[part] = values
        ours = PCam(folder)
        with h5py.File(Path(folder) / pcam_file("train", "x")) as file:
            theirs = _PlainPatches(file["x"], ours.labels)
            contenders = [Contender("plain: h5py", epoch(theirs)), Contender("ours: PCam", epoch(ours), limit=1.0)]
            yield Case("data", f"reading {number} PCam patches at random, batches of {batch}", contenders)
        images = torch.stack([ours[index][0] for index in range(batch)])
        plain = rival(create_model("densenet", growth=(2, 4, 8) if settings.quick else (12, 24, 48)))
        step = training_step(Contender("", settings.module(plain), (settings.tensor(*images.shape),)))
        augment, indices = PCamAugment(), range(batch)
        places, colors = augment.draw(indices, 0)
        moved = move(images, places)
        unit = to_unit(moved)
        columns = colors.to(unit).unbind(1)
        contenders = [
            Contender("plain: DenseNet, training step", step),
            Contender("ours: reading", epoch(ours, order[:batch])),
            Contender("ours: augmentation", lambda: augment(images, indices, 0)),
            Contender("- draw", lambda: augment.draw(indices, 0)),
            Contender("- move", lambda: move(images, places)),
            Contender("- to_unit", lambda: to_unit(moved)),
            Contender("- color", lambda: recolor(unit, *columns)),
        ]
        yield Case("data", f"the parts of a training step with {batch} patches", contenders)
