"""How well networks do at several scales, compared with what people do about scale, and at what cost."""

from __future__ import annotations

import csv
import io
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from scalespaces.data import ImageDataset, to_unit
from scalespaces.data._keys import Part
from scalespaces.data._progress import Progress
from scalespaces.models import Card, ScaleNetwork
from scalespaces.theory._arguments import check_choice, check_integer, check_real
from scalespaces.train._batches import worker_options
from scalespaces.train._levels import LevelPool, answer
from scalespaces.train._predict import (
    channels_of,
    describe_answers,
    device_called,
    evaluating,
    predict_mask,
    to_input,
)
from scalespaces.train._scales import MultiScale, TooSmallError, at_scale

Baselines = Literal["one-level", "all"]
METHODS = {"plain": "", "tta": " + TTA", "select": " + selection"}
"""What is done about scale, and how a line is called of it: nothing, the mean over scales, the most certain scale."""
METRICS = {False: ("accuracy", "auroc", "nll"), True: ("average_precision", "mean_iou", "accuracy")}
"""What is measured of images as a whole, and of every pixel; the first is shown unless another is asked for."""


@dataclass(frozen=True)
class Row:
    """One network at one scale.

    Args:
        model: its name.
        method: one of ``METHODS``.
        split: the set of images.
        resize: the factor by which they were resized.
        scale: of the set, times ``resize``.
        images: how many.
        metrics: as :class:`~scalespaces.train._metrics.ClassificationMetrics` or
            :class:`~scalespaces.train._metrics.SegmentationMetrics` compute them; None if the images were too small.
        seconds_per_image: the median over batches.
        cost: the same, relative to the first network of one level at this scale, or to the first one.
        note: why there are no metrics.
    """

    model: str
    method: str
    split: str
    resize: float
    scale: float
    images: int
    metrics: dict[str, Any] | None = None
    seconds_per_image: float | None = None
    cost: float | None = None
    note: str | None = None

    @property
    def label(self) -> str:
        """The network and what was done about scale."""
        return self.model + METHODS[self.method]

    def value(self, metric: str) -> float | None:
        """A metric over all classes."""
        return None if self.metrics is None else self.metrics[metric]


@dataclass(frozen=True)
class Evaluation:
    """Networks, methods and scales: all that was measured.

    Args:
        rows: one for each.
        metric: the one that tables and pictures show.
        models: what is known of the networks, by name.
        settings: of :func:`evaluate`.
    """

    rows: Sequence[Row]
    metric: str
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def metrics(self) -> tuple[str, ...]:
        """The names of the metrics."""
        found = next(row.metrics for row in self.rows if row.metrics is not None)
        return tuple(name for name in found if name != "per_class")

    def lines(self, metric: str | None = None) -> dict[str, list[tuple[float, float | None]]]:
        """A metric over scales, by network and method; by set, too, if several sets were resized several times."""
        metric = check_choice("metric", metric or self.metric, self.metrics())
        apart = len({row.split for row in self.rows}) > 1 and len({row.resize for row in self.rows}) > 1
        lines: dict[str, list[tuple[float, float | None]]] = {}
        for row in self.rows:
            label = f"{row.label}, {row.split}" if apart else row.label
            lines.setdefault(label, []).append((row.scale, row.value(metric)))
        return {label: sorted(points, key=lambda point: point[0]) for label, points in lines.items()}

    def table(self, metric: str | None = None) -> str:
        """A metric, with a row for each network and method, a column for each scale, and the median cost."""
        metric = check_choice("metric", metric or self.metric, self.metrics())
        points = sorted({(row.scale, row.split, row.resize) for row in self.rows})
        ambiguous = len({scale for scale, _, _ in points}) < len(points)
        heads = [f"{split} x{resize:g}" if ambiguous else f"{scale:g}" for scale, split, resize in points]
        widths = [max(6, len(head)) for head in heads]
        cells: dict[str, dict[Any, Row]] = {}
        for row in self.rows:
            cells.setdefault(row.label, {})[row.scale, row.split, row.resize] = row
        first = max(map(len, [*cells, metric]))

        def line(*words: str) -> str:
            label, *middle, cost = words
            columns = " ".join(f"{word:>{width}}" for word, width in zip(middle, widths, strict=True))
            return f"{label:{first}} | {columns} | {cost:>7}"

        lines = [line(metric, *heads, "cost")]
        lines.append("-" * len(lines[0]))
        for label, found in cells.items():
            values = [found[point].value(metric) for point in points]
            costs = [row.cost for row in found.values() if row.cost is not None]
            cost = f"{statistics.median(costs):.2f}x" if costs else "-"
            lines.append(line(label, *("-" if value is None else f"{value:.4f}" for value in values), cost))
        notes = [f"- {row.label}, {row.split}: {row.note}" for row in self.rows if row.note is not None]
        return "\n".join([*lines, *notes])

    def to_json(self) -> dict[str, Any]:
        """All of it, classes and settings included: plain values, and None where there is none."""
        from importlib.metadata import version

        return {
            **{name: version(name) for name in ("scalespaces", "torch", "torchmetrics")},
            "settings": dict(self.settings),
            "metric": self.metric,
            "models": {name: dict(about) for name, about in self.models.items()},
            "results": [asdict(row) for row in self.rows],
        }

    def to_csv(self) -> str:
        """A line for each network, method, set, scale and metric; the classes' own are left to :meth:`to_json`."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["model", "method", "split", "resize", "scale", "metric", "value"])
        for row in self.rows:
            values = {name: row.value(name) for name in self.metrics()}
            values |= {"seconds_per_image": row.seconds_per_image, "cost": row.cost}
            for name, value in values.items():
                what = [row.model, row.method, row.split, row.resize, row.scale, name]
                writer.writerow([*what, "" if value is None else value])
        return text.getvalue()

    def __str__(self) -> str:
        return self.table()


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
    """Measure networks at several scales, each with what people do about scale.

    Images are resized by each of the ``scales`` first. Where every pixel has a class, answers are resized back and
    compared with the whole mask. If images are too small for a network at a scale, there is a note and no metrics.

    Costs are seconds per image, the median over batches, of all that happens after an image was resized and normalized.

    Args:
        models: one, or several by name; moved to the device, and run in evaluation mode.
        data: images with their classes or masks, or several such sets by name. A set that is named like
            ``test_0.5`` has that scale, as those of :func:`~scalespaces.data.unseen_scales`, and others have scale 1.
        scales: by which images are resized, see :func:`~scalespaces.train._scales.rescale_batch`.
        tta: scales of test-time augmentation, see :class:`~scalespaces.train._scales.MultiScale`; none when left out.
        select: scales of which the most certain is selected; none when left out.
        baselines: which networks ``tta`` and ``select`` are for: those with one level, or all.
        pool: over levels, of networks that have several; see :func:`~scalespaces.train._levels.answer`.
        classes: of the data: their names, or their number. When left out, the networks' own.
        batch: images that are seen at once, if they are of equal size; where every pixel has a class, it is one.
        device: cpu, cuda or mps, or ``"auto"`` for the best there is.
        workers: processes that read images.
        limit: measure only as many images of each set, evenly spread over it.
        tile: side of the windows through which large images are seen, where every pixel has a class; see
            :func:`~scalespaces.train._predict.predict_mask`.
        ignore_index: the number in masks of pixels that do not count.
        metric: the one that tables and pictures show: accuracy, auroc or nll of images; average_precision, mean_iou or
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
    factors = list(dict.fromkeys(check_real("scale", scale, "> 0", lambda s: s > 0) for scale in scales))
    if not factors:
        raise ValueError("scales has at least one scale, got none")
    where = device_called(str(device))
    parts = {name: _part(name, dataset, limit) for name, dataset in sets.items()}
    dense = next(iter(parts.values()))[0][1].ndim == 2
    metric = METRICS[dense][0] if metric is None else check_choice("metric", metric, METRICS[dense])
    with ExitStack() as stack:
        for network in networks.values():
            stack.enter_context(evaluating(network.to(where)))
        stack.enter_context(torch.inference_mode())
        for name, network in networks.items():
            _check_channels(name, network, parts)
        names = _class_names(networks, classes, dense)
        if dense:
            new_metrics: Callable[[], Any] = partial(SegmentationMetrics, len(names), names, ignore_index=ignore_index)
        else:
            new_metrics = partial(ClassificationMetrics, len(names), names)
        cells = [
            _Cell(name, method, split, factor, asked, new_metrics().to(where))
            for split in parts
            for name, network in networks.items()
            for method, asked in _methods(network, tta, select, baselines, pool, tile, dense)
            for factor in factors
        ]
        ways = {cell.method for cell in cells}
        for method, given in (("tta", tta), ("select", select)):
            if given and method not in ways:
                raise ValueError(f"{method} is for networks of one level, and there is none; use baselines='all'")
        for split, part in parts.items():
            here = [cell for cell in cells if cell.split == split]
            _measure(here, networks, part, 1 if dense else batch, workers, f"evaluating {split}")
        rows = [cell.row(len(parts[cell.split])) for cell in cells]
    if all(row.metrics is None for row in rows):
        raise ValueError(f"no network can answer for these images: {rows[0].note}")
    settings = {"scales": factors, "tta": list(tta), "select": list(select), "baselines": baselines, "pool": pool}
    settings |= {"classes": list(names), "batch": batch, "device": str(where), "limit": limit, "tile": tile}
    settings |= {"threads": torch.get_num_threads()}
    about = {name: _about(network) for name, network in networks.items()}
    return Evaluation(_with_costs(rows, about), metric, about, settings)


def set_scale(name: str) -> float:
    """The scale of a set named after it, the geometric mean of a range; 1 for other names.

    Example:
        >>> set_scale("test_0.5"), set_scale("test_1-4"), set_scale("test")
        (0.5, 2.0, 1.0)
    """
    try:
        low, _, high = name.rpartition("_")[2].partition("-")
        scale = math.sqrt(float(low) * float(high or low))
    except ValueError:
        return 1.0
    return scale if 0 < scale < math.inf else 1.0


# --- networks --------------------------------------------------------------------------------------------------------


def num_levels(model: nn.Module) -> int:
    """The number of levels of a network; 1 if it has no scale-space."""
    return model.lift.num_levels if isinstance(model, ScaleNetwork) else 1


class _Asked:
    """From images to logits, in the way that fits the task."""

    def __init__(self, model: nn.Module, pool: LevelPool, tile: int | None, dense: bool) -> None:
        self.model, self.tile, self.dense = model, tile, dense
        self.pool: LevelPool = pool

    def __call__(self, images: Tensor) -> Tensor:
        if not self.dense:
            return answer(self.model, images, self.pool)
        masks = [predict_mask(self.model, image, tile=self.tile, pool=self.pool) for image in images]
        return torch.stack(masks).clamp(min=1e-30).log()


def _methods(
    model: nn.Module,
    tta: Sequence[float],
    select: Sequence[float],
    baselines: Baselines,
    pool: LevelPool,
    tile: int | None,
    dense: bool,
) -> list[tuple[str, Callable[[Tensor], Tensor]]]:
    """What is done about scale, and the network with it."""
    one = num_levels(model) == 1
    asked = _Asked(model, "model" if one else pool, tile, dense)
    methods: list[tuple[str, Callable[[Tensor], Tensor]]] = [("plain", asked)]
    if one or baselines == "all":
        methods += [("tta", MultiScale(asked, tta, "mean"))] if tta else []
        methods += [("select", MultiScale(asked, select, "select"))] if select else []
    return methods


def _check_channels(name: str, network: nn.Module, parts: Mapping[str, Part]) -> None:
    channels = channels_of(network)
    for split, part in parts.items():
        found = len(part[0][0])
        if found != channels:
            raise ValueError(f"{name!r} takes images of {channels} channels, and those of {split!r} have {found}")


def _class_names(
    networks: Mapping[str, nn.Module], classes: int | Sequence[str] | None, dense: bool
) -> tuple[str, ...]:
    """The names of the classes, once networks and data are known to agree on them."""
    given = classes if isinstance(classes, Sequence) else ()
    number = classes if isinstance(classes, int) else len(given) or None
    names = tuple(given)
    for name, network in networks.items():
        own, of_pixels = describe_answers(network)
        if of_pixels != dense:
            kinds = ("images as a whole", "every pixel")
            raise ValueError(f"{name!r} answers for {kinds[of_pixels]}, and the data have classes of {kinds[dense]}")
        if number is not None and len(own) != number:
            raise ValueError(f"{name!r} answers with {len(own)} classes, and there are {number} in the data")
        if given and own != tuple(given) and (Card.of(network).classes or set(own) == set(given)):
            raise ValueError(f"{name!r} has the classes {', '.join(own)}, and the data in the order {', '.join(given)}")
        number, names = len(own), names or own
    return names


def _about(model: nn.Module) -> dict[str, Any]:
    return {
        "network": type(model).__name__,
        "levels": num_levels(model),
        "parameters": sum(p.numel() for p in model.parameters()),
    }


# --- measurements ----------------------------------------------------------------------------------------------------


@dataclass
class _Cell:
    """A row in the making, which is a network that notes how long it takes."""

    model: str
    method: str
    split: str
    resize: float
    asked: Callable[[Tensor], Tensor]
    metrics: Any
    seconds: list[float] = field(default_factory=list)
    note: str | None = None

    def __call__(self, images: Tensor) -> Tensor:
        _synchronize(images.device)
        start = time.perf_counter()
        found = self.asked(images)
        _synchronize(images.device)
        self.seconds.append((time.perf_counter() - start) / len(images))
        return found

    def update(self, images: Tensor, target: Tensor) -> None:
        """Take in a batch, unless images were too small."""
        if self.note is not None:
            return
        try:
            found = at_scale(self, images, self.resize)
        except TooSmallError as error:
            self.note = str(error)
        else:
            self.metrics.update(found, target)

    def row(self, images: int) -> Row:
        """What became of it."""
        place = {"split": self.split, "resize": self.resize, "scale": set_scale(self.split) * self.resize}
        if self.note is not None:
            return Row(self.model, self.method, **place, images=images, note=self.note)
        seconds = statistics.median(self.seconds[1:] or self.seconds)  # the first batch warms up
        found = self.metrics.compute()
        return Row(self.model, self.method, **place, images=images, metrics=found, seconds_per_image=seconds)


def _measure(
    cells: Sequence[_Cell], networks: Mapping[str, nn.Module], part: Part, batch: int, workers: int, what: str
) -> None:
    """Show all images of a set to all networks; each image is read once."""
    loader = DataLoader(part, batch, collate_fn=list, **worker_options(workers))
    with Progress(what, len(part) * len(cells), " answers") as progress:
        for samples in loader:
            for images, target in _same_size(samples):
                for name, network in networks.items():
                    inputs = to_input(network, to_unit(images))
                    for cell in cells:
                        if cell.model == name:
                            cell.update(inputs, target.to(inputs.device))
                            progress.add(len(images))


def _same_size(samples: Sequence[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of images of the same size."""
    groups: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}
    for image, target in samples:
        groups.setdefault(image.shape, []).append((image, target))
    for group in groups.values():
        yield torch.stack([image for image, _ in group]), torch.stack([target for _, target in group])


def _part(name: str, dataset: ImageDataset, limit: int | None) -> Part:
    """The images to measure."""
    available = len(dataset)
    number = available if limit is None else min(check_integer("limit", limit, 1), available)
    if not number:
        raise ValueError(f"there are no images in the set {name!r}")
    return Part(dataset, [i * available // number for i in range(number)])


def _with_costs(rows: Sequence[Row], about: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """The rows, with seconds relative to those of the first network of one level, or of the first."""
    first = next((name for name, facts in about.items() if facts["levels"] == 1), next(iter(about)))
    plain = [row for row in rows if (row.model, row.method) == (first, "plain")]
    base = {(row.split, row.resize): row.seconds_per_image for row in plain}

    def cost(row: Row) -> float | None:
        seconds, other = row.seconds_per_image, base[row.split, row.resize]
        return seconds / other if seconds is not None and other else None

    return [replace(row, cost=cost(row)) for row in rows]


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
