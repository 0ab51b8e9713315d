"""Images to train and test with: readers of datasets, downloads, augmentation, and sets of digits at many scales.

One reader for each file format: ``_pixels`` (images, masks), ``_slides`` (tiled TIFF), ``_idx``, ``_pcam`` (HDF5). One
class for each layout, in ``_folders``, ``_pcam`` and ``_keys`` (arrays); ``_open`` opens them all.
"""

from scalespaces.data._check import check_dataset
from scalespaces.data._fetch import fetch
from scalespaces.data._folders import Cityscapes, ClassFolders, LabeledFolder, MaskFolders
from scalespaces.data._keys import ArrayImages, ImageDataset
from scalespaces.data._pcam import PCam
from scalespaces.data._pixels import photograph, read_image, to_unit
from scalespaces.data._scales import digits, mnist_scale, unseen_scales

__all__ = ["ArrayImages", "Cityscapes", "ClassFolders", "ImageDataset", "LabeledFolder", "MaskFolders", "PCam"]
__all__ += ["digits", "mnist_scale", "unseen_scales"]
__all__ += ["check_dataset", "fetch", "photograph", "read_image", "to_unit"]
