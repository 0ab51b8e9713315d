"""Images to work on: readers of datasets, downloads, augmentation, and sets made on the spot."""

from scalespaces.data._augment import PCamAugment
from scalespaces.data._check import Report, check_dataset
from scalespaces.data._cityscapes import Cityscapes
from scalespaces.data._fetch import fetch
from scalespaces.data._folders import ClassFolders, LabeledFolder, MaskFolders
from scalespaces.data._idx import read_idx, read_idx_images, write_idx
from scalespaces.data._images import photograph, read_image
from scalespaces.data._keys import ArrayImages, ImageDataset, Indexed, keyed_generator
from scalespaces.data._make import make_cityscapes, make_pcam, source_images, write_sets
from scalespaces.data._pcam import PCam, PCamFolder, repack
from scalespaces.data._pixels import read_mask, read_pixels, to_unit
from scalespaces.data._scales import digits, mnist_scale, rescale, unseen_scales
from scalespaces.data._windows import blend_windows, cut_windows, window_places

__all__ = [
    "ArrayImages",
    "Cityscapes",
    "ClassFolders",
    "ImageDataset",
    "Indexed",
    "LabeledFolder",
    "MaskFolders",
    "PCam",
    "PCamAugment",
    "PCamFolder",
    "Report",
    "blend_windows",
    "check_dataset",
    "cut_windows",
    "digits",
    "fetch",
    "keyed_generator",
    "make_cityscapes",
    "make_pcam",
    "mnist_scale",
    "photograph",
    "read_idx",
    "read_idx_images",
    "read_image",
    "read_mask",
    "read_pixels",
    "repack",
    "rescale",
    "source_images",
    "to_unit",
    "unseen_scales",
    "window_places",
    "write_idx",
    "write_sets",
]
