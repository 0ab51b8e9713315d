"""The blocks of the paper's networks: residual, dense, transition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scalespaces.functional._resample import read_level
from scalespaces.nn import (
    P4BatchNorm,
    P4Conv2d,
    P4MBatchNorm,
    P4MConv2d,
    ScaleAvgPool,
    ScaleBatchNorm,
    ScaleConv2d,
    init,
)
from scalespaces.semigroups._p4 import Group
from scalespaces.space import ScaleSpace
from scalespaces.theory._arguments import check_choice, check_integer

_CONVS = {None: ScaleConv2d, "p4": P4Conv2d, "p4m": P4MConv2d}
_NORMS = {None: ScaleBatchNorm, "p4": P4BatchNorm, "p4m": P4MBatchNorm}
INITS = ("paper", "he")


def correlation(
    in_channels: int,
    out_channels: int,
    kernel_size: Sequence[int],
    *,
    group: Group | None = None,
    scale_padding: str = "zeros",
) -> nn.Module:
    """The paper's corr[k,h,w], without a bias; of fields when there is a ``group``."""
    return _CONVS[group](in_channels, out_channels, kernel_size, bias=False, scale_padding=scale_padding)


def normalization(channels: int, group: Group | None = None) -> nn.Module:
    """Batch normalization over batch, levels and space; of fields when there is a ``group``."""
    return _NORMS[group](channels)


def concatenate(*spaces: ScaleSpace) -> ScaleSpace:
    """All channels, at the levels that all have: filters with ``scale_padding="valid"`` use up the others."""
    fewest = min(x.num_levels for x in spaces)
    cat: Any = torch.cat
    return cat([x.keep(fewest) for x in spaces], 1)


def initialize(module: nn.Module, how: str) -> None:
    """Initialize every correlation inside: ``"paper"`` (identity and noise) or ``"he"``."""
    check_choice("init", how, INITS)
    layers: list[Any] = [layer for layer in module.modules() if isinstance(layer, tuple(_CONVS.values()))]
    for layer in layers:
        if how == "he":
            layer.reset_parameters()
        elif not layer.weight.is_meta:
            nn.init.normal_(layer.weight, std=1e-2)
            # The identity on fields has its one at the group's identity, element 0.
            fields = not isinstance(layer, ScaleConv2d) and not layer.lifting
            init.paper_(layer.weight.detach()[:, :, 0] if fields else layer.weight, dims=2)


class ResidualBlock(nn.Module):
    r"""The supplement's res[k,h,w]: :math:`y = x + F(x)`, missing channels of :math:`x` filled with zeros.

    :math:`F` is corr[1,h,w] - BN - ReLU - corr[k,h,w] - BN.

    Args:
        in_channels: channels of the input; at most ``out_channels``.
        out_channels: channels of the output.
        kernel_size: ``(k, h, w)``.
        skip: False for no-res[k,h,w], :math:`y = F(x)`.
        scale_padding: as in :class:`~scalespaces.nn.ScaleConv2d`; with ``"valid"`` the skip drops the top levels, too.

    Shape:
        - Input: S levels of :math:`(B, C_{in}, H_k, W_k)`
        - Output: S levels of :math:`(B, C_{out}, H_k, W_k)`; ``S - k + 1`` with ``scale_padding="valid"``

    Example:
        >>> x = scalespaces.lift(torch.zeros(1, 3, 32, 32), num_levels=4)
        >>> ResidualBlock(3, 16, (2, 3, 3))(x).shapes[0]
        (1, 16, 32, 32)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sequence[int] = (1, 3, 3),
        *,
        skip: bool = True,
        scale_padding: str = "zeros",
    ) -> None:
        super().__init__()
        if skip and in_channels > out_channels:
            raise ValueError(
                f"a skip connection adds channels but drops none, got {in_channels} in and {out_channels} out; "
                "use skip=False"
            )
        _, height, width = kernel_size
        self.missing = out_channels - in_channels if skip else None
        self.label = f"{'res' if skip else 'no-res'}{_label(kernel_size)}"
        self.conv1 = correlation(in_channels, out_channels, (1, height, width))
        self.norm1 = normalization(out_channels)
        self.relu = nn.ReLU()
        self.conv2 = correlation(out_channels, out_channels, kernel_size, scale_padding=scale_padding)
        self.norm2 = normalization(out_channels)

    def forward(self, input: ScaleSpace) -> ScaleSpace:
        """Apply the block."""
        out = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(input)))))
        return out if self.missing is None else out + _more_channels(input.keep(out.num_levels), self.missing)


class DenseLayer(nn.Module):
    """The supplement's BN - ReLU - corr[k,h,w]; arguments as in :class:`DenseBlock`."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sequence[int] = (1, 3, 3),
        *,
        group: Group | None = None,
        scale_padding: str = "zeros",
    ) -> None:
        super().__init__()
        self.norm = normalization(in_channels, group)
        self.relu = nn.ReLU()
        self.conv = correlation(in_channels, out_channels, kernel_size, group=group, scale_padding=scale_padding)

    def forward(self, input: ScaleSpace) -> ScaleSpace:
        """Apply the layer."""
        return self.conv(self.relu(self.norm(input)))


class DenseBlock(nn.Module):
    r"""The supplement's :math:`\text{dense}_C[k,h,w] \times N`: each layer sees the input and all layers before it.

    .. math:: y_{n+1} = H([y_0, y_1, \dots, y_n]), \qquad H = \text{BN - ReLU - corr}[k,h,w]

    Args:
        in_channels: channels of the input; *fields* when there is a ``group``, as the other channels, too.
        growth: channels :math:`C` of each layer.
        kernel_size: ``(k, h, w)``.
        num_layers: the number of layers :math:`N`.
        group: ``"p4"`` or ``"p4m"`` for the symmetries of the square, too.
        scale_padding: as in :class:`~scalespaces.nn.ScaleConv2d`.

    Shape:
        - Input: S levels of :math:`(B, C_{in}, H_k, W_k)`
        - Output: S levels of :math:`(B, C_{in} + N C, H_k, W_k)`; ``S - N (k - 1)`` with ``scale_padding="valid"``

    Example:
        >>> x = scalespaces.lift(torch.zeros(1, 3, 32, 32), num_levels=4)
        >>> DenseBlock(3, 12)(x).shapes[0]
        (1, 39, 32, 32)
    """

    def __init__(
        self,
        in_channels: int,
        growth: int,
        kernel_size: Sequence[int] = (1, 3, 3),
        num_layers: int = 3,
        *,
        group: Group | None = None,
        scale_padding: str = "zeros",
    ) -> None:
        super().__init__()
        check_integer("num_layers", num_layers, 1)
        self.label = f"dense_{growth}{_label(kernel_size)} x {num_layers}"
        self.out_channels = in_channels + num_layers * growth
        self.layers = nn.ModuleList(
            DenseLayer(in_channels + n * growth, growth, kernel_size, group=group, scale_padding=scale_padding)
            for n in range(num_layers)
        )

    def forward(self, input: ScaleSpace) -> ScaleSpace:
        """Apply the block."""
        for layer in self.layers:
            input = concatenate(input, layer(input))
        return input


class Transition(nn.Module):
    """The supplement's transition[k,h,w]: dense[1,1,1], average pooling of 2 x 2 with stride 2, dense[k,h,w].

    Args:
        in_channels: channels of the input; *fields* when there is a ``group``, as the other channels, too.
        out_channels: channels of the output; half as many as come in when left out.
        kernel_size: ``(k, h, w)``.
        window: of the pooling: ``"plain"`` (the paper's) or ``"dilated"``, which commutes with scale in every
            sampling; in a pyramid they are the same. See :class:`~scalespaces.nn.ScaleAvgPool`.
        group: ``"p4"`` or ``"p4m"`` for the symmetries of the square, too.
        scale_padding: as in :class:`~scalespaces.nn.ScaleConv2d`.

    Shape:
        - Input: S levels of :math:`(B, C_{in}, H_k, W_k)`
        - Output: S levels of :math:`(B, C_{out}, H_k / 2, W_k / 2)`; ``S - k + 1`` with ``scale_padding="valid"``

    Example:
        >>> x = scalespaces.lift(torch.zeros(1, 39, 32, 32), num_levels=4)
        >>> Transition(39, kernel_size=(3, 3, 3))(x).shapes[0]
        (1, 19, 16, 16)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int | None = None,
        kernel_size: Sequence[int] = (1, 3, 3),
        *,
        window: str = "plain",
        group: Group | None = None,
        scale_padding: str = "zeros",
    ) -> None:
        super().__init__()
        out_channels = in_channels // 2 if out_channels is None else out_channels
        self.label = f"transition{_label(kernel_size)}"
        self.out_channels = out_channels
        self.reduce = DenseLayer(in_channels, out_channels, (1, 1, 1), group=group)
        self.pool = ScaleAvgPool(2, window=window)
        self.mix = DenseLayer(out_channels, out_channels, kernel_size, group=group, scale_padding=scale_padding)

    def forward(self, input: ScaleSpace) -> ScaleSpace:
        """Apply the block."""
        return self.mix(self.pool(self.reduce(input)))


class LongSkip(nn.Module):
    """The long skip connection: what a dense block got, average-pooled, beside what its transition gave."""

    label = "long skip"

    def __init__(self, window: str = "plain") -> None:
        super().__init__()
        self.pool = ScaleAvgPool(2, window=window)

    def forward(self, output: ScaleSpace, input: ScaleSpace) -> ScaleSpace:
        """Pool the input, at the levels that are left, and concatenate."""
        return concatenate(output, self.pool(input.keep(output.num_levels)))


class Upsample(nn.Module):
    """Bring the one level of a space back to ``size`` pixels of the image, aligned, by bilinear interpolation."""

    label = "bilinear upsample"

    def forward(self, input: ScaleSpace, size: Sequence[int]) -> Tensor:
        """Upsample."""
        return read_level(input, 0, [1 / unit for unit in input.unit], (0.0,) * input.dims, size)


def _more_channels(x: ScaleSpace, missing: int) -> ScaleSpace:
    return x.map(lambda level: F.pad(level, (0, 0, 0, 0, 0, missing))) if missing else x


def _label(kernel_size: Sequence[int]) -> str:
    return f"[{','.join(map(str, kernel_size))}]"
