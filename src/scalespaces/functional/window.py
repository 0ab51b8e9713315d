"""Sliding windows, and what they do to the grids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from scalespaces.functional.grid import floor, per_axis
from scalespaces.functional.space import ScaleSpace


@dataclass(frozen=True)
class Window:
    """The taps of a filter or a pooling: its size, and how it slides, one number per axis."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]

    @classmethod
    def of(
        cls,
        size: Sequence[int],
        stride: int | Sequence[int],
        padding: int | Sequence[int] | str,
        dilation: Sequence[int],
    ) -> Window:
        """Read the arguments as PyTorch's layers have them."""
        dims = len(size)
        strides = per_axis(stride, dims, "stride")
        for name, values in (("kernel_size", size), ("stride", strides), ("dilation", dilation)):
            if min(values) < 1:
                raise ValueError(f"{name} is at least 1, got {tuple(values)}")
        if padding == "same":
            totals = [d * (n - 1) for n, d in zip(size, dilation, strict=True)]
            pairs = tuple((total // 2, total - total // 2) for total in totals)
        elif isinstance(padding, str):
            if padding != "valid":
                raise ValueError(f'padding is a number, "same" or "valid", got {padding!r}')
            pairs = ((0, 0),) * dims
        else:
            pairs = tuple((p, p) for p in per_axis(padding, dims, "padding"))
            if min(pairs)[0] < 0:
                raise ValueError(f"padding is at least 0, got {padding}")
        return cls(tuple(size), strides, pairs, tuple(dilation))

    def check(self, level: Tensor, spacing: Any, number: int) -> None:
        """Refuse a level too small to hold the window once."""
        if isinstance(spacing, np.ndarray):
            return
        for n, size, dilation, (before, after) in zip(
            level.shape[2:], self.size, self.dilation, self.padding, strict=True
        ):
            surplus = before + after - dilation * (size - 1)
            # A symbolic size (torch.export) is left to the convolution itself.
            if surplus < 0 and isinstance(n, int) and floor(n - 1 + spacing * surplus) < 0:
                raise ValueError(
                    f"level {number} has {tuple(level.shape[2:])} samples, too few for a window of {self.size} taps "
                    f"{spacing:g} samples apart; use fewer levels, more padding, or a larger image"
                )

    def move(self, x: ScaleSpace, levels: tuple[Tensor, ...], *, dilated: bool = True) -> ScaleSpace:
        r"""The levels that the window gave, on the grids it left.

        Seen from its first tap the window's centre is ``shift`` taps in, and the taps of level :math:`k` are
        :math:`c^k` apart (one sample, for a window that is not ``dilated``): that is how far sample 0 moves. A
        stride then makes the unit larger.
        """
        shift = [
            d * (n - 1) / 2 - before for n, d, (before, _) in zip(self.size, self.dilation, self.padding, strict=True)
        ]
        if not isinstance(x.base, float) and len(set(self.stride)) > 1:
            raise ValueError(f"a matrix base needs one stride for all axes, got {self.stride}")
        origins = []
        for index, origin in enumerate(x.origins):
            apart = x.expansion(index) if dilated else x.steps[index]
            moved = apart @ np.array(shift) if isinstance(apart, np.ndarray) else [apart * s for s in shift]
            origins.append(
                tuple(float(o + m) / stride for o, m, stride in zip(origin, moved, self.stride, strict=True))
            )
        unit = tuple(u * stride for u, stride in zip(x.unit, self.stride, strict=True))
        return x.replace(levels, origins=tuple(origins), unit=unit)
