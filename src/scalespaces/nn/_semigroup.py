"""The semigroup correlation as a layer."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from scalespaces.nn._base import Device, Dtype, Filters
from scalespaces.semigroups import Semigroup, semigroup_correlation
from scalespaces.space._numbers import as_plain
from scalespaces.theory._arguments import check_integer


class SemigroupConv(Filters):
    r"""Correlation with learned filters over any semigroup, :math:`[\psi \star f](s) = \sum_x \psi(x) L_s[f](x)`.

    Equivariant for every :class:`~scalespaces.semigroups.Semigroup`, including your own. The output is a function on
    the semigroup, so the next layer takes :class:`~scalespaces.semigroups.Lifted`, with pointwise layers in between.

    Args:
        kernel_size: the :meth:`~scalespaces.semigroups.Semigroup.window` of the filters, an integer for each axis of
            the signal: as large as the signal if elements do not move it.

    Shape:
        - Input: :math:`(B, C_{in}, *X)`; lifted signals :math:`(B, C_{in}, |S|)`
        - Output: :math:`(B, C_{out}, |S|)`

    Example:
        >>> from scalespaces.semigroups import CausalShifts, Lifted
        >>> first = SemigroupConv(3, 8, CausalShifts(20), kernel_size=[5])
        >>> second = SemigroupConv(8, 4, Lifted(CausalShifts(20), range(3)), kernel_size=[3])
        >>> second(first(torch.rand(2, 3, 20)).relu()).shape
        torch.Size([2, 4, 20])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        semigroup: Semigroup[Any],
        kernel_size: Sequence[int],
        bias: bool = True,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(in_channels, out_channels)
        size = as_plain(kernel_size)
        if isinstance(size, int) or not size:
            raise ValueError(f"kernel_size has an integer for each axis of the signal, got {kernel_size}")
        if not isinstance(semigroup, Semigroup):
            raise TypeError(f"semigroup must be a Semigroup, got {type(semigroup).__name__}; derive yours from it")
        self.kernel_size, self.semigroup = tuple(check_integer("kernel_size", n, 1) for n in size), semigroup
        self.make_filters((self.out_channels, self.in_channels, *self.kernel_size), bias, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        """Correlate."""
        out = semigroup_correlation(input, self.weight, self.semigroup)
        return out if self.bias is None else out + self.bias[:, None].to(out.dtype)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, semigroup={type(self.semigroup).__name__}"
