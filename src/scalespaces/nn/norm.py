"""Batch normalisation and scale dropout as layers."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from scalespaces.functional import ScaleSpace, scale_batch_norm, scale_dropout


class ScaleBatchNorm(_NormBase):
    """Batch normalisation with one set of statistics per channel for all levels.

    Mean and second moment are averaged over levels with equal weight, as in the paper, whatever their number of
    samples. Parameters and buffers are those of PyTorch's ``BatchNorm``. In evaluation it commutes with scale; while
    training, statistics depend on which levels there are.

    Args:
        num_features: channels.
        eps: as in ``nn.BatchNorm2d``, like ``momentum``, ``affine`` and ``track_running_stats``.
        sync: take the statistics over all processes of ``torch.distributed``, on any device.

    Shape:
        - Input, output: levels of :math:`(B, C, *)`
    """

    elements = 1  # consecutive channels that share their statistics

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        sync: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        self.sync = sync

    def forward(self, input: ScaleSpace) -> ScaleSpace:
        """Normalise."""
        momentum = self.momentum
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if momentum is None:  # a plain average over all batches so far
                momentum = 1.0 / float(self.num_batches_tracked)
        return scale_batch_norm(
            input,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training,
            momentum or 0.0,
            self.eps,
            elements=self.elements,
            sync=self.sync,
        )

    def extra_repr(self) -> str:
        """As PyTorch's, and ``sync`` if set."""
        return super().extra_repr() + (", sync=True" if self.sync else "")


class ScaleDropout(nn.Module):
    """Drop whole levels of each sample while training, so that no scale is relied on alone."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"p is a probability, got {p}")
        self.p = p

    def forward(self, input: ScaleSpace) -> ScaleSpace:
        """Drop levels."""
        return scale_dropout(input, self.p, self.training)

    def extra_repr(self) -> str:
        """The probability."""
        return f"p={self.p}"
