"""Cityscapes: the official tree of street scenes and their annotations."""

from pathlib import Path

import torch
from torch import Tensor

from scalespaces.data._folders import ImageFiles, OnError, Size, image_files, read_pair
from scalespaces.data._keys import check_labels

SPLITS = ("train", "val", "test")
CLASSES = {  # of the benchmark, in their order: the number in labelIds files
    "road": 7, "sidewalk": 8, "building": 11, "wall": 12, "fence": 13, "pole": 17, "traffic light": 19,
    "traffic sign": 20, "vegetation": 21, "terrain": 22, "sky": 23, "person": 24, "rider": 25, "car": 26, "truck": 27,
    "bus": 28, "train": 31, "motorcycle": 32, "bicycle": 33,
}  # fmt: skip
NUM_IDS = 34


def train_ids() -> Tensor:
    """The table from the numbers in labelIds files to the 19 classes, 255 for the rest."""
    table = torch.full((NUM_IDS,), 255)
    table[list(CLASSES.values())] = torch.arange(len(CLASSES))
    return table


class Cityscapes(ImageFiles[Path]):
    """A split of Cityscapes: ``leftImg8bit/{split}/{city}/*_leftImg8bit.png`` and ``gtFine/.../*_gtFine_labelIds.png``.

    Args:
        root: the folder that contains ``leftImg8bit`` and ``gtFine``.
        split: ``"train"``, ``"val"`` or ``"test"`` (whose annotations are blank).
        crop: side or ``(height, width)`` of random crops, 992 in the paper; whole images by default.
        flip: mirror half of the images left to right.
        seed: of crops and flips.
        on_error: ``"raise"``, or ``"skip"`` to leave out, with a warning, images without annotation and broken files.

    Shape:
        - Samples: image :math:`(3, H, W)` uint8, mask :math:`(H, W)` int64: the 19 classes, 255 ignored
    """

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        *,
        crop: Size = None,
        flip: bool = False,
        seed: int = 0,
        on_error: OnError = "raise",
    ) -> None:
        if split not in SPLITS:
            raise ValueError(f"split is one of {', '.join(SPLITS)}, got {split!r}")
        self._table = train_ids()
        images, masks = Path(root) / "leftImg8bit" / split, Path(root) / "gtFine" / split
        samples, problems = [], {}
        for image in image_files(images):
            mask = masks / image.parent.name / image.name.replace("_leftImg8bit.png", "_gtFine_labelIds.png")
            if not image.name.endswith("_leftImg8bit.png"):
                problems[str(image)] = "is not called *_leftImg8bit.png"
            elif not mask.is_file():
                problems[str(image)] = f"has no annotation: no file {str(mask)!r}"
            else:
                samples.append((image, mask))
        super().__init__(images, samples, problems, on_error, crop=crop, flip=flip, seed=seed)

    def load(self, file: Path, target: Path) -> tuple[Tensor, Tensor]:
        """The whole image and its 19 classes. Undefined numbers raise an error."""
        image, mask = read_pair(file, target)
        if int(mask.max()) >= NUM_IDS:
            check_labels(mask.numpy(), NUM_IDS, f"numbers in {str(target)!r}")
        return image, self._table[mask]
