"""How levels are combined in evaluation, and supervised in training; and trust, which is fitted after it."""

from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scalespaces._choices import SCALES, LevelPool, Supervision
from scalespaces._files import open_tensors
from scalespaces.data import ImageDataset, to_unit
from scalespaces.functional import scale_pool
from scalespaces.functional._resample import on_image
from scalespaces.models import Card, ScaleNetwork, calibrate, save
from scalespaces.models._calibrate import FEWEST, Calibration
from scalespaces.models._network import strongest_level
from scalespaces.nn import ScalePool
from scalespaces.space import ScaleSpace
from scalespaces.theory._arguments import check_choice

POOL = "scale_pool."  # the prefix of the parameters of trust
_MOST_IMAGES, _MOST_NUMBERS = 500, 2**28  # that trust is fitted to; a gigabyte


def answer(model: nn.Module, images: Tensor, pool: LevelPool = "model") -> Tensor:
    """The logits of a network, ``(B, classes)`` or ``(B, classes, H, W)``: its own answer, or its levels' pooled."""
    if pool == "trust" and not (isinstance(model, ScaleNetwork) and model.scale_pool.mode == "trust"):
        way = "fit it with scalespaces.calibrate, or with the command scalespaces calibrate"
        raise ValueError(f"the pool 'trust' needs a network that has learned which levels to trust; {way}")
    own = pool in ("model", "trust")
    combined: Any = model(images) if own else scale_pool(level_scores(model, images), pool)
    return combined


def answer_and_level(model: nn.Module, images: Tensor, pool: LevelPool = "model") -> tuple[Tensor, Tensor | None]:
    """The logits ``(B, classes)``, and the level that says most for the predicted class of each image, ``(B,)``.

    That is the one with the highest score, times its weight if levels are combined by trust. There is none if the
    network has one level, answers with that of the image, or combines levels before their scores.
    """
    if not isinstance(model, ScaleNetwork) or pool != "model" or model.config.get("pool_before") is not None:
        return answer(model, images, pool), None
    if model.lift.num_levels == 1 or model.scale_pool.mode == "image":
        return answer(model, images), None
    if model.scale_pool.trust is not None:
        scores, features = model.scores_and_features(images)
        logits, level = model.scale_pool.trust(scores, features, images.shape[2:], return_scale=True)
        return logits, level.gather(1, logits.argmax(1, keepdim=True))[:, 0]
    logits, scores = model.answer_and_scores(images)
    return logits, strongest_level(logits, scores, (1, 1))[:, 0, 0]


def says_image_only(model: nn.Module) -> str | None:
    """A note about a network of several levels that answers with one of them, the image's own."""
    if not isinstance(model, ScaleNetwork) or model.scale_pool.mode != "image" or model.lift.num_levels == 1:
        return None
    return "the answer is that of level 0, the image itself; scalespaces calibrate lets all levels answer"


def level_scores(model: nn.Module, images: Tensor) -> ScaleSpace:
    """Each level's own logits: levels of ``(B, classes)``, or of ``(B, classes, H, W)`` at the images' pixels."""
    if not isinstance(model, ScaleNetwork):
        way = "convert it with scalespaces.convert, or use the pool 'model'"
        raise ValueError(f"this needs a network with levels, got a {type(model).__name__}; {way}")
    return on_image(model.scores(images), images.shape[2:])


def supervise(
    model: nn.Module,
    images: Tensor,
    target: Tensor,
    how: Supervision,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """The cross-entropy of the answer, of the mean of levels, or of levels apart; the sum over targets not ignored."""
    entropy: Any = partial(F.cross_entropy, ignore_index=ignore_index, reduction="sum", label_smoothing=label_smoothing)
    check_choice("supervise", how, get_args(Supervision))
    if how == "apart":
        levels = level_scores(model, images).levels
        losses = [entropy(level, target) for level in levels]
        return torch.stack(losses).mean()
    logits = answer(model, images, "model" if how == "answer" else "mean")
    return entropy(logits, target)


def combine_by(network: ScaleNetwork, mode: str) -> None:
    """Let the network combine the scores of its levels in another way."""
    if network.lift.num_levels < 2 or network.config.get("pool_before") is not None:
        way = "use model.lift.num_levels, and no model.convert.pool_before"
        raise ValueError(f"levels.pool trust weighs the scores of several levels, and the network has one; {way}")
    if network.scale_pool.mode != mode:
        network.scale_pool = ScalePool(mode).to(next(network.parameters()).dtype)
        network.config = network.config | {"scale_pool": mode}


def fit_trust(
    network: ScaleNetwork, file: Path, images: ImageDataset, batch: int, seed: int, device: torch.device
) -> Calibration:
    """Fit trust to the network whose weights are in the file, and save it there."""
    with open_tensors(file) as stored:
        state = {name: stored.get_tensor(name) for name in stored.keys() if not name.startswith(POOL)}  # noqa: SIM118
    network.load_state_dict(state, assign=True)
    network.to(device, next(network.parameters()).dtype)
    size, card = images[0][0].shape, Card.of(network)
    count = min(_MOST_IMAGES, len(images), max(FEWEST, _MOST_NUMBERS // size.numel()))
    views = [images[n * len(images) // count] for n in range(count)]
    shown, labels = [card.normalize(to_unit(image)) for image, _ in views], [label for _, label in views]
    scales = [scale for scale in SCALES if round(min(size[1:]) * scale) >= network.smallest_side]
    found = calibrate(network, shown, labels, scales=scales, batch=min(16, batch), seed=seed)
    save(network, file)
    return found
