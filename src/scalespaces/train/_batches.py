"""Which samples make up a batch: a function of (seed, epoch, batch) alone, whatever the number of processes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler

from scalespaces.data import ImageDataset
from scalespaces.data._keys import Indexed


class KeyedBatches(Sampler[list[int]]):
    r"""The batches of an epoch, of which every process takes its part.

    The samples are permuted by (seed, epoch). Step :math:`n` takes the samples :math:`nB` to :math:`(n+1)B`, with
    :math:`B` the batch size, whatever the number of processes and of batches it is accumulated of: these split it.
    Samples that do not fill a step are left out, others every epoch.

    Args:
        dataset: is told the epoch.
        batch_size: of a step, over all processes and accumulated batches.
        seed: of the permutations.
        rank: number of this process.
        processes: how many there are.
        accumulate: batches that make up a step.
        epoch: to start with.
        start: batch of that epoch to start with.

    Example:
        >>> images, labels = torch.zeros(10, 8, 8, dtype=torch.uint8), torch.arange(10)
        >>> dataset = scalespaces.data.ArrayImages(images, labels)
        >>> whole, half = KeyedBatches(dataset, 4), KeyedBatches(dataset, 4, rank=1, processes=2)
        >>> [batch[2:] for batch in whole] == list(half)
        True
    """

    def __init__(
        self,
        dataset: ImageDataset | Indexed,
        batch_size: int,
        seed: int = 0,
        *,
        rank: int = 0,
        processes: int = 1,
        accumulate: int = 1,
        epoch: int = 0,
        start: int = 0,
    ) -> None:
        if batch_size % (processes * accumulate):
            raise ValueError(
                f"data.batch_size is divided over {processes} processes and {accumulate} accumulated batches, got "
                f"{batch_size}; use a multiple of {processes * accumulate}"
            )
        if len(dataset) < batch_size:
            raise ValueError(
                f"a step takes data.batch_size samples, and the training set has {len(dataset)}, fewer than "
                f"{batch_size}; use a smaller data.batch_size"
            )
        self.dataset, self.batch_size, self.seed = dataset, batch_size, seed
        self.rank, self.processes, self.accumulate = rank, processes, accumulate
        self.epoch, self.start = epoch, start

    def set_epoch(self, epoch: int) -> None:
        """Go on with that epoch; from its first batch, unless it is the one to start with."""
        if epoch != self.epoch:
            self.epoch, self.start = epoch, 0

    def __len__(self) -> int:
        return len(self.dataset) // self.batch_size * self.accumulate

    def __iter__(self) -> Iterator[list[int]]:
        self.dataset.set_epoch(self.epoch)
        key = np.random.SeedSequence(self.seed, spawn_key=(self.epoch,))
        order = np.random.default_rng(key).permutation(len(self.dataset))
        part = self.batch_size // (self.processes * self.accumulate)
        for batch in range(self.start, len(self)):
            first = (batch * self.processes + self.rank) * part
            yield order[first : first + part].tolist()
