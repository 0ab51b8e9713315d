"""The paper's networks and their blocks: DenseNets for classification, ResNets for segmentation."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scalespaces.functional import resample
from scalespaces.models._network import LiftLike, NamedNetwork, Size, initialize, per_place, size_label, strongest_level
from scalespaces.models._registry import register_model
from scalespaces.nn import GlobalPool, ScaleAvgPool, ScaleBatchNorm, ScaleConv2d
from scalespaces.nn._p4 import P4BatchNorm, P4Conv2d, P4MBatchNorm, P4MConv2d, P4MPool, P4Pool
from scalespaces.semigroups._p4 import Group
from scalespaces.space import ScaleSpace
from scalespaces.theory._arguments import check_choice, check_integer

Fields = Group | None
_cat: Any = torch.cat  # torch's stubs know nothing of scale-spaces
_CONVS = {None: ScaleConv2d, "p4": P4Conv2d, "p4m": P4MConv2d}
_NORMS = {None: ScaleBatchNorm, "p4": P4BatchNorm, "p4m": P4MBatchNorm}
_FIELDS = {"p4": (P4Conv2d, P4Pool), "p4m": (P4MConv2d, P4MPool)}  # how they are made, and averaged
_WIDTHS = (1, 2, 4, 4, 8, 8, 8, 8, 8)  # of the blocks, in units of N; a pooling wherever they grow
_POOLED = tuple(n for n in range(1, len(_WIDTHS)) if _WIDTHS[n] > _WIDTHS[n - 1])
_DEEP = (True, True, False, True, False, False, False, True, True)  # the blocks with filters of k levels


class DenseLayer(nn.Sequential):
    """The supplement's BN - ReLU - corr[k,h,w]."""

    def __init__(self, in_channels: int, out_channels: int, size: Size, group: Fields, scale_padding: str) -> None:
        conv = _CONVS[group](in_channels, out_channels, size, bias=False, scale_padding=scale_padding)
        super().__init__(OrderedDict(norm=_NORMS[group](in_channels), relu=nn.ReLU(), conv=conv))


class DenseBlock(nn.Module):
    r"""The supplement's :math:`\text{dense}_C[k,h,w] \times N`: each layer sees the input and all layers before it.

    .. math:: y_{n+1} = H([y_0, y_1, \dots, y_n]), \qquad H = \text{BN - ReLU - corr}[k,h,w]

    ``growth`` is :math:`C` and ``number`` is :math:`N`: :math:`C_{in}` channels become :math:`C_{in} + N C`.
    """

    def __init__(
        self, in_channels: int, growth: int, size: Size, number: int, group: Fields, scale_padding: str
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

    def __init__(self, in_channels: int, size: Size, window: str, group: Fields, scale_padding: str) -> None:
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


class DenseNet(NamedNetwork):
    r"""The supplement's "A DenseNet": classification, for PCam's images of 96 x 96.

    ======================  =====================
    layer                   shape
    ======================  =====================
    dense_12[1,3,3] x 3     [S, 96, 96, 39]
    transition[k,3,3]       [S, 48, 48, 19]
    dense_24[1,3,3] x 3     [S, 48, 48, 94]
    transition[k,3,3]       [S, 24, 24, 47]
    dense_48[1,3,3] x 3     [S, 24, 24, 213]
    global average pooling  [1, 1, 213]
    linear layer            [1, 1, 2]
    ======================  =====================

    The widths follow from long skip connections: the input of a dense block is the output of the transition and the
    average-pooled input of the block before, :math:`19 + 3 = 22` and :math:`47 + 22 = 69` channels. S-DenseNet has
    :math:`k = 3, S = 4`, the baseline :math:`k = 1, S = 1`: a space of one level is the image itself.

    With a ``group`` all channels are *fields* on the symmetries of the square. An extra 3 x 3 correlation in front
    makes as many fields as the image has channels, and the last fields are averaged over the group. Outputs are then
    invariant under the symmetries, to machine precision, for images whose sides are divisible by :math:`2^P` with
    :math:`P` transitions (4 here), so that no 2 x 2 pooling drops a row.

    Args:
        growth: channels of each layer of a dense block, one number per block.
        num_layers: layers of a dense block.
        filter_levels: the number k of transitions; or one number for each of dense, transition, dense, ...
        group: ``"p4"`` or ``"p4m"`` for the symmetries of the square.
        num_classes, in_channels, lift, scale_padding, window, scale_pool, init: as in :class:`ResNet`.

    Example:
        >>> model = DenseNet(lift={"num_levels": 4}, filter_levels=3)
        >>> model(torch.zeros(1, 3, 96, 96)).shape
        torch.Size([1, 2])
        >>> model.features(torch.zeros(1, 3, 96, 96)).shapes
        ((1, 213, 24, 24), (1, 213, 12, 12), (1, 213, 6, 6), (1, 213, 3, 3))
    """

    def __init__(
        self,
        num_classes: int = 2,
        in_channels: int = 3,
        growth: Sequence[int] = (12, 24, 48),
        num_layers: int = 3,
        lift: LiftLike = None,
        filter_levels: int | Sequence[int] = 1,
        scale_padding: str = "zeros",
        window: str = "dilated",
        scale_pool: str = "mean",
        group: Group | None = None,
        init: str = "paper",
    ) -> None:
        if not growth:
            raise ValueError("growth needs one number for each dense block, got none")
        places = [bool(n % 2) for n in range(2 * len(growth) - 1)]  # dense, transition, dense, ...
        deep = per_place(filter_levels, places)
        layout: list[int | None] = []
        for k, transition in zip(deep, places, strict=True):
            layout += [1, None, k] if transition else [k] * check_integer("num_layers", num_layers, 1)
        super().__init__(in_channels, layout, lift, scale_padding, window, scale_pool)
        check_integer("num_classes", num_classes, 1)
        self.stem, self.group_pool = nn.Identity(), nn.Identity()
        if group is not None:
            conv, pool = _FIELDS[check_choice("group", group, _FIELDS)]
            self.stem = conv(in_channels, in_channels, (1, 3, 3), bias=False, lifting=True)
            self.group_pool = pool("mean")
        self.blocks, self.transitions, self.skips = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        channels = in_channels
        for width, k, above in zip(growth, deep[::2], [*deep[1::2], None], strict=True):
            block = DenseBlock(channels, width, (k, 3, 3), num_layers, group, scale_padding)
            self.blocks.append(block)
            if above is None:
                channels = block.out_channels
                break
            transition = Transition(block.out_channels, (above, 3, 3), window, group, scale_padding)
            self.transitions.append(transition)
            self.skips.append(LongSkip(window))
            channels += transition.out_channels
        self.global_pool, self.linear = GlobalPool(), nn.Linear(channels, num_classes)
        initialize(self, init)

    def body(self, levels: ScaleSpace) -> ScaleSpace:
        x = self.stem(levels)
        for block, transition, skip in zip(self.blocks, self.transitions, self.skips, strict=False):
            x = skip(self.through(transition, self.through(block, x)), x)
        return self.through(self.blocks[-1], x)

    def head(self, features: ScaleSpace) -> ScaleSpace:
        return self.global_pool(self.group_pool(features)).map(self.linear)

    def scale_map(self, image: Tensor) -> Tensor:
        """At every pixel, the number of the level with the highest score there for the predicted class: ``(B, H, W)``.

        A level's own answer is the average of these scores over its samples.
        """
        features, size = self.features(image), image.shape[2:]
        weight, bias = self.linear.weight[:, :, None, None], self.linear.bias
        maps = self.group_pool(features).map(lambda level: F.conv2d(level, weight, bias))
        return strongest_level(self.combine(features, size), maps, size)

    def pool(self, features: ScaleSpace, size: Sequence[int]) -> Tensor:
        return self.linear(self.scale_pool(self.global_pool(self.group_pool(features))))


class ResidualBlock(nn.Module):
    r"""The supplement's res[k,h,w]: :math:`y = x + F(x)`, missing channels of :math:`x` filled with zeros.

    :math:`F` is corr[1,h,w] - BN - ReLU - corr[k,h,w] - BN; without ``skip`` this is no-res[k,h,w], :math:`y = F(x)`.
    """

    def __init__(self, in_channels: int, out_channels: int, size: Size, skip: bool, scale_padding: str) -> None:
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


class Upsample(nn.Module):
    """Bring the one level of a space back to ``size`` pixels of the image, by bilinear interpolation."""

    label = "bilinear upsample"

    def forward(self, input: ScaleSpace, size: Sequence[int]) -> Tensor:
        return resample(input, size).levels[0]


class ResNet(NamedNetwork):
    r"""The supplement's "A residual network": segmentation, for Cityscapes.

    =============================================  ======================
    layer                                          shape
    =============================================  ======================
    res[k,3,3]                                     [S, 992, 992, N]
    average pooling - res[k,3,3]                   [S, 496, 496, 2N]
    average pooling - res[1,3,3] - res[k,3,3]      [S, 248, 248, 4N]
    average pooling - res[1,3,3] x 3 - res[k,3,3]  [S, 124, 124, 8N]
    no-res[k,3,3]                                  [S, 124, 124, 8N]
    scale-pool                                     [1, 124, 124, 8N]
    corr[1,1,1]                                    [1, 124, 124, 19]
    bilinear upsample                              [1, 992, 992, 19]
    =============================================  ======================

    The settings :math:`[k, S, N]` are [2, 4, 16] for the S-ResNet with multiscale interaction, [1, 4, 16] without, [1,
    1, 16] for the ResNet with matched channels and [1, 1, 18] with matched parameters. The poolings shift the samples;
    the upsampling undoes the shift, so scores lie on their pixels at any size.

    Args:
        num_classes: number of classes.
        in_channels: channels of the image.
        width: the number of channels N; at least ``in_channels``, which the first skip connection adds.
        lift: how images become levels, a :class:`~scalespaces.nn.Lift` or a dict of its arguments; one level by
            default. Its ``num_levels`` is the number of levels S of the output.
        filter_levels: the number k of the table; or one number for each of the nine blocks.
        scale_padding: what filters see past the last level: ``"zeros"`` (the paper's), ``"replicate"`` or ``"valid"``.
        window: windows of the poolings: ``"dilated"``, which commutes with scale in every sampling, or ``"plain"`` (the
            paper's). On a pyramid they are the same.
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
        lift: LiftLike = None,
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
            rule = "the first block adds the image to its output, so width must be at least in_channels"
            raise ValueError(f"{rule}, got {width} and {in_channels}")
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
_SCALES = _FOUR | {"filter_levels": 3}
_SQUARE = {"group": "p4m", "growth": (4, 8, 16), "init": "he"}
for _name, _settings, _about in (
    ("densenet", {}, "the paper's baseline for PCam"),
    ("s_densenet", _SCALES, "the paper's S-DenseNet for PCam: 4 levels, filters of 3 levels in transitions"),
    ("p4m_densenet", _SQUARE, "a DenseNet on the symmetries of the square, after Veeling et al. 2018"),
):
    _baseline = "densenet" if _settings else None
    register_model(_name, DenseNet, _about, _settings, input_shape=(3, 96, 96), baseline=_baseline)

_DEEPER = _FOUR | {"filter_levels": 2}
for _name, _settings, _about in (
    ("resnet", {}, "baseline for Cityscapes, with matched channels"),
    ("resnet_matched_parameters", {"width": 18}, "baseline for Cityscapes, with matched parameters: wider"),
    ("s_resnet", _DEEPER, "S-ResNet for Cityscapes, multiscale: 4 levels, filters of 2 levels in five blocks"),
    ("s_resnet_no_interaction", _FOUR, "S-ResNet for Cityscapes, no interaction: 4 levels, filters of 1 level"),
):
    _baseline = "resnet" if _settings else None
    register_model(_name, ResNet, f"the paper's {_about}", _settings, input_shape=(3, 992, 992), baseline=_baseline)
