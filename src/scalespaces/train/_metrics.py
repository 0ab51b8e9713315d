"""Metrics for classes of images or of their pixels, built on torchmetrics (extra ``train``)."""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scalespaces._extras import require
from scalespaces.theory._arguments import check_integer

torchmetrics: Any = require("torchmetrics", "train")
classification: Any = require("torchmetrics.classification", "train")

Found = dict[str, Any]  # metrics by name, fit for JSON: None if unknown, and a dictionary for each class


class _Metrics(nn.Module):
    """Names of the classes, checks of the arguments, and the confusion matrix.

    A metric is None if it is undefined or not finite. Scores that are NaN count as 0, and means leave out classes that
    do not occur.
    """

    names: tuple[str, ...]  # of the metrics over all classes; the first is shown unless another one is chosen
    pixels: tuple[int, ...] = ()  # of an image, if they have classes; any size will do
    update: Any  # takes in a batch of logits and targets
    _found: Any

    def __init__(self, num_classes: int, class_names: Sequence[str], ignore_index: int | None) -> None:
        super().__init__()
        self.num_classes = check_integer("num_classes", num_classes, 2)
        self.class_names = tuple(class_names) or tuple(map(str, range(num_classes)))
        self.ignore_index = ignore_index
        if len(self.class_names) != num_classes or len(set(self.class_names)) < num_classes:
            raise ValueError(f"class_names must be {num_classes} different names, got {list(class_names)}")
        self.confusion = classification.MulticlassConfusionMatrix(num_classes, validate_args=False)

    def reset(self) -> None:
        """Forget all batches."""
        children: Any = self.children()
        for metric in children:
            metric.reset()

    def compute(self) -> Found:
        """The metrics of all batches, and of all processes within :mod:`torch.distributed`."""
        if not self.confusion.update_called:  # so that the states of all processes have the same form
            target = torch.zeros(0, *self.pixels, dtype=torch.int64, device=self.confusion.device)
            self.update(torch.zeros(0, self.num_classes, *self.pixels, device=target.device), target)
        return self._found(self.confusion.compute().cpu())

    def _per_class(self, **columns: Sequence[Any]) -> dict[str, Found]:
        return {name: {key: column[n] for key, column in columns.items()} for n, name in enumerate(self.class_names)}

    def _check(self, logits: Tensor, target: Tensor) -> Tensor:
        """Refuse shapes and classes that do not fit; return which targets count."""
        if logits.shape[1] != self.num_classes or target.shape != logits[:, 0].shape:
            shapes = f"{tuple(logits.shape)} and {tuple(target.shape)}"
            raise ValueError(f"logits are (B, {self.num_classes}, ...) and target is (B, ...), got {shapes}")
        counts = torch.ones_like(target, dtype=torch.bool) if self.ignore_index is None else target != self.ignore_index
        wrong = target[counts & ((target < 0) | (target >= self.num_classes))]
        if len(wrong):
            ignored = "" if self.ignore_index is None else f" or {self.ignore_index}"
            raise ValueError(f"classes are 0 to {self.num_classes - 1}{ignored}, got {int(wrong[0])}")
        return counts


class ClassificationMetrics(_Metrics):
    """Accuracy, area under the ROC curve, and negative log-likelihood of classes of images.

    For two classes, ``auroc`` is that of class 1's probability; for more, the mean over classes of each one against the
    rest. ``nll`` is the mean cross-entropy, in nats. Each class has its accuracy (recall), its ``auroc`` and its
    support, the number of its images. Logits are ``(B, classes)``.
    """

    names = ("accuracy", "auroc", "nll")

    def __init__(self, num_classes: int, class_names: Sequence[str] = ()) -> None:
        super().__init__(num_classes, class_names, None)
        self.auroc = classification.MulticlassAUROC(num_classes, average="none", validate_args=False)
        self.nll = torchmetrics.MeanMetric(nan_strategy=math.nan)  # so that NaN stays NaN

    def update(self, logits: Tensor, target: Tensor) -> None:
        self._check(logits, target)
        # In float32, probabilities that are near enough to 1 become 1 and lose their order.
        logits = logits.detach().to(torch.float32 if logits.device.type == "mps" else torch.float64)
        probabilities = logits.softmax(1).nan_to_num(0)
        self.confusion.update(probabilities.argmax(1), target)
        self.nll.update(F.cross_entropy(logits, target, reduction="none").float())
        self.auroc.update(probabilities, target)

    def _found(self, confusion: Tensor) -> Found:
        support = confusion.sum(1)
        # Without positives or without negatives there is no curve.
        curves = (support > 0) & (support < support.sum())
        aurocs: list[float | None] = [None] * self.num_classes
        if curves.any():
            with warnings.catch_warnings(action="ignore"):  # about the classes without a curve
                areas = self.auroc.compute().tolist()
            aurocs = [_number(area) if there else None for area, there in zip(areas, curves, strict=True)]
        accuracy, *recalls = _ratios([confusion.trace(), *confusion.diag()], [support.sum(), *support])
        return {
            "accuracy": accuracy,
            "auroc": aurocs[1] if self.num_classes == 2 else _mean(aurocs),
            "nll": _number(self.nll.compute()),
            "per_class": self._per_class(accuracy=recalls, auroc=aurocs, support=support.tolist()),
        }


class SegmentationMetrics(_Metrics):
    r"""Average precision, intersection over union and accuracy of classes of pixels.

    ``average_precision`` is the mean over classes of :math:`\sum_n (R_n - R_{n+1}) P_n`, with precision :math:`P_n`
    and recall :math:`R_n` of the pixels whose probability is at least :math:`n / (\mathtt{thresholds} - 1)`.
    Probabilities are counted in as many bins, so memory does not grow with the number of pixels. ``mean_iou`` is the
    mean over classes of the intersection of the true and the predicted pixels, divided by their union. Each class has
    ``average_precision``, ``iou`` and support, the number of its pixels. Pixels of the class ``ignore_index`` are not
    counted. Logits are ``(B, classes, H, W)`` and targets ``(B, H, W)``.
    """

    names = ("average_precision", "mean_iou", "accuracy")
    pixels = (1, 1)

    def __init__(
        self, num_classes: int, class_names: Sequence[str] = (), *, ignore_index: int = 255, thresholds: int = 200
    ) -> None:
        super().__init__(num_classes, class_names, ignore_index)
        self.histograms = Histograms(num_classes, check_integer("thresholds", thresholds, 2))

    def update(self, logits: Tensor, target: Tensor) -> None:
        counts = self._check(logits, target)
        probabilities = logits.detach().float().softmax(1).nan_to_num(0)
        self.confusion.update(probabilities.max(1).indices[counts], target[counts])  # argmax is three times slower
        self.histograms.update(probabilities, torch.where(counts, target, -1))

    def _found(self, confusion: Tensor) -> Found:
        support, right = confusion.sum(1), confusion.diag()
        precisions = [p if n else None for p, n in zip(self.histograms.compute().tolist(), support, strict=True)]
        # A class that does not occur has no intersection, even if it was predicted.
        unions = torch.where(support > 0, support + confusion.sum(0) - right, 0)
        accuracy, *ious = _ratios([right.sum(), *right], [support.sum(), *unions])
        return {
            "average_precision": _mean(precisions),
            "mean_iou": _mean(ious),
            "accuracy": accuracy,
            "per_class": self._per_class(average_precision=precisions, iou=ious, support=support.tolist()),
        }


class Histograms(torchmetrics.Metric):
    """Average precision in one pass; torchmetrics needs one pass per threshold, a hundred times slower for 200."""

    counts: Tensor

    def __init__(self, num_classes: int, bins: int) -> None:
        super().__init__()
        self.bins = bins
        self.add_state("counts", torch.zeros(num_classes, 2, bins, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, probabilities: Tensor, target: Tensor) -> None:
        """Count probabilities ``(B, classes, H, W)``, where the target is not negative."""
        apart = torch.where(target < 0, 2 * self.bins, 0).int()
        for c, counts in enumerate(self.counts):
            index = (probabilities[:, c] * (self.bins - 1)).int().add_(apart).add_((target == c) * self.bins)
            counts += index.flatten().bincount(minlength=3 * self.bins)[: 2 * self.bins].view(2, -1)

    def compute(self) -> Tensor:
        """The average precision of each class; 0 for a class that does not occur."""
        above = self.counts.double().flip(-1).cumsum(-1)  # with a probability of at least each threshold, from above
        positive, both = above[:, 1], above.sum(1)
        precision = positive / both.clamp(min=1)
        recall = positive / positive[:, -1:].clamp(min=1)
        return (recall.diff(dim=-1, prepend=torch.zeros_like(recall[:, :1])) * precision).sum(-1)


def _number(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def _ratios(parts: Sequence[Tensor], wholes: Sequence[Tensor]) -> list[float | None]:
    return [float(part) / float(whole) if whole else None for part, whole in zip(parts, wholes, strict=True)]


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None
