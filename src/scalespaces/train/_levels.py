"""One answer of many levels: how they are supervised while training, and pooled when asked."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LevelPool = Literal["model", "mean", "max", "logsumexp", "probabilities"]
Supervision = Literal["answer", "mean", "apart"]


def answer(model: nn.Module, images: Tensor, pool: LevelPool = "model") -> Tensor:
    r"""The logits of a network, with its levels pooled as asked for.

    ``"model"`` is the network's own answer, which any network has. The others pool the logits :math:`f_k` of its
    levels: their mean, their maximum, :math:`\log \frac1S \sum_k e^{f_k}`, or the mean of their probabilities,
    :math:`\log \frac1S \sum_k \mathrm{softmax}(f_k)`.

    Shape:
        - images: :math:`(B, C, H, W)`
        - Output: :math:`(B, classes)` or :math:`(B, classes, H, W)`

    Example:
        >>> model = scalespaces.models.create_model("s_densenet", sampling="pyramid", method="cascade").eval()
        >>> images = torch.rand(2, 3, 96, 96)
        >>> torch.allclose(answer(model, images), answer(model, images, "mean"), atol=1e-6)
        True
    """
    return model(images) if pool == "model" else pool_levels(level_answers(model, images), pool)


def level_answers(model: nn.Module, images: Tensor) -> Tensor:
    """The logits of every level, ``(S, B, classes, ...)``."""
    method: Any = getattr(model, "level_answers", None)
    if method is None:
        raise ValueError(
            f"levels are pooled of networks that have them, got a {type(model).__name__}; use the pool 'model', or "
            "scalespaces.convert the network"
        )
    return method(images)


def pool_levels(answers: Tensor, pool: LevelPool) -> Tensor:
    """Pool logits ``(S, B, classes, ...)`` over their first axis.

    Example:
        >>> pool_levels(torch.tensor([[[0.0, 2.0]], [[4.0, 0.0]]]), "max")
        tensor([[4., 2.]])
    """
    if pool == "mean":
        return answers.mean(0)
    if pool == "max":
        return answers.amax(0)
    if pool == "logsumexp":
        return answers.logsumexp(0) - math.log(len(answers))
    if pool == "probabilities":
        return answers.log_softmax(2).logsumexp(0) - math.log(len(answers))
    raise ValueError(f"levels are pooled by one of {', '.join(get_args(LevelPool)[1:])}, got {pool!r}")


def supervise(model: nn.Module, images: Tensor, target: Tensor, how: Supervision, ignore_index: int = -100) -> Tensor:
    r"""The cross-entropy to be averaged, summed over all targets that are not ignored.

    ``"answer"`` supervises the network's own answer; ``"mean"`` the mean of its levels' logits, so that every level
    learns; ``"apart"`` every level by itself, the mean of :math:`S` losses.
    """
    if how == "answer":
        return F.cross_entropy(model(images), target, ignore_index=ignore_index, reduction="sum")
    answers = level_answers(model, images)
    if how == "mean":
        return F.cross_entropy(answers.mean(0), target, ignore_index=ignore_index, reduction="sum")
    if how == "apart":
        losses = [F.cross_entropy(level, target, ignore_index=ignore_index, reduction="sum") for level in answers]
        return torch.stack(losses).mean()
    raise ValueError(f"levels are supervised by one of {', '.join(get_args(Supervision))}, got {how!r}")
