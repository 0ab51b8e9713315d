"""Which fast path runs, by device and size: the one place to change that.

Each fast path computes what the plain formula next to its call computes. Compilers and transforms (vmap, forward-mode
gradients) get the plain formula: they fuse or differentiate it themselves.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from scalespaces._torch import is_exporting, is_transformed

_MANY_CHANNELS, _SMALL_MAP = 16, 64 * 64
# Multiplications that folding must save, or else its many small calls cost more; "meta" counts what a CPU would do.
_WORTH_FOLDING = {"cpu": 2**27, "meta": 2**27}


_acting: list[str] = []  # the kind of device that choices are made for, if not the real one


@contextmanager
def acting_as(kind: str) -> Iterator[None]:
    """Choose as for another kind of device, to count what it would launch."""
    _acting.append(kind)
    try:
        yield
    finally:
        _acting.pop()


def _kind(device: torch.device) -> str:
    return _acting[-1] if _acting else device.type


def folding_pays(saved_multiplications: int, device: torch.device) -> bool:
    """Whether a coarse level meets the filter on its own grid, by :mod:`._fold`; only measured on a CPU."""
    least = _WORTH_FOLDING.get(_kind(device))
    return least is not None and saved_multiplications >= least


def can_fold() -> bool:
    """Whether folding may be considered at all."""
    return not is_transformed()


def interpolates_by_slices(*sizes: object) -> bool:
    """Whether whole-number upsampling runs on slices, by :mod:`._finer`, instead of by gathers."""
    return all(isinstance(n, int) for n in sizes) and not is_transformed()


def reads_phases_at_once(device: torch.device) -> bool:
    """Whether whole-number upsampling is one call for all phases, where a call costs its launch."""
    return _kind(device) not in ("cpu", "meta")


def blurs_by_matrices(x: Tensor) -> bool:
    """Whether a blur is a product with banded matrices, by :mod:`._banded`; they need known sizes."""
    # On the meta device operations are merely counted: there the taps count, and not the zeros that make them a matrix.
    return not x.is_meta and all(map(is_known, x.shape[2:]))


def is_known(size: object) -> bool:
    """Whether a size is a number; torch.compile shows no difference to a symbol, but it may add guards."""
    return isinstance(size, int) and not (torch.compiler.is_dynamo_compiling() and is_exporting())


def averages_blocks(window: Any) -> bool:
    """Whether average pooling drops its input before the backward pass, by :mod:`._blocks`."""
    keeps = torch.is_grad_enabled() and not is_transformed()
    return keeps and window.size == window.stride and not any(map(any, window.padding))


def normalizes_natively(levels: Sequence[Tensor]) -> bool:
    """Whether batch normalization runs in PyTorch's own kernels, by :mod:`._batch_norm`."""
    known = levels[0].device.type in ("cpu", "cuda", "meta") and len({level.dtype for level in levels}) == 1
    return known and not is_transformed()


def runs_channels_last(f: Tensor, groups: int) -> bool:
    """Whether a convolution stores the channels of this map next to each other, whatever the layout it came in."""
    # A CPU takes up to six times as long for small maps of many channels in PyTorch's default layout. The choice is by
    # the map's own size alone, so equal maps at different levels give equal bits. Training is left as it is.
    if torch.is_grad_enabled() or _kind(f.device) != "cpu" or f.ndim != 4 or groups != 1 or f.dtype != torch.float32:
        return False
    batch, channels, height, width = f.shape
    # In this order: to compare a symbolic size would fix it.
    return channels >= _MANY_CHANNELS and not is_transformed() and batch * height * width <= _SMALL_MAP
