"""Learn which levels of a network to trust, from a folder of images. The network's own weights stay as they are. No
labels are needed: the network's answers at other sizes are compared with its answer at the images' own size. So the
images must show objects at the size the network was trained on. Prints the accuracy at each size, or without labels the
agreement, before and after.

example: scalespaces calibrate out/photos --images photos
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from scalespaces._choices import SCALES
from scalespaces._files import refuse_existing
from scalespaces._progress import progress
from scalespaces.cli import Parser, add_source, network_file, positive, seed, source


def add_arguments(parser: Parser) -> None:
    add = parser.add_argument
    add("file", metavar="FILE", help="the network: a .safetensors file, or a folder that scalespaces train wrote")
    add("--images", required=True, metavar="FOLDER", help="folder of 20+ images (better 100), subfolders included")
    add("--labels", action="store_true", help="learn from labels: each image's folder has the name of its class")
    size = "resize all images to this (default: as in training, if recipe.yaml is next to the network; else not at all)"
    add("--size", type=positive, nargs=2, metavar=("H", "W"), help=size)
    scales = f"sizes to learn from, relative to the images (default: {' '.join(f'{scale:.3g}' for scale in SCALES)})"
    add("--scales", type=float, nargs="+", default=SCALES, metavar="SCALE", help=scales)
    add("--out", metavar="OUT", help="file to write (default: FILE with -calibrated in its name)")
    add("--force", action="store_true", help="overwrite OUT")
    add_source(parser)
    add("--device", default="auto", metavar="NAME", help="auto, cpu, cuda or mps")
    add("--batch", type=positive, default=16, metavar="N", help="images per batch")
    add("--seed", type=seed, default=0, metavar="N", help="random seed")


def run(args: argparse.Namespace) -> None:
    from scalespaces import models
    from scalespaces.data._folders import image_files
    from scalespaces.train._predict import channels_of, device_called, read_channels, to_input
    from scalespaces.train._recipe import recipe_beside

    file, folder = Path(network_file(args.file)), Path(args.images)
    out = Path(args.out or file.with_name(f"{file.stem}-calibrated{file.suffix}"))
    if not folder.is_dir():
        raise NotADirectoryError(f"--images is a folder, got {args.images!r}")
    refuse_existing([out], args.force)
    network = models.load(file, source(args), num_levels=args.num_levels, device=device_called(args.device))
    files, classes = sorted(image_files(folder)), list(network.card.classes)
    labels = [_label(file, classes) for file in files] if args.labels else None
    if not network.card.mean:
        print("note: images are not normalized: the network's card has no mean and std", file=sys.stderr)
    before = recipe_beside(file)
    size = args.size or (before and before.data.size)
    read = progress(files, "reading")
    images = [to_input(network, read_channels(path, channels_of(network), size)) for path in read]
    found = models.calibrate(network, images, labels, scales=args.scales, batch=args.batch, seed=args.seed)
    models.save(network, out)
    print(f"{found}\nwrote {out}")


def _label(file: Path, classes: Sequence[str]) -> int:
    if file.parent.name not in classes:
        known = ", ".join(classes[:5]) or "none: its card has no classes"
        raise ValueError(f"with --labels, folders are named after the network's classes ({known}), got {str(file)!r}")
    return classes.index(file.parent.name)
