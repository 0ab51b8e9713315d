"""torch's normalizations, linear layers, ReLU and factories on scale-spaces."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from scalespaces.foreign._register import each, instead_of, name_of
from scalespaces.functional import scale_batch_norm
from scalespaces.space._levelwise import apply
from scalespaces.space._space import ScaleSpace, check_space


@instead_of("batch_norm")
def _batch_norm(func: Callable, input: Any, *args: Any, **kwargs: Any) -> ScaleSpace:
    _check_channels(input, func, [0, 1])
    return scale_batch_norm(input, *args, **kwargs)


@instead_of("instance_norm")
def _instance_norm(
    func: Callable, input: Any, running_mean: Any = None, *args: Any, use_input_stats: bool = True, **kwargs: Any
) -> ScaleSpace:
    _check_channels(input, func, [0, 1])
    if use_input_stats and running_mean is not None:
        raise ValueError("instance_norm would update running statistics at every level; turn track_running_stats off")
    return apply(func, (input, running_mean, *args), {"use_input_stats": use_input_stats, **kwargs})


@instead_of("group_norm", "linear")
def _on_channels(func: Callable, input: Any, *args: Any, **kwargs: Any) -> ScaleSpace:
    _check_channels(input, func, [-1] if func.__name__ == "linear" else [0, 1])
    return apply(func, (input, *args), kwargs)


@instead_of("layer_norm", "rms_norm")
def _layer_norm(func: Callable, input: Any, normalized_shape: Any, *args: Any, **kwargs: Any) -> ScaleSpace:
    _check_channels(input, func, range(-len(normalized_shape), 0))
    return apply(func, (input, normalized_shape, *args), kwargs)


@instead_of("matmul", "mm", "bmm", "__matmul__")
def _matmul(func: Callable, input: Any, other: Any, **kwargs: Any) -> ScaleSpace:
    if isinstance(input, ScaleSpace):
        _check_channels(input, func, [-1])
    if isinstance(other, ScaleSpace):
        _check_channels(other, func, [-2] if other.ndim > 1 else [-1])
    return apply(func, (input, other), kwargs)


def _check_channels(x: Any, func: Callable, axes: Sequence[int]) -> None:
    """Refuse functions whose parameters belong to spatial axes."""
    taken = [a for a in x.axes if a in [b % x.ndim for b in axes]] if isinstance(x, ScaleSpace) else []
    if any(shape[a] != 1 for shape in x.shapes for a in taken):
        rule = f"{name_of(func)} takes axes {[a % x.ndim for a in axes]} of levels of shapes {x.shapes} for channels"
        why = "its weights would belong to positions of one size; permute the channels there first"
        raise ValueError(f"{rule}, but space is at {x.axes}: {why}")


@instead_of("expand", "new_zeros", "new_ones", "new_full", "new_empty")
def _fresh(func: Callable, input: Any, *args: Any, **kwargs: Any) -> ScaleSpace:
    """Given sizes need not be those of a grid."""
    x = check_space(input)
    levels = each(func, x, *args, **kwargs)
    same = x.dims and x.ndim == levels[0].ndim
    if same and all(tuple(new.shape[a] for a in x.axes) == x.sizes(k) for k, new in enumerate(levels)):
        return x.on(levels)
    return x.on(levels, x.grid.flatten())


@instead_of("relu")
def _relu(func: Callable, input: Any, inplace: bool = False) -> ScaleSpace:
    """The most frequent call of all, without the checks of ``F.relu``."""
    relu = torch.relu_ if inplace else torch.relu
    return check_space(input).on([relu(level) for level in input.levels])
