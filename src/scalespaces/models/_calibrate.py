"""Fit trust to a network that stays as it is: which level to believe, learned from images at several sizes.

What is fitted follows this path::

    image ---> rescale_batch ---> scores, features ---> statistics ---> Samples ---> fit ---> network.scale_pool
               each scale         network, frozen       per level       all images   a perceptron
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from scalespaces._choices import SCALES
from scalespaces._progress import Progress
from scalespaces._tables import text_table
from scalespaces.functional._resample import on_image
from scalespaces.functional._trust import SIZE, level_statistics
from scalespaces.models._convert import Converted
from scalespaces.models._network import ImageTooSmallError, ScaleNetwork, evaluating
from scalespaces.nn import ScalePool, Trust
from scalespaces.space import ScaleSpace
from scalespaces.theory._arguments import check_integer, check_real

FEWEST = 20  # images, below which a fit says more about these images than about levels
Labels = Tensor | Sequence[int] | Sequence[Tensor] | None  # of images, or of their pixels
_PIXELS = 256  # of each image and scale, where every pixel has a class


@dataclass(frozen=True)
class Calibration:
    """What :func:`calibrate` measured: right answers at each scale before, and after for images that were not fitted.

    ``rows`` has a tuple for each scale: the scale, and the shares of right answers before and after. Without labels, an
    answer is right if it is the network's own answer at scale 1.
    """

    rows: tuple[tuple[float, float, float], ...]
    images: int
    labels: bool
    before: str

    def __str__(self) -> str:
        what = "accuracy" if self.labels else "agreement with the answer at scale 1"
        lines = [["scale", *(f"{scale:.3g}" for scale, _, _ in self.rows)]]
        for name, place in ((f"before ({self.before})", 1), ("after (trust)", 2)):
            lines.append([name, *(f"{100 * row[place]:.1f}" for row in self.rows)])
        note = "after: fitted on one half of the images and measured on the other, both ways"
        return f"{what} in %, {self.images} images\n{text_table(lines)}\n{note}"


def calibrate(
    network: ScaleNetwork,
    images: Tensor | Iterable[Tensor],
    labels: Labels = None,
    *,
    scales: Sequence[float] = SCALES,
    batch: int = 16,
    seed: int = 0,
) -> Calibration:
    """Learn which levels of a network to trust. The network stays as it is, except that it combines levels by trust.

    Every image is shown at several sizes. From the scores and features of all levels, a perceptron with 16 hidden
    units learns which levels find the right answer: see :class:`~scalespaces.nn.Trust`. Without labels, the right
    answer is the network's own at scale 1; of a converted network, that of the model it was made of. So **the images
    must show objects at the size the network was trained on**, prepared as for the network itself.

    Args:
        network: a converted network, or one by name, with several levels. Its ``scale_pool`` is replaced.
        images: tensors ``(C, H, W)`` of any size, or one ``(N, C, H, W)``, normalized as the network takes them.
        labels: the classes of the images, ``(N,)``, or of their pixels, N tensors of ``(H, W)``; none by default.
        scales: sizes to learn from, relative to the images.
        batch: images of equal size seen at once.
        seed: of all that is random. The same images and seed give the same network.

    Example:
        >>> images = torch.rand(24, 1, 32, 32)
        >>> network = scalespaces.models.create_model("s_cnn", channels=(4, 4), kernel_size=3).eval()
        >>> found = scalespaces.calibrate(network, images)
        >>> network.scale_pool.mode, len(found.rows)
        ('trust', 6)
    """
    if not isinstance(network, ScaleNetwork) or network.lift.num_levels < 2:
        came = f"a {type(network).__name__}" + (" of one level" if isinstance(network, ScaleNetwork) else "")
        raise ValueError(f"calibration chooses among the levels of a network, got {came}; use scalespaces.convert")
    shown = [image if image.ndim == 3 else image[0] for image in images]
    if len(shown) < FEWEST:
        raise ValueError(f"calibration needs {FEWEST} images at least, some 100 are better, got {len(shown)}")
    if labels is not None and len(labels) != len(shown):
        raise ValueError(f"there is one label, or one mask, for each image, got {len(labels)} for {len(shown)}")
    check_integer("batch", batch, 1)
    factors, before = sorted(set(check_scales(scales))), network.scale_pool.mode
    with torch.no_grad(), evaluating(network):
        samples = _collect(network, shown, labels, factors, batch, seed)
    # The size of the features that the network knows: of level 0, at the scale nearest to 1.
    nearest = min(range(len(factors)), key=lambda n: abs(math.log(factors[n])))
    home = samples.statistics[samples.scale == nearest, -network.lift.first_level, SIZE].mean()
    halves = torch.randperm(len(shown), generator=Generator().manual_seed(seed)) % 2
    after = torch.zeros(len(samples.target))
    for half in (0, 1):
        tested = halves[samples.image] == half
        after[tested] = samples.where(tested).right(_fit(samples.where(~tested), home, seed)).float()
    with torch.random.fork_rng(devices=[]):
        pool, like = ScalePool("trust"), next(network.parameters())
    pool.trust = _fit(samples, home, seed).to(like.device, like.dtype)
    network.scale_pool = pool.train(network.training)
    network.config = network.config | {"scale_pool": "trust"}
    shares = [[float(x[samples.scale == n].mean()) for n in range(len(factors))] for x in (samples.before, after)]
    return Calibration(tuple(zip(factors, *shares, strict=True)), len(shown), labels is not None, before)


@dataclass(frozen=True)
class _Samples:
    """What levels showed of images, or of some of their pixels, at all scales: n samples of S levels."""

    statistics: Tensor  # (n, S, 8)
    scores: Tensor  # (n, S, classes)
    present: Tensor  # (n, S): levels that were not too small for the network
    target: Tensor  # (n,)
    before: Tensor  # (n,): whether the answer was right
    image: Tensor  # (n,): the number of the image
    scale: Tensor  # (n,): the number of the scale

    def where(self, chosen: Tensor) -> _Samples:
        return _Samples(*(value[chosen] for value in vars(self).values()))

    def confidence(self, trust: Trust) -> Tensor:
        """How far each level is trusted, before the softmax; levels that are not there, not at all."""
        known = F.batch_norm(self.statistics.flatten(0, 1), trust.norm.running_mean, trust.norm.running_var)
        return trust.score(known).view(self.present.shape).masked_fill(~self.present, -torch.inf)

    def log_probabilities(self, trust: Trust) -> Tensor:
        """What each level says: (n, S, classes)."""
        return (self.scores * trust.factor(self.statistics[..., SIZE, None].clamp(min=1e-6))).log_softmax(2)

    @torch.no_grad()
    def right(self, trust: Trust) -> Tensor:
        """Whether the answers under this trust are right."""
        joint = self.confidence(trust).log_softmax(1)[..., None] + self.log_probabilities(trust)
        return joint.logsumexp(1).argmax(1) == self.target


def _collect(
    network: ScaleNetwork, images: Sequence[Tensor], labels: Labels, scales: Sequence[float], batch: int, seed: int
) -> _Samples:
    """Run the network on all images at all scales."""
    parts: list[_Samples] = []
    groups: dict[torch.Size, list[int]] = {}
    for number, image in enumerate(images):
        groups.setdefault(image.shape, []).append(number)
    like, generator = next(network.parameters()), Generator().manual_seed(seed)
    with Progress("calibrating", len(images) * len(scales), " views") as progress:
        for numbers in [group[n : n + batch] for group in groups.values() for n in range(0, len(group), batch)]:
            seen = torch.stack([images[n] for n in numbers]).to(like.device, like.dtype)
            target = _own_answer(network, seen, network.scores(seen))
            if labels is not None:
                target = torch.stack([torch.as_tensor(labels[n]) for n in numbers]).to(target)
            for index, scale in enumerate(scales):
                try:
                    parts.append(_look(network, rescale_batch(seen, scale), target, generator, numbers, index))
                except ImageTooSmallError as error:
                    raise ImageTooSmallError(f"at scale {scale:.3g}, which scales= may leave out: {error}") from error
                progress.add(len(numbers))
    levels = max(part.present.shape[1] for part in parts)

    def join(name: str) -> Tensor:
        values = [getattr(part, name) for part in parts]
        if values[0].ndim > 1:  # levels that were too small are absent from the end
            values = [F.pad(v, (*[0, 0] * (v.ndim - 2), 0, levels - v.shape[1])) for v in values]
        return torch.cat(values)

    return _Samples(*map(join, _Samples.__dataclass_fields__))


def _own_answer(network: ScaleNetwork, images: Tensor, scores: ScaleSpace) -> Tensor:
    """The classes of images, or of their pixels, that the network finds; of a converted one, the plain model."""
    answer = scores.level(0) if isinstance(network, Converted) else network(images)
    if answer.ndim > 2 and answer.shape[2:] != images.shape[2:]:
        answer = F.interpolate(answer, images.shape[2:], mode="bilinear")
    return answer.argmax(1)


def _look(
    network: ScaleNetwork, images: Tensor, target: Tensor, generator: Generator, numbers: Sequence[int], scale: int
) -> _Samples:
    """What the levels show of these images, in samples."""
    scores, features = network.scores_and_features(images)
    size, own = images.shape[2:], _own_answer(network, images, scores)
    spaces = level_statistics(scores, features), scores
    views = [torch.stack(on_image(x, size).levels, 1) for x in spaces]  # (B, S, channels[, H, W])
    if target.ndim > 1:  # of pixels
        target = F.interpolate(target[:, None].double(), size, mode="nearest-exact")[:, 0].long()
        chosen = torch.randint(size.numel(), (_PIXELS,), generator=generator).to(target.device)
        target, own = (x.flatten(1)[:, chosen].flatten() for x in (target, own))
        views = [view.flatten(3)[..., chosen].movedim(3, 1).flatten(0, 1) for view in views]
    image = torch.tensor(numbers).repeat_interleave(len(target) // len(numbers))
    present = torch.ones(views[0].shape[:2], dtype=torch.bool)
    found = [*views, present, target, (own == target).float(), image, torch.full_like(image, scale)]
    known = ((target >= 0) & (target < views[1].shape[2])).cpu()
    found = [value.float() if value.is_floating_point() else value for value in found]  # whatever the network's type
    return _Samples(*(value.cpu()[known] for value in found))


def _fit(samples: _Samples, home: Tensor, seed: int, steps: int = 400) -> Trust:
    """The perceptron and the temperature under which the right answers are most probable."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        trust = Trust()
    variance, mean = torch.var_mean(samples.statistics[samples.present], 0)
    trust.norm.load_state_dict({"running_mean": mean, "running_var": variance}, strict=False)
    trust.temperature.data, trust.exponent.data = home.clone(), torch.ones(())
    right = samples.target[:, None, None].expand(*samples.present.shape, 1)
    weights = [*trust.first.parameters(), *trust.second.parameters()]
    groups = [
        {"params": weights, "lr": 0.01, "weight_decay": 1e-3},
        {"params": [trust.temperature], "lr": 0.1 * float(home)},  # fitting the exponent too hurts at unseen scales
    ]
    optimizer = torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    said = torch.empty(0)  # by each level for the right answer
    with torch.enable_grad():
        for step in range(steps):
            optimizer.zero_grad()
            # All classes of all samples are looked at for this, so the temperature takes a tenth of the steps.
            said = said.detach() if step % 10 else samples.log_probabilities(trust).gather(2, right)[..., 0]
            (-(samples.confidence(trust).log_softmax(1) + said).logsumexp(1).mean()).backward()
            optimizer.step()
            trust.temperature.data.clamp_(min=float(home) / 10)  # never negative
            schedule.step()
    return trust.eval()


def rescale_batch(images: Tensor, scale: float) -> Tensor:
    """Resize images ``(B, C, H, W)`` by a factor: bicubic, antialiased, clamped to the range of each image."""
    check_scales([scale])
    size = tuple(max(1, round(n * scale)) for n in images.shape[2:])
    if size == images.shape[2:]:
        return images
    resized = F.interpolate(as_float(images), size, mode="bicubic", antialias=True)
    low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
    return resized.to(images.dtype).clamp(low, high)


def check_scales(scales: Sequence[float]) -> list[float]:
    """The scales, if there are any, and all are above 0."""
    if not scales:
        raise ValueError("scales has at least one scale, got none")
    return [check_real("scale", scale, "> 0", lambda s: s > 0) for scale in scales]


def as_float(x: Tensor) -> Tensor:
    """In float32 at least."""
    return x if x.dtype == torch.float64 else x.float()
