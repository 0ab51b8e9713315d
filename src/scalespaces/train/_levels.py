"""One answer from many levels: how they are supervised in training, and combined in evaluation."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scalespaces.functional import scale_pool
from scalespaces.models import ScaleNetwork
from scalespaces.models._network import on_image
from scalespaces.space import ScaleSpace

LevelPool = Literal["model", "mean", "max", "logsumexp", "probabilities"]
Supervision = Literal["answer", "mean", "apart"]


def answer(model: nn.Module, images: Tensor, pool: LevelPool = "model") -> Tensor:
    r"""The logits of a network, with its levels combined as asked.

    ``"model"`` is the network's own answer, which any network has. The others combine the scores of its levels, see
    :func:`~scalespaces.functional.scale_pool`.

    Shape:
        - images: :math:`(B, C, H, W)`
        - Output: :math:`(B, classes)` or :math:`(B, classes, H, W)`

    Example:
        >>> model = scalespaces.models.create_model("s_densenet").eval()
        >>> images = torch.rand(2, 3, 96, 96)
        >>> torch.allclose(answer(model, images), answer(model, images, "mean"), atol=1e-6)
        True
    """
    if pool == "model":
        return model(images)
    combined: Any = scale_pool(level_scores(model, images), pool)
    return combined


def level_scores(model: nn.Module, images: Tensor) -> ScaleSpace:
    """Each level's own logits: levels of ``(B, classes)``, or of ``(B, classes, H, W)`` at the images' pixels."""
    if not isinstance(model, ScaleNetwork):
        raise ValueError(
            f"this needs a network with levels, got a {type(model).__name__}; convert it with scalespaces.convert, or "
            "use the pool 'model'"
        )
    return on_image(model.scores(images), images.shape[2:])


def supervise(model: nn.Module, images: Tensor, target: Tensor, how: Supervision, ignore_index: int = -100) -> Tensor:
    r"""The cross-entropy to be averaged, summed over all targets that are not ignored.

    ``"answer"`` supervises the network's own answer; ``"mean"`` the mean of its levels' logits, so that every level
    learns; ``"apart"`` every level by itself, the mean of :math:`S` losses.
    """
    if how not in get_args(Supervision):
        raise ValueError(f"levels are supervised by one of {', '.join(get_args(Supervision))}, got {how!r}")
    if how == "apart":
        levels = level_scores(model, images).levels
        losses = [F.cross_entropy(level, target, ignore_index=ignore_index, reduction="sum") for level in levels]
        return torch.stack(losses).mean()
    logits = answer(model, images, "model" if how == "answer" else "mean")
    return F.cross_entropy(logits, target, ignore_index=ignore_index, reduction="sum")
