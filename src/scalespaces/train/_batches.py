"""The batches of a recipe. A training batch depends on (seed, epoch, batch) alone, not on the number of processes."""

import multiprocessing
import os
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from scalespaces.data import ImageDataset
from scalespaces.data._keys import Part


class KeyedBatches(Sampler[list[int]]):
    r"""The batches of an epoch, of which every process takes its part.

    The samples are permuted by (seed, epoch). Step :math:`n` takes the samples :math:`nB` to :math:`(n+1)B` with the
    batch size :math:`B`. Processes and accumulated batches split a step and do not change it. Samples that do not fill
    a step are left out; they differ in every epoch. The first batch is batch ``start`` of ``epoch``. With ``balanced``,
    samples are drawn instead, a sample of a class of :math:`n` among :math:`K` with the probability :math:`1 / (nK)`.

    Example:
        >>> images, labels = torch.zeros(10, 8, 8, dtype=torch.uint8), torch.arange(10)
        >>> dataset = scalespaces.data.ArrayImages(images, labels)
        >>> whole, half = KeyedBatches(dataset, 4), KeyedBatches(dataset, 4, rank=1, processes=2)
        >>> [batch[2:] for batch in whole] == list(half)
        True
    """

    def __init__(
        self,
        dataset: ImageDataset,
        batch_size: int,
        seed: int = 0,
        *,
        rank: int = 0,
        processes: int = 1,
        accumulate: int = 1,
        epoch: int = 0,
        start: int = 0,
        balanced: bool = False,
    ) -> None:
        if batch_size % (processes * accumulate):
            rule = f"data.batch_size is divided among {processes} processes and {accumulate} accumulated batches"
            raise ValueError(f"{rule}, got {batch_size}; use a multiple of {processes * accumulate}")
        if len(dataset) < batch_size:
            rule = f"a step needs data.batch_size, {batch_size} samples, but the training set has {len(dataset)}"
            raise ValueError(f"{rule}; use a smaller data.batch_size")
        self.dataset, self.batch_size, self.seed = dataset, batch_size, seed
        self.rank, self.processes, self.accumulate = rank, processes, accumulate
        self.epoch, self.start = epoch, start
        self.shares: np.ndarray | None = None  # how likely each sample is, if they are drawn
        if balanced:
            labels = np.asarray(getattr(dataset, "labels"))  # noqa: B009
            counts = np.bincount(labels)
            self.shares = 1 / (counts[labels] * np.count_nonzero(counts))

    def set_epoch(self, epoch: int) -> None:
        """Continue with that epoch; from its first batch, unless it is the epoch to start with."""
        if epoch != self.epoch:
            self.epoch, self.start = epoch, 0

    def __len__(self) -> int:
        return len(self.dataset) // self.batch_size * self.accumulate

    def __iter__(self) -> Iterator[list[int]]:
        self.dataset.set_epoch(self.epoch)
        key = np.random.SeedSequence(self.seed, spawn_key=(self.epoch,))
        generator, number = np.random.default_rng(key), len(self.dataset)
        balanced = self.shares is not None
        order = generator.choice(number, number, p=self.shares) if balanced else generator.permutation(number)
        part = self.batch_size // (self.processes * self.accumulate)
        for batch in range(self.start, len(self)):
            first = (batch * self.processes + self.rank) * part
            yield order[first : first + part].tolist()


class Indexed(Dataset[tuple[Tensor, Tensor, int]]):
    """A dataset whose samples carry their index, which keys the augmentation on the device."""

    def __init__(self, dataset: ImageDataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        return *self.dataset[index], range(len(self))[index]


def training_loader(batches: KeyedBatches, workers: int, *, pin: bool = False) -> DataLoader[Any]:
    """The loader of training batches: images, targets and the samples' indices."""
    options: dict[str, Any] = {"collate_fn": collate, "pin_memory": pin} | worker_options(workers)
    return DataLoader(Indexed(batches.dataset), batch_sampler=batches, **options)


def evaluation_loader(
    dataset: ImageDataset, batch_size: int, workers: int = 0, *, rank: int = 0, processes: int = 1, pin: bool = False
) -> DataLoader[tuple[Tensor, ...]]:
    """A loader of every sample once, in order; with several processes, of every ``processes``-th sample."""
    if (number := len(dataset)) < processes:  # a process without samples would not take part in combining results
        raise ValueError(f"{processes} processes need at least as many samples, got {number}; use fewer processes")
    own = dataset if processes == 1 else Part(dataset, np.arange(rank, number, processes))
    return DataLoader(own, batch_size, collate_fn=collate, pin_memory=pin, **worker_options(workers))


def collate(samples: list[tuple[Tensor, ...]]) -> list[Tensor]:
    """Put samples into a batch; their images must have the same size."""
    sizes = {tuple(sample[0].shape) for sample in samples}
    if len(sizes) > 1:
        shown = ", ".join(" x ".join(map(str, size)) for size in sorted(sizes)[:3])
        raise ValueError(f"images of a batch must have one size, got {shown}; set data.size, or data.crop for masks")
    return default_collate(samples)


def same_shape(images: Sequence[Tensor]) -> Iterable[list[int]]:
    """The indices of images, grouped by their shape."""
    groups: dict[torch.Size, list[int]] = {}
    for i, image in enumerate(images):
        groups.setdefault(image.shape, []).append(i)
    return groups.values()


_DISCONNECTED = (ConnectionResetError, ConnectionRefusedError, FileNotFoundError)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Raise errors of reading processes without their traceback, and an OSError when such a process has died."""
    died = "a process that reads data has died, perhaps for want of memory; go on with --resume or fewer data.workers"
    try:
        yield
    except (ValueError, OSError) as error:
        if found := re.match(r"Caught (\w+) in DataLoader worker .*\n[\w.]*\1: (.*)", str(error), re.DOTALL):
            raise type(error)(found[2].strip()) from error
        if isinstance(error, _DISCONNECTED) and not error.filename:  # others are about files
            raise OSError(died) from error
        raise
    except (RuntimeError, EOFError) as error:
        if isinstance(error, EOFError) or "DataLoader worker" in str(error):
            raise OSError(died) from error
        raise


def worker_options(workers: int) -> dict[str, Any]:
    """Arguments of a loader with this many reading processes."""
    if not workers:
        return {"num_workers": 0}
    # Forked workers hang if a thread of the parent holds a lock; Windows has no forkserver.
    way = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    options = {"num_workers": workers, "persistent_workers": True, "multiprocessing_context": way}
    return options | {"worker_init_fn": end_with_parent}


def end_with_parent(worker: int) -> None:
    """End this reading process as soon as the one that it reads for has ended, even if that was killed.

    PyTorch's own watchdog watches the parent in the process tree. That is the fork server, which lives as long as any
    reading process, so these and their memory would stay for good.
    """
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
