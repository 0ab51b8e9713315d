"""What the commands print and write."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from scalespaces import _files


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Print on stderr what is being done, and how long it took."""
    start = time.perf_counter()
    print(f"{what} ...", file=sys.stderr, flush=True)
    yield
    print(f"{what}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)


def write_json(path: str, document: dict[str, Any]) -> None:
    """Write a document as JSON, and print where."""
    _files.write_json(path, document)
    print(f"\nwrote {path}")
