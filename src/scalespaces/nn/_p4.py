"""Layers on the symmetries of the square, alone or together with scale; conventions are those of the functions."""

from torch import Tensor, nn

from scalespaces.nn._base import Constants, Device, Dtype, Layer
from scalespaces.nn._conv import ScaleConv
from scalespaces.nn._norm import TensorBatchNorm
from scalespaces.semigroups._p4 import GROUP_MODES, Field, Group, check_square, filter_index, group_pool, order, p4_conv
from scalespaces.space._numbers import Ints
from scalespaces.theory._arguments import PaddingMode, check_choice, check_integer


class P4Conv2d(Constants, ScaleConv):
    """Correlation on the four quarter turns and translations, of tensors and of levels; see :class:`P4MConv2d`."""

    dims = 2
    group: Group = "p4"
    index: Tensor

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Ints,
        stride: Ints = 1,
        padding: Ints | str = "same",
        dilation: Ints = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        scale_padding: str = "zeros",
        lifting: bool = False,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        for name, fields in (("in_channels", in_channels), ("out_channels", out_channels)):
            if check_integer(name, fields, 1) % check_integer("groups", groups, 1):
                raise ValueError(f"{name}, a number of fields, is divisible by groups, got {fields} and {groups}")
        elements = 1 if lifting else order(self.group)
        others = (stride, padding, dilation, groups, bias, padding_mode, scale_padding, device, dtype)
        super().__init__(in_channels * elements, out_channels, kernel_size, *others)
        check_square(*self.kernel_size[1:])
        self.in_channels, self.lifting = self.in_channels // elements, lifting  # fields
        if not lifting:
            self.weight = nn.Parameter(self.weight.detach().unflatten(1, (-1, elements)))
        depth, size, _ = self.kernel_size
        self.register_constant("index", filter_index(self.group, size, depth, lifting=lifting), device)

    def forward(self, input: Field) -> Field:
        """Correlate."""
        own = {"group": self.group, "lifting": self.lifting, "index": self.index}
        return p4_conv(input, self.weight, self.bias, **own, **self.arguments())


class P4MConv2d(P4Conv2d):
    r"""Correlation on the eight symmetries of the square and translations, of tensors and of levels.

    .. math:: [\psi \star f]^o_k(h, z) = \sum_{i, \ell, g, y} \psi^{i,o}_\ell(g, y)\, f^i_{k+\ell}(hg, c^k R_h y + z)

    The layer commutes with :func:`~scalespaces.semigroups.transform_field` to machine precision, on images of any size,
    when stride, padding and dilation are the same along both axes, the padding is the same on both sides (which
    ``"same"`` is not for even filters), and the last window ends with the last padded sample: the stride divides
    :math:`n + 2p - d(m - 1) - 1`, for a side of n samples, padding p, dilation d and filters of m taps. For odd filters
    with ``"same"`` that is :math:`n - 1`.

    On levels it commutes with :func:`~scalespaces.functional.scale_shift` as :class:`ScaleConv2d` does, and with the
    symmetries of the square when the grids of all levels have the same center: for an integer base c and S levels, on
    densely sampled images of any size, and on a pyramid when :math:`c^{S-1}` divides :math:`n - 1` for both sides n of
    the image. A stride s (of odd filters or a :class:`ScaleBlurPool`) keeps both symmetries when it divides
    :math:`n - 1` at every level: on a pyramid, when :math:`s c^{S-1}` divides it.

    Args:
        in_channels, out_channels: *fields* of 8 channels; plain channels of the input when lifting.
        kernel_size: ``(k, n, n)`` or ``n``; all other arguments are as in :class:`ScaleConv2d`, per field.
        lifting: for the first layer, whose input has plain channels.

    Shape:
        - Input: :math:`(B, 8 F_{in}, H, W)`, or :math:`(B, F_{in}, H, W)` when lifting; or S levels of these
        - Output: :math:`(B, 8 F_{out}, H, W)`; or S levels of these, ``S - k + 1`` with ``scale_padding="valid"``

    Example:
        >>> first, second = P4MConv2d(3, 4, 3, lifting=True), P4MConv2d(4, 4, (2, 3, 3), scale_padding="valid")
        >>> second(torch.relu(first(scalespaces.lift(torch.zeros(1, 3, 33, 33), num_levels=3)))).shapes
        ((1, 32, 33, 33), (1, 32, 17, 17))
    """

    group = "p4m"


class P4BatchNorm(TensorBatchNorm):
    """Batch normalization of fields of 4 elements; see :class:`P4MBatchNorm`."""

    elements = 4


class P4MBatchNorm(P4BatchNorm):
    """Batch normalization with one set of statistics per field, over batch, the 8 elements, levels and space.

    Arguments as in :class:`ScaleBatchNorm`, with ``num_features`` fields. It is equivariant in training, too.
    """

    elements = 8


class P4Pool(Layer):
    """Maximum or mean over the 4 elements of each field; see :class:`P4MPool`."""

    group: Group = "p4"

    def __init__(self, mode: str = "max") -> None:
        super().__init__()
        self.mode = check_choice("mode", mode, GROUP_MODES)

    def forward(self, input: Field) -> Field:
        """Pool."""
        return group_pool(input, self.mode, group=self.group)


class P4MPool(P4Pool):
    """Maximum or mean over the 8 elements of each field: plain channels, which turn like an image."""

    group = "p4m"
