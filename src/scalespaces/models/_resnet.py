"""The paper's ResNets and S-ResNets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from scalespaces.functional import ScaleSpace, resample
from scalespaces.functional._lift import Sampling
from scalespaces.models._blocks import ResidualBlock, Upsample, initialize
from scalespaces.models._network import ScaleNetwork, per_place
from scalespaces.models._registry import register_model
from scalespaces.nn import ScaleAvgPool, ScaleConv2d, ScalePool
from scalespaces.theory._checks import check_integer
from scalespaces.theory._scale import Base

_WIDTHS = (1, 2, 4, 4, 8, 8, 8, 8, 8)  # of the blocks, in units of N; a pooling wherever they grow
_POOLED = tuple(n for n in range(1, len(_WIDTHS)) if _WIDTHS[n] > _WIDTHS[n - 1])
_DEEP = (True, True, False, True, False, False, False, True, True)  # the blocks with filters of k levels


class ResNet(ScaleNetwork):
    r"""The supplement's table "A residual network": segmentation, for Cityscapes.

    =================  ======================
    layer              shape
    =================  ======================
    res[k,3,3]         [S, 992, 992, N]
    average pooling
    res[k,3,3]         [S, 496, 496, 2N]
    average pooling
    res[1,3,3]         [S, 248, 248, 4N]
    res[k,3,3]         [S, 248, 248, 4N]
    average pooling
    res[1,3,3] x 3     [S, 124, 124, 8N]
    res[k,3,3]         [S, 124, 124, 8N]
    no-res[k,3,3]      [S, 124, 124, 8N]
    scale-pool         [1, 124, 124, 8N]
    corr[1,1,1]        [1, 124, 124, 19]
    bilinear upsample  [1, 992, 992, 19]
    =================  ======================

    The settings :math:`[k, S, N]` are [2, 4, 16] for the S-ResNet with multiscale interaction, [1, 4, 16] without,
    [1, 1, 16] for the ResNet with matched channels and [1, 1, 18] with matched parameters. The poolings move the
    samples; the upsampling knows by how much, so that scores lie on the pixels they belong to, whatever the size.

    Args:
        num_classes: number of classes.
        in_channels: channels of the image.
        width: the number of channels N; at least ``in_channels``, which the first skip connection adds.
        num_levels: the number of levels S; as the following arguments see :class:`~scalespaces.models.ScaleNetwork`.
        filter_levels: k, of the filters where the table has it; or one number for each of the nine blocks.
        window: windows of the poolings: ``"plain"`` (the paper's) or ``"dilated"``, which commutes with scale in
            every sampling. In a pyramid they are the same.
        scale_pool: how levels are pooled: ``"mean"`` (the paper's), ``"max"`` or ``"logsumexp"``.
        init: ``"paper"`` (filters start as the identity and some noise) or ``"he"``; the classifier is He's.

    Shape:
        - Input: :math:`(B, C, H, W)`
        - Output: :math:`(B, classes, H, W)`

    Example:
        >>> model = ResNet(width=4, num_levels=3, filter_levels=2, sampling="pyramid", method="cascade")
        >>> model(torch.zeros(1, 3, 47, 64)).shape
        torch.Size([1, 19, 47, 64])
        >>> model.scale_map(torch.zeros(1, 3, 47, 64)).shape
        torch.Size([1, 47, 64])
    """

    def __init__(
        self,
        num_classes: int = 19,
        in_channels: int = 3,
        width: int = 16,
        num_levels: int = 1,
        filter_levels: int | Sequence[int] = 1,
        base: Base = 2.0,
        zero_scale: float = 0.25,
        method: str = "direct",
        sampling: Sampling = "dense",
        scale_padding: str = "zeros",
        first_level: int = 0,
        window: str = "plain",
        scale_pool: str = "mean",
        init: str = "paper",
    ) -> None:
        deep = per_place(filter_levels, _DEEP)
        layout = [entry for n, k in enumerate(deep) for entry in ((None, k) if n in _POOLED else (k,))]
        super().__init__(
            in_channels, layout, num_levels, base, zero_scale, method, sampling, scale_padding, first_level, window
        )
        check_integer("num_classes", num_classes, 1)
        if check_integer("width", width, 1) < in_channels:
            raise ValueError(
                f"the first block adds the image to its output, so width is at least in_channels, got {width} and "
                f"{in_channels}"
            )
        widths = [width * factor for factor in _WIDTHS]
        self.blocks = nn.ModuleList(
            ResidualBlock(before, after, (k, 3, 3), skip=n < len(deep) - 1, scale_padding=scale_padding)
            for n, (before, after, k) in enumerate(zip([in_channels, *widths], widths, deep, strict=False))
        )
        self.pools = nn.ModuleList(ScaleAvgPool(2, window=window) for _ in _POOLED)
        initialize(self, init)
        self.scale_pool = ScalePool(scale_pool)
        self.classifier = ScaleConv2d(widths[-1], num_classes, (1, 1, 1))
        self.upsample = Upsample()

    def _layers(self) -> list[nn.Module]:
        """The blocks, with poolings between them."""
        pools = iter(self.pools)
        layers: list[nn.Module] = []
        for n, block in enumerate(self.blocks):
            layers += [next(pools), block] if n in _POOLED else [block]
        return layers

    def rows(self) -> list[nn.Module]:
        """The rows of the table."""
        return [self.lift, *self._layers(), self.scale_pool, self.classifier, self.upsample]

    def body(self, levels: ScaleSpace) -> ScaleSpace:
        """The features of the lifted image."""
        for layer in self._layers():
            levels = self.through(layer, levels)
        return levels

    def scores(self, features: ScaleSpace) -> ScaleSpace:
        """The class scores of every sample of every level."""
        return self.classifier(features)

    def pool(self, features: ScaleSpace, size: Sequence[int]) -> Tensor:
        """The class scores of every pixel, ``(B, classes, H, W)``."""
        origin = features.origins[-features.first_level]
        pooled = ScaleSpace((self.scale_pool(features),), features.base, (1.0,), (origin,), features.unit)
        return self.upsample(self.classifier(pooled), size)

    def answers(self, features: ScaleSpace, size: Sequence[int]) -> Tensor:
        """The class scores of each level at every pixel, ``(S, B, classes, H, W)``."""
        # By way of the grid of level 0, on which levels are pooled: the average over levels is the answer.
        return torch.stack(resample(resample(self.scores(features)), size).levels)


_CITYSCAPES: dict[str, Any] = {"input_shape": (3, 992, 992)}
register_model("resnet", ResNet, "the paper's baseline for Cityscapes, with matched channels", **_CITYSCAPES)
register_model(
    "resnet_matched_parameters",
    ResNet,
    "the paper's baseline for Cityscapes, with matched parameters: wider",
    {"width": 18},
    baseline="resnet",
    **_CITYSCAPES,
)
register_model(
    "s_resnet",
    ResNet,
    "the paper's S-ResNet for Cityscapes, multiscale: 4 levels, filters of 2 levels in five blocks",
    {"num_levels": 4, "filter_levels": 2},
    baseline="resnet",
    **_CITYSCAPES,
)
register_model(
    "s_resnet_no_interaction",
    ResNet,
    "the paper's S-ResNet for Cityscapes, no interaction: 4 levels, filters of 1 level",
    {"num_levels": 4},
    baseline="resnet",
    **_CITYSCAPES,
)
