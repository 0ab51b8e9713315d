"""Importing this lets torchvision be imported beside a torch that its compiled half was not built for."""

from importlib import import_module

import torch

try:
    import_module("torchvision")
except RuntimeError:
    # torchvision's compiled half is built for another torch than the CPU's and does not load; its Python half then
    # stumbles over operators that only detectors use.
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import_module("torchvision")
