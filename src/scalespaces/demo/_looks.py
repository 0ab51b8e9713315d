"""What there is to look at: digits at many sizes, features by level, the levels of a photograph, and errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from scalespaces._extras import require
from scalespaces._html import encode
from scalespaces.data import photograph
from scalespaces.demo._result import SHOWN, Errors, Frame
from scalespaces.demo._study import LARGE, Trial, show
from scalespaces.functional import lift
from scalespaces.models._convnet import random_network
from scalespaces.space import ScaleSpace
from scalespaces.testing import equivariance_error

FINE_SIZES = tuple(round(2 ** (n / 8), 3) for n in range(-8, 17))  # eight to an octave, from 1/2 to 4
COARSE_SIZES = (0.5, 1.0, 2.0, 4.0)
LIFTS = {"direct": "dense", "cascade": "pyramid"}  # the paper's, and ours


@torch.inference_mode()
def series(trial: Trial, label: int) -> tuple[Frame, ...]:
    """The first test digit of a class at many sizes, and the answers of both networks trained at one size."""
    shown = _digit(trial, label, FINE_SIZES)
    answer, scores = trial.ours.answer_and_scores(shown)
    predicted = answer.argmax(1, keepdim=True)
    # The answer is the log-sum-exp of the levels' scores, so shares are their softmax over levels.
    shares = torch.cat([level.gather(1, predicted) for level in scores.levels], 1).softmax(1)
    columns = zip(FINE_SIZES, shown, trial.cnn(shown).softmax(1), answer.softmax(1), shares, strict=True)
    return tuple(Frame(size, _png(image), *map(_numbers, rows)) for size, image, *rows in columns)


@torch.inference_mode()
def activations(trial: Trial) -> dict[float, tuple[bytes, ...]]:
    """The strength of the last features at every level, for the digit ``SHOWN`` at four sizes."""
    colors, found = require("matplotlib", "demo").colormaps["magma"], {}
    for size in COARSE_SIZES:
        features = trial.ours.features(_digit(trial, SHOWN, [size]))
        strengths = [level[0].square().mean(0).sqrt() for level in features.levels]
        most = max(strength.max() for strength in strengths)
        heat = [torch.from_numpy(colors((strength / most).clamp(0, 1).numpy())) for strength in strengths]
        found[size] = tuple(_png(level[..., :3].permute(2, 0, 1)) for level in heat)
    return found


def _digit(trial: Trial, label: int, sizes: Sequence[float]) -> Tensor:
    first = int((trial.labels == label).nonzero()[0])
    return show(np.repeat(trial.images[first : first + 1], len(sizes), 0), sizes, LARGE)


def scale_space() -> dict[str, ScaleSpace]:
    """A photograph lifted to five levels, at every pixel and as a pyramid."""
    return {sampling: lift(photograph(), num_levels=5, sampling=sampling) for sampling in ("dense", "pyramid")}


def equivariance() -> Iterator[Errors]:
    """The paper's figure: downscale the image or its features, and compare, for random networks of 1 to 3 layers."""
    # Reflected borders look the same at all scales if the side is 1 more than a multiple of 2^7: 513, not 512.
    image = nn.functional.pad(photograph(), (0, 1, 0, 1), mode="reflect")
    for method, sampling in LIFTS.items():
        dtype = torch.float64 if method == "cascade" else torch.float32  # rounding is all that can be left of an error
        for layers in (1, 2, 3):
            network = random_network(layers, channels=16, num_levels=8, method=method, sampling=sampling)
            table = equivariance_error(network.to(dtype), image.to(dtype), downscaling=method)
            yield Errors(f"{method}, {sampling}", layers, table)


def _numbers(values: Tensor) -> tuple[float, ...]:
    return tuple(round(float(value), 4) for value in values)


def _png(image: Tensor) -> bytes:
    return encode(image, "PNG", "demo", optimize=True)
