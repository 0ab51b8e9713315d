"""Batch normalization and scale dropout as layers."""

from typing import Any

from torch import Tensor, nn

from scalespaces._torch import NormBase
from scalespaces.functional import scale_batch_norm, scale_dropout
from scalespaces.nn._base import Device, Dtype, Layer
from scalespaces.nn._checkpoint import is_computed_again
from scalespaces.space._space import ScaleSpace, check_space


class ScaleBatchNorm(NormBase):
    """Batch normalization with one set of statistics per channel for all levels.

    Mean and second moment are averaged over levels with equal weight, as in the paper, whatever their number of
    samples. Arguments, parameters and buffers are those of ``nn.BatchNorm2d``; ``sync`` computes the statistics over
    all processes of ``torch.distributed``, on any device. It commutes with scale in eval mode, not in training.
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
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        self.sync = sync

    def forward(self, input: ScaleSpace) -> ScaleSpace:
        """Normalize."""
        check_space(input)  # before the batch is counted
        momentum, again = self.momentum, self.training and is_computed_again()
        if self.training and self.num_batches_tracked is not None and not again:
            self.num_batches_tracked.add_(1)
            if momentum is None:  # a plain average over all batches so far
                momentum = 1.0 / float(self.num_batches_tracked)
        statistics = (None, None) if again else (self.running_mean, self.running_var)
        settings = (self.weight, self.bias, self.training, momentum or 0.0, self.eps)
        return scale_batch_norm(input, *statistics, *settings, elements=self.elements, sync=self.sync)

    def extra_repr(self) -> str:
        return super().extra_repr() + (", sync=True" if self.sync else "")


class TensorBatchNorm(ScaleBatchNorm):
    """Batch normalization that takes tensors as well, as spaces of one level."""

    def forward(self, input: Any) -> Any:
        """Normalize."""
        if isinstance(input, Tensor):
            return super().forward(ScaleSpace((input,), 2.0, (1.0,), ((0.0,) * (input.ndim - 2),))).levels[0]
        return super().forward(input)


def synchronize(model: nn.Module) -> nn.Module:
    """Let batch normalization compute its statistics over all processes, on any device.

    ``nn.SyncBatchNorm.convert_sync_batchnorm`` does so on GPUs only. This sets ``sync`` of our layers, and replaces
    those of PyTorch by ours with the same state dict: in place, unless the model itself is such a layer.

    Example:
        >>> [type(layer).__name__ for layer in synchronize(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))]
        ['Conv2d', 'TensorBatchNorm']
    """
    if isinstance(model, ScaleBatchNorm):
        model.sync = True
    elif isinstance(model, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm):
        if type(model).forward not in (nn.BatchNorm1d.forward, nn.SyncBatchNorm.forward):
            remedy = "build the model with plain layers, or leave them as they are (sync_batchnorm false, in recipes)"
            raise ValueError(f"{type(model).__name__} computes more than batch normalization; {remedy}")
        state = (model.num_features, model.eps, model.momentum, model.affine, model.track_running_stats)
        layer = TensorBatchNorm(*state, sync=True, device="meta")
        layer._parameters, layer._buffers, layer.training = model._parameters, model._buffers, model.training
        return layer
    for name, child in model.named_children():
        setattr(model, name, synchronize(child))
    return model


class ScaleDropout(Layer):
    """Drop whole levels of each sample in training, so that the network does not rely on a single scale."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"p is a probability, got {p}")
        self.p = p

    def forward(self, input: ScaleSpace) -> ScaleSpace:
        """Drop levels."""
        return scale_dropout(input, self.p, self.training)
