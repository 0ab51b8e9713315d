"""Processes of a test that talk to each other."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import distributed


@contextmanager
def process_group(rank: int, folder: Path, processes: int = 2) -> Iterator[None]:
    """Connect this process with the others. It ends where the context does, after all of them have come there."""
    store = distributed.FileStore(str(folder / "store"), processes)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=processes)
    yield
    store.set(f"done {rank}", "")
    store.wait([f"done {other}" for other in range(processes)])
    os._exit(0)  # on the usual way out, gloo's threads sometimes abort the process
