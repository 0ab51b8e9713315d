"""What the tests of networks share: small ones, weights as training leaves them, independent references."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from scalespaces.models import create_model, list_models

NAMES = list_models()
# Parameters: of the paper, but for the small CNN's, and p4m's, whose widths keep the DenseNet's number.
PARAMETERS = {"cnn": 494_549, "s_cnn": 494_549, "densenet": 216_483, "p4m_densenet": 216_347, "s_densenet": 262_743}
PARAMETERS |= {"resnet": 1_552_131, "resnet_matched_parameters": 1_963_549}
PARAMETERS |= {"s_resnet": 1_895_427, "s_resnet_no_interaction": 1_552_131}
RESNETS = {"s_resnet": (2, 4, 16), "s_resnet_no_interaction": (1, 4, 16)}  # [k, S, N] of the supplement
RESNETS |= {"resnet": (1, 1, 16), "resnet_matched_parameters": (1, 1, 18)}
PRESETS = pytest.mark.parametrize("preset", ["recommended", "paper"])
TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
DYNAMIC = pytest.mark.skipif(TORCH < (2, 13), reason="before 2.13, torch exports pooling for even or odd sizes only")
ONNX = pytest.mark.skipif(TORCH < (2, 7), reason="torch 2.6 cannot translate batch normalization to ONNX")
POOLS: dict[str, Callable[[Tensor], Tensor]] = {  # of stacked levels
    "image": lambda levels: levels[0],
    "mean": lambda levels: levels.mean(0),
    "max": lambda levels: levels.amax(0),
    "logsumexp": lambda levels: levels.exp().mean(0).log(),
    "probabilities": lambda levels: levels.softmax(2).mean(0).log(),
}


def small(name: str, **arguments: Any) -> Any:
    """The network for images with colors, with few channels and nothing left to chance."""
    torch.manual_seed(0)
    few: dict[str, Any] = {"growth": (2, 3, 4)} if "dense" in name else {"width": 3}
    if name.endswith("cnn"):
        few = {"channels": (2, 3, 4), "hidden": 8, "in_channels": 3, "dropout": 0.0}
    return create_model(name, **{**few, "num_classes": 3, **arguments})


def scramble(model: Any) -> Any:
    """Statistics and weights as training leaves them, somewhere else than where they started."""
    generator = torch.Generator().manual_seed(1)
    for name, tensor in model.state_dict().items():
        if "norm" in name and tensor.is_floating_point():
            tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    return model.eval()


def corr(weight: Tensor, x: list[Tensor]) -> list[Tensor]:
    """The paper's correlation on dense levels, as dilated convolutions."""
    weight = weight.unsqueeze(2) if weight.ndim == 4 else weight
    out = []
    for k in range(len(x)):
        taps: Any = {"padding": 2**k * (weight.shape[-1] // 2), "dilation": 2**k}
        depth = min(weight.shape[2], len(x) - k)
        terms = [F.conv2d(x[k + el], weight[:, :, el], **taps) for el in range(depth)]
        out.append(torch.stack(terms).sum(0))
    return out


def norm(state: dict[str, Any], name: str, f: Tensor) -> Tensor:
    """PyTorch's own batch normalization, in evaluation."""
    mean, var, weight, bias = (state[f"{name}.{key}"] for key in ("running_mean", "running_var", "weight", "bias"))
    return F.batch_norm(f, mean, var, weight, bias)
