"""Trust: levels combined by how far each one's view can be believed."""

import torch
from torch import Tensor
from torch.nn import functional as F

from scalespaces.functional._pool import check_channels
from scalespaces.functional._resample import resample
from scalespaces.space._space import ScaleSpace, check_space

STATISTICS, SIZE = 8, 4  # channels of level_statistics, and the one with the root mean square of the features
_LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


def level_statistics(scores: ScaleSpace, features: ScaleSpace) -> ScaleSpace:
    r"""What each level shows of its own reliability, :math:`\phi_k`: eight numbers per image, or per pixel.

    Of the scores :math:`z_k`: the largest, their log-sum-exp, and of :math:`\mathrm{softmax}(z_k)` the entropy and the
    largest probability. Of the features, over their channels: root mean square, mean, share of non-zeros and standard
    deviation. Where scores have no pixels, features are averaged over theirs first; where their grid is coarser than
    that of the scores, they are interpolated. Every level is treated alike, so the statistics shift with the levels.
    """
    check_channels(check_space(scores))
    if scores.num_levels != check_space(features).num_levels:
        raise ValueError(f"scores and features need the same levels, got {scores.num_levels} and {features.num_levels}")
    return scores.on([_describe(*pair) for pair in zip(scores.levels, features.levels, strict=True)])


def _describe(scores: Tensor, features: Tensor) -> Tensor:
    if scores.ndim == 2 or features.ndim == 2:  # of whole images
        features = features.flatten(2).mean(2) if features.ndim > 2 else features
        features = features.reshape(*features.shape, *[1] * (scores.ndim - 2)).expand(-1, -1, *scores.shape[2:])
    elif features.shape[2:] != scores.shape[2:]:
        features = F.interpolate(features, scores.shape[2:], mode=_LINEAR[scores.ndim - 2])
    log_p, tiny = scores.log_softmax(1), 1e-12  # keeps the gradients of roots finite
    p = log_p.exp()
    of_scores = [scores.amax(1), scores.logsumexp(1), -(p * log_p).sum(1), p.amax(1)]
    size, spread = (x.add(tiny).sqrt() for x in (features.square().mean(1), features.var(1, correction=0)))
    return torch.stack([*of_scores, size, features.mean(1), (features != 0).to(scores.dtype).mean(1), spread], 1)


def trust(scores: ScaleSpace, confidence: ScaleSpace, *, return_scale: bool = False) -> Tensor | tuple[Tensor, Tensor]:
    r"""Mix what the levels say, weighted by how far each is trusted.

    .. math:: \log p(y) = \log \sum_k w_k\, \mathrm{softmax}(z_k)(y), \qquad w = \mathrm{softmax}_k(g_k)

    If :math:`g_k` is the same function of every level's view (:class:`scalespaces.nn.Trust`), a shift of the levels
    shifts the weights, and the answer changes by at most the weight of the levels that enter or leave at the ends.

    Args:
        scores: :math:`z_k`, levels of shape (B, classes) or (B, classes, \*spatial).
        confidence: :math:`g_k`, levels of one channel.
        return_scale: also return the number of the level that says most for each class, :math:`w_k p_k(y)`.

    Returns:
        Log-probabilities, on the grid of level 0.

    Example:
        >>> scores = scalespaces.ScaleSpace([torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 3.0]])])
        >>> first = scores.replace([torch.tensor([[9.0]]), torch.tensor([[0.0]])])  # believe the first level
        >>> trust(scores, first).exp()
        tensor([[0.8807, 0.1193]])
    """
    check_channels(check_space(scores))
    check_space(confidence)
    if confidence.num_levels != scores.num_levels or any(level.shape[1] != 1 for level in confidence.levels):
        given = f"levels of shapes {confidence.shapes} for {scores.num_levels} levels"
        raise ValueError(f"the confidence has one channel, and the levels of the scores, got {given}")
    weights = torch.stack(resample(confidence).levels).log_softmax(0)
    joint = weights + torch.stack(resample(scores).levels).log_softmax(2)
    out = joint.logsumexp(0)
    return (out, joint.argmax(0) + scores.first_level) if return_scale else out
