"""All of the demo: train, test, measure and look."""

from __future__ import annotations

import time
from collections.abc import Sequence

from scalespaces._measure import environment
from scalespaces.demo import _looks as looks
from scalespaces.demo import _study as study
from scalespaces.demo._result import Method, Result
from scalespaces.models import ScaleNetwork

_MACHINE = ("scalespaces", "torch", "python", "cpu", "cores", "threads", "load_average")


def run(seeds: Sequence[int], settings: study.Settings) -> tuple[Result, ScaleNetwork]:
    """Do all of it for every seed. Costs, pictures and the network returned are those of the first seed."""
    start, machine = time.perf_counter(), environment()
    trials = [study.train_all(seed, settings) for seed in seeds]
    accuracy = [study.accuracies(trial) for trial in trials]
    trial = trials[0]
    cost = study.costs(trial, settings)
    methods = (
        Method(key, *about, tuple(row[key] for row in accuracy), cost[key]) for key, about in study.METHODS.items()
    )
    result = Result(
        seeds=tuple(seeds),
        methods=tuple(methods),
        series={label: looks.series(trial, label) for label in study.track(range(10), "looking inside", 10)},
        activations=looks.activations(trial),
        scale_space=looks.scale_space(),
        equivariance=tuple(study.track(looks.equivariance(), "measuring equivariance", 6)),
        downscalings=tuple(round(1 / scale, 2) for scale in study.SELECTION),
        first_level=trial.ours.lift.first_level,
        facts={
            "train_digits": settings.train,
            "test_digits": settings.test,
            "epochs": settings.epochs,
            "side": study.SIDE,
            "small_canvas": study.SMALL,
            "large_canvas": study.LARGE,
            "tta": study.TTA,
            "selection": [round(scale, 2) for scale in study.SELECTION],
            "seconds": round(time.perf_counter() - start, 1),
        }
        | {name: machine[name] for name in _MACHINE},
    )
    return result, trial.ours
