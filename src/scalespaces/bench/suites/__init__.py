"""The suites, by name: each makes its cases one after another, so that no two are in memory at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from scalespaces.bench._case import Axis, Case, Settings
from scalespaces.bench.suites import _data as data
from scalespaces.bench.suites import _layers as layers
from scalespaces.bench.suites import _lift as lift
from scalespaces.bench.suites import _models as models

SUITES: dict[str, Callable[[Settings], Iterator[Case]]] = {
    "layers": layers.cases,
    "lift": lift.cases,
    "models": models.cases,
    "data": data.cases,
}
ON_THE_CPU = ("lift", "data")  # what they are compared with computes there
GROWTH: dict[str, Callable[[Settings], Iterator[Axis]]] = {"layers": layers.axes, "models": models.axes}
