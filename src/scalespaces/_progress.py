"""A line of progress on stderr for long work."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator
from datetime import timedelta
from typing import TypeVar

T = TypeVar("T")


class Progress:
    """Show how much is done: five times a second on a terminal, every half minute elsewhere, not for short work.

    With ``left``, the remaining time is estimated.
    """

    def __init__(
        self, what: str, total: int | None = None, unit: str = "", scale: float = 1, left: bool = False
    ) -> None:
        self.what, self.total, self.unit, self.scale, self.left = what, total, unit, scale, left
        self.done, self.shown, self.terminal = 0, False, sys.stderr.isatty()

    def __enter__(self) -> Progress:
        self.last = self.start = time.monotonic()
        return self

    def add(self, amount: int = 1) -> None:
        """Count as done."""
        self.done += amount
        now = time.monotonic()
        if now - self.last >= (0.2 if self.terminal else 30):
            self.last, self.shown = now, True
            of = "" if self.total is None else f" of {self.total / self.scale:,.0f}"
            line = f"{self.what}: {self.done / self.scale:,.0f}{of}{self.unit}"
            if self.left and self.total is not None and self.done:
                seconds = round((now - self.start) * (self.total - self.done) / self.done)
                line += f", {timedelta(seconds=seconds)} left"
            print(f"\r{line}\x1b[K" if self.terminal else f"{line}\n", end="", file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        if self.shown and self.terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def progress(items: Collection[T], what: str) -> Iterator[T]:
    """Go through the items, with a line of progress if they take long."""
    with Progress(what, len(items)) as line:
        for item in items:
            yield item
            line.add()
