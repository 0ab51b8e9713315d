"""Images to work on: readers of datasets, downloads, augmentation, and sets made on the spot."""

from scalespaces.data.augment import PCamAugment
from scalespaces.data.check import Report, check
from scalespaces.data.cityscapes import Cityscapes
from scalespaces.data.fetch import fetch
from scalespaces.data.folders import ClassFolders, LabelledFolder, MaskFolders
from scalespaces.data.idx import read_idx, read_idx_images, write_idx
from scalespaces.data.images import photograph, read_image
from scalespaces.data.keys import ArrayImages, ImageDataset, Indexed, keyed_generator
from scalespaces.data.make import make_cityscapes, make_pcam, source_images, write_sets
from scalespaces.data.pcam import PCam, PCamFolder, repack
from scalespaces.data.pixels import read_mask, read_pixels, to_unit
from scalespaces.data.scales import digits, mnist_scale, rescale, unseen_scales
from scalespaces.data.windows import blend_windows, cut_windows, window_places

__all__ = [
    "ArrayImages",
    "Cityscapes",
    "ClassFolders",
    "ImageDataset",
    "Indexed",
    "LabelledFolder",
    "MaskFolders",
    "PCam",
    "PCamAugment",
    "PCamFolder",
    "Report",
    "blend_windows",
    "check",
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
