"""Datasets of images. Their random numbers depend on (seed, epoch, sample) alone, not on order, worker or process."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

Array = Tensor | np.ndarray


def keyed_generator(seed: int, epoch: int, index: int) -> np.random.Generator:
    """The generator for everything random about a sample in an epoch; all arguments are at least 0."""
    return np.random.default_rng(np.random.SeedSequence(int(seed), spawn_key=(int(epoch), int(index))))


class ImageDataset(Dataset[tuple[Tensor, Tensor]]):
    """Images with their labels or masks, and random numbers that are keyed by (seed, epoch, sample).

    Images are uint8 tensors ``(C, H, W)``, a quarter of the size of float32. Convert whole batches on the device, with
    :func:`~scalespaces.data.to_unit`. The ``seed`` is for crops and flips, if the dataset makes any.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        # Shared, so that persistent workers of loaders see it change.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    @property
    def epoch(self) -> int:
        """The epoch that keys the random numbers."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Key the random numbers by this epoch from now on, also in the workers of data loaders."""
        if epoch < 0:
            raise ValueError(f"epoch must be at least 0, got {epoch}")
        self._epoch.fill_(epoch)

    def generator(self, index: int) -> np.random.Generator:
        """The generator of a sample in this epoch."""
        return keyed_generator(self.seed, self.epoch, index)

    def __len__(self) -> int:
        raise NotImplementedError


class ArrayImages(ImageDataset):
    """Images in memory.

    Args:
        images: ``(N, C, H, W)`` or ``(N, H, W)``, uint8.
        labels: ``(N,)``, from 0.
        num_classes: labels must be below this; not checked by default.
        scales: ``(N,)``, the scale at which each image shows its object, if known.

    Example:
        >>> dataset = ArrayImages(torch.zeros(5, 8, 8, dtype=torch.uint8), torch.arange(5))
        >>> image, label = dataset[2]
        >>> image.shape, label
        (torch.Size([1, 8, 8]), tensor(2))
    """

    def __init__(
        self, images: Array, labels: Array, num_classes: int | None = None, scales: Array | None = None
    ) -> None:
        super().__init__()
        images, labels = torch.as_tensor(images), torch.as_tensor(labels)
        images = images.unsqueeze(1) if images.ndim == 3 else images
        if images.ndim != 4 or images.dtype != torch.uint8:
            raise ValueError(f"images are uint8 of (N, C, H, W) or (N, H, W), got {images.dtype} {tuple(images.shape)}")
        if labels.shape != images.shape[:1]:
            raise ValueError(f"one label for each of {len(images)} images is needed, got {tuple(labels.shape)}")
        check_labels(labels.numpy(), num_classes, "the labels")
        self.images, self.labels = images, labels.long()
        self.scales = None if scales is None else torch.as_tensor(scales)
        if self.scales is not None and self.scales.shape != labels.shape:
            raise ValueError(f"one scale for each of {len(images)} images is needed, got {tuple(self.scales.shape)}")
        if self.scales is not None and not (self.scales.isfinite() & (self.scales > 0)).all():
            raise ValueError("scales must be finite numbers above 0")

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index], self.labels[index]


class Part(ImageDataset):
    """Some samples of a dataset. Their random numbers are those they have in the whole dataset."""

    def __init__(self, dataset: ImageDataset, indices: Sequence[int] | np.ndarray) -> None:
        super().__init__(dataset.seed)
        self.dataset, self.indices = dataset, np.asarray(indices)
        self._epoch = dataset._epoch  # shared by both

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.dataset[int(self.indices[index])]

    @property
    def labels(self) -> Tensor:
        """The classes of the samples, if every image has one."""
        labels: Tensor = getattr(self.dataset, "labels")  # noqa: B009
        return labels[torch.from_numpy(self.indices)]


def check_labels(labels: np.ndarray, num_classes: int | None, where: str) -> None:
    """Refuse labels that are not class numbers. The error names the first one and its place."""
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"{where} must be whole numbers, got {labels.dtype}")
    bad = (labels < 0) if num_classes is None else (labels < 0) | (labels >= num_classes)
    if bad.any():
        first = tuple(np.argwhere(bad)[0].tolist())
        limit = "0 on" if num_classes is None else f"0 to {num_classes - 1}"
        place = first[0] if len(first) == 1 else first
        raise ValueError(f"{where} must be from {limit}, got {labels[first]} at {place} and {bad.sum() - 1} more")
