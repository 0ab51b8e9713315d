"""Layers for any semigroup, and for diffusion on graphs, whose levels are plain tensors ``(B, C, S, N)``."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from scalespaces.functional._conv import check_scale_padding
from scalespaces.nn._base import Device, Dtype, Filters, Layer
from scalespaces.semigroups import Graph, Semigroup, graph_conv, graph_lift, graph_pool, semigroup_correlation
from scalespaces.semigroups._graphs import POOL_AXES, POOL_MODES
from scalespaces.space._numbers import as_plain
from scalespaces.theory._arguments import check_choice, check_integer, check_real


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


class GraphLift(Layer):
    """Lift signals on the nodes of a graph by heat diffusion; see :func:`scalespaces.semigroups.graph_lift`."""

    def __init__(self, num_levels: int = 4, tau: float = 1.0) -> None:
        super().__init__()
        self.num_levels = check_integer("num_levels", num_levels, 1)
        self.tau = check_real("tau", tau, ">= 0, a time", lambda tau: tau >= 0)

    def forward(self, input: Tensor, graph: Graph) -> Tensor:
        """Lift."""
        return graph_lift(input, self.num_levels, self.tau, graph=graph)


class GraphConv(Filters):
    """Correlation over levels and neighbors; see :func:`scalespaces.semigroups.graph_conv`.

    Diffusing the input by one ``tau`` shifts the output by one level, to machine precision, except at levels whose
    filter reaches past the last one. This stays true with ``nn.ReLU``, ``nn.BatchNorm2d`` (in eval mode) and
    ``nn.Dropout`` in between. ``kernel_size`` counts levels: in space a filter is a node and its neighbors.

    Shape:
        - Input: :math:`(B, C_{in}, S, N)`, and a :class:`~scalespaces.semigroups.Graph`
        - Output: :math:`(B, C_{out}, S, N)`; ``S - kernel_size + 1`` levels with ``scale_padding="valid"``

    Example:
        >>> graph = Graph.from_edges([(0, 1), (1, 2)])
        >>> levels = GraphLift(num_levels=4)(torch.rand(2, 3, 3), graph)
        >>> GraphConv(3, 8, kernel_size=2, scale_padding="valid")(levels, graph).shape
        torch.Size([2, 8, 3, 3])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 2,
        bias: bool = True,
        scale_padding: str = "zeros",
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(in_channels, out_channels)
        self.kernel_size, self.scale_padding = check_integer("kernel_size", kernel_size, 1), scale_padding
        check_scale_padding(scale_padding, kernel_size, kernel_size)
        self.make_filters((self.out_channels, self.in_channels, self.kernel_size, 2), bias, device, dtype)

    def forward(self, input: Tensor, graph: Graph) -> Tensor:
        """Correlate."""
        return graph_conv(input, self.weight, self.bias, graph=graph, scale_padding=self.scale_padding)


class GraphPool(Layer):
    """``"mean"`` or ``"max"`` over levels, nodes or both; see :func:`scalespaces.semigroups.graph_pool`."""

    def __init__(self, mode: str = "mean", over: str = "both") -> None:
        super().__init__()
        self.mode, self.over = check_choice("mode", mode, POOL_MODES), check_choice("over", over, POOL_AXES)

    def forward(self, input: Tensor, graph: Graph | None = None) -> Tensor:
        """Pool."""
        return graph_pool(input, self.mode, graph=graph, over=self.over)
