"""What the commands say and write."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from scalespaces._files import replacing


class progress:
    """Say on stderr what is going on, and how long it took."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        self.start = time.perf_counter()
        print(f"{self.what} ...", file=sys.stderr, flush=True)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            print(f"{self.what}: {time.perf_counter() - self.start:.1f} s", file=sys.stderr, flush=True)


def write_json(path: str, document: dict[str, Any]) -> None:
    with replacing(path) as draft:
        draft.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    print(f"\nwrote {path}")
