"""Images to train and test with: readers of datasets, downloads, augmentation, and sets of digits at many scales.

A sample's way from a file into a network::

    file     _pixels.py (images, masks), _idx.py, _pcam.py (HDF5): one reader for each file format
    dataset  _folders.py, _cityscapes.py, _pcam.py, _keys.py (arrays): one class for each layout; (image, target)
    split    _open.py: open_dataset(root, kind, split), opens all layouts; holds out and limits
    batch    train/_batches.py: which samples, in which process; (images, targets, indices)
    network  train/_tasks.py: on the device, bytes become floats (to_unit) and are augmented (_augment.py)
"""

from scalespaces.data._check import check_dataset
from scalespaces.data._cityscapes import Cityscapes
from scalespaces.data._fetch import fetch
from scalespaces.data._folders import ClassFolders, LabeledFolder, MaskFolders
from scalespaces.data._keys import ArrayImages, ImageDataset
from scalespaces.data._pcam import PCam
from scalespaces.data._pixels import photograph, read_image, to_unit
from scalespaces.data._scales import digits, mnist_scale, unseen_scales

__all__ = [
    "ArrayImages",
    "Cityscapes",
    "ClassFolders",
    "ImageDataset",
    "LabeledFolder",
    "MaskFolders",
    "PCam",
    "check_dataset",
    "digits",
    "fetch",
    "mnist_scale",
    "photograph",
    "read_image",
    "to_unit",
    "unseen_scales",
]
