"""Copies of networks for inference: what depends on parameters alone is computed once."""

import copy
import math
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

from scalespaces._torch import DispatchMode, has_hooks, tensors_in
from scalespaces.functional._moments import repeat
from scalespaces.models._convert import Converted
from scalespaces.models._modules import TORCHS_OWN, is_plain
from scalespaces.models._network import ScaleNetwork
from scalespaces.nn import ScaleBatchNorm, ScaleConv1d, ScaleConv2d, ScaleConv3d
from scalespaces.nn._conv import as_images
from scalespaces.nn._norm import TensorBatchNorm
from scalespaces.nn._p4 import P4Conv2d
from scalespaces.semigroups._p4 import expand_filters, order
from scalespaces.space import ScaleSpace

_OURS = (ScaleConv1d, ScaleConv2d, ScaleConv3d, nn.Linear)
_NORMS = {nn.BatchNorm2d.forward, ScaleBatchNorm.forward, TensorBatchNorm.forward}
_SIDE = 64  # of the image that is tried


@torch.no_grad()
def prepare(network: ScaleNetwork, image: Tensor | None = None) -> Any:
    r"""A copy of a network for inference, with the same answers, scores and features, up to rounding.

    Batch normalization that follows a convolution or a linear layer becomes part of its filters:

    .. math:: \gamma \frac{\psi \star f + b - \mu}{\sigma} + \beta
              = \frac{\gamma}{\sigma} \psi \star f + \frac{\gamma}{\sigma} (b - \mu) + \beta

    Filters on the symmetries of the square are expanded, filters of several levels are laid out level by level, and
    ReLUs write over their inputs if nothing else reads them.
    Batch norms are found by running the network on one image: those are folded that read what one layer computes and
    nothing else reads. The copy is run on the same image, and an error is raised if its outputs differ.

    The copy has no gradients and cannot be trained or saved: keep the network, and prepare it again when it changes.
    Move it to its device, and choose its precision and memory format, before it is prepared.

    Args:
        network: made by :func:`create_model` or :func:`convert`, in evaluation mode.
        image: of a shape that the network takes, if it is special: ``(B, C, H, W)``.

    Example:
        >>> network = scalespaces.models.create_model("s_resnet_no_interaction", width=4).eval()
        >>> image = torch.rand(1, 3, 64, 64)
        >>> fast = prepare(network)
        >>> sum(isinstance(layer, scalespaces.nn.ScaleBatchNorm) for layer in fast.modules())
        0
        >>> (fast(image) - network(image)).abs().max() < 1e-5 * network(image).abs().max()
        tensor(True)
    """
    if not isinstance(network, ScaleNetwork):
        raise TypeError(f"expected a network with levels, got a {type(network).__name__}; convert it first")
    if network.training:
        raise ValueError("a network is prepared for inference, and this one is in training mode; call network.eval()")
    fast = copy.deepcopy(network).requires_grad_(False)
    if network.prepared:
        return fast
    image = _image_for(network) if image is None else image
    with _Watcher(fast) as watcher:
        outputs = _outputs(fast, image)
    for layer, norm in watcher.pairs(outputs):
        _fold(layer, norm)
        _put(fast, norm, nn.Identity())
    for relu in watcher.alone():
        relu.inplace = True
    for layer in [layer for layer in fast.modules() if isinstance(layer, P4Conv2d)]:
        if layer not in watcher.on_tensors:
            _put(fast, layer, _expanded(layer))
    for layer in fast.modules():
        if isinstance(layer, ScaleConv2d) and layer.weight.ndim == 5:
            layer.weight.data = as_images(lambda weight: weight)(layer.weight.data)
    fast.eval().prepared = True
    difference = _difference(outputs, _outputs(fast, image))
    if not difference <= torch.finfo(image.dtype).eps ** 0.5:
        rule = f"the prepared network differs by {difference:.1e} of the largest output for an image of"
        raise ValueError(f"{rule} {tuple(image.shape)}; use the network as it is, and report this")
    return fast


def _image_for(network: ScaleNetwork) -> Tensor:
    """Random numbers of the network's type, as an image that it takes."""
    like = next((t for t in (*network.parameters(), *network.buffers()) if t.is_floating_point()), torch.zeros(()))
    last = network.lift.num_levels + network.lift.first_level - 1
    side = 224 if isinstance(network, Converted) else max(_SIDE, 2 * 2**last, network.smallest_side)
    image = torch.rand(1, network.in_channels, *[side] * network.lift.dims, generator=torch.Generator().manual_seed(0))
    return image.to(like)


def _outputs(network: ScaleNetwork, image: Tensor) -> list[Tensor]:
    """All that the network's methods return."""
    everything: Any = network.outputs if isinstance(network, Converted) else network.scores_and_features
    return tensors_in([network(image), everything(image)])


def _difference(expected: list[Tensor], found: list[Tensor]) -> float:
    """The largest, relative to the largest value of its tensor; infinite for tensors of other shapes."""
    if [tensor.shape for tensor in expected] != [tensor.shape for tensor in found]:
        return math.inf
    pairs = [(a.double(), b.double()) for a, b in zip(expected, found, strict=True) if a.is_floating_point()]
    amounts = [((a - b).abs().max() / a.abs().max().clip(min=1e-12)).item() for a, b in pairs if a.numel()]
    return max(amounts, key=lambda amount: math.inf if math.isnan(amount) else amount, default=0.0)


class _Watcher(DispatchMode):
    """Sees which layers' outputs are read by which batch norms and ReLUs, and by what else (None)."""

    def __init__(self, network: ScaleNetwork) -> None:
        super().__init__()
        self.made: dict[int, tuple[Tensor, nn.Module]] = {}  # by which layer; kept, so that ids stay its own
        self.readers, self.sources = defaultdict[Any, set](set), defaultdict[Any, set](set)
        self.on_tensors, self.reading = set[nn.Module](), list[nn.Module]()
        name = network.config["features"] if isinstance(network, Converted) else None
        seen = {path: module for path, module in network.named_modules() if not has_hooks(module)}
        seen.pop(f"model.{name}", None)  # whose input is the features
        self.layers = [module for module in seen.values() if _takes_affine(module)]
        self.norms: list[Any] = [module for module in seen.values() if _is_norm(module)]
        self.relus: list[Any] = [module for module in seen.values() if type(module) is nn.ReLU]

    def __enter__(self) -> Any:
        self.hooks = [module.register_forward_pre_hook(self._before) for module in (*self.norms, *self.relus)]
        for module in (*self.layers, *self.norms, *self.relus):
            self.hooks.append(module.register_forward_hook(self._after))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for hook in self.hooks:
            hook.remove()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tensors_in((args, kwargs)):
            if id(tensor) in self.made:
                self.readers[self.made[id(tensor)][1]].add(self.reading[-1] if self.reading else None)
        return func(*args, **(kwargs or {}))

    def _before(self, reader: nn.Module, inputs: tuple) -> None:
        self.reading.append(reader)
        for tensor in _levels(inputs[0]):
            self.sources[reader].add(self.made.get(id(tensor), (None, None))[1])

    def _after(self, layer: nn.Module, inputs: tuple, output: Any) -> None:
        if self.reading and self.reading[-1] is layer:
            self.reading.pop()
        if isinstance(inputs[0], Tensor):
            self.on_tensors.add(layer)
        for tensor in _levels(output):
            self.made[id(tensor)] = (tensor, layer)
            if isinstance(layer, nn.Linear) and tensor.ndim != 2:  # its channels are not where a batch norm's are
                self.readers[layer].add(None)

    def pairs(self, outputs: list[Tensor]) -> list[tuple[Any, Any]]:
        """The layers and batch norms that become one: neither has another partner, also not outside the network."""
        for tensor in outputs:
            if id(tensor) in self.made:
                self.readers[self.made[id(tensor)][1]].add(None)
        found = [(source, norm) for norm in self.norms if len(self.sources[norm]) == 1 for source in self.sources[norm]]
        return [(layer, norm) for layer, norm in found if layer in self.layers and self.readers[layer] == {norm}]

    def alone(self) -> list[Any]:
        """The ReLUs that may write over their inputs, which nothing else reads."""
        return [
            relu
            for relu in self.relus
            if self.sources[relu] and all(s is not None and self.readers[s] == {relu} for s in self.sources[relu])
        ]


def _levels(x: Any) -> tuple[Tensor, ...]:
    return x.levels if isinstance(x, ScaleSpace) else (x,) if isinstance(x, Tensor) else ()


def _takes_affine(module: nn.Module) -> bool:
    """Whether the module's output is linear in its weight and bias, one number of the bias for each channel."""
    if module._parameters.get("weight") is None:  # a parametrization
        return False
    if isinstance(module, TORCHS_OWN):
        return is_plain(module)
    return type(module) in _OURS or isinstance(module, P4Conv2d)


def _is_norm(module: nn.Module) -> bool:
    known = getattr(module, "running_mean", None) is not None and not module.training
    return known and type(module).forward in _NORMS


def _fold(layer: Any, norm: Any) -> None:
    """Give the layer the filters and the bias that do what both do, computed in float64."""
    mean, var = norm.running_mean.double(), norm.running_var.double()
    scale = torch.rsqrt(var + norm.eps)
    scale = scale if norm.weight is None else scale * norm.weight.double()
    shift = -mean * scale if norm.bias is None else norm.bias.double() - mean * scale
    if not isinstance(layer, P4Conv2d):  # whose filters are one for each field, as a batch norm's numbers are
        scale, shift = (repeat(v, getattr(norm, "elements", 1)) for v in (scale, shift))
    weight = layer.weight
    new = weight.double() * scale.reshape([-1] + [1] * (weight.ndim - 1))
    bias = shift if layer.bias is None else layer.bias.double() * scale + shift
    layer.weight = nn.Parameter(torch.empty_like(weight).copy_(new), False)  # in the layout it had
    layer.bias = nn.Parameter(bias.to(weight.dtype), False)


def _expanded(layer: P4Conv2d) -> ScaleConv2d:
    """The same convolution of plain channels."""
    n = order(layer.group)
    fields = layer.in_channels * (1 if layer.lifting else n)
    options = {"bias": layer.bias is not None, "device": "meta", **layer.arguments()}
    new = ScaleConv2d(fields, layer.out_channels * n, layer.kernel_size, **options)
    bank = expand_filters(layer.weight, layer.group, lifting=layer.lifting, index=layer.index)
    new.weight = nn.Parameter(bank, False)
    if layer.bias is not None:
        new.bias = nn.Parameter(layer.bias.repeat_interleave(n), False)
    return new


def _put(network: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Replace a module wherever it is."""
    for name, module in list(network.named_modules(remove_duplicate=False)):
        if module is old:
            network.set_submodule(name, new)
