"""A line on stderr for work that takes long."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator
from typing import TypeVar

T = TypeVar("T")


class Progress:
    """Say how far something is: five times a second on a terminal, every half minute elsewhere, never at once."""

    def __init__(self, what: str, total: int | None = None, unit: str = "", scale: float = 1) -> None:
        self.what, self.total, self.unit, self.scale = what, total, unit, scale
        self.done = 0
        self.terminal = sys.stderr.isatty()
        self.interval = 0.2 if self.terminal else 30.0
        self.shown = False

    def __enter__(self) -> Progress:
        self.last = time.monotonic()
        return self

    def add(self, amount: int = 1) -> None:
        """This much more is done."""
        self.done += amount
        now = time.monotonic()
        if now - self.last >= self.interval:
            self.last, self.shown = now, True
            of = "" if self.total is None else f" of {self.total / self.scale:,.0f}"
            line = f"{self.what}: {self.done / self.scale:,.0f}{of}{self.unit}"
            print(f"\r{line}\x1b[K" if self.terminal else line, end="" if self.terminal else "\n", file=sys.stderr)
            sys.stderr.flush()

    def __exit__(self, *_: object) -> None:
        if self.shown and self.terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def progress(items: Collection[T], what: str) -> Iterator[T]:
    """The items, one by one, with a line of progress when they take long."""
    with Progress(what, len(items)) as line:
        for item in items:
            yield item
            line.add()
