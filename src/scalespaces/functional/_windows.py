"""Sliding windows, and what they do to the grids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scalespaces.functional._sampling import pad, take
from scalespaces.space._numbers import as_integer, floor, per_axis
from scalespaces.space._space import ScaleSpace
from scalespaces.theory._padding import PaddingMode


@dataclass(frozen=True)
class Window:
    """The taps of a filter or a pooling: its size, and how it slides, one number per axis.

    A causal window answers for its last tap, is padded before the record only, and its strides count back from the
    newest sample.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    causal: bool = False

    @classmethod
    def of(
        cls,
        size: Sequence[int],
        stride: int | Sequence[int],
        padding: int | Sequence[int] | str,
        dilation: Sequence[int],
        causal: bool = False,
    ) -> Window:
        """Read the arguments as PyTorch's layers have them."""
        dims = len(size)
        strides = per_axis(stride, dims, "stride")
        for name, values in (("kernel_size", size), ("stride", strides), ("dilation", dilation)):
            if min(values) < 1:
                raise ValueError(f"{name} is at least 1, got {tuple(values)}")
        totals = [d * (n - 1) for n, d in zip(size, dilation, strict=True)]
        if padding == "same":
            pairs = tuple((total, 0) if causal else (total // 2, total - total // 2) for total in totals)
        elif isinstance(padding, str):
            if padding != "valid":
                raise ValueError(f'padding is a number, "same" or "valid", got {padding!r}')
            pairs = ((0, 0),) * dims
        else:
            pairs = tuple((p, 0 if causal else p) for p in per_axis(padding, dims, "padding"))
            if min(pairs)[0] < 0:
                raise ValueError(f"padding is at least 0, got {padding}")
            if causal and any(before > total for (before, _), total in zip(pairs, totals, strict=True)):
                raise ValueError(
                    f"a causal window of {tuple(size)} taps takes at most {tuple(totals)} of padding, all before the "
                    f'record, got {padding}; "same" is as much as keeps the length'
                )
        return cls(tuple(size), strides, pairs, tuple(dilation), causal)

    @property
    def keeps_size(self) -> bool:
        """Whether there is at least as much padding as the window reaches."""
        axes = zip(self.size, self.dilation, self.padding, strict=True)
        return all(before + after >= dilation * (size - 1) for size, dilation, (before, after) in axes)

    def check(self, level: Tensor, spacing: Any, number: int) -> None:
        """Refuse a level too small to hold the window once."""
        if isinstance(spacing, np.ndarray) or self.keeps_size:
            return
        whole = as_integer(spacing)
        for n, size, dilation, (before, after) in zip(
            level.shape[2:], self.size, self.dilation, self.padding, strict=True
        ):
            surplus = before + after - dilation * (size - 1)
            # A symbolic size (torch.export) is left to the convolution itself.
            if surplus >= 0 or not isinstance(n, int):
                continue
            if (n - 1 + surplus * whole if whole else floor(n - 1 + surplus * spacing)) < 0:
                raise ValueError(
                    f"level {number} has {tuple(level.shape[2:])} samples, too few for a window of {self.size} taps "
                    f"{spacing:g} samples apart; use fewer levels, more padding, or a larger image"
                )

    def lead(
        self, level: Tensor, spacing: float, mode: PaddingMode = "zeros", value: float = 0.0
    ) -> tuple[Tensor, Window]:
        """Put the padding of a causal window in front of the level; return both, the window with none left.

        What the stride would leave over at the end is cut off in front, behind the padding: no sample is lost.
        """
        if not self.causal:
            return level, self
        apart, (before, _) = int(spacing), self.padding[0]
        level = pad(level, [(before * apart, 0)], mode, value)
        if self.stride[0] > 1:
            n, span = level.shape[-1], self.dilation[0] * (self.size[0] - 1) * apart
            used = (n - 1 - span) // self.stride[0] * self.stride[0] + span + 1
            # Not a slice, nor the remainder to cut off: torch.export keeps this length symbolic.
            level = take(level, 2, torch.arange(n - used, n, device=level.device))
        return level, Window(self.size, self.stride, ((0, 0),), self.dilation, True)

    def move(self, x: ScaleSpace, levels: tuple[Tensor, ...], *, dilated: bool = True) -> ScaleSpace:
        r"""The levels that the window gave, on the grids it left.

        Seen from its first tap the window's center is ``shift`` taps in, and the taps of level :math:`k` are
        :math:`c^k` apart (one sample, for a window that is not ``dilated``): that is how far sample 0 moves. A
        stride then makes the unit larger. Causal windows leave the newest sample where it is.
        """
        shift = [
            0.0 if self.causal else d * (n - 1) / 2 - before
            for n, d, (before, _) in zip(self.size, self.dilation, self.padding, strict=True)
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
        if tuple(origins) == x.origins and unit == x.unit:
            return x.replace(levels)
        return x.replace(levels, origins=tuple(origins), unit=unit)
