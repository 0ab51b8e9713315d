"""What there is to look at: a digit at many sizes, what levels see of it, a photograph's levels, errors."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from scalespaces._extras import require
from scalespaces.data import photograph
from scalespaces.demo._result import Activations, Errors, Frame, Level, Series
from scalespaces.demo._study import LARGE, Trial, show
from scalespaces.functional import lift
from scalespaces.models import ScaleNetwork
from scalespaces.models._random import random_network
from scalespaces.testing import equivariance_error
from scalespaces.theory import blur_variance

FINE_SIZES = tuple(round(2 ** (n / 8), 3) for n in range(-8, 17))  # eight to an octave, from 1/2 to 4
COARSE_SIZES = (0.5, 1.0, 2.0, 4.0)
LIFTS = {"direct": "dense", "cascade": "pyramid"}  # the paper's, and ours
_DEPTHS, _LEVELS = (1, 2, 3), 8


@torch.inference_mode()
def series(trial: Trial, label: int) -> Series:
    """The first test digit of a class, at many sizes, and what the two networks trained at one size make of it."""
    digit = int((trial.labels == label).nonzero()[0])
    shown = show(np.repeat(trial.images[digit : digit + 1], len(FINE_SIZES), 0), FINE_SIZES, LARGE)
    cnn, (ours, shares) = trial.cnn(shown).softmax(1), _answer(trial.ours, shown)
    columns = zip(FINE_SIZES, shown, cnn, ours, shares, strict=True)
    frames = (Frame(size, _png(image[0]), _numbers(p), _numbers(q), _numbers(s)) for size, image, p, q, s in columns)
    return Series(label, tuple(frames))


@torch.inference_mode()
def activations(trial: Trial, label: int) -> tuple[Activations, ...]:
    """The strength of the last features at every level, for the first test digit of a class at four sizes."""
    digit = int((trial.labels == label).nonzero()[0])
    return tuple(_activations(trial.ours, trial.images[digit], size) for size in COARSE_SIZES)


def _activations(network: ScaleNetwork, digit: np.ndarray, size: float) -> Activations:
    shown = show(digit[None], [size], LARGE)
    features = network.features(shown)
    _, shares = _answer(network, shown)
    strengths = [level[0].square().mean(0).sqrt() for level in features.levels]
    most = max(strength.max() for strength in strengths)
    return Activations(size, _png(shown[0, 0]), tuple(_heat(s / most) for s in strengths), _numbers(shares[0]))


def _answer(network: ScaleNetwork, images: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities of the classes ``(B, classes)``, and the levels' shares in the predicted one ``(B, S)``.

    The answer is the log-sum-exp of the levels' scores, so that shares are their softmax over levels.
    """
    answer, scores = network.answer_and_scores(images)
    predicted = answer.argmax(1, keepdim=True)
    return answer.softmax(1), torch.cat([level.gather(1, predicted) for level in scores.levels], 1).softmax(1)


def downscalings(network: ScaleNetwork) -> tuple[float, ...]:
    """How many times smaller each level sees the image; below 1 it sees it larger."""
    base, first = network.lift.base, network.lift.first_level
    assert isinstance(base, float)
    return tuple(round(base ** (first + k), 2) for k in range(network.lift.num_levels))


def scale_space() -> dict[str, tuple[Level, ...]]:
    """A photograph lifted to five levels, at every pixel and as a pyramid."""
    image, found = photograph(), {}
    for sampling in ("dense", "pyramid"):
        space = lift(image, num_levels=5, sampling=sampling)
        found[sampling] = tuple(
            Level(
                width=level.shape[-1],
                height=level.shape[-2],
                step=float(space.steps[k]),
                sigma=math.sqrt(blur_variance(2**k, 0.25)),
                picture=_jpeg(level[0]),
            )
            for k, level in enumerate(space.levels)
        )
    return found


def equivariance() -> Iterator[Errors]:
    """The paper's figure: downscale the image or its features, and compare, for random networks of 1 to 3 layers."""
    # Reflected borders look the same at all scales if the side is 1 more than a multiple of 2^7: 513, not 512.
    image = nn.functional.pad(photograph(), (0, 1, 0, 1), mode="reflect")
    for method, sampling in LIFTS.items():
        dtype = torch.float64 if method == "cascade" else torch.float32  # rounding is all that can be left of an error
        for layers in _DEPTHS:
            network = random_network(layers, channels=16, num_levels=_LEVELS, method=method, sampling=sampling)
            table = equivariance_error(network.to(dtype), image.to(dtype), downscaling=method)
            errors = tuple(tuple(None if math.isnan(e) else float(e) for e in row) for row in table.errors)
            yield Errors(f"{method}, {sampling}", layers, table.boundary, table.rows, errors)


def _numbers(values: Tensor) -> tuple[float, ...]:
    return tuple(round(float(value), 4) for value in values)


def _png(image: Tensor) -> bytes:
    """Values from 0 to 1, ``(H, W)`` or ``(H, W, 3)``, as a PNG."""
    return _encoded(image, "PNG", optimize=True)


def _jpeg(image: Tensor) -> bytes:
    return _encoded(image.permute(1, 2, 0), "JPEG", quality=85)


def _encoded(image: Tensor, kind: str, **options: object) -> bytes:
    pixels = image.clamp(0, 1).mul(255).round().byte().cpu().numpy()
    buffer = io.BytesIO()
    require("PIL.Image", "demo").fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def _heat(values: Tensor) -> bytes:
    """Values from 0 to 1 in the colors of magma."""
    colors = require("matplotlib", "demo").colormaps["magma"](values.clamp(0, 1).numpy())
    return _png(torch.from_numpy(colors[..., :3]))
