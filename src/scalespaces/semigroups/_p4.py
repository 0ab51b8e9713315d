r"""The symmetries of the square: the correlation, alone or together with scale, and the semigroups of their actions.

The group is ``"p4"``, the four quarter turns, or ``"p4m"``, these and the four mirror images. Element :math:`h` acts
on images by :math:`L_h[f](x) = f(R_h x)`, :math:`x` = (row, column) seen from the center. In this order,

.. math:: R_j = \begin{pmatrix} 0 & 1 \\ -1 & 0 \end{pmatrix}^j, \qquad
          R_{4+j} = \begin{pmatrix} 1 & 0 \\ 0 & -1 \end{pmatrix} R_j, \qquad j = 0, 1, 2, 3:

element :math:`j` turns the picture :math:`j` times by 90 degrees counterclockwise, element :math:`4 + j` does so after
mirroring left and right. A *field* has one channel per element: :math:`F` fields are a tensor
``(B, F * |H|, height, width)``, channel = field * :math:`|H|` + element, on which pointwise layers and pooling work.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scalespaces._torch import constant
from scalespaces.functional._conv import scale_conv
from scalespaces.functional._sampling import take
from scalespaces.semigroups._semigroup import Semigroup
from scalespaces.semigroups._translations import Shift, ShiftGrid
from scalespaces.space._numbers import Ints
from scalespaces.space._space import ScaleSpace, check_space
from scalespaces.theory._arguments import PaddingMode, check_choice, check_integer

Group = Literal["p4", "p4m"]
ORDER = {"p4": 4, "p4m": 8}
GROUP_MODES = ("max", "mean")

Field = TypeVar("Field", Tensor, ScaleSpace)


def order(group: Group) -> int:
    """The number of elements of the group."""
    return ORDER[check_choice("group", group, ORDER)]


@lru_cache
def matrices(group: Group) -> NDArray[np.int64]:
    """The matrices of the elements, ``(|H|, 2, 2)``."""
    turns = [np.linalg.matrix_power(np.array([[0, 1], [-1, 0]]), j) for j in range(4)]
    return np.stack([*turns, *(np.diag([1, -1]) @ turn for turn in turns)][: order(group)])


@lru_cache
def products(group: Group) -> tuple[tuple[int, ...], ...]:
    """Entry ``[a][b]`` is the element whose matrix is the product of those of ``a`` and ``b``."""
    elements = matrices(group)
    where = {matrix.tobytes(): number for number, matrix in enumerate(elements)}
    return tuple(tuple(where[(a @ b).tobytes()] for b in elements) for a in elements)


@lru_cache(maxsize=64)  # as arrays: a tensor made during torch.export would be a fake one
def filter_index(group: Group, size: int, depth: int = 1, *, lifting: bool = False) -> NDArray[np.int64]:
    r"""Row :math:`h`: for each entry of filter :math:`h` of the bank, the entry of :math:`\psi` it is a copy of."""
    table = products(group)
    inverse = [row.index(0) for row in table]
    entries = np.arange((1 if lifting else len(table)) * depth * size**2).reshape(-1, depth, size, size)
    rows = []
    for g in inverse:
        turned = np.rot90(entries[..., ::-1] if g >= 4 else entries, g % 4, (-2, -1))
        rows.append(turned if lifting else turned[list(table[g])])
    return np.stack(rows).reshape(len(table), -1)


@constant
def _filter_index(group: Group, size: int, depth: int, lifting: bool) -> tuple[Tensor]:
    return (torch.as_tensor(filter_index(group, size, depth, lifting=lifting)),)


def expand_filters(weight: Tensor, group: Group, *, lifting: bool = False, index: Tensor | None = None) -> Tensor:
    r"""The filter bank of a plain convolution: every filter once per element, turned, with its elements permuted.

    .. math:: W_h(g, y) = \psi(h^{-1} g, R_h^{-1} y), \qquad W_h(y) = \psi(R_h^{-1} y) \text{ when lifting}

    ``(F_out, F_in, |H|, [k,] h, w)`` becomes ``(F_out * |H|, F_in * |H|, [k,] h, w)``; without the ``|H|`` of the input
    when lifting. ``index`` is :func:`filter_index` as a tensor on the device of the weight, if already computed.
    """
    n, axes = order(group), 2 if lifting else 3
    if weight.ndim - axes not in (2, 3) or not (lifting or weight.shape[2] == n):
        expected = "(F_out, F_in, [k,] h, w)" if lifting else f"(F_out, F_in, {n}, [k,] h, w)"
        got = f"shape {tuple(weight.shape)}; lifting=True is for filters that read plain channels"
        raise ValueError(f"{'lifting ' * lifting}filters of {group} are {expected}, got {got}")
    check_square(*weight.shape[-2:])
    depth = weight.shape[axes] if weight.ndim - axes == 3 else 1
    entry = _filter_index(group, weight.shape[-1], depth, lifting)[0].to(weight.device) if index is None else index
    flat = weight.flatten(2).unsqueeze(1).expand(-1, n, -1, -1)
    bank = flat.gather(3, entry.unsqueeze(1).expand(flat.shape))
    return bank.reshape(weight.shape[0] * n, -1, *weight.shape[axes:])


def check_square(height: int, width: int) -> None:
    """Refuse a filter whose height and width differ."""
    if height != width:
        raise ValueError(f"only square filters can be turned, got one of {height} x {width}; make both the same")


def p4_conv(
    x: Field,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    group: Group,
    lifting: bool = False,
    groups: int = 1,
    index: Tensor | None = None,
    **sliding: Any,
) -> Field:
    r"""Correlation on the group: one plain convolution with the bank of ``expand_filters``.

    .. math:: [\psi \star f](h, z) = \sum_{g, y} \psi(g, y)\, f(hg, R_h y + z), \qquad
              [\psi \star f](h, z) = \sum_y \psi(y)\, f(R_h y + z) \text{ when lifting}

    On levels this is :func:`~scalespaces.functional.scale_conv` with the same bank. It commutes with
    :func:`transform_field`; for conditions on stride and padding see :class:`~scalespaces.nn.P4MConv2d`.

    Args:
        x: a tensor ``(B, F_in * |H|, height, width)``, or levels of these; ``F_in`` channels when lifting.
        weight: ``(F_out, F_in / groups, |H|, [k,] h, w)``, with or without levels; no ``|H|`` when lifting.
        bias: ``(F_out,)``, one for all elements of a field.
        group, groups: ``"p4"`` or ``"p4m"``; and the number of groups of fields.
        lifting: for a first layer, whose input has plain channels instead of fields.
        index: a precomputed table that layers keep on their device.
        **sliding: all other arguments of :func:`~scalespaces.functional.scale_conv`.

    Example:
        >>> p4_conv(torch.rand(1, 3 * 4, 9, 9), torch.rand(2, 3, 4, 3, 3), group="p4").shape
        torch.Size([1, 8, 9, 9])
    """
    n = order(group)
    bank = expand_filters(weight, group, lifting=lifting, index=index)
    space = ScaleSpace((x,)) if isinstance(x, Tensor) else check_space(x)
    if space.dims != 2:
        raise ValueError(f"the symmetries of the square act on (B, C, height, width), got shapes {space.shapes}")
    if isinstance(x, Tensor) and bank.ndim == 5:
        raise ValueError(f"a filter of {bank.shape[2]} levels needs a ScaleSpace, got a tensor; lift the image first")
    channels, fields = space.levels[0].shape[1], weight.shape[1] * groups
    if channels != bank.shape[1] * groups:
        wanted = f"{fields} plain channels" if lifting else f"{fields} fields of {n} channels, {fields * n} together"
        raise ValueError(f"the filters read {wanted}, got {channels} channels; only a first layer has lifting=True")
    if space.levels[0].stride(1) == 1:  # with filters in channels_last, lifted levels keep that format
        bank = bank.movedim(1, -1).contiguous().movedim(-1, 1)
    bias = None if bias is None else bias.unsqueeze(1).expand(-1, n).flatten()
    out = scale_conv(space, bank, bias, groups=groups, **sliding)
    return out.levels[0] if isinstance(x, Tensor) else out  # type: ignore[reportReturnType]


def group_pool(x: Field, mode: str = "max", *, group: Group) -> Field:
    """Maximum or mean over the elements of each field, of a tensor or of every level: plain channels again."""
    n = order(group)
    check_choice("mode", mode, GROUP_MODES)

    def pool(level: Tensor) -> Tensor:
        fields = _as_fields(level, n)
        out = fields.amax(2) if mode == "max" else fields.mean(2)
        last = level.ndim == 4 and level.stride(1) == 1  # torch's reductions lose channels_last
        return out.contiguous(memory_format=torch.channels_last) if last else out

    return pool(x) if isinstance(x, Tensor) else check_space(x).map(pool)


def _as_fields(x: Tensor, elements: int) -> Tensor:
    if x.ndim < 2 or x.shape[1] % elements:
        raise ValueError(f"fields are tensors (B, fields * {elements}, ...), got shape {tuple(x.shape)}")
    return x.unflatten(1, (x.shape[1] // elements, elements))


def _check_element(element: int, group: Group) -> None:
    if not 0 <= check_integer("element", element) < order(group):
        raise ValueError(f"the elements of {group} are numbered 0 to {order(group) - 1}, got {element}")


def transform_image(image: Tensor, element: int) -> Tensor:
    """The action on images about their center, :math:`L_h[f](x) = f(R_h x)`: any ``(.., height, width)``."""
    _check_element(element, "p4m")
    return torch.rot90(image.flip(-1) if element >= 4 else image, element % 4, (-2, -1))


def transform_field(x: Tensor, element: int, *, group: Group) -> Tensor:
    r"""The action on fields, :math:`L_g[f](h, z) = f(gh, R_g z)`: turn the grid and permute the elements.

    An equivariant network commutes with it; before the first layer and after pooling the images are only turned.
    """
    _check_element(element, group)
    fields = _as_fields(transform_image(x, element), order(group))
    return take(fields, 2, _permutation(group, element)[0].to(x.device)).flatten(1, 2)


@constant
def _permutation(group: Group, element: int) -> tuple[Tensor]:
    return (torch.tensor(products(group)[element]),)


class P4(ShiftGrid, Semigroup[tuple[int, Shift]]):
    r"""Quarter turns with translations, :math:`L_{h,z}[f](x) = f(R_h x + z)`.

    The arguments are those of :class:`Translations`. Exact for ``padding_mode="circular"``.
    :class:`~scalespaces.nn.P4Conv2d` is its fast layer.
    """

    group: Group = "p4"

    def __init__(self, shape: Sequence[int], first: Ints = 0, padding_mode: PaddingMode = "zeros") -> None:
        super().__init__(shape, first, padding_mode)
        if len(set(self.shape)) > 1 or self.dims != 2:
            raise ValueError(f"a quarter turn needs a square grid, got shape {self.shape}")
        # Axis i of f runs along axis j of x, forwards or backwards, where R_h has its entry (i, j).
        self._along = [np.abs(matrix).argmax(1).tolist() for matrix in matrices(self.group)]
        self._signs = [matrix.sum(1).tolist() for matrix in matrices(self.group)]

    def compose(self, s: tuple[int, Shift], t: tuple[int, Shift]) -> tuple[int, Shift]:
        """(h, z)(g, y) = (gh, R_g z + y)."""
        (h, z), (g, y) = s, t
        turned = [sign * z[j] + shift for sign, j, shift in zip(self._signs[g], self._along[g], y, strict=True)]
        return products(self.group)[g][h], self.wrap(turned)

    def act(self, s: tuple[int, Shift], f: Tensor) -> Tensor:
        """The signal turned about its first pixel and shifted, on the same grid."""
        h, z = s
        self.check(z)
        _check_element(h, self.group)
        return self._turned(f, h, [range(shift, shift + 1) for shift in z], f.shape[2:])[:, :, 0, 0]

    def elements(self) -> Sequence[tuple[int, Shift]]:
        """All shifts of the first symmetry, then of the second, and so on."""
        return [(h, z) for h in range(order(self.group)) for z in self.shifts()]

    def full_orbit(self, f: Tensor, shape: Sequence[int]) -> Tensor:
        turned = [self._turned(f, h, self.starts(), shape) for h in range(order(self.group))]
        return torch.cat(turned, 2).flatten(2, 3)

    def _turned(self, f: Tensor, h: int, starts: Sequence[range], shape: Sequence[int]) -> Tensor:
        """f(R_h x + z)."""
        sizes = [shape[j] for j in self._along[h]]
        taps = [range(0, sign * n, sign) for sign, n in zip(self._signs[h], sizes, strict=True)]
        windows = self.read(f, starts, taps)
        return windows if self._along[h][0] == 0 else windows.transpose(-1, -2)


class P4M(P4):
    """Quarter turns and mirrors with translations; see :class:`P4`."""

    group = "p4m"
