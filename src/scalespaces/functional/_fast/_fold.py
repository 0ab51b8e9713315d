r"""A filter on a level read off a coarser grid, without the finer copy: one transposed convolution.

Linear interpolation onto a grid :math:`q` times finer is a transposed convolution with the hat of width :math:`2 q`,
and the filter that follows is a convolution: the two fold into one transposed convolution of the coarse level. Per
axis, three taps and the hat of :math:`q = 2` make five, and each coarse sample meets :math:`5^2 = 25` taps in place of
the :math:`4 \cdot 3^2 = 36` that its four finer copies would.

At the borders two things are left to do. Interpolation repeats the coarse samples at the ends, so they are repeated
before. And the filter sees zeros outside the finer grid, where the repeated samples reach: what they add to the first
and last samples along each axis is taken off again.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from scalespaces._torch import full_precision
from scalespaces.functional._correlate import CONV
from scalespaces.functional._sampling import sample
from scalespaces.space._numbers import as_integer

_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
Gradients = tuple[Tensor | None, Tensor | None]
"""Of the level and of the filter, those that are needed."""


@dataclass(frozen=True)
class Fold:
    """One axis of the coarse level: how it is padded, and the taps that a filter becomes."""

    finer: int  # samples of the finer grid for each coarse one
    offset: float  # where the finer grid's first sample lies, in coarse samples
    size: int  # samples of the finer grid
    samples: int  # coarse samples
    taps: int  # of the filter: 3 padded by one, or 1
    reach: int  # taps of the filter on each side
    before: int  # coarse samples to repeat in front
    after: int  # and behind
    start: float  # where the hat meets the filter's first tap
    padding: int  # of the transposed convolution, on both sides
    length: int  # its taps
    surplus: int  # samples that it gives beyond the finer grid's; negative if they are too few

    def matrix(self, device: torch.device | None = None) -> Tensor:
        """The taps of the transposed convolution, in those of the filter; made where they are used, not copied."""
        real = torch.float32 if device is not None and device.type == "mps" else torch.float64
        t = torch.arange(-self.padding, self.length - self.padding, device=device, dtype=real)[:, None] + self.start
        y = torch.arange(self.taps, device=device, dtype=real)
        return (1 - (t + y).abs() / self.finer).clip(min=0)


def fold_axis(ratio: float, offset: float, size: int, samples: int, taps: int, padding: tuple[int, int]) -> Fold | None:
    """How a filter of so many taps folds with interpolation at ``offset + ratio * i``; None if it does not."""
    finer, reach = as_integer(1 / ratio), taps // 2
    if not (finer and finer > 1 and taps in (1, 3) and padding == (reach, reach)):
        return None
    known = isinstance(size, int) and isinstance(samples, int)  # in torch.export they may be symbols
    if not known or min(size, samples) < 2:
        return None
    first, last = offset - reach / finer, offset + (size - 1 + reach) / finer
    before, after = -math.floor(first + 1e-9), math.ceil(last - 1e-9) - (samples - 1)
    # All that lies outside the finer grid, within reach, must repeat a coarse sample at an end.
    if min(before, after) < 0 or (reach and not (first <= 0 and last >= samples - 1)):
        return None
    # Output z meets padded sample i through tap t = z - q i + padding, worth the hat at t - padding + start + y.
    start = finer * (before + offset) - reach
    low = math.floor(-finer - start - (taps - 1) + 1e-9) + 1
    length = math.ceil(finer - start - 1e-9) - low
    surplus = (before + samples + after - 1) * finer + 2 * low + length - size
    return Fold(finer, offset, size, samples, taps, reach, before, after, start, -low, length, surplus)


def upsampled_conv(f: Tensor, weight: Tensor, folds: Sequence[Fold]) -> Tensor:
    """Correlate a coarse level, interpolated linearly on a finer grid and zero outside, with a filter."""
    kind = f.device.type
    if not f.is_meta and f.dtype != torch.float64 and torch.is_autocast_enabled(kind):
        f, weight = (t.to(torch.get_autocast_dtype(kind)) for t in (f, weight))
    with full_precision(f):
        return _UpsampledConv.apply(f, weight, tuple(folds))


def _fold(f: Tensor, weight: Tensor, folds: Sequence[Fold]) -> Tensor:
    out = _TRANSPOSED[len(folds)](_repeat_ends(f, folds), _spread(weight, folds), None, *_settings(folds))
    for axis, fold in enumerate(folds, 2):
        if fold.surplus > 0:
            out = out.narrow(axis, 0, fold.size)
    for axis, fold in enumerate(folds):
        if fold.reach:
            out.index_add_(axis + 2, _ends(fold.size, f), _outside(*_faces(f, weight, axis), folds, axis), alpha=-1)
    return out


def _settings(folds: Sequence[Fold]) -> tuple[list[int], list[int], list[int]]:
    """Stride, padding and output padding of the transposed convolution."""
    more = [max(-fold.surplus, 0) for fold in folds]
    return [fold.finer for fold in folds], [fold.padding for fold in folds], more


def _repeat_ends(f: Tensor, folds: Sequence[Fold]) -> Tensor:
    amounts = [amount for fold in reversed(folds) for amount in (fold.before, fold.after)]
    return F.pad(f, amounts, mode="replicate") if any(amounts) else f


def _spread(weight: Tensor, folds: Sequence[Fold]) -> Tensor:
    """The filter of the transposed convolution, ``(C_in, C_out, *taps)``."""
    with full_precision(weight):
        spread = weight.transpose(0, 1).flatten(2).flatten(0, 1) @ _matrix(folds, weight).T
    return spread.reshape(weight.shape[1], weight.shape[0], *(fold.length for fold in folds))


def _gather(spread: Tensor, folds: Sequence[Fold]) -> Tensor:
    """The adjoint of that."""
    taps = spread.flatten(2).flatten(0, 1) @ _matrix(folds, spread)
    return taps.reshape(*spread.shape[:2], *(fold.taps for fold in folds)).transpose(0, 1)


def _matrix(folds: Sequence[Fold], like: Tensor) -> Tensor:
    """All axes at once."""
    return functools.reduce(torch.kron, [fold.matrix(like.device) for fold in folds]).to(like.dtype)


def _ends(size: int, like: Tensor) -> Tensor:
    return torch.arange(0, size, size - 1, device=like.device)


def _faces(f: Tensor, weight: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """The first and last samples along an axis, one after the other, and the taps that meet them from inside."""
    samples = f.shape[axis + 2]
    faces = torch.cat([f.narrow(axis + 2, 0, 1), f.narrow(axis + 2, samples - 1, 1)], 1)
    return faces, torch.cat([weight.narrow(axis + 2, 0, 1), weight.narrow(axis + 2, 2, 1)])


def _outside(faces: Tensor, taps: Tensor, folds: Sequence[Fold], axis: int) -> Tensor:
    """What the samples before the first and behind the last along one axis add to these two."""
    # Of what lies outside along several axes, each takes what is inside along those before it.
    for other, fold in enumerate(folds):
        if other != axis:
            more = fold.reach if other > axis else 0
            faces = sample(faces, other + 2, 1 / fold.finer, fold.offset - more / fold.finer, fold.size + 2 * more)
    padding = [fold.reach if other < axis else 0 for other, fold in enumerate(folds)]
    return torch.cat(CONV[len(folds)](faces, taps, None, 1, padding, 1, 2).chunk(2, 1), axis + 2)


class _UpsampledConv(torch.autograd.Function):
    """The same with a gradient that adds to the ends in place, and keeps nothing but the coarse level."""

    @staticmethod
    def forward(ctx: Any, f: Tensor, weight: Tensor, folds: tuple[Fold, ...]) -> Tensor:
        ctx.folds = folds
        ctx.save_for_backward(f, weight)
        return _fold(f, weight, folds)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (f, weight), (g,), folds = ctx.saved_tensors, gradients, ctx.folds
        with full_precision(f):
            if not torch.is_grad_enabled():
                return *_gradients(f, weight, g, folds, ctx.needs_input_grad[:2]), None
            inputs = [t for t in (f, weight) if t.requires_grad]  # gradients of gradients
            found = iter(torch.autograd.grad(_fold(f, weight, folds), inputs, g, create_graph=True))
            return *(next(found) if t.requires_grad else None for t in (f, weight)), None


def _gradients(f: Tensor, weight: Tensor, g: Tensor, folds: Sequence[Fold], needed: Sequence[bool]) -> Gradients:
    stride, padding, more = _settings(folds)
    spare = [amount for fold in reversed(folds) for amount in (0, max(fold.surplus, 0))]
    whole = F.pad(g, spare) if any(spare) else g  # the gradient of what was cut off is zero
    settings = (stride, padding, [1] * len(folds), True, more, 1, [*needed, False])
    operands = (whole, _repeat_ends(f, folds), _spread(weight, folds))
    to_f, to_weight, _ = torch.ops.aten.convolution_backward(*operands, None, *settings)
    if to_f is not None:
        to_f = _add_repeated(to_f, folds)
    if to_weight is not None:
        to_weight = _gather(to_weight, folds)
    for axis, fold in enumerate(folds):
        if fold.reach:
            _subtract_outside(f, weight, g, folds, axis, (to_f, to_weight))
    return to_f, to_weight


def _add_repeated(g: Tensor, folds: Sequence[Fold]) -> Tensor:
    """The gradient of the level, from that of its copy with repeated ends, in place."""
    for axis, fold in enumerate(folds, 2):
        inner = g.narrow(axis, fold.before, fold.samples)
        last = fold.samples - 1
        for end, first, length in ((0, 0, fold.before), (last, fold.before + fold.samples, fold.after)):
            if length:
                inner.narrow(axis, end, 1).add_(g.narrow(axis, first, length).sum(axis, True))
        g = inner
    return g


def _subtract_outside(
    f: Tensor, weight: Tensor, g: Tensor, folds: Sequence[Fold], axis: int, gradients: Gradients
) -> None:
    with torch.enable_grad():
        faces, taps = (t.detach().requires_grad_() for t in _faces(f.detach(), weight.detach(), axis))
        out = _outside(faces, taps, folds, axis)
        back = g.index_select(axis + 2, _ends(folds[axis].size, g))
        found = torch.autograd.grad(out, [faces, taps], back)
    for whole, parts, along in zip(gradients, found, (1, 0), strict=True):
        if whole is not None:
            both = torch.cat(parts.chunk(2, along), axis + 2)
            whole.index_add_(axis + 2, _ends(whole.shape[axis + 2], g), both, alpha=-1)
