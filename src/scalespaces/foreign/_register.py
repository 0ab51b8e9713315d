"""How our functions replace torch's, and what all of them need."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from scalespaces.space._grid import make_grid
from scalespaces.space._levelwise import TORCH_FUNCTIONS, level_by_level
from scalespaces.space._space import ScaleSpace, check_grid, check_space


def instead_of(*names: str) -> Callable[[Callable], Callable]:
    def register(function: Callable) -> Callable:
        TORCH_FUNCTIONS.update(dict.fromkeys(names, function))
        return function

    return register


def dims_of(func: Callable) -> int:
    return int(func.__name__[-2])  # conv2d


def name_of(func: Callable) -> str:
    return func.__name__.lstrip("_")


def as_tuple(value: Any, dims: int) -> tuple:
    """One value per axis, as torch reads its arguments."""
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    return values * dims if len(values) == 1 else values


def on_grid(x: Any, func: Callable, dims: int) -> ScaleSpace:
    """The space if windows can slide over it; one sample per level is on any grid."""
    layers = "ScaleConv1d, ScaleAvgPool and the like of scalespaces.nn"
    if check_space(x).causal:
        raise TypeError(f"torch's {name_of(func)} would look ahead in a causal space; use {layers}")
    if x.dims:
        check_grid(x)
    if x.ndim != dims + 2:
        raise ValueError(f"{name_of(func)} slides over {dims} spatial axes, got levels of shapes {x.shapes}")
    if x.dims == dims:
        return x
    if x.dims == 0 and all(n == 1 for shape in x.shapes for n in shape[2:]):
        return x.on(x.levels, make_grid(x.num_levels, x.ndim, x.base, x.steps, first_level=x.first_level))
    lost = "on a grid, which adaptive pooling or interpolation of the image as a whole has left"
    came = f"levels of shapes {x.shapes}; only pointwise layers, flatten and linear layers can follow"
    raise ValueError(f"{name_of(func)} needs neighbors {lost}: {came}")


def each(func: Callable, x: ScaleSpace, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
    return tuple(level_by_level(func, (x, *args), kwargs, x))
