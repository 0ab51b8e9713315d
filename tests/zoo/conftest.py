"""What lets torchvision be imported."""

from importlib import import_module

import_module("zoo.torchvision_stub")
