"""All of the demo: train and test, then look at digits, features, levels of a photograph, and errors."""

import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from scalespaces._extras import require
from scalespaces._html import encode
from scalespaces._measure import environment
from scalespaces.data import photograph
from scalespaces.demo import _study as study
from scalespaces.demo._result import SHOWN, Frame, Method, Result
from scalespaces.functional import lift
from scalespaces.models import ScaleNetwork
from scalespaces.models._convnet import random_network
from scalespaces.testing import EquivarianceTable, equivariance_error

FINE_SIZES = tuple(round(2 ** (n / 8), 3) for n in range(-8, 17))  # eight to an octave, from 1/2 to 4
COARSE_SIZES = (0.5, 1.0, 2.0, 4.0)
LIFTS = {"direct": "dense", "cascade": "pyramid"}  # the paper's, and ours


def run(seeds: Sequence[int], settings: study.Settings) -> tuple[Result, ScaleNetwork]:
    """Do all of it for every seed. Costs, pictures and the network returned are those of the first seed."""
    start, machine = time.perf_counter(), environment()
    trials = [study.train_all(seed, settings) for seed in seeds]
    accuracy, trial = [study.accuracies(trial) for trial in trials], trials[0]
    cost, about = study.costs(trial, settings), study.METHODS
    result = Result(
        seeds=tuple(seeds),
        methods=tuple(Method(key, *about[key], tuple(row[key] for row in accuracy), cost[key]) for key in about),
        series={label: series(trial, label) for label in study.track(range(10), "looking inside", 10)},
        activations=activations(trial),
        scale_space={how: lift(photograph(), num_levels=5, sampling=how) for how in ("dense", "pyramid")},
        equivariance=equivariance(),
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
        | {name: fact for name, fact in machine.items() if name != "numpy"},
    )
    return result, trial.ours


@torch.inference_mode()
def series(trial: study.Trial, label: int) -> tuple[Frame, ...]:
    """The first test digit of a class at many sizes, and the answers of both networks trained at one size."""
    shown = _digit(trial, label, FINE_SIZES)
    answer, scores = trial.ours.answer_and_scores(shown)
    predicted = answer.argmax(1, keepdim=True)
    # The answer is the log-sum-exp of the levels' scores, so shares are their softmax over levels.
    shares = torch.cat([level.gather(1, predicted) for level in scores.levels], 1).softmax(1)
    columns = zip(FINE_SIZES, shown, trial.cnn(shown).softmax(1), answer.softmax(1), shares, strict=True)
    return tuple(Frame(size, _png(image), *map(_rounded, rows)) for size, image, *rows in columns)


def _rounded(row: Tensor) -> tuple[float, ...]:
    return tuple(round(value, 4) for value in row.tolist())


@torch.inference_mode()
def activations(trial: study.Trial) -> dict[float, tuple[bytes, ...]]:
    """The strength of the last features at every level, for the digit ``SHOWN`` at four sizes."""
    colors, found = require("matplotlib", "demo").colormaps["magma"], {}
    for size in COARSE_SIZES:
        features = trial.ours.features(_digit(trial, SHOWN, [size]))
        strengths = [level[0].square().mean(0).sqrt() for level in features.levels]
        most = max(strength.max() for strength in strengths)
        heat = [torch.from_numpy(colors((strength / most).clamp(0, 1).numpy())) for strength in strengths]
        found[size] = tuple(_png(level[..., :3].permute(2, 0, 1)) for level in heat)
    return found


def _digit(trial: study.Trial, label: int, sizes: Sequence[float]) -> Tensor:
    first = int((trial.labels == label).nonzero()[0])
    return study.show(np.repeat(trial.images[first : first + 1], len(sizes), 0), sizes, study.LARGE)


def equivariance() -> dict[str, dict[int, EquivarianceTable]]:
    """The paper's figure: downscale the image or its features, and compare, for random networks of 1 to 3 layers."""
    # Reflected borders look the same at all scales if the side is 1 more than a multiple of 2^7: 513, not 512.
    image, found = nn.functional.pad(photograph(), (0, 1, 0, 1), mode="reflect"), {}
    cases = [(method, layers) for method in LIFTS for layers in (1, 2, 3)]
    for method, layers in study.track(cases, "measuring equivariance", len(cases)):
        dtype = torch.float64 if method == "cascade" else torch.float32  # rounding is all that can be left of an error
        network = random_network(layers, channels=16, num_levels=8, method=method, sampling=LIFTS[method])
        table = equivariance_error(network.to(dtype), image.to(dtype), downscaling=method)
        found.setdefault(f"{method}, {LIFTS[method]}", {})[layers] = table
    return found


def _png(image: Tensor) -> bytes:
    return encode(image, "PNG", "demo", optimize=True)
