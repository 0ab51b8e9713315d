"""Processes of a test that talk to each other."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import distributed


@contextmanager
def process_group(rank: int, folder: Path, processes: int = 2) -> Iterator[None]:
    """Connect this process with the others. It ends where the context does, after all of them have come there."""
    distributed.init_process_group("gloo", f"file://{folder / 'store'}", rank=rank, world_size=processes)
    yield
    (folder / f"{rank}.done").touch()
    while len(list(folder.glob("*.done"))) < processes:
        time.sleep(0.01)
    os._exit(0)  # on the usual way out, gloo's threads sometimes abort the process
