"""The paper's semigroup: scalings with translations."""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from scalespaces._choices import METHODS
from scalespaces.functional._conv import scale_conv
from scalespaces.functional._lift import LiftPlan, apply_lift, plan_lift
from scalespaces.semigroups._semigroup import Lifted, Semigroup
from scalespaces.semigroups._translations import Shift, ShiftGrid
from scalespaces.space._space import ScaleSpace
from scalespaces.theory._arguments import PaddingMode, check_choice, check_integer
from scalespaces.theory._kernels import check_zero_scale

ScaleShift = tuple[int, Shift]


class ScaleTranslations(ShiftGrid, Semigroup[ScaleShift]):
    r"""The paper's scalings with translations: blur, then read at :math:`c^k x + z`.

    .. math:: S_{k,z}[f](x) = f_k(c^k x + z), \qquad (k, z)(l, y) = (k + l, c^l z + y)

    :math:`f_k` is level k of the lift, densely sampled. With ``method="cascade"`` and ``padding_mode="circular"`` the
    law is exact when :math:`c^k` divides the size. With ``"direct"``, the paper's blur, it holds up to the aliasing
    that the zero-scale lets pass; with other paddings it holds away from the borders. ``shape`` counts the shifts along
    each axis, one per pixel; all other arguments are as in :func:`~scalespaces.functional.lift`, with an integer base.
    """

    def __init__(
        self,
        shape: Sequence[int],
        num_levels: int = 4,
        base: int = 2,
        zero_scale: float = 0.25,
        method: str = "cascade",
        padding_mode: PaddingMode = "circular",
    ) -> None:
        super().__init__(shape, 0, padding_mode)
        self.num_levels, self.base = check_integer("num_levels", num_levels, 1), check_integer("base", base, 2)
        self.zero_scale, self.method = check_zero_scale(zero_scale), check_choice("method", method, METHODS)
        self._plan = self._plan_of(num_levels)

    def _plan_of(self, num_levels: int) -> tuple[LiftPlan, list[Tensor]]:
        dense = ("dense", self.method, "discrete_gaussian", self.padding_mode, 4.0)
        plan = plan_lift(num_levels, self.base, 0, self.zero_scale, *dense)
        return plan, [torch.as_tensor(stage.taps) for stage in plan.stages]

    def levels(self, f: Tensor, at_least: int = 1) -> ScaleSpace:
        """The lift, which evaluates every element at x = 0, with ``at_least`` this many levels."""
        return apply_lift(f, *(self._plan if at_least <= self.num_levels else self._plan_of(at_least)))

    def compose(self, s: ScaleShift, t: ScaleShift) -> ScaleShift:
        """(k, z)(l, y) = (k + l, c^l z + y)."""
        (k, z), (el, y) = s, t
        return k + el, self.wrap([self.base**el * a + b for a, b in zip(z, y, strict=True)])

    def act(self, s: ScaleShift, f: Tensor) -> Tensor:
        """The downscaled signal, on a grid c^k times as coarse."""
        if self.padding_mode == "circular" and any(n % self.base ** s[0] for n in f.shape[2:]):
            raise ValueError(f"on a circular grid {self.base}^{s[0]} must divide the size, got {tuple(f.shape[2:])}")
        return self._thin(self.levels(f, s[0] + 1), s)

    def total(self, f: Tensor, elements: Sequence[ScaleShift]) -> Tensor:
        levels = self.levels(f, 1 + max(k for k, _ in elements))  # one lift for all
        return torch.stack([self._thin(levels, s).flatten(2).sum(2) for s in elements], 2)

    def _thin(self, space: ScaleSpace, s: ScaleShift) -> Tensor:
        """Level k of the lift at c^k x + z."""
        level, zoom = space.levels[s[0]], self.base ** s[0]
        self.check(s[1])
        for axis, (n, z) in enumerate(zip(level.shape[2:], s[1], strict=True), 2):
            level = self.take(level, axis, range(z, z + n, zoom))
        return level

    def elements(self) -> Sequence[ScaleShift]:
        """All shifts of level 0, then of level 1, and so on."""
        return [(k, z) for k in range(self.num_levels) for z in self.shifts()]

    def full_orbit(self, f: Tensor, shape: Sequence[int]) -> Tensor:
        taps = [[range(0, self.base**k * n, self.base**k) for n in shape] for k in range(self.num_levels)]
        return torch.cat([self.read_all(*pair) for pair in zip(self.levels(f).levels, taps, strict=True)], 2)

    def lifted(self, kernel_size: Sequence[int]) -> Lifted[ScaleShift]:
        """The action on lifted signals, for the paper's filters corr[k,h,w]: centered, over k levels."""
        if self.padding_mode not in ("zeros", "circular"):
            got = f"padding_mode={self.padding_mode!r}; scale_conv has the other paddings"
            raise ValueError(f"outside the truncation a lifted signal is zero or circular, got {got}")
        return LiftedScaleTranslations(self, kernel_size)


class LiftedScaleTranslations(Lifted[ScaleShift]):
    """Scale-translations on lifted signals; the correlation is :func:`~scalespaces.functional.scale_conv`.

    Filters are ``(C_out, C_in, k * h * w)``: the taps of each level, centered, one level after the other.
    """

    def __init__(self, semigroup: ScaleTranslations, kernel_size: Sequence[int]) -> None:
        self.kernel_size = tuple(check_integer("kernel_size", n, 1) for n in kernel_size)
        if len(self.kernel_size) != semigroup.dims + 1:
            raise ValueError(f"kernel_size is (levels, *taps) with {semigroup.dims} axes of taps, got {kernel_size}")
        taps = [range(-((n - 1) // 2), n // 2 + 1) for n in self.kernel_size[1:]]
        super().__init__(semigroup, itertools.product(range(self.kernel_size[0]), itertools.product(*taps)))
        self.scalings = semigroup

    def correlate(self, f: Tensor, psi: Tensor, elements: Sequence[ScaleShift] | None = None) -> Tensor:
        if elements is not None:
            return super().correlate(f, psi, elements)
        here = self.scalings
        space = ScaleSpace.unstack(f.unflatten(2, (here.num_levels, *here.shape)), here.base)
        weight = psi.unflatten(2, self.kernel_size)
        return torch.stack(scale_conv(space, weight, padding_mode=here.padding_mode).levels, 2).flatten(2)
