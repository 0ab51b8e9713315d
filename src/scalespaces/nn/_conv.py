"""The scale-space correlation as a layer."""

from collections.abc import Callable
from typing import Any, ClassVar, Self

from torch import Tensor

from scalespaces.functional._conv import check_scale_padding, scale_conv
from scalespaces.nn._base import Device, Dtype, Filters
from scalespaces.space._grid import window_of
from scalespaces.space._numbers import Ints, as_plain
from scalespaces.space._space import ScaleSpace, check_space
from scalespaces.theory._arguments import PaddingMode, check_integer, check_padding_mode


def as_images(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """For torch a weight of five axes belongs to volumes, which have no ``memory_format=torch.channels_last``."""

    def apply(t: Tensor) -> Tensor:
        if t.ndim != 5:
            return fn(t)
        # One level after the other in memory: each is a filter that convolutions take as it is, without a copy.
        levels = t.movedim(2, 0)
        return fn(levels.flatten(0, 1)).unflatten(0, levels.shape[:2]).movedim(0, 2)

    return apply


class ScaleConv(Filters):
    """The correlation in any number of axes."""

    dims: int
    slides: ClassVar = ("stride", "padding", "dilation", "groups", "padding_mode", "scale_padding")

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
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(in_channels, out_channels)
        self.kernel_size, self.groups = self._check_size(kernel_size), check_integer("groups", groups, 1)
        if self.in_channels % self.groups or self.out_channels % self.groups:
            got = f"{in_channels} in, {out_channels} out, {groups} groups"
            raise ValueError(f"channels must be divisible by groups, got {got}")
        depth, *size = self.kernel_size
        window_of(size, stride, padding, dilation)  # checks them
        check_scale_padding(scale_padding, depth, depth)
        self.stride, self.padding, self.dilation = as_plain(stride), as_plain(padding), as_plain(dilation)
        self.padding_mode: PaddingMode = check_padding_mode(padding_mode)
        self.scale_padding = scale_padding
        # A filter of one level has the weight of a plain convolution, so that plain weights load into it.
        shape = self.kernel_size if depth > 1 else size
        self.make_filters((self.out_channels, self.in_channels // self.groups, *shape), bias, device, dtype)

    def _check_size(self, kernel_size: Ints) -> tuple[int, ...]:
        size = as_plain(kernel_size)
        size = (1,) + (size,) * self.dims if isinstance(size, int) else size
        if not isinstance(size, tuple) or len(size) != self.dims + 1 or not all(isinstance(n, int) for n in size):
            axes = ", ".join(("levels", *("depth", "height", "width")[3 - self.dims :]))
            rule = f"kernel_size is ({axes}), or an integer for a filter of one level"
            raise ValueError(f"{rule}, got {kernel_size}; 3 stands for {(1, *[3] * self.dims)}")
        if min(size) < 1:
            raise ValueError(f"kernel_size is at least 1 along every axis, got {kernel_size}")
        return size

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        return super()._apply(as_images(fn) if self.dims == 2 else fn, recurse)

    def arguments(self) -> dict[str, Any]:
        """How the filters slide, as keywords of the function."""
        return {name: getattr(self, name) for name in self.slides}

    def forward(self, input: ScaleSpace) -> ScaleSpace:
        """Correlate."""
        if (check_space(input).dims or input.ndim - 2) != self.dims:
            rule = f"{type(self).__name__} is for levels of {self.dims} spatial axes"
            raise ValueError(f"{rule}, got shapes {input.shapes}; use the layer for that number of axes")
        # With its axis of levels: scale_conv takes a weight without one for torch's own, whose bits it keeps.
        weight = self.weight if self.kernel_size[0] > 1 else self.weight.unsqueeze(2)
        return scale_conv(input, weight, self.bias, **self.arguments())


class ScaleConv1d(ScaleConv):
    """Scale-space correlation of signals; see :class:`ScaleConv2d`."""

    dims = 1


class ScaleConv2d(ScaleConv):
    r"""Scale-space correlation, the paper's corr[k,h,w].

    .. math:: [\psi \star f]^o_k(z) = \sum_{i,\ell,y} \psi^{i,o}_\ell(y)\, f^i_{k+\ell}(c^k y + z)

    Commutes with :func:`~scalespaces.functional.scale_shift` to machine precision, except at levels whose filter
    reaches past the last one, where it reads what ``scale_padding`` puts there. Taps follow the sampling of the input.

    Args:
        kernel_size: ``(k, h, w)``: levels, height and width of the filter; an integer ``n`` stands for ``(1, n, n)``.
            With one level the weight has the shape of a plain convolution's. All other arguments are as in
            :func:`~scalespaces.functional.scale_conv` and PyTorch's convolutions.

    Shape:
        - Input: S levels of :math:`(B, C_{in}, H_k, W_k)`
        - Output: S levels of :math:`(B, C_{out}, H_k, W_k)`; ``S - k + 1`` with ``scale_padding="valid"``

    Example:
        >>> x = scalespaces.lift(torch.zeros(1, 3, 32, 32), num_levels=4)
        >>> ScaleConv2d(3, 8, (2, 3, 3))(x).shapes
        ((1, 8, 32, 32), (1, 8, 16, 16), (1, 8, 8, 8), (1, 8, 4, 4))
    """

    dims = 2


class ScaleConv3d(ScaleConv):
    """Scale-space correlation of volumes, ``kernel_size=(k, d, h, w)``; see :class:`ScaleConv2d`."""

    dims = 3
