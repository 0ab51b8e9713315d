"""Measure networks at several scales, compared with the usual ways to handle scale, and their cost.

For every network, method and scale, a batch goes through ``at_scale`` (resizes it, and resizes masks back), the method
(plain, or ``MultiScale``: several scales), ``class_scores`` (the answer, with its levels pooled) and metrics to a row.
"""

import itertools
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from scalespaces._choices import Baselines, LevelPool
from scalespaces._progress import Progress
from scalespaces._tables import text_table
from scalespaces.data import ImageDataset
from scalespaces.data._keys import Part
from scalespaces.models import Card, ScaleNetwork
from scalespaces.models._calibrate import check_scales
from scalespaces.models._network import ImageTooSmallError, evaluating
from scalespaces.theory._arguments import check_choice, check_integer
from scalespaces.train._batches import same_shape, worker_options
from scalespaces.train._predict import channels_of, class_scores, describe_answers, device_called, to_input
from scalespaces.train._scales import MultiScale, at_scale

Method = Callable[[Tensor], Tensor]  # from images to logits
Point = tuple[float, str, float]  # the scale of a row, its set, and the factor by which that was resized
METHODS = {"plain": "", "tta": " + TTA", "select": " + selection"}  # how scale is handled, after the network's name


@dataclass
class Row:
    """One network at one scale."""

    model: str
    method: str  # one of METHODS
    split: str
    resize: float  # the factor by which images were resized
    scale: float  # of the set, times the factor
    images: int
    metrics: dict[str, Any] | None = None  # None if the images were too small
    seconds_per_image: float | None = None  # the median over batches
    cost: float | None = None  # the same, relative to the first network of one level, or to the first one
    note: str | None = None  # why there are no metrics
    run: str | None = None  # which of several networks of that name, trained with other seeds

    @property
    def label(self) -> str:
        """The network and how scale was handled."""
        return self.model + METHODS[self.method]

    def value(self, metric: str) -> float | None:
        """A metric over all classes."""
        return None if self.metrics is None else self.metrics[metric]


@dataclass(frozen=True)
class Evaluation:
    """All that was measured: a row for each network, method, set and scale."""

    rows: Sequence[Row]
    metric: str  # the one that tables and plots show
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # facts about the networks
    settings: Mapping[str, Any] = field(default_factory=dict)

    def lines(self) -> dict[str, list[tuple[float, float | None]]]:
        """The metric over scales, by network and method; also by set, if several sets were resized several times."""
        apart = len({row.split for row in self.rows}) > 1 and len({row.resize for row in self.rows}) > 1
        lines: dict[str, list[tuple[float, float | None]]] = {}
        for label, found in self.cells().items():
            for (scale, split, _), rows in found.items():
                values = _values(rows, self.metric)
                point = (scale, statistics.fmean(values) if values else None)
                lines.setdefault(f"{label}, {split}" if apart else label, []).append(point)
        return {label: sorted(points, key=lambda point: point[0]) for label, points in lines.items()}

    def __str__(self) -> str:
        """The metric, with a row for each network and method, a column for each scale, and the median cost."""
        notes = [f"- {row.label}, {row.split}: {row.note}" for row in self.rows if row.note is not None]
        return "\n".join([self.table(self.metric), *notes])

    @property
    def metrics(self) -> list[str]:
        """The names of all metrics over all classes, the one to show first."""
        found = next((row.metrics for row in self.rows if row.metrics is not None), {})
        return [self.metric, *(name for name in found if name not in (self.metric, "per_class"))]

    def cells(self) -> dict[str, dict[Point, list[Row]]]:
        """The rows, by network and method, and then by scale; several where networks of a name were measured."""
        found: dict[str, dict[Point, list[Row]]] = {}
        for row in self.rows:
            found.setdefault(row.label, {}).setdefault((row.scale, row.split, row.resize), []).append(row)
        return found

    def table(self, metric: str) -> str:
        """The same for any metric, without notes. Networks of one name are one line: mean and standard deviation."""
        return text_table(self.summary(metric, lambda value: f"{value:.4f}", ".2f"))

    def summary(self, metric: str, write: Callable[[float], str], cost: str) -> list[list[str]]:
        """The cells of a table, the head first; numbers and costs are written as these say."""
        cells = self.cells()
        points = sorted({point for found in cells.values() for point in found})
        ambiguous = len({scale for scale, _, _ in points}) < len(points)
        heads = [f"{split} x{resize:g}" if ambiguous else f"{scale:g}" for scale, split, resize in points]
        lines = [[metric, *heads, "cost"]]
        for label, found in cells.items():
            texts = [mean_and_spread(_values(found.get(point, ()), metric), write) for point in points]
            costs = [row.cost for rows in found.values() for row in rows if row.cost is not None]
            lines.append([label, *texts, f"{statistics.median(costs):{cost}}x" if costs else "-"])
        return lines

    def to_json(self) -> dict[str, Any]:
        """Everything, classes and settings included, as plain values; None stands for an unknown value."""
        return {
            **{name: version(name) for name in ("scalespaces", "torch", "torchmetrics")},
            "settings": dict(self.settings),
            "metric": self.metric,
            "models": {name: dict(about) for name, about in self.models.items()},
            "results": [asdict(row) for row in self.rows],
        }


def mean_and_spread(values: Sequence[float], write: Callable[[float], str]) -> str:
    """The mean, and the standard deviation if there are several values."""
    more = f" ± {write(statistics.stdev(values))}" if len(values) > 1 else ""
    return f"{write(statistics.fmean(values))}{more}" if values else "-"


def _values(rows: Sequence[Row], metric: str) -> list[float]:
    return [value for row in rows if (value := row.value(metric)) is not None]


def merge(found: Sequence[Evaluation], names: Mapping[str, str]) -> Evaluation:
    """Evaluations together. Networks get these names, by their own; those of one name are runs of one network."""
    counts = Counter(names.values())
    rows = [row for one in found for row in one.rows]
    for row in rows:
        row.run = row.model if counts[names.get(row.model, row.model)] > 1 else row.run
        row.model = names.get(row.model, row.model)
    about = {names.get(name, name): facts for one in found for name, facts in one.models.items()}
    _compare_costs(rows, about)
    return Evaluation(rows, found[0].metric, about, found[0].settings)


def _compare_costs(rows: Sequence[Row], about: Mapping[str, Mapping[str, Any]]) -> None:
    """Costs relative to the first network of one level, or to the first."""
    first = next((name for name, facts in about.items() if facts["levels"] == 1), next(iter(about)))
    base: dict[Any, float] = {}
    for row in rows:
        if (row.model, row.method) == (first, "plain") and row.seconds_per_image is not None:
            base.setdefault((row.split, row.resize), row.seconds_per_image)
    for row in rows:
        seconds, other = row.seconds_per_image, base.get((row.split, row.resize))
        row.cost = seconds / other if seconds is not None and other else None


def evaluate(
    models: nn.Module | Mapping[str, nn.Module],
    data: ImageDataset | Mapping[str, ImageDataset],
    *,
    scales: Sequence[float] = (1.0,),
    tta: Sequence[float] = (),
    select: Sequence[float] = (),
    baselines: Baselines = "one-level",
    pool: LevelPool = "model",
    classes: int | Sequence[str] | None = None,
    batch: int = 64,
    device: str | torch.device = "cpu",
    workers: int = 0,
    limit: int | None = None,
    tile: int | None = None,
    ignore_index: int = 255,
    metric: str | None = None,
) -> Evaluation:
    """Measure networks at several scales, alone and with the usual ways to handle scale.

    Images are resized by each of the ``scales`` first. Where every pixel has a class, answers are resized back and
    compared with the whole mask. If images are too small for a network at a scale, a note replaces the metrics.

    Costs are seconds per image, the median over batches, without the first resizing and normalization.

    Args:
        models: one, or several by name; moved to the device, and run in evaluation mode.
        data: images with their classes or masks, or several such sets by name. A set with a name like ``test_0.5`` has
            that scale, as :func:`~scalespaces.data.unseen_scales` names them; others have scale 1.
        scales: factors by which images are resized, bicubic.
        tta: scales of test-time augmentation, which averages the probabilities; none by default.
        select: scales from which the one with the lowest entropy is selected; none by default.
        baselines: which networks ``tta`` and ``select`` are for: those with one level, or all.
        pool, tile: as in :func:`predict`.
        classes: of the data: their names, or their number. By default, the networks' own.
        batch: images per batch, if they have the same size; one where every pixel has a class.
        device: cpu, cuda or mps, or ``"auto"`` for the best available.
        workers: processes that read images.
        limit: measure only this many images of each set, evenly spread over it.
        ignore_index: the number in masks for pixels that are not counted.
        metric: the one that tables and plots show: accuracy, auroc or nll of images; average_precision, mean_iou or
            accuracy of pixels.

    Example:
        >>> images, labels = scalespaces.data.digits()
        >>> model = scalespaces.models.create_model("cnn", channels=(8, 8), kernel_size=3)
        >>> found = evaluate(model, scalespaces.data.ArrayImages(images, labels), scales=[1, 2], limit=50)
        >>> [(row.scale, row.images) for row in found.rows]
        [(1.0, 50), (2.0, 50)]
    """
    from scalespaces.train._metrics import ClassificationMetrics, SegmentationMetrics

    networks = {"model": models} if isinstance(models, nn.Module) else dict(models)
    sets = {"data": data} if isinstance(data, ImageDataset) else dict(data)
    if not networks or not sets:
        raise ValueError(f"at least one network and one set of images are needed, got {len(networks)}, {len(sets)}")
    check_choice("baselines", baselines, get_args(Baselines))
    check_choice("pool", pool, get_args(LevelPool))
    check_integer("batch", batch, 1)
    factors = list(dict.fromkeys(check_scales(scales)))
    where = device_called(str(device))
    parts = {name: _part(name, dataset, limit) for name, dataset in sets.items()}
    dense = next(iter(parts.values()))[0][1].ndim == 2
    kind: Any = partial(SegmentationMetrics, ignore_index=ignore_index) if dense else ClassificationMetrics
    known = SegmentationMetrics.names if dense else ClassificationMetrics.names
    metric = known[0] if metric is None else check_choice("metric", metric, known)
    ways = {method: given for method, given in (("tta", tta), ("select", select)) if given}
    if ways and baselines != "all" and all(num_levels(network) > 1 for network in networks.values()):
        raise ValueError(f"{next(iter(ways))} is for networks with one level, got none; use baselines='all'")
    rows, about = [], {}
    with ExitStack() as stack:
        for network in networks.values():
            stack.enter_context(evaluating(network.to(where)))
        stack.enter_context(torch.inference_mode())
        names = _class_names(networks, parts, classes, dense)
        methods: dict[tuple[str, str], Method] = {}
        for name, network in networks.items():
            levels, parameters = num_levels(network), sum(p.numel() for p in network.parameters())
            about[name] = {"network": type(network).__name__, "levels": levels, "parameters": parameters}
            plain = partial(class_scores, network, pixels=dense, pool="model" if levels == 1 else pool, tile=tile)
            methods[name, "plain"] = plain
            for method, given in ways.items() if levels == 1 or baselines == "all" else ():
                methods[name, method] = MultiScale(plain, given, "mean" if method == "tta" else "select")
        for split, part in parts.items():
            cells = []
            for ((name, method), run), factor in itertools.product(methods.items(), factors):
                row = Row(name, method, split, factor, set_scale(split) * factor, len(part))
                cells.append(_Cell(row, run, kind(len(names), names).to(where)))
            _measure(cells, networks, part, 1 if dense else batch, workers)
            rows += [cell.finish() for cell in cells]
    if all(row.metrics is None for row in rows):
        raise ValueError(f"no network can answer for these images: {rows[0].note}")
    settings = {"scales": factors, "tta": list(tta), "select": list(select), "baselines": baselines, "pool": pool}
    settings |= {"classes": list(names), "batch": batch, "device": str(where), "limit": limit, "tile": tile}
    settings |= {"threads": torch.get_num_threads()}
    _compare_costs(rows, about)
    return Evaluation(rows, metric, about, settings)


def set_scale(name: str) -> float:
    """The scale of a set named after it, test_0.5, or the geometric mean of a range, test_1-4; 1 for other names."""
    try:
        low, _, high = name.rpartition("_")[2].partition("-")
        scale = math.sqrt(float(low) * float(high or low))
    except ValueError:
        return 1.0
    return scale if 0 < scale < math.inf else 1.0


def num_levels(model: nn.Module) -> int:
    """The number of levels of a network; 1 if it has no scale-space."""
    return model.lift.num_levels if isinstance(model, ScaleNetwork) else 1


def _part(name: str, dataset: ImageDataset, limit: int | None) -> Part:
    """The images to measure."""
    available = len(dataset)
    number = available if limit is None else min(check_integer("limit", limit, 1), available)
    if not number:
        raise ValueError(f"there are no images in the set {name!r}")
    return Part(dataset, [i * available // number for i in range(number)])


def _class_names(
    networks: Mapping[str, nn.Module], parts: Mapping[str, Part], classes: int | Sequence[str] | None, dense: bool
) -> tuple[str, ...]:
    """The names of the classes, if networks and data agree on them, and on the channels of images."""
    given = () if classes is None or isinstance(classes, int) else tuple(classes)
    number, names = classes if isinstance(classes, int) else len(given) or None, given
    for name, network in networks.items():
        channels = channels_of(network)
        for split, part in parts.items():
            if (found := len(part[0][0])) != channels:
                raise ValueError(f"{name!r} takes images of {channels} channels, but those of {split!r} have {found}")
        own, of_pixels = describe_answers(network)
        if of_pixels != dense:
            kinds = ("images as a whole", "every pixel")
            raise ValueError(f"{name!r} answers for {kinds[of_pixels]}, but the data have classes for {kinds[dense]}")
        if number is not None and len(own) != number:
            raise ValueError(f"{name!r} answers with {len(own)} classes, but the data have {number}")
        if given and own != given and (Card.of(network).classes or set(own) == set(given)):
            raise ValueError(f"{name!r} has the classes {', '.join(own)}, but the data {', '.join(given)}")
        number, names = len(own), names or own
    return names


class _Cell:
    """A row that is being measured."""

    def __init__(self, row: Row, method: Method, metrics: Any) -> None:
        self.row, self.method, self.metrics = row, method, metrics
        self.seconds: list[float] = []

    def update(self, images: Tensor, target: Tensor) -> None:
        """Take in a batch, unless images were too small."""
        if self.row.note is None:
            try:
                self.metrics.update(at_scale(self._timed, images, self.row.resize), target)
            except ImageTooSmallError as error:
                self.row.note = str(error)

    def _timed(self, images: Tensor) -> Tensor:
        start = _clock(images.device)
        found = self.method(images)
        self.seconds.append((_clock(images.device) - start) / len(images))
        return found

    def finish(self) -> Row:
        if self.row.note is None:
            self.row.metrics = self.metrics.compute()
            self.row.seconds_per_image = statistics.median(self.seconds[1:] or self.seconds)  # the first warms up
        return self.row


def _measure(cells: Sequence[_Cell], networks: Mapping[str, nn.Module], part: Part, batch: int, workers: int) -> None:
    """Show all images of a set to all networks. Each image is read once."""
    loader = DataLoader(part, batch, collate_fn=list, **worker_options(workers))
    with Progress(f"evaluating {cells[0].row.split}", len(part) * len(cells), " answers") as progress:
        for samples in loader:
            for group in same_shape([image for image, _ in samples]):
                images, target = (torch.stack([samples[i][n] for i in group]) for n in (0, 1))
                inputs = {name: to_input(network, images) for name, network in networks.items()}
                for cell in cells:
                    seen = inputs[cell.row.model]
                    cell.update(seen, target.to(seen.device))
                    progress.add(len(images))


def _clock(device: torch.device) -> float:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()
