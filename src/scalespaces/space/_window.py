"""Sliding windows: the taps of a filter or a pooling, and how they slide."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalespaces.space._numbers import Ints, as_integer, floor, per_axis, remembered

Counts = tuple[int, ...]


@dataclass(frozen=True)
class Window:
    """A window's size, and how it slides, one number per axis; padding and dilation count taps.

    The output of a causal window belongs to its last tap; padding is before the record, strides count back from now.
    """

    size: Counts
    stride: Counts
    padding: tuple[tuple[int, int], ...]
    dilation: Counts
    causal: bool = False

    @property
    def keeps_size(self) -> bool:
        """Whether there is at least as much padding as the window reaches."""
        axes = zip(self.size, self.dilation, self.padding, strict=True)
        return all(before + after >= dilation * (size - 1) for size, dilation, (before, after) in axes)

    def check(self, sizes: Sequence[Any], spacing: Any, number: int) -> None:
        """Refuse a level of these sizes if it is too small for the window."""
        if isinstance(spacing, np.ndarray) or self.keeps_size:
            return
        whole = as_integer(spacing)
        for n, size, dilation, (before, after) in zip(sizes, self.size, self.dilation, self.padding, strict=True):
            surplus = before + after - dilation * (size - 1)
            # A symbolic size (torch.export) is left to the convolution itself.
            if surplus >= 0 or not isinstance(n, int):
                continue
            if (n - 1 + surplus * whole if whole else floor(n - 1 + surplus * spacing)) < 0:
                window = f"a window of {self.size} taps {spacing:g} samples apart"
                ways = "use fewer levels, more padding, or a larger image"
                raise ValueError(f"level {number} has {tuple(sizes)} samples, too few for {window}; {ways}")


def window_of(
    size: Sequence[int], stride: Ints = 1, padding: Ints | str = 0, dilation: Ints = 1, causal: bool = False
) -> Window:
    """Read the arguments that PyTorch's layers take."""
    dims = len(size)
    pads = padding if isinstance(padding, str) else per_axis(padding, dims, "padding")
    return _window_of(tuple(size), per_axis(stride, dims, "stride"), pads, per_axis(dilation, dims, "dilation"), causal)


@remembered
def _window_of(size: Counts, stride: Counts, padding: Counts | str, dilation: Counts, causal: bool) -> Window:
    for name, values in (("kernel_size", size), ("stride", stride), ("dilation", dilation)):
        if min(values) < 1:
            raise ValueError(f"{name} is at least 1, got {values}")
    totals = tuple(d * (n - 1) for n, d in zip(size, dilation, strict=True))
    if padding == "same":
        pairs = tuple((total, 0) if causal else (total // 2, total - total // 2) for total in totals)
    elif isinstance(padding, str):
        if padding != "valid":
            raise ValueError(f'padding is a number, "same" or "valid", got {padding!r}')
        pairs = ((0, 0),) * len(size)
    else:
        pairs = tuple((p, 0 if causal else p) for p in padding)
        if min(padding) < 0:
            raise ValueError(f"padding is at least 0, got {padding}")
        if causal and any(p > total for p, total in zip(padding, totals, strict=True)):
            rule = f"a causal window of {size} taps takes at most {totals} of padding, all before the record"
            raise ValueError(f'{rule}, got {padding}; "same" keeps the length')
    return Window(size, stride, pairs, dilation, causal)
