r"""Blurs as products with banded matrices: along one axis, all that a lift does is one of these.

A blur that is read at every ``ratio``-th sample is a matrix whose row :math:`i` holds its taps from column
:math:`r i` on. Cut into blocks of :math:`b` rows, block :math:`j` needs no more than a window of the axis,

.. math:: y(b j + i) = \sum_{k < K} T_j(i, k)\, x(\mathrm{start} + \mathrm{step} \cdot j + k), \qquad i < b,

and for an integer ratio all blocks :math:`T_j` are the same Toeplitz matrix. The windows are a view, so what is left is
one batched product of matrices: far faster than taps along one axis, although most of a block is zeros.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from scalespaces._torch import constant
from scalespaces.functional._sampling import fold
from scalespaces.space._numbers import count
from scalespaces.theory._arguments import PaddingMode

_WINDOW = 32  # samples that a block advances by, at least: smaller blocks are slow, larger ones mostly zeros
_FEW = 16  # lines along an axis that are too few to be the columns of a product


class Band(NamedTuple):
    """A banded matrix of so many ``rows``, as the ``blocks`` ``T`` of shape ``(number or 1, b, K)``."""

    blocks: Tensor
    rows: int
    start: int
    step: int


def count_blocks(band: Band) -> int:
    """How many blocks there are; as a function, since torch 2.6 compiles no properties of tuples."""
    return -(-band.rows // band.blocks.shape[1])


def block_rows(n: int, ratio: float, reach: int) -> int:
    """How many rows a block has; all of them for an axis so short that the borders would be most of it."""
    rows = _block_rows(ratio, reach)
    return rows if n > max(4 * _WINDOW, 2 * (reach + rows * ratio)) else count(n, ratio)


@constant
def _block_rows(ratio: float, reach: int) -> int:
    least = max(8, round(max(_WINDOW, reach) / ratio))
    # Windows must be a whole number of samples apart: the best of a fractional ratio's multiples drifts the least.
    return min(range(least, 2 * least), key=lambda b: round(abs(b * ratio - round(b * ratio)), 9))


def toeplitz_band(taps: Tensor, n: int, ratio: int = 1, spacing: int = 1) -> Band:
    """The band of a blur of ``n`` samples whose taps are ``spacing`` samples apart, read at every ``ratio``-th."""
    if spacing > 1:
        taps = F.pad(taps[:, None], (0, spacing - 1)).flatten()[: 1 - spacing]
    reach = taps.shape[0] // 2
    b = block_rows(n, ratio, reach)
    margin = ratio * (b - 1)
    block = F.pad(taps, (margin, margin)).unfold(0, taps.shape[0] + margin, ratio).flip(0)
    return Band(block[None], count(n, ratio), -reach, ratio * b)


def fold_band(band: Band, n: int, padding_mode: PaddingMode) -> Band:
    """The same for an axis of ``n`` samples without padding, if it is one block: what lies outside is folded back."""
    if count_blocks(band) > 1 or (band.start, band.blocks.shape[2]) == (0, n):
        return band
    index = torch.arange(band.start, band.start + band.blocks.shape[2], device=band.blocks.device)
    index = index if padding_mode == "zeros" else fold(index, n, padding_mode)
    folded = index[:, None] == torch.arange(n, device=index.device)
    return Band(band.blocks @ folded.to(band.blocks), band.rows, 0, band.step)


def multiply(x: Tensor, bands: Sequence[Band], padding_mode: PaddingMode = "zeros") -> Tensor:
    """The image ``(B, C, *spatial)`` times a band along every axis, in the image's memory format."""
    dims, channels_last = len(bands), x.movedim(1, -1).is_contiguous() and not x.is_contiguous()
    bands = [fold_band(band, n, padding_mode) for band, n in zip(bands, x.shape[2:], strict=True)]
    amounts = []
    for band, n in zip(bands[::-1], x.shape[:1:-1], strict=True):
        end = band.start + band.step * (count_blocks(band) - 1) + band.blocks.shape[2]
        amounts += [-band.start, max(end - n, 0)]
    out = x.contiguous()
    if any(amounts):
        out = F.pad(out, amounts, mode="constant" if padding_mode == "zeros" else padding_mode)
    for band in bands[::-1]:
        # The last axis comes out in front of all others: when each had its turn, they are in order again.
        out = _along_lines(out.flatten(0, -2), band).unflatten(1, out.shape[:-1])
    if channels_last:
        return out.movedim(dims, 0).contiguous().movedim(-1, 1)
    return out.movedim((dims, dims + 1), (0, 1)).contiguous()


def _along_lines(x: Tensor, band: Band) -> Tensor:
    """The product with each line of ``x``, as a column."""
    windows = x.unfold(1, band.blocks.shape[2], band.step)[:, : count_blocks(band)]
    if band.blocks.shape[0] == 1 and isinstance(x.shape[0], int) and x.shape[0] < _FEW:
        return (windows @ band.blocks[0].T).flatten(1)[:, : band.rows].T
    blocks = band.blocks.expand(count_blocks(band), -1, -1)
    return torch.bmm(blocks, windows.permute(1, 2, 0)).flatten(0, 1)[: band.rows]
