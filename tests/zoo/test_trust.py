"""Trust on photographs, with weights trained on ImageNet: larger objects are recognized, and nothing is lost."""

from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.testing import assert_close
from zoo.catalogue import build

import scalespaces

data: Any = import_module("skimage.data")
cbook: Any = import_module("matplotlib.cbook")
pillow: Any = import_module("PIL.Image")
samples: Any = import_module("sklearn.datasets")
SIZES = (1, 2, 4)
PLACES = [(0.0, 0.0), (1.0, 0.0), (0.5, 0.5), (0.0, 1.0), (1.0, 1.0)]


def photographs() -> list[Any]:
    """Photographs that come with packages, of objects that the network recognizes."""
    arrays = [data.camera(), data.chelsea(), data.coffee(), data.stereo_motorcycle()[0], data.rocket()]
    arrays += [samples.load_sample_image(name) for name in ("flower.jpg", "china.jpg")]
    officer = pillow.open(cbook.get_sample_data("grace_hopper.jpg", asfileobj=False))
    return [image.convert("RGB") for image in [*map(pillow.fromarray, arrays), officer]]


def window(image: Any, size: int = 1, part: float = 1.0, x: float = 0.5, y: float = 0.5) -> Tensor:
    """A square of a photograph, this many times as large as in training, normalized as in training."""
    side = part * min(image.size)
    left, top = x * (image.width - side), y * (image.height - side)
    resized = image.resize((224 * size, 224 * size), pillow.Resampling.BICUBIC, (left, top, left + side, top + side))
    return (torch.from_numpy(np.array(resized, np.float32)).permute(2, 0, 1)[None] - 127) / 128


@torch.no_grad()
def test_calibration_recognizes_larger_objects_and_loses_nothing() -> None:
    plain, pictures = build("lite0"), photographs()
    network = scalespaces.convert(plain, {"num_levels": 4}).eval()
    views = {size: [window(picture, size) for picture in pictures] for size in SIZES}
    before = {size: [plain(view) for view in views[size]] for size in SIZES}
    for size in SIZES:  # until it is calibrated, not a bit differs
        assert all(torch.equal(network(view), said) for view, said in zip(views[size], before[size], strict=True))

    windows = [window(picture, 1, 0.8, x, y)[0] for picture in pictures for x, y in PLACES]
    scalespaces.calibrate(network, windows)
    after = {size: [network(view) for view in views[size]] for size in SIZES}

    def unchanged(answers: list[Tensor]) -> int:
        """How many answers are the plain network's at the size it was trained on."""
        return sum(int(a.argmax() == b.argmax()) for a, b in zip(answers, before[1], strict=True))

    assert unchanged(after[1]) == len(pictures)
    assert unchanged(after[2]) >= unchanged(before[2])
    assert unchanged(after[4]) > unchanged(before[4])

    moved = 0
    for view in views[4]:  # downscaling shifts the weights by a level
        weights, shifted = (network.weights(network.lift.downscale(view, n))[0] for n in (0, 1))
        assert_close(shifted[:-1] / shifted[:-1].sum(), weights[1:] / weights[1:].sum(), atol=1e-4, rtol=1e-3)
        if weights.argmax() > 0:
            assert shifted.argmax() == weights.argmax() - 1
            moved += 1
    assert moved > len(pictures) / 2
