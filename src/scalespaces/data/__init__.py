"""Images to work on: readers of datasets, downloads, augmentation, and sets made on the spot."""

from scalespaces.data._check import check_dataset
from scalespaces.data._cityscapes import Cityscapes
from scalespaces.data._fetch import fetch
from scalespaces.data._folders import ClassFolders, LabeledFolder, MaskFolders
from scalespaces.data._images import photograph, read_image
from scalespaces.data._keys import ArrayImages, ImageDataset
from scalespaces.data._pcam import PCam, PCamFolder
from scalespaces.data._pixels import to_unit
from scalespaces.data._scales import digits, mnist_scale, unseen_scales

__all__ = [
    "ArrayImages",
    "Cityscapes",
    "ClassFolders",
    "ImageDataset",
    "LabeledFolder",
    "MaskFolders",
    "PCam",
    "PCamFolder",
    "check_dataset",
    "digits",
    "fetch",
    "mnist_scale",
    "photograph",
    "read_image",
    "to_unit",
    "unseen_scales",
]
