"""How equivariant is a network? Measure it, and assert it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from scalespaces._extras import require
from scalespaces.functional import ScaleSpace, causal_downscale, downscale, scale_shift
from scalespaces.functional._grid import pad, sample
from scalespaces.theory._checks import check_choice

Model = Callable[[Tensor], ScaleSpace]
DOWNSCALINGS = ("cascade", "direct", "pillow")
_LIFT_ARGUMENTS = ("zero_scale", "kernel", "padding_mode", "truncation")


@dataclass(frozen=True)
class EquivarianceTable:
    r"""Relative L2 errors: row :math:`\ell` (or translation), column level :math:`k`; NaN where there is no level.

    ``largest`` has the largest difference at any single sample, relative to the largest value there.
    """

    errors: NDArray
    largest: NDArray
    rows: tuple[int, ...]
    levels: tuple[int, ...]
    what: str

    def before(self, boundary: int) -> NDArray:
        r"""The errors of the entries whose top level :math:`k + \ell` lies below ``boundary``."""
        return np.array([self.errors[i, j] for i, j in self._entries(boundary)])

    def _entries(self, boundary: int) -> Iterator[tuple[int, int]]:
        for i, row in enumerate(self.rows):
            for j, level in enumerate(self.levels):
                if not math.isnan(self.errors[i, j]) and row + level < boundary:
                    yield i, j

    def to_json(self) -> dict[str, Any]:
        """Plain lists; entries without a level are None."""
        errors = [[None if math.isnan(e) else float(e) for e in row] for row in self.errors]
        return {"what": self.what, "rows": list(self.rows), "levels": list(self.levels), "errors": errors}

    def __str__(self) -> str:
        head = f"{self.what:>12} | " + " ".join(f"{f'k={k}':>9}" for k in self.levels)
        lines = [head, "-" * len(head)]
        for row, errors in zip(self.rows, self.errors, strict=True):
            cells = (" " * 9 if math.isnan(e) else f"{e:9.2e}" for e in errors)
            lines.append(f"{row:>12} | " + " ".join(cells))
        return "\n".join(lines)


@torch.no_grad()
def equivariance_error(
    model: Model,
    image: Tensor,
    *,
    downscaling: str | Callable[[Tensor, int], Tensor] = "cascade",
    shifts: Sequence[int] | None = None,
    **lift_arguments: Any,
) -> EquivarianceTable:
    r"""The paper's equation "error" for a network :math:`\Phi` from images to scale-spaces.

    .. math:: L(c^{-\ell}, k) = \frac{\|\Phi[f](k+\ell, c^\ell \cdot) - \Phi[S_{c^{-\ell}}[f]](k, \cdot)\|_2}
                                     {\|\Phi[f](k+\ell, c^\ell \cdot)\|_2}

    The *image* is downscaled and lifted again.

    Args:
        model: maps ``(B, C, *spatial)`` to a ScaleSpace; a module is put into evaluation mode meanwhile.
        image: the image :math:`f`.
        downscaling: ``"cascade"`` is :math:`D^\ell`, the generator; ``"direct"`` the paper's
            :math:`S_{c^{-\ell}}`; ``"pillow"`` Pillow's antialiased bicubic resize, on the same grid; or a function
            of the image and :math:`\ell`.
        shifts: the :math:`\ell` of the rows; all that leave a level when left out.
        **lift_arguments: base, zero_scale, kernel and padding_mode of the downscaling; read off the model's
            :class:`~scalespaces.nn.Lift` (or :class:`~scalespaces.nn.CausalLift`) when it has one.

    Example:
        >>> image = torch.rand(1, 1, 64, 64, dtype=torch.float64)
        >>> lift = lambda f: scalespaces.lift(f, num_levels=3, method="cascade", sampling="pyramid")
        >>> float(np.nanmax(equivariance_error(lift, image).errors)) < 1e-12
        True
    """
    with _evaluating(model):
        whole = _run(model, image)
        shrink = _downscaling(model, whole, downscaling, lift_arguments)
        rows = tuple(range(1, whole.num_levels)) if shifts is None else tuple(shifts)
        numbers = tuple(range(whole.first_level, whole.first_level + whole.num_levels))
        errors = np.full((2, len(rows), len(numbers)), math.nan)
        for i, n in enumerate(rows):
            expected, got = scale_shift(whole, n), _run(model, shrink(image, n))
            for j in range(expected.num_levels):
                errors[:, i, j] = _difference(expected.levels[j], got.levels[j])
    return EquivarianceTable(errors[0], errors[1], rows, numbers, "l")


@torch.no_grad()
def translation_error(
    model: Model, image: Tensor, *, translations: Sequence[int] | None = None, margin: float = 0.25
) -> EquivarianceTable:
    r"""How far the network is from commuting with translations by 1, 2, 4 ... pixels along the last axis.

    Level :math:`k` of the network on the moved image is compared with level :math:`k` on the image, read at the moved
    position: by linear interpolation where that lies between samples.

    Args:
        model: maps images to scale-spaces.
        image: the image, wide enough to be cut into windows that moved.
        translations: in pixels; powers of the base up to the last level's when left out.
        margin: part of each side of a level that is left out, because of the borders; what a level sees of the image
            must be smaller, or borders are measured.
    """
    with _evaluating(model):
        if translations is None:
            space = _run(model, image)
            last = space.first_level + space.num_levels - 1
            base = space.base if isinstance(space.base, float) else 2.0
            translations = sorted({max(round(base**k), 1) for k in range(last + 1)})
        widest = max(translations)
        width = image.shape[-1] - widest
        if width < 2:
            raise ValueError(f"an image {image.shape[-1]} wide cannot be moved by {widest} pixels; use a larger one")
        still = _run(model, image[..., :width])
        if still.causal:
            raise ValueError("a causal space is counted back from its end, which moves with the window")
        numbers = tuple(range(still.first_level, still.first_level + still.num_levels))
        errors = np.full((2, len(translations), len(numbers)), math.nan)
        for i, move in enumerate(translations):
            moved = _run(model, image[..., move : move + width])
            for j, level in enumerate(still.levels):
                size = level.shape[-1]
                offset = move / (still.steps[j] * still.unit[-1])
                expected = sample(level, level.ndim - 1, 1.0, offset, size)
                first = math.ceil(margin * size)
                inner = slice(first, max(first, size - math.ceil(margin * size + offset)))
                if len(range(size)[inner]):
                    errors[:, i, j] = _difference(expected[..., inner], moved.levels[j][..., inner])
    return EquivarianceTable(errors[0], errors[1], tuple(translations), numbers, "translation")


def assert_equivariant(
    model: Model,
    image: Tensor,
    *,
    tolerance: float = 1e-5,
    truncated: int = 0,
    shifts: Sequence[int] | None = None,
    **lift_arguments: Any,
) -> None:
    """Fail unless every sample of every level agrees, borders included, when the image is downscaled by ``D``.

    Args:
        model: maps images to scale-spaces.
        image: the image.
        tolerance: largest difference at any sample, relative to the largest value of its level.
        truncated: how many of the last levels see past the end of the scale-space, and are left out: the sum of
            ``k - 1`` over the layers, or 0 with ``scale_padding="valid"``.
        shifts: as in :func:`equivariance_error`.
        **lift_arguments: as in :func:`equivariance_error`.
    """
    table = equivariance_error(model, image, shifts=shifts, **lift_arguments)
    entries = list(table._entries(table.levels[-1] + 1 - truncated))
    if not entries:
        raise ValueError(f"no level is left to compare: {len(table.levels)} levels, {truncated} truncated")
    worst = max(entries, key=lambda entry: table.largest[entry])
    if not table.largest[worst] <= tolerance:
        row, level = table.rows[worst[0]], table.levels[worst[1]]
        raise AssertionError(
            f"not equivariant: downscaled by base**{row}, level {level} differs by {table.largest[worst]:.3g} of its "
            f'largest value, more than {tolerance:g}. Lifts are exact with method="cascade" and the arguments of the '
            f"downscaling, at levels whose filters see no truncation (truncated={truncated}). "
            f"Relative L2 errors:\n{table}"
        )


def _run(model: Model, image: Tensor) -> ScaleSpace:
    out = model(image)
    if not isinstance(out, ScaleSpace):
        raise TypeError(
            f"the model must return a ScaleSpace, whose levels are compared, got {type(out).__name__}; cut it off "
            "before its levels are pooled"
        )
    return out


def _difference(expected: Tensor, got: Tensor) -> tuple[float, float]:
    if expected.ndim != got.ndim or expected.shape[:2] != got.shape[:2]:
        raise ValueError(f"outputs to compare have shapes {tuple(expected.shape)} and {tuple(got.shape)}")
    if any(abs(a - b) > 1 for a, b in zip(expected.shape[2:], got.shape[2:], strict=True)):
        raise ValueError(f"grids to compare have shapes {tuple(expected.shape[2:])} and {tuple(got.shape[2:])}")
    same = expected.shape == got.shape
    common = tuple(slice(min(a, b)) for a, b in zip(expected.shape, got.shape, strict=True))
    expected, difference = expected[common], expected[common] - got[common]
    tiny = torch.finfo(expected.dtype).tiny
    relative = difference.norm() / expected.norm().clamp_min(tiny)
    largest = difference.abs().amax() / expected.abs().amax().clamp_min(tiny) if same else torch.tensor(math.inf)
    # Neither outputs that are not finite nor samples without a counterpart agree with anything; NaN would say that
    # there is no such level.
    return float(relative.nan_to_num(math.inf, math.inf)), float(largest.nan_to_num(math.inf, math.inf))


class _evaluating:
    """A module in evaluation mode, and back."""

    def __init__(self, model: Any) -> None:
        modules = model.modules() if isinstance(model, nn.Module) else ()
        self.training = [module for module in modules if module.training]

    def __enter__(self) -> None:
        for module in self.training:
            module.training = False

    def __exit__(self, *_: object) -> None:
        for module in self.training:
            module.training = True


def _downscaling(
    model: Any, whole: ScaleSpace, downscaling: str | Callable[[Tensor, int], Tensor], arguments: dict[str, Any]
) -> Callable[[Tensor, int], Tensor]:
    if callable(downscaling):
        return downscaling
    check_choice("downscaling", downscaling, DOWNSCALINGS)
    modules = model.modules() if isinstance(model, nn.Module) else ()
    names = ("zero_scale", "stages", "padding_mode") if whole.causal else _LIFT_ARGUMENTS
    lifts = [module for module in modules if all(hasattr(module, name) for name in (*names, "num_levels"))]
    read_off = {name: getattr(lifts[0], name) for name in names} if lifts else {}
    arguments = {"base": whole.base, **read_off, **arguments}
    if whole.causal:
        if downscaling != "cascade":
            raise ValueError(f'a causal space has no downscaling but "cascade", got {downscaling!r}; pass a function')
        return lambda signal, n: causal_downscale(signal, n, **arguments)
    if downscaling == "pillow":
        return lambda image, n: _resize(image, arguments["base"] ** n)
    return lambda image, n: downscale(image, n, method=downscaling, **arguments)


def _resize(image: Tensor, factor: float) -> Tensor:
    """Pillow's antialiased bicubic resize, onto samples at multiples of ``factor``."""
    pillow = require("PIL.Image", "plot")
    if image.ndim != 4:
        raise ValueError(f"Pillow resizes images (B, C, H, W), got shape {tuple(image.shape)}")
    size = [math.floor((n - 1) / factor + 1e-9) + 1 for n in image.shape[2:]]
    # Pillow's pixels are squares, ours are points in their middle: a square around the first point, as large as a
    # pixel of the result, starts outside the image.
    edge = math.ceil(factor) + 1
    array = pad(image.float().cpu(), [(edge, edge)] * 2, "reflect").numpy()
    start = edge + 0.5 - factor / 2
    box = (start, start, start + factor * size[1], start + factor * size[0])
    out = np.empty((*image.shape[:2], *size))
    for index in np.ndindex(*image.shape[:2]):
        plane = pillow.fromarray(array[index])
        out[index] = np.asarray(plane.resize((size[1], size[0]), pillow.Resampling.BICUBIC, box=box))
    return torch.as_tensor(out).to(image)
