"""The paper's networks and a small CNN, by name or as classes; conversion of other models, files and export."""

from scalespaces.models._calibrate import calibrate
from scalespaces.models._convert import Converted, convert
from scalespaces.models._convnet import ConvNet
from scalespaces.models._export import export
from scalespaces.models._files import load, save
from scalespaces.models._hub import from_pretrained, push_to_hub, save_pretrained
from scalespaces.models._info import summarize
from scalespaces.models._modules import ConversionError
from scalespaces.models._network import Card, ScaleNetwork
from scalespaces.models._paper import DenseNet, ResNet
from scalespaces.models._prepare import prepare
from scalespaces.models._registry import create_model, list_models, register_model

__all__ = ["Card", "ConvNet", "Converted", "DenseNet", "ResNet", "ScaleNetwork"]
__all__ += ["create_model", "list_models", "register_model", "summarize"]
__all__ += ["ConversionError", "calibrate", "convert", "export", "load", "prepare", "save"]
__all__ += ["from_pretrained", "push_to_hub", "save_pretrained"]
