"""Small CNNs with levels: SESN's baseline for MNIST-scale, and one with random weights."""

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from scalespaces.models._network import LiftLike, NamedNetwork, Size, initialize, per_place, size_label
from scalespaces.models._registry import register_model
from scalespaces.nn import Lift, ScaleBatchNorm, ScaleConv2d, ScaleMaxPool
from scalespaces.space import ScaleSpace
from scalespaces.theory._arguments import PaddingMode, check_integer, check_real


class ConvBlock(nn.Sequential):
    """corr[k,h,w] with a bias - ReLU - maximum pooling of 2 x 2 with stride 2, if any - batch normalization."""

    def __init__(self, in_channels: int, out_channels: int, size: Size, window: str | None, scale_padding: str) -> None:
        conv = ScaleConv2d(in_channels, out_channels, size, scale_padding=scale_padding)
        pool = nn.Identity() if window is None else ScaleMaxPool(2, window=window)
        super().__init__(OrderedDict(conv=conv, relu=nn.ReLU(), pool=pool, norm=ScaleBatchNorm(out_channels)))
        self.label = f"conv{size_label(size)}{'' if window is None else ', max pooling'}"


class GridPool(nn.Module):
    """The maximum over each of n x n cells, laid over every level whatever its size: levels of :math:`(B, C n^2)`."""

    def __init__(self, cells: int) -> None:
        super().__init__()
        self.label = f"max pooling to {cells} x {cells}"
        self.cells = check_integer("grid", cells, 1)

    def forward(self, input: ScaleSpace) -> ScaleSpace:
        return input.map(lambda level: self._rows(self._rows(level).mT).mT.flatten(1))

    def _rows(self, level: Tensor) -> Tensor:
        """The maxima of cells along the last axis, as F.adaptive_max_pool1d has them."""
        if self.cells == 1:
            return level.amax(-1, keepdim=True)
        # Masks over all samples: windows whose sizes depend on n cannot be exported for every n.
        n, cell = level.shape[-1], torch.arange(self.cells, device=level.device)[:, None]
        sample = torch.arange(n, device=level.device)
        outside = ((sample + 1) * self.cells <= cell * n) | (sample * self.cells >= (cell + 1) * n)
        return level.unsqueeze(-2).masked_fill(outside, -math.inf).amax(-1)


class ConvNet(NamedNetwork):
    r"""A small CNN, by default the one that SESN compares on MNIST-scale, run on every level of a scale-space.

    ===========================  ==================
    layer                        shape
    ===========================  ==================
    conv[k,7,7], max pooling     [S, 14, 14, 32]
    conv[k,7,7], max pooling     [S, 7, 7, 63]
    conv[k,7,7]                  [S, 7, 7, 95]
    max pooling to 2 x 2         [S, 380]
    linear - BN - ReLU - drop    [S, 256]
    linear                       [S, 10]
    scale-pool                   [1, 10]
    ===========================  ==================

    A convolution is corr[k,7,7] - ReLU - pooling - BN. All levels share the head, whose grid fits any size, and each
    gets its own logits: levels are pooled last. With one level this is a plain CNN. With filters of one level, the
    number of parameters does not depend on the number of levels.

    Args:
        channels: channels of each convolution; each except the last is followed by pooling.
        kernel_size: height and width of the filters.
        grid: cells along each side of the grid that the last features are pooled to.
        hidden: channels of the hidden layer.
        dropout: probability with which values of the hidden layer are dropped while training.
        filter_levels: the number k of all convolutions; or one number for each.
        num_classes, in_channels, lift, scale_padding, window, scale_pool, init: as in :class:`ResNet`.

    Example:
        >>> model = ConvNet(lift={"num_levels": 4, "base": 2**0.5})
        >>> model(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
        >>> model.scores(torch.zeros(2, 1, 28, 28)).shapes
        ((2, 10), (2, 10), (2, 10), (2, 10))
        >>> sum(p.numel() for p in model.parameters())
        494549
    """

    def __init__(
        self,
        num_classes: int = 10,
        in_channels: int = 1,
        channels: Sequence[int] = (32, 63, 95),
        kernel_size: int = 7,
        grid: int = 2,
        hidden: int = 256,
        dropout: float = 0.7,
        lift: LiftLike = None,
        filter_levels: int | Sequence[int] = 1,
        scale_padding: str = "zeros",
        window: str = "dilated",
        scale_pool: str = "mean",
        init: str = "he",
    ) -> None:
        if not channels:
            raise ValueError("channels needs one number for each convolution, got none")
        deep = per_place(filter_levels, [True] * len(channels))
        layout = [entry for k in deep for entry in (k, None)][:-1]
        super().__init__(in_channels, layout, lift, scale_padding, window, scale_pool)
        for name, value in (("num_classes", num_classes), ("kernel_size", kernel_size), ("hidden", hidden)):
            check_integer(name, value, 1)
        check_real("dropout", dropout, "from 0 to below 1", lambda p: 0 <= p < 1)
        windows = [window] * (len(channels) - 1) + [None]
        self.blocks = nn.ModuleList(
            ConvBlock(before, after, (k, kernel_size, kernel_size), pooled, scale_padding)
            for before, after, k, pooled in zip([in_channels, *channels[:-1]], channels, deep, windows, strict=True)
        )
        self.grid_pool = GridPool(grid)
        self.hidden = nn.Linear(grid**2 * channels[-1], hidden, bias=False)
        self.norm, self.relu, self.dropout = ScaleBatchNorm(hidden), nn.ReLU(), nn.Dropout(dropout)
        self.linear = nn.Linear(hidden, num_classes)
        initialize(self, init)

    def head(self, features: ScaleSpace) -> ScaleSpace:
        hidden = self.norm(self.hidden(self.grid_pool(features)))
        return self.linear(self.dropout(self.relu(hidden)))


register_model("cnn", ConvNet, "SESN's baseline for MNIST-scale, a small CNN", input_shape=(1, 28, 28))
_HALVES = {"lift": {"num_levels": 4, "base": 2**0.5}}
_ABOUT = "the small CNN on 4 levels half an octave apart, with the same parameters"
register_model("s_cnn", ConvNet, _ABOUT, _HALVES, input_shape=(1, 28, 28), baseline="cnn")


def random_network(
    layers: int,
    *,
    in_channels: int = 3,
    channels: int = 8,
    filter_levels: int = 2,
    scale_padding: str = "zeros",
    padding_mode: PaddingMode = "reflect",
    seed: int = 0,
    **lift_arguments: Any,
) -> nn.Sequential:
    """A lift, then layers of corr[k,3,3] and ReLU with He's random weights: the paper's test of equivariance."""
    modules: list[nn.Module] = [Lift(padding_mode=padding_mode, **lift_arguments)]
    paddings: dict[str, Any] = {"padding_mode": padding_mode, "scale_padding": scale_padding}
    with torch.random.fork_rng(devices=[]):  # the global random state is left as it was
        torch.manual_seed(seed)
        for layer in range(layers):
            width = channels if layer else in_channels
            modules += [ScaleConv2d(width, channels, (filter_levels, 3, 3), bias=False, **paddings), nn.ReLU()]
    return nn.Sequential(*modules)
