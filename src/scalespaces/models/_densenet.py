"""The paper's DenseNet, S-DenseNet, and the p4m-DenseNet it compares with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from scalespaces.models._blocks import DenseBlock, LongSkip, Transition, initialize
from scalespaces.models._network import NamedNetwork, per_place, strongest_level
from scalespaces.models._registry import register_model
from scalespaces.nn import GlobalPool, Lift, P4Conv2d, P4MConv2d, P4MPool, P4Pool
from scalespaces.semigroups._p4 import Group, order
from scalespaces.space import ScaleSpace
from scalespaces.theory._arguments import check_integer

_FIELDS = {"p4": (P4Conv2d, P4Pool), "p4m": (P4MConv2d, P4MPool)}  # how they are made, and averaged


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

    With a ``group`` all channels are *fields* on the symmetries of the square. One more correlation in front, 3 x 3,
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
        >>> model.features(torch.zeros(1, 3, 96, 96))
        ScaleSpace(4 levels, base 2, torch.float32, cpu)
          level 0: (1, 213, 24, 24), step 1, origin 0.375 0.375
          level 1: (1, 213, 12, 12), step 2, origin 0.75 0.75
          level 2: (1, 213, 6, 6), step 4, origin 1.5 1.5
          level 3: (1, 213, 3, 3), step 8, origin 3 3
    """

    def __init__(
        self,
        num_classes: int = 2,
        in_channels: int = 3,
        growth: Sequence[int] = (12, 24, 48),
        num_layers: int = 3,
        lift: Lift | Mapping[str, Any] | None = None,
        filter_levels: int | Sequence[int] = 1,
        scale_padding: str = "zeros",
        window: str = "dilated",
        scale_pool: str = "mean",
        group: Group | None = None,
        init: str = "paper",
    ) -> None:
        if group is not None:
            order(group)  # refuses other groups
        if not growth:
            raise ValueError("growth has one number for each dense block, got none")
        places = [bool(n % 2) for n in range(2 * len(growth) - 1)]  # dense, transition, dense, ...
        deep = per_place(filter_levels, places)
        layout: list[int | None] = []
        for k, transition in zip(deep, places, strict=True):
            layout += [1, None, k] if transition else [k] * check_integer("num_layers", num_layers, 1)
        super().__init__(in_channels, layout, lift, scale_padding, window, scale_pool)
        check_integer("num_classes", num_classes, 1)
        self.stem, self.group_pool = nn.Identity(), nn.Identity()
        if group is not None:
            conv, pool = _FIELDS[group]
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


_SCALES = {"lift": {"num_levels": 4}, "filter_levels": 3}
_SQUARE = {"group": "p4m", "growth": (4, 8, 16), "init": "he"}
for _name, _settings, _about in (
    ("densenet", {}, "the paper's baseline for PCam"),
    ("s_densenet", _SCALES, "the paper's S-DenseNet for PCam: 4 levels, filters of 3 levels in transitions"),
    ("p4m_densenet", _SQUARE, "the DenseNet on the symmetries of the square, after Veeling et al. 2018"),
):
    _baseline = "densenet" if _settings else None
    register_model(_name, DenseNet, _about, _settings, input_shape=(3, 96, 96), baseline=_baseline)
