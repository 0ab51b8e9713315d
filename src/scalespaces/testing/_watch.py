"""Running a model while its lifts are watched: which levels of the output see which lifted levels."""

import math
import threading
import warnings
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from scalespaces.space import ScaleSpace

LIFT_ARGUMENTS = ("zero_scale", "kernel", "padding_mode", "truncation")
CAUSAL_ARGUMENTS = ("zero_scale", "stages", "padding_mode")
_LIFTS = (LIFT_ARGUMENTS, CAUSAL_ARGUMENTS)  # by which lifts are recognized; this package may not import the layers
ROUNDINGS = 16  # of its largest value: how much a channel may always differ, whatever the tolerance


class Watched:
    """A model that runs in evaluation mode while its lifts are watched.

    ``lifts`` has the lifts of the last run and their outputs. One level of a lift can be hidden: it is replaced by NaN,
    which spreads to everything that depends on it. The hooks are on all modules, since a model may be a function.
    """

    def __init__(self, model: Callable[[Tensor], Any]) -> None:
        scores = getattr(model, "scores", None)
        self.call: Any = scores if callable(scores) and not isinstance(scores, nn.Module) else model
        self.lifts: list[tuple[nn.Module, ScaleSpace]] = []
        self.hidden: tuple[int, int] | None = None
        self.training: list[nn.Module] = []
        self.thread = threading.get_ident()

    def __enter__(self) -> Self:
        owner = getattr(self.call, "__self__", self.call)
        for module in owner.modules() if isinstance(owner, nn.Module) else ():
            self._evaluate(module)
        self.hooks = register_module_forward_pre_hook(self._evaluate), register_module_forward_hook(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self.hooks:
            hook.remove()
        for module in self.training:
            module.training = True

    def __call__(self, image: Tensor, hidden: tuple[int, int] | None = None) -> ScaleSpace:
        """Run the model, with one level hidden: (index of the lift, number of the level)."""
        self.lifts, self.hidden = [], hidden
        with warnings.catch_warnings():  # the downscaled image is lifted to as many levels as the image
            warnings.filterwarnings("ignore", ".*that a single sample is left", UserWarning)
            out = self.call(image)
        if not isinstance(out, ScaleSpace):
            kind = type(out).__name__
            raise TypeError(f"the model must return a ScaleSpace, or have a method scores(image) that does; got {kind}")
        if any(level.is_complex() for level in out.levels):
            raise TypeError("levels must be real to be compared, got complex ones; return torch.view_as_real of them")
        return out

    def _evaluate(self, module: nn.Module, *_: object) -> None:
        if module.training and threading.get_ident() == self.thread:
            module.training = False
            self.training.append(module)

    def _see(self, module: nn.Module, _: object, out: Any) -> Any:
        is_lift = any(all(hasattr(module, name) for name in ("num_levels", *names)) for names in _LIFTS)
        if threading.get_ident() != self.thread or not isinstance(out, ScaleSpace) or not is_lift:
            return None
        if self.hidden is not None and self.hidden[0] == len(self.lifts):
            index = self.hidden[1] - out.first_level
            out = out.replace(tuple(x * math.nan if k == index else x for k, x in enumerate(out.levels)))
        self.lifts.append((module, out))
        return out


def level_numbers(x: ScaleSpace) -> range:
    return range(x.first_level, x.first_level + x.num_levels)


def levels_outside(watched: Watched, image: Tensor) -> tuple[dict[int, str], str]:
    """Levels that cannot be exact and why, found by hiding lifted levels; and how levels differ in what they see."""
    plain, left_out, uneven = watched(image), {}, ""
    for lift, (_, lifted) in enumerate(watched.lifts):
        seen: dict[int, list[int]] = {k: [] for k in level_numbers(plain)}
        for number in level_numbers(lifted):
            out = watched(image, hidden=(lift, number))
            for k, above in seen.items():
                if not same_values(out.level(k), plain.level(k)).all():
                    above.append(number - k)
        last, reach = level_numbers(lifted)[-1], max((above[-1] for above in seen.values() if above), default=-math.inf)
        for k, above in seen.items():
            if k < 0:
                left_out[k] = "finer than the image"
            elif above and k + above[0] < 0:
                left_out[k] = f"reaches down to level {k + above[0]}, finer than the image"
            elif k + reach > last:
                left_out[k] = f"filters reach past the last lifted level, {last}"
        kept = {k: above for k, above in seen.items() if k not in left_out}
        for k, above in kept.items():
            if above != kept[min(kept)]:
                uneven = f"level {min(kept)} sees lifted levels k + {kept[min(kept)]}, but level {k} sees k + {above}"
    return left_out, uneven


def other_image(image: Tensor) -> Tensor:
    """Another image of the same kind: the negative, flipped. For a constant image it is the same image."""
    axes = tuple(range(2, image.ndim))
    return (image.amin(axes, keepdim=True) + image.amax(axes, keepdim=True) - image).flip(axes)


def same_values(x: Tensor, y: Tensor) -> Tensor:
    """Where outputs agree up to rounding, which depends on where in memory tensors happen to lie."""
    x, y, precision = x.double(), y.double(), torch.finfo(y.dtype).eps if y.is_floating_point() else 0.0
    close = (x - y).abs() <= ROUNDINGS * precision * y.nan_to_num(0.0, 0.0, 0.0).abs().amax()
    return close | (x == y) | (x.isnan() & y.isnan())
