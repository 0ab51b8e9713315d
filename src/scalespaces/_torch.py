"""The private names of PyTorch that we need: if PyTorch changes one of them, fix it here."""

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor
from torch.autograd import forward_ad
from torch.nn.modules.batchnorm import _NormBase
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data._utils.collate import default_collate_fn_map

NormBase = _NormBase
"""The parameters, buffers and state dict of torch's batch normalizations."""

DispatchMode = TorchDispatchMode
"""Sees every operation while it is entered."""


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors in lists, tuples, dictionaries and scale-spaces."""
    return [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def constant(function: Callable) -> Callable:
    """Make torch.compile take the result of a function of plain numbers as it is, instead of tracing NumPy."""
    # This is torch.compiler.assume_constant_result without importing the compiler. Tensors among the results, alone or
    # in a tuple, are marked as mark_static does; otherwise their sizes could become symbols.

    @functools.wraps(function)
    def made(*arguments: Any) -> Any:
        result = function(*arguments)
        for part in result if isinstance(result, tuple) else (result,):
            if isinstance(part, Tensor):
                vars(part)["_dynamo_static_indices"] = set(range(part.ndim))
        return result

    vars(made)["_dynamo_marked_constant"] = True
    return made


def full_precision(x: Tensor) -> AbstractContextManager:
    """Keep autocast from lowering the precision of what must stay exact: the lift and pooling."""
    if x.is_meta or not torch.is_autocast_enabled(x.device.type):
        return nullcontext()
    return torch.autocast(x.device.type, enabled=False)


def is_channels_last(x: Tensor) -> bool:
    """Whether an image stores its channels next to each other, and not its columns; False under torch.vmap."""
    if x.ndim != 4 or (not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()):
        return False
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


def is_transformed() -> bool:
    """Whether operations are traced or transformed: compilers fuse formulas, and transforms take them apart."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", bool)
"""Whether torch.export is running; torch 2.6 does not tell, and fixes sizes in any case."""


def static(value: float) -> float:
    """A number that torch.compile with ``dynamic=True`` must not turn into a symbol."""
    if not torch.compiler.is_compiling():
        return value
    from torch.fx.experimental.symbolic_shapes import guard_scalar  # slow to import, unless compiling

    return guard_scalar(value)


def known_equal(a: object, b: object) -> bool:
    """Whether two sizes are equal, without adding a guard to the export if they are symbols."""
    if not (hasattr(a, "node") or hasattr(b, "node")):
        return a == b
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return a is b or bool(statically_known_true(a == b))


def hint(size: int | torch.SymInt) -> int:
    """A size, or its current value if it is a symbol."""
    return size if isinstance(size, int) else size.node.hint


def is_batched(x: Tensor) -> bool:
    """Whether this stands for many gradients at once, as in ``torch.autograd.grad(is_grads_batched=True)``."""
    return is_legacy_batchedtensor(x)


def collate_with(kind: type, function: Callable) -> None:
    """Let ``torch.utils.data.default_collate`` join samples of a type by this function."""
    default_collate_fn_map[kind] = function


def register_pytree(
    kind: type, flatten: Callable[[Any], tuple[Sequence, Any]], unflatten: Callable, names: Sequence[str] | None = None
) -> None:
    """Let torch's transforms and exports take apart objects of a type into tensors and a context of plain numbers."""

    def with_keys(x: Any) -> tuple[list, Any]:
        leaves, context = flatten(x)
        keys = map(_pytree.SequenceKey, range(len(leaves))) if names is None else map(_pytree.GetAttrKey, names)
        return list(zip(keys, leaves, strict=True)), context

    def as_tuples(context: Any) -> Any:
        return tuple(map(as_tuples, context)) if isinstance(context, list | tuple) else context

    _pytree.register_pytree_node(
        kind,
        lambda x: (list(flatten(x)[0]), flatten(x)[1]),
        unflatten,
        serialized_type_name=f"scalespaces.{kind.__name__}",
        to_dumpable_context=lambda context: context,
        from_dumpable_context=as_tuples,
        flatten_with_keys_fn=with_keys,
    )


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether hooks run before or after the module's own code."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def uncompiled(model: torch.nn.Module) -> torch.nn.Module:
    """The model that torch.compile has wrapped, or the model itself."""
    return getattr(model, "_orig_mod", model)
