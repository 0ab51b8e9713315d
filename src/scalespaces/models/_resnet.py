"""The paper's ResNets and S-ResNets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from scalespaces.models._blocks import ResidualBlock, Upsample, initialize
from scalespaces.models._network import NamedNetwork, per_place
from scalespaces.models._registry import register_model
from scalespaces.nn import Lift, ScaleAvgPool, ScaleConv2d
from scalespaces.space import ScaleSpace
from scalespaces.theory._arguments import check_integer

_WIDTHS = (1, 2, 4, 4, 8, 8, 8, 8, 8)  # of the blocks, in units of N; a pooling wherever they grow
_POOLED = tuple(n for n in range(1, len(_WIDTHS)) if _WIDTHS[n] > _WIDTHS[n - 1])
_DEEP = (True, True, False, True, False, False, False, True, True)  # the blocks with filters of k levels


class ResNet(NamedNetwork):
    r"""The supplement's "A residual network": segmentation, for Cityscapes.

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
    [1, 1, 16] for the ResNet with matched channels and [1, 1, 18] with matched parameters. The poolings shift the
    samples; the upsampling undoes the shift, so that scores lie on their pixels, whatever the size.

    Args:
        num_classes: number of classes.
        in_channels: channels of the image.
        width: the number of channels N; at least ``in_channels``, which the first skip connection adds.
        lift: how images become levels, a :class:`~scalespaces.nn.Lift` or a dict of its arguments; one level when left
            out. Its ``num_levels`` is the number of levels S of the output.
        filter_levels: the number k of the table; or one number for each of the nine blocks.
        scale_padding: what filters see past the last level: ``"zeros"`` (the paper's), ``"replicate"`` or ``"valid"``.
        window: windows of the poolings: ``"dilated"``, which commutes with scale in every sampling, or ``"plain"`` (the
            paper's). In a pyramid they are the same.
        scale_pool: how levels are combined, see :func:`~scalespaces.functional.scale_pool`; the paper's is ``"mean"``.
        init: ``"paper"`` (filters start as the identity and some noise) or ``"he"``; the classifier is He's.

    Shape:
        - Input: :math:`(B, C, H, W)`
        - Output: :math:`(B, classes, H, W)`

    Example:
        >>> model = ResNet(width=4, lift={"num_levels": 3}, filter_levels=2)
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
        lift: Lift | Mapping[str, Any] | None = None,
        filter_levels: int | Sequence[int] = 1,
        scale_padding: str = "zeros",
        window: str = "dilated",
        scale_pool: str = "mean",
        init: str = "paper",
    ) -> None:
        deep = per_place(filter_levels, _DEEP)
        layout = [entry for n, k in enumerate(deep) for entry in ((None, k) if n in _POOLED else (k,))]
        super().__init__(in_channels, layout, lift, scale_padding, window, scale_pool)
        check_integer("num_classes", num_classes, 1)
        if check_integer("width", width, 1) < in_channels:
            raise ValueError(
                f"the first block adds the image to its output, so width is at least in_channels, got {width} and "
                f"{in_channels}"
            )
        widths = [width * factor for factor in _WIDTHS]
        self.blocks = nn.ModuleList(
            ResidualBlock(before, after, (k, 3, 3), n < len(deep) - 1, scale_padding)
            for n, (before, after, k) in enumerate(zip([in_channels, *widths], widths, deep, strict=False))
        )
        self.pools = nn.ModuleList(ScaleAvgPool(2, window=window) for _ in _POOLED)
        initialize(self, init)
        self.classifier = ScaleConv2d(widths[-1], num_classes, (1, 1, 1))
        self.upsample = Upsample()

    def body(self, levels: ScaleSpace) -> ScaleSpace:
        pools = dict(zip(_POOLED, self.pools, strict=True))
        for n, block in enumerate(self.blocks):
            levels = self.through(block, self.through(pools[n], levels) if n in pools else levels)
        return levels

    def head(self, features: ScaleSpace) -> ScaleSpace:
        return self.classifier(features)

    def pool(self, features: ScaleSpace, size: Sequence[int]) -> Tensor:
        origin = features.origins[-features.first_level]
        pooled = ScaleSpace((self.scale_pool(features),), features.base, (1.0,), (origin,), features.unit)
        return self.upsample(self.classifier(pooled), size)


_FOUR = {"lift": {"num_levels": 4}}
_DEEPER = _FOUR | {"filter_levels": 2}
for _name, _settings, _about in (
    ("resnet", {}, "baseline for Cityscapes, with matched channels"),
    ("resnet_matched_parameters", {"width": 18}, "baseline for Cityscapes, with matched parameters: wider"),
    ("s_resnet", _DEEPER, "S-ResNet for Cityscapes, multiscale: 4 levels, filters of 2 levels in five blocks"),
    ("s_resnet_no_interaction", _FOUR, "S-ResNet for Cityscapes, no interaction: 4 levels, filters of 1 level"),
):
    _baseline = "resnet" if _settings else None
    register_model(_name, ResNet, f"the paper's {_about}", _settings, input_shape=(3, 992, 992), baseline=_baseline)
