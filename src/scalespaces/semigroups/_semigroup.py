"""The semigroup correlation, for any semigroup that acts on signals."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from scalespaces._torch import constant
from scalespaces.functional._sampling import take
from scalespaces.space._numbers import Ints, per_axis

Element = TypeVar("Element")


class Semigroup(ABC, Generic[Element]):
    r"""Transformations of signals that can be composed, and need not be invertible.

    A subclass defines :meth:`compose`, :meth:`act` and :meth:`elements`. The correlation is equivariant if they satisfy
    the law of a left action, :math:`L_s L_t = L_{st}`; nothing else is assumed. A signal is a tensor ``(B, C, *X)``.

    Example:
        >>> class Saturations(Semigroup[float]):
        ...     def compose(self, s, t): return min(s, t)
        ...     def act(self, s, f): return f.clamp(max=s)
        ...     def elements(self): return [1.0, 0.5, 0.25]
        >>> semigroup_correlation(torch.rand(2, 3, 5), torch.rand(8, 3, 5), Saturations()).shape
        torch.Size([2, 8, 3])
    """

    @abstractmethod
    def compose(self, s: Element, t: Element) -> Element:
        """The product st: act by t first, then by s."""

    @abstractmethod
    def act(self, s: Element, f: Tensor) -> Tensor:
        r"""The transformed signal, :math:`L_s[f]`."""

    @abstractmethod
    def elements(self) -> Sequence[Element]:
        """The finitely many elements at which the correlation is evaluated by default."""

    def key(self, s: Element) -> Hashable:
        """A value that is the same for equal elements; by default the element, with numbers rounded."""
        return rounded(s)

    def window(self, f: Tensor, shape: Sequence[int]) -> Tensor:
        """The signal at the points x where a filter of this shape is defined: the first ones along each axis."""
        if len(shape) != f.ndim - 2 or any(size > n for size, n in zip(shape, f.shape[2:], strict=True)):
            raise ValueError(f"filters must fit into the signal, got a window {tuple(shape)} of {tuple(f.shape[2:])}")
        for axis, size in enumerate(shape, 2):
            f = f.narrow(axis, 0, size)
        return f

    def orbit(self, f: Tensor, shape: Sequence[int], elements: Sequence[Element] | None = None) -> Tensor:
        r"""The windows of :math:`L_s[f]` for all s, or for these elements: ``(B, C, number of elements, *shape)``."""
        if elements is None:
            return self.full_orbit(f, shape)
        return torch.stack([self.window(self.act(s, f), shape) for s in elements], 2)

    def full_orbit(self, f: Tensor, shape: Sequence[int]) -> Tensor:
        """The orbit of all elements. Override it if computing them together is faster than one by one."""
        return self.orbit(f, shape, self.elements())

    def total(self, f: Tensor, elements: Sequence[Element]) -> Tensor:
        r"""The sums :math:`\sum_x L_s[f](x)`, ``(B, C, number of elements)``."""
        return torch.stack([self.act(s, f).flatten(2).sum(2) for s in elements], 2)

    def correlate(self, f: Tensor, psi: Tensor, elements: Sequence[Element] | None = None) -> Tensor:
        """The inner products of the filters with the orbit; :func:`semigroup_correlation` checks and calls it."""
        orbit = self.orbit(f, psi.shape[2:], elements).flatten(3)  # B C S X
        return torch.einsum("bcsx,ocx->bos", orbit, psi.flatten(2))


def rounded(s: Any) -> Any:
    """Numbers, and tuples of them, to twelve digits."""
    if isinstance(s, float):
        return float(f"{s:.12g}")
    return tuple(map(rounded, s)) if isinstance(s, tuple) else s


def _check(f: object, elements: Sequence[Element] | None) -> None:
    if not isinstance(f, Tensor) or f.ndim < 3 or not f.is_floating_point():
        got = f"{f.dtype} of shape {tuple(f.shape)}" if isinstance(f, Tensor) else type(f).__name__
        raise ValueError(f"a signal is a floating-point tensor (B, C, *X) with at least one spatial axis, got {got}")
    if elements is not None and len(elements) == 0:
        raise ValueError("elements must name where to evaluate, got none; leave them out for the semigroup's own")


def semigroup_correlation(
    f: Tensor, psi: Tensor, semigroup: Semigroup[Element], *, elements: Sequence[Element] | None = None
) -> Tensor:
    r"""The paper's semigroup correlation, with channels.

    .. math:: [\psi \star_S f]^o(s) = \sum_i \sum_{x \in X} \psi^{i,o}(x)\, L_s[f^i](x)

    It is equivariant, :math:`[\psi \star L_t f](s) = [\psi \star f](st)`, as exactly as the action satisfies
    :math:`L_s L_t = L_{st}`. The signal is transformed, not the filter: without inverses the two differ.

    Args:
        f: signals ``(B, C_in, *X)``. For functions on the semigroup itself pass :class:`Lifted`.
        psi: filters ``(C_out, C_in, *window)``; :meth:`Semigroup.window` defines where the window lies.
        semigroup: how elements compose and act.
        elements: where to evaluate, by default at the semigroup's. The result is ``(B, C_out, number of elements)``.

    Example:
        >>> f, psi = torch.rand(1, 3, 8, 8), torch.rand(4, 3, 3, 3)
        >>> out = semigroup_correlation(f, psi, scalespaces.semigroups.Translations((6, 6)))
        >>> torch.allclose(out.unflatten(2, (6, 6)), torch.nn.functional.conv2d(f, psi), atol=1e-5)
        True
    """
    _check(f, elements)
    if psi.ndim != f.ndim:
        rule = f"signals of shape {tuple(f.shape)} need filters (C_out, C_in, *window) of {f.ndim} axes"
        raise ValueError(f"{rule}, got shape {tuple(psi.shape)}")
    if psi.shape[1] != f.shape[1]:
        raise ValueError(f"the filters take {psi.shape[1]} channels, got signals of {f.shape[1]}")
    if psi.dtype != f.dtype and not torch.is_autocast_enabled(f.device.type):
        raise ValueError(f"filters and signals must have one type, got {psi.dtype} and {f.dtype}; convert one of them")
    return semigroup.correlate(f, psi, elements)


def semigroup_lift(
    f: Tensor, semigroup: Semigroup[Element], *, at: Ints | None = 0, elements: Sequence[Element] | None = None
) -> Tensor:
    r"""Lift a signal to a function on the semigroup, the paper's equation "lifting".

    .. math:: f^\uparrow(s) = L_s[f](x) \qquad\text{or}\qquad f^\uparrow(s) = \sum_{x \in X} L_s[f](x)

    Either way the action becomes a shift: :math:`(L_t f)^\uparrow(s) = f^\uparrow(st)`, see :class:`Lifted`. ``at`` is
    the point x, a number for each axis of X or one for all; ``None`` sums over x. The other arguments are those of
    :func:`semigroup_correlation`; the lifted signal is ``(B, C, number of elements)``.
    """
    _check(f, elements)
    if at is None:
        return semigroup.total(f, semigroup.elements() if elements is None else elements)
    point = per_axis(at, f.ndim - 2, "at")
    if min(point) < 0:
        raise ValueError(f"at must be a point of the window, whose coordinates start at 0, got {at}")
    return semigroup.orbit(f, [x + 1 for x in point], elements)[(..., *point)]


class Lifted(Semigroup[Element]):
    r"""The action of a semigroup on functions on itself, :math:`L_s[f](t) = f(ts)`: a shift.

    A signal is ``(B, C, |S|)``, its values in the order of ``semigroup.elements()``, as the correlation returns them. A
    product outside these elements reads zero: that is the truncation boundary. Filters ``(C_out, C_in, len(support))``
    are on the elements of ``support``, by default all. Choose few: their products with all elements are tabulated.
    """

    def __init__(self, semigroup: Semigroup[Element], support: Iterable[Element] | None = None) -> None:
        self.semigroup = semigroup
        self.support = list(semigroup.elements() if support is None else support)
        self._place = {semigroup.key(s): index for index, s in enumerate(semigroup.elements())}
        self._products: Tensor | None = None

    def compose(self, s: Element, t: Element) -> Element:
        return self.semigroup.compose(s, t)

    def elements(self) -> Sequence[Element]:
        return self.semigroup.elements()

    def act(self, s: Element, f: Tensor) -> Tensor:
        r"""The function :math:`t \mapsto f(ts)`."""
        return self._read(f, self._places([s], self.elements()))[:, :, 0]

    def window(self, f: Tensor, shape: Sequence[int]) -> Tensor:
        """The function on the support of the filters."""
        return self._read(f, self._where(self.support), shape)

    def orbit(self, f: Tensor, shape: Sequence[int], elements: Sequence[Element] | None = None) -> Tensor:
        return self._read(f, self._table() if elements is None else self._places(elements, self.support), shape)

    @constant
    def _table(self) -> Tensor:
        if self._products is None:
            self._products = self._places(self.elements(), self.support)
        return self._products

    def _places(self, elements: Sequence[Element], support: Sequence[Element]) -> Tensor:
        return torch.stack([self._where([self.compose(t, s) for t in support]) for s in elements])

    def _where(self, elements: Sequence[Element]) -> Tensor:
        return torch.tensor([self._place.get(self.semigroup.key(s), -1) for s in elements])

    def _read(self, f: Tensor, places: Tensor, window: Sequence[int] | None = None) -> Tensor:
        if f.ndim != 3 or f.shape[2] != len(self._place):
            raise ValueError(f"a lifted signal is (B, C, {len(self._place)}) here, got shape {tuple(f.shape)}")
        if window is not None and tuple(window) != (len(self.support),):
            raise ValueError(f"filters need {len(self.support)} elements here, got a window of shape {tuple(window)}")
        index = places.to(f.device)
        values = take(f, 2, index.clip(min=0).flatten()).unflatten(2, index.shape)
        return torch.where(index >= 0, values, 0.0)
