"""Train, test, measure and look: all of the demonstration, with progress."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from torch import nn

from scalespaces._measure import environment
from scalespaces.demo import _looks as looks
from scalespaces.demo._result import KEYS, SIZES, Result
from scalespaces.demo._study import (
    LARGE,
    SELECTION,
    SIDE,
    SMALL,
    TTA,
    Begin,
    Settings,
    accuracies,
    costs,
    methods,
    train_all,
)


def run(seeds: Sequence[int], settings: Settings, begin: Begin) -> tuple[Result, nn.Module]:
    """Do all of it, for every seed; costs and pictures are of the first. Also the first scale-space network."""
    start = time.perf_counter()
    facts = environment()
    trials, accuracy = [], []
    for seed in seeds:
        of_seed = f" (seed {seed})" if len(seeds) > 1 else ""
        trials.append(train_all(seed, settings, lambda what, parts, of=of_seed: begin(what + of, parts)))
        accuracy.append(
            accuracies(trials[-1], begin(f"testing at {len(SIZES)} sizes{of_seed}", len(KEYS) * len(SIZES)))
        )
    trial = trials[0]
    cost = costs(trial, settings, begin("measuring time and memory", 3))
    advance = begin("looking inside", 10)
    series = []
    for label in range(10):
        series.append(looks.series(trial, label))
        advance()
    advance, errors = begin("measuring equivariance", 6), []
    for found in looks.equivariance():
        errors.append(found)
        advance()
    result = Result(
        seeds=tuple(seeds),
        methods=methods(accuracy, cost),
        series=tuple(series),
        activations=looks.activations(trial, label=5),
        scale_space=looks.scale_space(),
        equivariance=tuple(errors),
        downscalings=looks.downscalings(trial.ours),
        first_level=trial.ours.lift.first_level,
        facts=_facts(settings, facts, time.perf_counter() - start),
    )
    return result, trial.ours


def _facts(settings: Settings, facts: dict[str, Any], seconds: float) -> dict[str, Any]:
    names = ("scalespaces", "torch", "python", "cpu", "cores", "threads", "load_average")
    return {
        "train_digits": settings.train,
        "test_digits": settings.test,
        "epochs": settings.epochs,
        "side": SIDE,
        "small_canvas": SMALL,
        "large_canvas": LARGE,
        "tta": list(TTA),
        "selection": [round(scale, 2) for scale in SELECTION],
        "seconds": round(seconds, 1),
        **{name: facts[name] for name in names},
    }
