"""Any model on the levels of images, with the parameters it has."""

from __future__ import annotations

import bisect
import copy
from typing import Any

import torch
from torch import Tensor, nn

from scalespaces._choices import SCALE_MODES, SCALE_PADDINGS
from scalespaces._torch import NormBase, hint
from scalespaces.functional import scale_pool as pool_levels
from scalespaces.functional._lift import check_images
from scalespaces.models._gather import gather, grids_of, map_spaces
from scalespaces.models._modules import CONVOLUTIONS, ConversionError, Interaction, choose, explain, refuse, replace
from scalespaces.models._network import LiftLike, ScaleNetwork, evaluating, first_channels, plain
from scalespaces.nn import Lift, ScaleBatchNorm, ScalePool
from scalespaces.nn._base import Layer
from scalespaces.nn._lift import as_lift
from scalespaces.nn._norm import TensorBatchNorm
from scalespaces.space import Grid, ScaleSpace
from scalespaces.space._grid import make_grid
from scalespaces.space._numbers import count
from scalespaces.space._space import place
from scalespaces.space._strict import strictly
from scalespaces.theory._arguments import check_choice, check_integer, did_you_mean

_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_MOST_GRIDS = 64  # that are remembered, of as many sizes of images


def convert(
    model: nn.Module,
    lift: LiftLike = None,
    *,
    interaction: Interaction = None,
    scale_padding: str = "zeros",
    scale_pool: str = "image",
    pool_before: str | None = None,
    features: str | None = None,
    smallest_level: int | None = None,
) -> Converted:
    r"""Turn an ordinary model :math:`\Phi` into one that is equivariant to scale, with the same parameters.

    .. math:: \hat\Phi[f]_k = \Phi[f_k], \qquad f_k = D^k f

    On a pyramid the model runs on one level after the other, so any model that takes images of several sizes will do:
    CNNs, transformers, detection backbones. Level :math:`k` is bit for bit what the model computes from :math:`D^k f`,
    and level 0 what it computes from the image. The model is copied. Parameters keep their names, after ``model.``;
    those that ``interaction`` selects get one more axis.

    Some settings need all levels at once: ``interaction``, ``pool_before``, another sampling than a pyramid, and
    training, if batch norms take statistics (over all levels). The model's own code then runs on a
    :class:`~scalespaces.space.ScaleSpace`, and its convolutions, poolings and normalizations have taps :math:`c^k`
    apart at level :math:`k`. What cannot run so raises an error that names the module, the line and the reason. (A test
    ``type(x) is Tensor`` cannot be detected.)

    Args:
        model: from images to tensors, or nests of them: dictionaries, lists, tuples, dataclasses.
        lift: how images become levels: a :class:`~scalespaces.nn.Lift`, or a dict of arguments that differ from the
            recommended ones. ``Lift()``, with the spatial axes of the model, when left out.
        interaction: convolutions that get a filter of two levels, the second of which starts at zero: ``"all"``,
            patterns of names (``["layer4.*.conv2"]``), or a function of name and module.
        scale_padding: what those convolutions see past the last level.
        scale_pool: how levels are combined at the end. ``"image"`` answers with level 0: in evaluation the model runs
            on the image alone and its answer is unchanged; in training it is the mean, so that all levels learn.
            Others are ``"mean"``, ``"max"``, ``"logsumexp"``, ``"probabilities"`` and ``"trust"``, which
            :func:`~scalespaces.models.calibrate` fits.
        pool_before: the name of a module; levels are combined in front of it instead. ``pool_before="fc"`` combines the
            features of a classifier, not its logits.
        features: the name of the module whose input are the features; the last linear layer when left out.
        smallest_level: levels with a side of fewer samples are left out. When left out, it is found by trying, as soon
            as a level turns out to be too small for the model.

    Example:
        >>> cnn = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, stride=2), torch.nn.ReLU(),
        ...                           torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 5))
        >>> network, image = scalespaces.convert(cnn, {"num_levels": 3}), torch.rand(1, 3, 64, 64)
        >>> network.scores(image).num_levels
        3
        >>> torch.equal(network.eval()(image), cnn(image))
        True
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected an nn.Module to convert, got {type(model).__name__}")
    modules = dict(model.named_modules())
    check_choice("scale_padding", scale_padding, SCALE_PADDINGS)
    check_choice("scale_pool", scale_pool, SCALE_MODES)
    if smallest_level is not None:
        check_integer("smallest_level", smallest_level, 1)
    for argument, name in (("pool_before", pool_before), ("features", features)):
        if name is not None and name not in modules:
            raise ValueError(f"{argument} is the name of a module, got {name!r}{did_you_mean(name, modules)}")
    if pool_before is not None and scale_pool == "trust":
        raise ValueError("trust weighs the levels by their scores; leave out pool_before")
    convs: list[Any] = [module for module in modules.values() if isinstance(module, CONVOLUTIONS)]
    axes = [getattr(conv, "dims", 0) or len(conv.kernel_size) for conv in convs]  # some attend to channels with fewer
    lift = as_lift(lift, {"dims": max(axes)} if axes else {})
    spread = lift.num_levels > 1 and lift.sampling not in ("pyramid", 1)
    needs = {"interaction": interaction, "pool_before": pool_before, f"sampling={lift.sampling!r}": spread or None}
    refuse(modules, next((name for name, value in needs.items() if value is not None), ""))
    chosen = choose(modules, interaction, lift.dims, scale_padding)
    config: dict[str, Any] = {"lift": plain(lift.config), "interaction": chosen or None, "scale_padding": scale_padding}
    config |= {"scale_pool": scale_pool, "pool_before": pool_before, "features": features}
    config["smallest_level"] = smallest_level
    lift, parameter = Lift(**lift.config), next(model.parameters(), None)
    if parameter is not None and parameter.is_floating_point():
        lift = lift.to(parameter.device, parameter.dtype if parameter.dtype.itemsize >= 4 else None)
    return Converted(lift, replace(copy.deepcopy(model), chosen, scale_padding), config)


class Converted(ScaleNetwork):
    """A model on the levels of images, made by :func:`convert`: a lift, the model, and levels combined at the end.

    Every ScaleSpace in the model's output, which may be nested, is combined on the grid of level 0; :meth:`outputs`
    returns them before that. ``config`` has the arguments of :func:`convert`.
    """

    def __init__(self, lift: Lift, model: nn.Module, config: dict[str, Any]) -> None:
        super().__init__()
        self.lift, self.model, self.config, self.scale_pool = lift, model, config, ScalePool(config["scale_pool"])
        self.in_channels, self.training = first_channels(model), model.training
        self._combines_inside = False
        self._grids: dict[tuple, list[Grid | None]] = {}
        if config["pool_before"] is not None:
            model.get_submodule(config["pool_before"]).register_forward_pre_hook(self._combine_inputs)

    @property
    def smallest_side(self) -> int:
        """The least side of a level that the model takes, once it is known. Smaller levels are left out."""
        return self.config["smallest_level"] or 1

    def forward(self, image: Tensor) -> Any:
        """Run the model on all levels, and combine them; on the image alone if that is what answers."""
        if self._mode() == "image" and self._is_apart():
            return self.model(check_images(image, self.lift.dims))
        if self._mode() == "trust":
            return self.combine(*self.scores_and_features(image))
        return map_spaces(self._run(image, combine=True), self.combine)

    def outputs(self, image: Tensor) -> Any:
        """The model's output before levels are combined: every tensor of it is a ScaleSpace."""
        return self._run(image)

    def scores(self, image: Tensor) -> ScaleSpace:
        """Each level's own answer; the model's output must be one tensor, not a nest of them."""
        return self._check_scores(self._run(image))

    def answer_and_scores(self, image: Tensor) -> tuple[Any, ScaleSpace]:
        """The answer and each level's own, computed together unless levels are combined inside the model."""
        trust = self.scale_pool.mode == "trust"
        scores, features = self.scores_and_features(image) if trust else (self.scores(image), None)
        return self.combine(scores, features) if self.config["pool_before"] is None else self(image), scores

    def features(self, image: Tensor) -> ScaleSpace:
        """The input of the model's last linear layer, or of the module that ``features`` of the config names."""
        return self._watch(image)[1]

    def scores_and_features(self, image: Tensor) -> tuple[ScaleSpace, ScaleSpace]:
        """The scores and the features of every level, computed together."""
        output, features = self._watch(image)
        return self._check_scores(output), features

    def combine(self, scores: ScaleSpace, features: ScaleSpace | None = None) -> Any:
        """From the scores of levels (and their features, for ``"trust"``) to one answer."""
        if self.scale_pool.mode == "image":  # in training, what has a mean
            return pool_levels(scores, self._mode() if _is_poolable(scores) else "image")
        return self.scale_pool(_check_grids(scores), features)

    def _mode(self) -> str:
        """How levels are combined: with ``"image"`` by the mean in training, so that all of them learn."""
        return "mean" if self.training and self.scale_pool.mode == "image" else self.scale_pool.mode

    def _combine_inputs(self, module: nn.Module, inputs: tuple) -> tuple:
        """The hook of ``pool_before``."""
        return map_spaces(inputs, self.combine) if self._combines_inside else inputs

    def _check_scores(self, output: object) -> ScaleSpace:
        if not isinstance(output, ScaleSpace):
            given = f"got a {type(output).__name__}; take what you need of network.outputs(image)"
            raise TypeError(f"scores are for models with a single output, {given}")
        return output if self.scale_pool.mode == "image" else _check_grids(output)

    def _is_apart(self) -> bool:
        """Whether levels know nothing of each other: no layers of ours, no statistics over all levels."""

        def joins(module: nn.Module) -> bool:
            if isinstance(module, NormBase) and module.training:
                return module.track_running_stats or not isinstance(module, _INSTANCE_NORMS)
            return isinstance(module, Layer | ScaleBatchNorm) and not isinstance(module, TensorBatchNorm)

        return not self.config["interaction"] and not any(map(joins, self.model.modules()))

    def _watch(self, image: Tensor) -> tuple[Any, ScaleSpace]:
        """The model's output for every level, and the features."""
        modules = list(self.model.named_modules())
        names = [name for kind in (CONVOLUTIONS, nn.Linear) for name, module in modules if isinstance(module, kind)]
        name = self.config["features"] or next(reversed(names), None)
        if name is None:
            raise ValueError("the model has no linear layer to take features from; name one: convert(features=...)")
        output, features = self._run(image, watched=name)
        if not isinstance(features, ScaleSpace):
            raise ValueError(f"{name!r} is not called with one tensor; name another module: convert(features=...)")
        return output, features

    def _run(self, image: Tensor, *, combine: bool = False, watched: str | None = None) -> Any:
        """The model's output for every level; with the name of a module to watch, that and the module's input."""
        x = self._large(self.lift(image))
        plain = self.config["pool_before"] is None and all(map(x.grid.is_plain, range(x.num_levels)))
        run = self._one_by_one if plain and self._is_apart() else self._together
        if torch.compiler.is_compiling():
            if self.config["pool_before"] is not None:
                self._combines_inside = combine
            return run(x, watched)
        while True:
            try:
                self._combines_inside = combine
                return run(x, watched)
            except (torch.OutOfMemoryError, ConversionError):
                raise
            except Exception as error:
                together = run == self._together
                said = explain(error, self.model, together, norms=together and plain and not self.config["interaction"])
                self._find_smallest(x, together, said, error)
                fewer = self._large(x)
                if fewer.num_levels == x.num_levels:
                    raise ConversionError(said) from error
                x = fewer

    def _one_by_one(self, x: ScaleSpace, watched: str | None) -> Any:
        """Run the model on one level after the other."""
        parts = []
        if torch.compiler.is_compiling():
            parts = [self._call(level, watched) for level in x.levels]
        for k, level in enumerate(x.levels[len(parts) :]):
            try:
                parts.append(self._call(level, watched))
            except Exception as error:
                error.add_note(f"at level {k + x.first_level}, of shape {tuple(level.shape)}")
                raise
        return gather(parts, x, lambda: self._grids_of_strided(x, watched))

    def _together(self, x: ScaleSpace, watched: str | None) -> Any:
        """Run the model on the scale-space, for layers that look at several levels and for spread taps."""
        if torch.compiler.is_compiling():
            return self._call(x, watched)
        with strictly():
            return self._call(x, watched)

    def _call(self, x: Tensor | ScaleSpace, watched: str | None) -> Any:
        """Call the model; with the name of a module to watch, return its input, too."""
        if watched is None:
            return self.model(x)
        seen: list[object] = [None]
        watch = self.model.get_submodule(watched).register_forward_pre_hook
        hook = watch(lambda module, inputs: seen.extend(inputs[:1]))
        try:
            return self.model(x), seen[-1]
        finally:
            hook.remove()

    def _grids_of_strided(self, x: ScaleSpace, watched: str | None) -> list[Grid | None]:
        """Where samples of strided maps lie, which only a run on a scale-space tells; nothing if there can be none."""
        key = (x.grid, watched, tuple(hint(n) for k in range(x.num_levels) for n in x.sizes(k)))
        if key not in self._grids and torch.compiler.is_compiling():
            return grids_of(self._together(x, watched))
        if key not in self._grids:
            if len(self._grids) >= _MOST_GRIDS:
                self._grids.clear()
            zeros = x.on([torch.zeros_like(level[:1]) for level in x.levels])
            try:
                with torch.no_grad(), evaluating(self.model):
                    self._grids[key] = grids_of(self._together(zeros, watched))
            except Exception:  # what is not written for scale-spaces may raise any
                self._grids[key] = []
        return self._grids[key]

    def _large(self, x: ScaleSpace) -> ScaleSpace:
        """The levels that are large enough for the model, as far as that is known; the image's own always is."""
        small = self.config["smallest_level"]
        if small is None or not isinstance(x.base, float):
            return x
        sides = [min(hint(count(n, x.spacing(k))) for n in x.sizes(k)) for k in range(x.num_levels)]
        return x.keep(max(1 - x.first_level, sum(side >= small for side in sides)))

    def _find_smallest(self, x: ScaleSpace, together: bool, said: str, error: Exception) -> None:
        """Find by trying the least side of square images that the model takes: a level may have been too small."""
        zero = x.level(0)
        if self.config["smallest_level"] is not None or x.num_levels == 1 - x.first_level:
            return

        def fits(side: int) -> bool:
            image = zero.new_zeros(1, zero.shape[1], *[side] * x.dims)
            try:
                self.model(place([image], make_grid(1, image.ndim, x.base)) if together else image)
            except Exception as error:  # models raise errors of many kinds
                return isinstance(error, torch.OutOfMemoryError)
            return True

        self._combines_inside, side = False, min(zero.shape[2:])
        with torch.no_grad(), evaluating(self.model):
            if not fits(side):
                return
            least = 1 + bisect.bisect_left(range(1, side), True, key=fits)
            # A model that takes some larger sizes and not others has no least side, and is refused.
            wrong = next((n for n in (least + 1, least + 2, 2 * least + 1) if not fits(n)), None)
        if wrong is None:
            self.config["smallest_level"] = least
            return
        ways = "use images whose levels have sizes that it takes, or a model for any size"
        if any(type(module).__module__.startswith("timm.") for module in self.model.modules()):
            ways += ": timm's ViT, DeiT and the like with dynamic_img_size=True, dynamic_img_pad=True, its Swin with "
            ways += "strict_img_size=False"
        takes = f"the model takes images of {least} x {least}, but not of {wrong} x {wrong}"
        raise ConversionError(f"{said}\n{takes}, and levels have many sizes; {ways}") from error

    def extra_repr(self) -> str:
        parts = [f"{name}={self.config[name]}" for name in ("interaction", "smallest_level") if self.config[name]]
        if self.scale_pool.mode == "image":
            parts.append("answers with level 0, the image: calibrate it, or pass scale_pool=...")
        return ", ".join(parts)


def _is_poolable(x: ScaleSpace) -> bool:
    """Whether levels can be brought to one shape."""
    return bool(x.dims) or all(shape == x.shapes[0] for shape in x.shapes)


def _check_grids(x: ScaleSpace) -> ScaleSpace:
    """Refuse levels that cannot be brought to one shape."""
    if not _is_poolable(x):
        levels = f"levels of shapes {x.shapes} and with no grids cannot be pooled"
        raise ConversionError(f"{levels} to one output; take them from network.outputs(image)")
    return x
