"""The container: levels on grids."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree
from torch.utils.data._utils.collate import default_collate_fn_map

from scalespaces.space._axes import REDUCTIONS, RULES, Places, is_mergeable
from scalespaces.space._per_level import PerLevel, collapse, per_level_shape
from scalespaces.space._strict import caller, is_strict, refuse_tests_for_tensors
from scalespaces.theory._causal import check_causal_base
from scalespaces.theory._scale import Base, check_base, power


@dataclass(eq=False, repr=False)
class ScaleSpace:
    r"""A function on scale and space: one tensor per level, each on a grid of its own.

    Level :math:`k` stands for the dilation :math:`c^{-k}`. Its sample :math:`i` sits at ``origin + step * i``, and
    positions are measured in samples of level 0, from the point that scaling leaves fixed (the first pixel of the
    lifted image). How the levels are sampled is all that tells the modes apart: in dense sampling every step is 1, in
    a pyramid the step of level :math:`k` is :math:`c^k`.

    In a ``causal`` space the one spatial axis is time, and the fixed point is now: samples are counted back from the
    newest, which sits at 0 at every level, so sample :math:`i` of :math:`n` sits at ``-step * (n - 1 - i)``. Layers
    look only back: windows end at the sample they answer for, strides keep the newest sample, and a coarse sample is
    held from its time on until the next one.

    Whatever acts pointwise (``nn.ReLU()(x)``, ``2 * x + y``, ``torch.cat([x, y], 1)``, ``x.flatten(1)``) runs level
    by level. So do torch's own convolutions, poolings, normalizations and interpolations, whose taps are spread as
    those of :func:`~scalespaces.functional.scale_conv`: plain layers run on the container. Functions that look along
    an axis of space (``nn.GroupNorm``, ``x.cumsum(-1)``) see each level by itself.

    Sizes are read as those of a tensor; where levels differ, ``x.shape[2]`` is a number of each level,
    :class:`~scalespaces.functional._perlevel.PerLevel`. The axes of space are followed when axes are permuted or
    reshaped (``axes`` says where they are), and grids may be lost: ``nn.AdaptiveAvgPool2d(7)`` leaves samples that
    belong to the image as a whole, and ``axes`` empty.

    ``torch.utils.data.default_collate`` joins scale-spaces on the same grids along their batch axes, and ``torch.load``
    reads them from files with ``weights_only=True``, too.

    Args:
        levels: tensors ``(B, C, *spatial_k)``, finest first.
        base: the dilation :math:`c` between neighboring levels, or an expansion matrix.
        steps: distance between samples of each level, in samples of level 0; 1 when left out.
        origins: position of each level's sample 0, one number per axis; 0 when left out.
        unit: pixels of the lifted image per sample of level 0, one number per axis; strides multiply it.
        first_level: the number of ``levels[0]``; negative for levels finer than the image.
        causal: the axis is time; see :func:`~scalespaces.semigroups.causal_lift`.
        axes: which axes of the tensors are those of space; all after the second when left out.

    Example:
        >>> x = ScaleSpace((torch.ones(1, 2, 8, 8), torch.ones(1, 2, 4, 4)), base=2, steps=(1, 2))
        >>> torch.relu(2 * x - 3).levels[1].max()
        tensor(0.)
        >>> x
        ScaleSpace(2 levels, base 2, torch.float32, cpu)
          level 0: (1, 2, 8, 8), step 1
          level 1: (1, 2, 4, 4), step 2
    """

    levels: tuple[Tensor, ...]
    base: Base = 2.0
    steps: tuple[float, ...] = ()
    origins: tuple[tuple[float, ...], ...] = ()
    unit: tuple[float, ...] = ()
    first_level: int = 0
    causal: bool = False
    axes: tuple[int, ...] = (-1,)

    __array_ufunc__: ClassVar[None] = None  # NumPy scalars leave operators to us
    __hash__ = object.__hash__

    def __post_init__(self) -> None:
        if isinstance(self.levels, Tensor):
            raise TypeError(
                f"levels are a tuple of tensors, got one of shape {tuple(self.levels.shape)}; take a stacked tensor "
                "(B, C, S, *spatial) apart with ScaleSpace.unstack"
            )
        self.levels = tuple(self.levels)
        if not self.levels:
            raise ValueError("a ScaleSpace needs at least one level, got none")
        self.base = check_base(self.base)
        given, self.steps = bool(self.steps), tuple(float(step) for step in self.steps) or (1.0,) * len(self.levels)
        if not all(isinstance(level, Tensor) for level in self.levels):
            raise TypeError(f"levels are tensors, got {[type(level).__name__ for level in self.levels]}")
        ndim = self.levels[0].ndim
        self.axes = tuple(range(2, ndim)) if self.axes == (-1,) else tuple(self.axes)
        if len(set(self.axes)) != len(self.axes) or not all(0 <= a < ndim for a in self.axes):
            raise ValueError(f"axes are different ones of {ndim}, got {self.axes}")
        dims = len(self.axes)
        self.origins = tuple(tuple(float(o) for o in origin) for origin in self.origins) or (
            ((0.0,) * dims,) * len(self.levels)
        )
        self.unit = tuple(float(u) for u in self.unit) or (1.0,) * dims
        if not len(self.levels) == len(self.steps) == len(self.origins):
            raise ValueError(
                f"each level needs a step and an origin, got {len(self.levels)} levels, {len(self.steps)} steps and "
                f"{len(self.origins)} origins"
            )
        if any(level.ndim != self.levels[0].ndim for level in self.levels):
            raise ValueError(f"levels have one number of axes, got shapes {self.shapes}")
        if not given and len({self.sizes(index) for index in range(len(self.levels))}) > 1:
            raise ValueError(
                f"levels of different sizes need their steps, got shapes {self.shapes}; x.map(function) and "
                "x.replace(levels) keep the grids of a space x"
            )
        others = [a for a in range(ndim) if a not in self.axes]
        if dims and any(level.shape[a] != self.levels[0].shape[a] for level in self.levels[1:] for a in others):
            raise ValueError(f"levels have one batch size and number of channels, got shapes {self.shapes}")
        if not all(step > 0 for step in self.steps):
            raise ValueError(f"steps are positive, got {self.steps}")
        if any(len(axes) != dims for axes in (*self.origins, self.unit)):
            raise ValueError(
                f"origins and unit need one number for each of {dims} axes, got {self.origins}, {self.unit}"
            )
        if self.causal:
            self._check_causal()

    def _check_causal(self) -> None:
        check_causal_base(self.base)
        if self.dims > 1:
            raise ValueError(f"the levels of a causal space are signals (B, C, time), got shapes {self.shapes}")
        if any(map(any, self.origins)):
            raise ValueError(f"every newest sample of a causal space sits at 0, got origins {self.origins}")
        spacings = [self.spacing(index) for index in range(self.num_levels)]
        if not all(spacing.is_integer() for spacing in spacings):
            raise ValueError(
                f"taps of a causal space lie on samples, got {spacings} samples between them; use steps that divide "
                "the dilations of their levels"
            )

    # --- reading -----------------------------------------------------------------------------------------------------

    @property
    def num_levels(self) -> int:
        """How many levels there are."""
        return len(self.levels)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of every level."""
        return tuple(tuple(level.shape) for level in self.levels)

    @property
    def dims(self) -> int:
        """Number of spatial axes; 0 once the space is flattened or pooled away."""
        return len(self.axes)

    @property
    def shape(self) -> Any:
        """The shape of the levels; a size in which they differ is a number of each level."""
        return per_level_shape([level.shape for level in self.levels])

    @property
    def ndim(self) -> int:
        """Number of axes of the levels."""
        return self.levels[0].ndim

    def dim(self) -> int:
        """Number of axes of the levels."""
        return self.levels[0].ndim

    def size(self, dim: int | None = None) -> Any:
        """The shape of the levels, or one size of it; see :attr:`shape`."""
        return self.shape if dim is None else collapse([level.shape[dim] for level in self.levels])

    def sizes(self, index: int) -> tuple[int, ...]:
        """The sizes of ``levels[index]`` along the axes of space."""
        return tuple(self.levels[index].shape[a] for a in self.axes)

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the levels."""
        return self.levels[0].dtype

    @property
    def device(self) -> torch.device:
        """Device of the levels."""
        return self.levels[0].device

    def level(self, number: int) -> Tensor:
        """The level of that number; numbers start at ``first_level``."""
        if not 0 <= number - self.first_level < self.num_levels:
            last = self.first_level + self.num_levels - 1
            raise IndexError(f"levels are numbered {self.first_level} to {last}, got {number}")
        return self.levels[number - self.first_level]

    def expansion(self, index: int) -> Any:
        r"""The dilation :math:`c^k` (a matrix for a matrix base) of ``levels[index]``."""
        return power(self.base, index + self.first_level)

    def spacing(self, index: int) -> Any:
        r"""Samples of ``levels[index]`` between the taps of a filter, :math:`c^k / step_k`."""
        return self.expansion(index) / self.steps[index]

    def __len__(self) -> int:
        raise TypeError(f"a ScaleSpace has no length; its levels are x.levels, and x.num_levels is {self.num_levels}")

    def __iter__(self) -> Iterator[Tensor]:
        raise TypeError("a ScaleSpace is not iterated over; its levels are x.levels (and x.num_levels their number)")

    def __repr__(self) -> str:
        base = f"{self.base:g}" if isinstance(self.base, float) else str(self.base)
        causal = "causal, " if self.causal else ""
        lines = [f"ScaleSpace({self.num_levels} levels, base {base}, {causal}{self.dtype}, {self.device})"]
        for index, level in enumerate(self.levels):
            line = f"  level {index + self.first_level}: {tuple(level.shape)}, step {self.steps[index]:g}"
            if any(self.origins[index]):
                line += ", origin " + " ".join(f"{o:g}" for o in self.origins[index])
            lines.append(line)
        return "\n".join(lines)

    # --- converting --------------------------------------------------------------------------------------------------

    def replace(self, levels: tuple[Tensor, ...], **changes: Any) -> ScaleSpace:
        """A ScaleSpace of these levels, with this one's geometry but for ``changes``."""
        levels, fields = tuple(levels), {name: getattr(self, name) for name in _GEOMETRY}
        if not changes and not torch.compiler.is_compiling() and self._holds(levels):
            return _unflatten(levels, tuple(fields.values()))
        return ScaleSpace(levels, **{**fields, **changes})

    def _holds(self, levels: tuple[Tensor, ...]) -> bool:
        """Whether levels have the shapes of this space but for space and the number of channels: nothing to check."""
        first = self.levels[0].shape
        return (
            len(levels) == len(self.levels)
            and self.axes == _SPATIAL[len(first)]
            and all(
                isinstance(level, Tensor) and level.ndim == len(first) and level.shape[:2] == levels[0].shape[:2]
                for level in levels
            )
        )

    def map(self, function: Callable[[Tensor], Tensor]) -> ScaleSpace:
        """Apply a pointwise function to every level."""
        return _join([function(level) for level in self.levels], [self], _Call("map", (), {}, moves=False))

    def to(self, *args: Any, **kwargs: Any) -> ScaleSpace:
        """Move or cast every level, as :meth:`torch.Tensor.to`."""
        return self.replace(tuple(level.to(*args, **kwargs) for level in self.levels))

    def keep(self, num_levels: int) -> ScaleSpace:
        """The first ``num_levels`` levels: a skip connection past filters that consumed the top ones."""
        if num_levels == self.num_levels:
            return self
        if not 0 < num_levels <= self.num_levels:
            raise ValueError(f"can keep 1 to {self.num_levels} levels, got {num_levels}")
        return self.replace(self.levels[:num_levels], steps=self.steps[:num_levels], origins=self.origins[:num_levels])

    def stack(self) -> Tensor:
        """The dense tensor ``(B, C, S, *spatial)``; all levels must lie on one grid."""
        if len(set(self.shapes)) > 1 or (self.dims and len(set(zip(self.steps, self.origins, strict=True))) > 1):
            raise ValueError(
                f"only levels on one grid can be stacked, got shapes {self.shapes} with steps {self.steps}; "
                "bring them to one grid with scalespaces.resample first"
            )
        return torch.stack(self.levels, 2)

    @classmethod
    def unstack(cls, tensor: Tensor, base: Base = 2.0, first_level: int = 0, causal: bool = False) -> ScaleSpace:
        """A densely sampled ScaleSpace from a tensor ``(B, C, S, *spatial)``."""
        if tensor.ndim < 3:
            raise ValueError(f"expected a tensor (B, C, S, *spatial), got shape {tuple(tensor.shape)}")
        return cls(tensor.unbind(2), base=base, first_level=first_level, causal=causal)

    # --- acting level by level ---------------------------------------------------------------------------------------

    def _class(self) -> type[ScaleSpace]:
        # isinstance(x, Tensor) asks for x.__class__ after the type of x itself did not match.
        if is_strict():
            refuse_tests_for_tensors(caller())
        return ScaleSpace

    __class__: ClassVar[Any] = property(_class)

    @classmethod
    def __torch_function__(cls, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = getattr(func, "__name__", str(func))
        if name in _REFUSED:
            raise TypeError(f"torch's {name} knows nothing of the grids of a ScaleSpace; {_REFUSED[name]}")
        if name in TORCH_FUNCTIONS:
            return TORCH_FUNCTIONS[name](func, *args, **(kwargs or {}))
        return apply(func, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        found = getattr(Tensor, name, None)
        if name.startswith("_") or name in _ONE_TENSOR or found is None:
            raise AttributeError(
                f"a ScaleSpace has no attribute {name!r}; x.levels holds its tensors, ScalePool combines them into one"
            )
        if not callable(found):
            return _join([getattr(level, name) for level in self.levels], [self], _Call(name, (self,), {}))
        return lambda *args, **kwargs: ScaleSpace.__torch_function__(found, (), (self, *args), kwargs)

    def __getitem__(self, index: Any) -> Any:
        return apply(Tensor.__getitem__, (self, index), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        RULES["__getitem__"](self.axes, self.shapes, (), (self, index), {})
        apply(Tensor.__setitem__, (self, index, value), {})

    def __add__(self, other: Any) -> Any:
        return apply(torch.add, (self, other), {})

    def __sub__(self, other: Any) -> Any:
        return apply(torch.sub, (self, other), {})

    def __mul__(self, other: Any) -> Any:
        return apply(torch.mul, (self, other), {})

    def __truediv__(self, other: Any) -> Any:
        return apply(torch.div, (self, other), {})

    def __pow__(self, other: Any) -> Any:
        return apply(torch.pow, (self, other), {})

    def __rsub__(self, other: Any) -> Any:
        return apply(Tensor.__rsub__, (self, other), {})

    def __rtruediv__(self, other: Any) -> Any:
        return apply(Tensor.__rtruediv__, (self, other), {})

    def __rpow__(self, other: Any) -> Any:
        return apply(Tensor.__rpow__, (self, other), {})

    def __floordiv__(self, other: Any) -> Any:
        return apply(torch.floor_divide, (self, other), {})

    def __rfloordiv__(self, other: Any) -> Any:
        return apply(Tensor.__rfloordiv__, (self, other), {})

    def __mod__(self, other: Any) -> Any:
        return apply(torch.remainder, (self, other), {})

    def __rmod__(self, other: Any) -> Any:
        return apply(Tensor.__rmod__, (self, other), {})

    def __matmul__(self, other: Any) -> Any:
        return ScaleSpace.__torch_function__(torch.matmul, (), (self, other))

    def __rmatmul__(self, other: Any) -> Any:
        return ScaleSpace.__torch_function__(torch.matmul, (), (other, self))

    def __pos__(self) -> Any:
        return self

    def __neg__(self) -> Any:
        return apply(torch.neg, (self,), {})

    def __abs__(self) -> Any:
        return apply(torch.abs, (self,), {})

    def __lt__(self, other: Any) -> Any:
        return apply(torch.lt, (self, other), {})

    def __le__(self, other: Any) -> Any:
        return apply(torch.le, (self, other), {})

    def __gt__(self, other: Any) -> Any:
        return apply(torch.gt, (self, other), {})

    def __ge__(self, other: Any) -> Any:
        return apply(torch.ge, (self, other), {})

    def __eq__(self, other: Any) -> Any:
        return apply(torch.eq, (self, other), {}) if isinstance(other, _COMPARED) else NotImplemented

    def __ne__(self, other: Any) -> Any:
        return apply(torch.ne, (self, other), {}) if isinstance(other, _COMPARED) else NotImplemented

    def __and__(self, other: Any) -> Any:
        return apply(torch.bitwise_and, (self, other), {})

    def __or__(self, other: Any) -> Any:
        return apply(torch.bitwise_or, (self, other), {})

    def __xor__(self, other: Any) -> Any:
        return apply(torch.bitwise_xor, (self, other), {})

    def __invert__(self) -> Any:
        return apply(torch.bitwise_not, (self,), {})

    def __bool__(self) -> bool:
        raise TypeError("a ScaleSpace has no truth value; compare its levels")

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__
    __radd__ = __add__
    __rmul__ = __mul__


_SPATIAL = {ndim: tuple(range(2, ndim)) for ndim in range(65)}
_COMPARED = (ScaleSpace, PerLevel, Tensor, int, float, complex, np.number, np.bool_, torch.SymInt, torch.SymFloat)
_GEOMETRY = ("base", "steps", "origins", "unit", "first_level", "causal", "axes")

# Tensor attributes that would make no sense of several levels.
_ONE_TENSOR = {
    "backward",
    "numpy",
    "tolist",
    "item",
    "data_ptr",
    "storage",
    "untyped_storage",
    "grad_fn",
    "T",
    "mT",
    "H",
}

# torch functions that would go wrong in silence, and what to do instead.
_REFUSED = {
    **dict.fromkeys(("flip", "roll", "rot90"), "apply it to the image, before the lift"),
    **dict.fromkeys(("grid_sample", "affine_grid"), "use scalespaces.nn.Resample"),
    **dict.fromkeys(("unfold", "fold"), "write the sum over windows as a convolution"),
    **{f"max_pool{d}d_with_indices": "return_indices=True has no place for grids" for d in (1, 2, 3)},
    **{f"adaptive_max_pool{d}d_with_indices": "return_indices=True has no place for grids" for d in (1, 2, 3)},
    **{f"max_unpool{d}d": "use F.interpolate or a transposed convolution" for d in (1, 2, 3)},
    **{f"lp_pool{d}d": "use average or maximum pooling" for d in (1, 2, 3)},
    **{f"fractional_max_pool{d}d": "use average or maximum pooling" for d in (2, 3)},
    **{f"fractional_max_pool{d}d_with_indices": "use average or maximum pooling" for d in (2, 3)},
}

TORCH_FUNCTIONS: dict[str, Callable] = {}
"""What runs instead of the torch function of that name, filled by :mod:`._torch_functions`."""


def check_space(x: Any) -> ScaleSpace:
    """Return ``x`` if it is a ScaleSpace; say how to get one if not."""
    if isinstance(x, ScaleSpace):
        return x
    came = f"a tensor of shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"{type(x).__name__}"
    raise TypeError(f"expected a ScaleSpace, got {came}; lift images with scalespaces.lift first")


def check_grid(x: Any) -> ScaleSpace:
    """Return ``x`` if its axes of space stand after batch and channels, where windows slide; say what to do if not."""
    if check_space(x).dims and x.axes != tuple(range(2, x.ndim)):
        raise ValueError(
            f"windows slide over levels (B, C, *spatial), got shapes {x.shapes} with the axes of space at {x.axes}; "
            "permute back first"
        )
    return x


def _spaces(value: Any) -> Iterator[ScaleSpace]:
    if isinstance(value, ScaleSpace):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _spaces(item)
    elif isinstance(value, dict):
        yield from _spaces(list(value.values()))


def select(value: Any, index: int) -> Any:
    """The argument as level ``index`` sees it."""
    if isinstance(value, ScaleSpace):
        return value.levels[index]
    if isinstance(value, PerLevel):
        return value.values[index]
    if isinstance(value, slice):
        return slice(select(value.start, index), select(value.stop, index), select(value.step, index))
    if isinstance(value, list):
        return [select(item, index) for item in value]
    if isinstance(value, tuple):
        return tuple(select(item, index) for item in value)
    if isinstance(value, dict):
        return {key: select(item, index) for key, item in value.items()}
    return value


def level_by_level(func: Callable, args: tuple, kwargs: dict, space: ScaleSpace) -> list:
    """The answers of the levels; an error says of which one."""
    if torch.compiler.is_compiling():
        return [func(*select(args, k), **select(kwargs, k)) for k in range(space.num_levels)]
    results = []
    for k in range(space.num_levels):
        try:
            results.append(func(*select(args, k), **select(kwargs, k)))
        except Exception as error:
            error.add_note(f"at level {k + space.first_level}, levels of shapes {space.shapes}")
            raise
    return results


@dataclass(frozen=True)
class _Call:
    """What was called, to find where the axes of space have gone."""

    name: str
    args: tuple
    kwargs: dict
    moves: bool = True

    def places(self, x: ScaleSpace, new: Sequence[Sequence[int]]) -> Places | None:
        rule = RULES.get(self.name) if self.moves else None
        if rule is None and self.moves and len(new[0]) < x.ndim:
            rule = REDUCTIONS.get(self.name)
        return None if rule is None else rule(x.axes, x.shapes, new, self.args, self.kwargs)


def apply(func: Callable, args: tuple, kwargs: dict) -> Any:
    """Call a function level by level, and put what comes out on the grids of the operands."""
    spaces = list(_spaces([args, kwargs]))
    first = spaces[0]
    for other in spaces[1:]:
        _check_same_levels(first, other)
    sizes = _common_sizes(spaces)
    if sizes is not None:
        args, kwargs = _crop((args, kwargs), sizes)
        spaces = list(_spaces([args, kwargs]))
        first = spaces[0]
    call = _Call(getattr(func, "__name__", str(func)), args, kwargs)
    return _join(level_by_level(func, args, kwargs, first), spaces, call)


def _check_same_levels(first: ScaleSpace, other: ScaleSpace) -> None:
    if other.num_levels != first.num_levels or other.first_level != first.first_level:
        raise ValueError(
            f"operands need the same levels, got {first.num_levels} from level {first.first_level} and "
            f"{other.num_levels} from level {other.first_level}; drop the extra top levels with x.keep(num_levels)"
        )
    if other.base != first.base:
        raise ValueError(f"operands need the same base, got {first.base} and {other.base}")
    if other.causal != first.causal:
        raise ValueError("operands are causal spaces or not, got one of each; lift both with the same kind of lift")
    if not (first.dims and other.dims and first.ndim == other.ndim):
        return
    if other.axes != first.axes and not (
        is_mergeable(first.shapes, first.axes) or is_mergeable(other.shapes, other.axes)
    ):
        raise ValueError(
            f"operands have their axes of space at different places, {first.axes} and {other.axes}; permute one of them"
        )
    if not all(
        m == n or 1 in (m, n) or abs(m - n) <= _leeway(first, k)
        for k in range(first.num_levels)
        for m, n in zip(first.sizes(k), other.sizes(k), strict=True)
    ):
        raise ValueError(
            f"operands need levels of the same sizes, got {first.shapes} and {other.shapes}; give both "
            "branches the same strides, or bring them together with scalespaces.resample"
        )


def _leeway(x: ScaleSpace, index: int) -> float:
    """By how many samples the sizes of branches may differ: the borders of windows are wide where taps are spread."""
    spacing = x.spacing(index)
    return 2 * spacing if isinstance(spacing, float) and spacing > 1 + 1e-9 else 0.0


def _same_shape(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape


def _common_sizes(spaces: list[ScaleSpace]) -> list[tuple[int, ...]] | None:
    """The sizes to which all operands can be cropped at the end; None if there is nothing to crop."""
    if len(spaces) == 1:
        return None
    first, *others = [space for space in spaces if space.dims] or spaces[:1]
    others = [other for other in others if other.axes == first.axes and other.ndim == first.ndim]
    crop, sizes = False, []
    for k in range(first.num_levels):
        sizes.append(first.sizes(k))
        if not _leeway(first, k):
            continue
        for other in others:
            pairs = list(zip(sizes[k], other.sizes(k), strict=True))
            if any(m != n and 1 not in (m, n) for m, n in pairs):
                crop = True
            sizes[k] = tuple(max(m, n) if 1 in (m, n) else min(m, n) for m, n in pairs)
    return sizes if crop else None


def _crop(value: Any, sizes: list[tuple[int, ...]]) -> Any:
    if isinstance(value, ScaleSpace):
        levels = list(value.levels)
        for k, size in enumerate(sizes if value.dims == len(sizes[0]) else ()):
            for axis, n in zip(value.axes, size, strict=True):
                if levels[k].shape[axis] > n:
                    levels[k] = levels[k].narrow(axis, 0, n)
        return value.replace(tuple(levels))
    if isinstance(value, list):
        return [_crop(item, sizes) for item in value]
    if isinstance(value, tuple):
        return tuple(_crop(item, sizes) for item in value)
    return {key: _crop(item, sizes) for key, item in value.items()} if isinstance(value, dict) else value


def _join(results: list, spaces: list[ScaleSpace], call: _Call) -> Any:
    """One answer from the answers of the levels."""
    first = results[0]
    if all(isinstance(result, Tensor) for result in results):
        return _place(tuple(results), spaces, call)
    if isinstance(first, (list, tuple)) and not isinstance(first, torch.Size):
        parts = [_join(list(parts), spaces, call) for parts in zip(*results, strict=True)]
        named = hasattr(first, "n_fields") and not torch.compiler.is_compiling()  # such as torch.return_types.max
        return type(first)(parts) if named else tuple(parts)
    return collapse(results)


def _place(levels: tuple[Tensor, ...], spaces: list[ScaleSpace], call: _Call) -> ScaleSpace:
    """The levels on the grids that the call has left."""
    first = spaces[0]
    if len(spaces) == 1 and call.name not in RULES and all(map(_same_shape, levels, first.levels)):
        return first.replace(levels)
    shapes = [tuple(level.shape) for level in levels]
    on_grids = [space for space in spaces if space.dims]
    if not on_grids:
        return first.replace(levels, axes=(), origins=(), unit=())
    places = call.places(on_grids[0], shapes)
    if places is not None:
        for other in on_grids[1:]:
            _check_same_grids(on_grids[0], other)
        return _moved(on_grids[0], levels, places)
    ndim = len(shapes[0])
    same_size = []
    for space in on_grids:
        axes = tuple(a + ndim - space.ndim for a in space.axes)  # operands are aligned at their last axes
        # Space does not take the place of the batch, even if (B, C) of a pooled level happens to be a grid's (H, W).
        sizes = [tuple(shape[a] for a in axes) for shape in shapes] if min(axes) >= min(1, *space.axes) else None
        if sizes == [space.sizes(k) for k in range(len(shapes))]:
            same_size.append(space if axes == space.axes else space.replace(levels, axes=axes))
    if same_size:
        for other in same_size[1:]:
            _check_same_grids(same_size[0], other)
        return same_size[0].replace(levels)
    if is_mergeable([shape for space in on_grids for shape in space.shapes], on_grids[0].axes):
        return first.replace(levels, axes=(), origins=(), unit=())  # one sample, spread over whatever grid
    if ndim == first.ndim and first.dims:
        gone = [all(shape[a] == 1 for shape in shapes) for a in first.axes]
        if all(
            g or all(shape[a] == old[a] for shape, old in zip(shapes, first.shapes, strict=True))
            for g, a in zip(gone, first.axes, strict=True)
        ):
            return averaged(first, levels, gone)
    batch = first.levels[0].shape[:1]
    if all(level.shape[:1] == batch and all(size == 1 for size in level.shape[2:]) for level in levels):
        return first.replace(levels, axes=(), origins=(), unit=())  # flattened or averaged
    raise ValueError(
        f"{call.name} changes the grids from {[first.sizes(k) for k in range(first.num_levels)]} to "
        f"{[shape[2:] for shape in shapes]} in a way the geometry cannot follow; use the layers of "
        "scalespaces.nn, or work on x.levels"
    )


def _moved(x: ScaleSpace, levels: tuple[Tensor, ...], places: Places) -> ScaleSpace:
    """The levels with the axes of space at other places, or without some of them."""
    kept = [i for i, place in enumerate(places) if place is not None]
    axes = tuple(place for place in places if place is not None)
    if isinstance(x.base, tuple) and 0 < len(kept) < x.dims:
        raise ValueError("a matrix base turns axes of space into each other: none can go alone; work on x.levels")
    origins = tuple(tuple(origin[i] for i in kept) for origin in x.origins)
    return x.replace(levels, axes=axes, origins=origins, unit=tuple(x.unit[i] for i in kept))


def averaged(x: ScaleSpace, levels: tuple[Tensor, ...], gone: Sequence[bool]) -> ScaleSpace:
    """The levels with one sample left along the axes that are gone."""
    origins = tuple(tuple(0.0 if g else o for g, o in zip(gone, origin, strict=True)) for origin in x.origins)
    return x.replace(levels, origins=origins, unit=tuple(1.0 if g else u for g, u in zip(gone, x.unit, strict=True)))


def _check_same_grids(x: ScaleSpace, y: ScaleSpace) -> None:
    """Refuse operands on different grids.

    A shift of all of them that grows with the scale, :math:`c^k d` at level k, commutes with scale and is let pass: a
    3x3 filter and a 2x2 pooling of the same stride, side by side, leave one of :math:`d = 1/4`.
    """
    if is_mergeable(x.shapes, x.axes) or x.axes != y.axes:
        return
    shifts = [[p - q for p, q in zip(a, b, strict=True)] for a, b in zip(x.origins, y.origins, strict=True)]
    matrix = isinstance(x.base, tuple)
    for index, shift in enumerate(shifts):
        first = [0.0 if matrix else d * x.expansion(index) / x.expansion(0) for d in shifts[0]]
        if is_strict() and not matrix:  # branches that pad differently are up to a tap apart in the plain network, too
            first = [d if abs(d - e) <= x.expansion(index) else e for d, e in zip(shift, first, strict=True)]
        pairs = [*zip(shift, first, strict=True), (x.steps[index], y.steps[index]), *zip(x.unit, y.unit, strict=True)]
        if any(abs(p - q) > 1e-6 * max(1.0, abs(p)) for p, q in pairs):
            raise ValueError(
                f"operands lie on different grids: steps {x.steps} and {y.steps}, origins {x.origins} and {y.origins}, "
                f"units {x.unit} and {y.unit}; give both branches windows of the same kind, or bring them together "
                "with scalespaces.resample"
            )


def _flatten(x: ScaleSpace) -> tuple[list[Tensor], tuple]:
    return list(x.levels), tuple(getattr(x, name) for name in _GEOMETRY)


def _flatten_with_keys(x: ScaleSpace) -> tuple[list, tuple]:
    leaves, context = _flatten(x)
    return [(_pytree.SequenceKey(k), leaf) for k, leaf in enumerate(leaves)], context


def _unflatten(leaves: Any, context: tuple) -> ScaleSpace:
    x = object.__new__(ScaleSpace)  # leaves may be anything while a tree is rebuilt: no checks
    x.levels = tuple(leaves)
    x.base, x.steps, x.origins, x.unit, x.first_level, x.causal, x.axes = context
    return x


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, (list, tuple)) else value


_pytree.register_pytree_node(
    ScaleSpace,
    _flatten,
    _unflatten,
    serialized_type_name="scalespaces.ScaleSpace",
    to_dumpable_context=list,
    from_dumpable_context=_tuples,
    flatten_with_keys_fn=_flatten_with_keys,
)


def _collate(samples: Sequence[ScaleSpace], *, collate_fn_map: Any = None) -> ScaleSpace:
    """The samples of a DataLoader, joined along the batch axis; sizes that differ are not cropped here."""
    first = samples[0]
    for other in samples[1:]:
        same = [shape[1:] for shape in other.shapes] == [shape[1:] for shape in first.shapes]
        if not same or _flatten(other)[1] != _flatten(first)[1]:
            raise ValueError(
                f"samples are joined along their batch axis if all else is the same, got\n{first}\nand\n{other}\n"
                "Lift images of one size, with one lift, or pass a collate_fn of your own to the DataLoader"
            )
    return first.replace(tuple(map(torch.cat, zip(*(sample.levels for sample in samples), strict=True))))


default_collate_fn_map[ScaleSpace] = _collate
torch.serialization.add_safe_globals([ScaleSpace])
