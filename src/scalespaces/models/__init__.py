"""The paper's networks and a small CNN, by name or as classes, and the blocks they are made of."""

from scalespaces.models.blocks import DenseBlock, DenseLayer, ResidualBlock, Transition
from scalespaces.models.card import Card
from scalespaces.models.convert import ConversionError, Converted, convert
from scalespaces.models.convnet import ConvNet
from scalespaces.models.densenet import DenseNet
from scalespaces.models.export import Exported, export
from scalespaces.models.files import load, save
from scalespaces.models.info import Summary, summarise
from scalespaces.models.network import ScaleNetwork
from scalespaces.models.registry import create, register
from scalespaces.models.registry import list_models as list
from scalespaces.models.resnet import ResNet

__all__ = [
    "Card",
    "ConvNet",
    "ConversionError",
    "Converted",
    "DenseBlock",
    "DenseLayer",
    "DenseNet",
    "Exported",
    "ResNet",
    "ResidualBlock",
    "ScaleNetwork",
    "Summary",
    "Transition",
    "convert",
    "create",
    "export",
    "list",
    "load",
    "register",
    "save",
    "summarise",
]
