"""The blocks of the paper's networks: residual, dense, transition.

With a ``group``, ``"p4"`` or ``"p4m"``, all channels are *fields* on the symmetries of the square. With
``scale_padding="valid"`` every filter of ``k`` levels uses up ``k - 1`` levels.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scalespaces.functional import resample
from scalespaces.nn import P4BatchNorm, P4Conv2d, P4MBatchNorm, P4MConv2d, ScaleAvgPool, ScaleBatchNorm, ScaleConv2d
from scalespaces.nn._conv import ScaleConv
from scalespaces.nn.init import paper_
from scalespaces.semigroups._p4 import Group
from scalespaces.space import ScaleSpace
from scalespaces.theory._arguments import check_choice

Fields = Group | None
_cat: Any = torch.cat  # torch's stubs know nothing of scale-spaces
_CONVS = {None: ScaleConv2d, "p4": P4Conv2d, "p4m": P4MConv2d}
_NORMS = {None: ScaleBatchNorm, "p4": P4BatchNorm, "p4m": P4MBatchNorm}


def initialize(module: nn.Module, how: str) -> None:
    """Initialize every correlation inside: ``"paper"`` (identity and noise) or ``"he"``."""
    check_choice("init", how, ("paper", "he"))
    for layer in (layer for layer in module.modules() if isinstance(layer, ScaleConv)):
        if how == "he":
            layer.reset_parameters()
        elif not layer.weight.is_meta:
            nn.init.normal_(layer.weight, std=1e-2)
            # The identity on fields has its one at the group's identity, element 0.
            fields = isinstance(layer, P4Conv2d) and not layer.lifting
            paper_(layer.weight.detach()[:, :, 0] if fields else layer.weight, dims=2)


class ResidualBlock(nn.Module):
    r"""The supplement's res[k,h,w]: :math:`y = x + F(x)`, missing channels of :math:`x` filled with zeros.

    :math:`F` is corr[1,h,w] - BN - ReLU - corr[k,h,w] - BN; without ``skip`` this is no-res[k,h,w], :math:`y = F(x)`.
    """

    def __init__(
        self, in_channels: int, out_channels: int, size: Sequence[int], skip: bool, scale_padding: str
    ) -> None:
        super().__init__()
        self.missing = out_channels - in_channels if skip else None
        self.label = f"{'res' if skip else 'no-res'}{size_label(size)}"
        self.conv1 = ScaleConv2d(in_channels, out_channels, (1, *size[1:]), bias=False)
        self.norm1 = ScaleBatchNorm(out_channels)
        self.relu = nn.ReLU()
        self.conv2 = ScaleConv2d(out_channels, out_channels, size, bias=False, scale_padding=scale_padding)
        self.norm2 = ScaleBatchNorm(out_channels)

    def forward(self, input: ScaleSpace) -> ScaleSpace:
        out = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(input)))))
        if self.missing is None:
            return out
        skip, zeros = input.keep(out.num_levels), (0, 0, 0, 0, 0, self.missing)
        return out + (skip.on([F.pad(level, zeros) for level in skip.levels]) if self.missing else skip)


class DenseLayer(nn.Sequential):
    """The supplement's BN - ReLU - corr[k,h,w]."""

    def __init__(
        self, in_channels: int, out_channels: int, size: Sequence[int], group: Fields, scale_padding: str
    ) -> None:
        conv = _CONVS[group](in_channels, out_channels, size, bias=False, scale_padding=scale_padding)
        super().__init__(OrderedDict(norm=_NORMS[group](in_channels), relu=nn.ReLU(), conv=conv))


class DenseBlock(nn.Module):
    r"""The supplement's :math:`\text{dense}_C[k,h,w] \times N`: each layer sees the input and all layers before it.

    .. math:: y_{n+1} = H([y_0, y_1, \dots, y_n]), \qquad H = \text{BN - ReLU - corr}[k,h,w]

    ``growth`` is :math:`C` and ``number`` is :math:`N`: :math:`C_{in}` channels become :math:`C_{in} + N C`.
    """

    def __init__(
        self, in_channels: int, growth: int, size: Sequence[int], number: int, group: Fields, scale_padding: str
    ) -> None:
        super().__init__()
        self.label = f"dense_{growth}{size_label(size)} x {number}"
        self.out_channels = in_channels + number * growth
        widths = (in_channels + n * growth for n in range(number))
        self.layers = nn.ModuleList(DenseLayer(width, growth, size, group, scale_padding) for width in widths)

    def forward(self, input: ScaleSpace) -> ScaleSpace:
        for layer in self.layers:
            output = layer(input)
            input = _cat([input.keep(output.num_levels), output], 1)
        return input


class Transition(nn.Sequential):
    """The supplement's transition[k,h,w]: dense[1,1,1] to half the channels, average pooling, dense[k,h,w]."""

    def __init__(self, in_channels: int, size: Sequence[int], window: str, group: Fields, scale_padding: str) -> None:
        half = in_channels // 2
        reduce = DenseLayer(in_channels, half, (1, 1, 1), group, "zeros")
        mix = DenseLayer(half, half, size, group, scale_padding)
        super().__init__(OrderedDict(reduce=reduce, pool=ScaleAvgPool(2, window=window), mix=mix))
        self.label, self.out_channels = f"transition{size_label(size)}", half


class LongSkip(nn.Module):
    """The long skip connection: a dense block's input, average-pooled, joins its transition's output."""

    label = "long skip"

    def __init__(self, window: str) -> None:
        super().__init__()
        self.pool = ScaleAvgPool(2, window=window)

    def forward(self, output: ScaleSpace, input: ScaleSpace) -> ScaleSpace:
        return _cat([output, self.pool(input.keep(output.num_levels))], 1)


class Upsample(nn.Module):
    """Bring the one level of a space back to ``size`` pixels of the image, by bilinear interpolation."""

    label = "bilinear upsample"

    def forward(self, input: ScaleSpace, size: Sequence[int]) -> Tensor:
        return resample(input, size).levels[0]


def size_label(size: Sequence[int]) -> str:
    """The size of a filter as the paper's tables write it: [k,h,w]."""
    return f"[{','.join(map(str, size))}]"
