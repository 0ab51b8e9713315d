"""Models of timm and torchvision, converted: what they computed before, they compute at every level."""

import linecache
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree
from zoo.catalogue import ALONE, MODELS, ONE_SIZE, build, images

import scalespaces
from scalespaces import ScaleSpace
from scalespaces.models import ConversionError, Converted
from scalespaces.nn import Lift

all_models = pytest.mark.parametrize("name", MODELS)


def leaves(output: Any) -> list[Any]:
    """The tensors or scale-spaces of an output: one, or a list or dictionary of them."""
    return _pytree.tree_leaves(output, is_leaf=lambda leaf: isinstance(leaf, ScaleSpace))


def levels(output: Any, k: int) -> list[Tensor]:
    return [leaf.levels[k] for leaf in leaves(output)]


def error(got: list[Tensor], expected: list[Tensor]) -> float:
    """The largest relative L2 error of several outputs."""
    assert [g.shape for g in got] == [e.shape for e in expected]
    assert all(o.isfinite().all() and o.std() > 1e-3 for o in [*got, *expected])
    return max(float((g - e).norm() / e.norm()) for g, e in zip(got, expected, strict=True))


@all_models
@pytest.mark.parametrize("sampling", ["pyramid", "dense", 2])
@torch.no_grad()
def test_level_0_is_the_original(name: str, sampling: str | int) -> None:
    original, image = build(name), images(128, 128)
    converted = scalespaces.convert(original, Lift(3, sampling=sampling)).eval()
    expected = leaves(original(image))
    assert error(leaves(original(image.flip(3))), expected) > 1e-3  # it does look at the image
    assert error(levels(converted.outputs(image), 0), expected) <= 1e-5


def large(name: str) -> list[tuple[int, int]]:
    """Heights and widths to compare at, with four levels."""
    multiples = ("unet/resnet18/transposed", "timm/swin", "timm/swin/features")  # of 32, and of 4, at every level
    return [(256, 512)] if name in multiples else [(256, 256), (257, 300)]


SIZES = [(name, size) for name in [*MODELS, *ALONE, "lite0"] for size in large(name)]


@pytest.mark.parametrize(("name", "size"), SIZES, ids=str)
@torch.no_grad()
def test_level_k_is_the_original_on_the_downscaled_image(name: str, size: tuple[int, int]) -> None:
    original, image = build(name), images(*size, model=name)
    converted = scalespaces.convert(original, Lift(4)).eval()
    assert all(map(torch.equal, leaves(converted(image)), leaves(original(image))))
    output = converted.outputs(image)
    expected = [leaves(original(level)) for level in converted.lift(image).levels]
    for k, wanted in enumerate(expected):  # not a bit differs
        assert all(map(torch.equal, levels(output, k), wanted))
        assert error(levels(output, k), leaves(original(converted.lift.downscale(image, k)))) <= 1e-5
    for coarser, finer in zip(expected[1:], expected[:-1], strict=True):  # and levels do differ
        if coarser[0].shape == finer[0].shape:
            assert error(coarser, finer) > 1e-3


@torch.no_grad()
def test_the_levels_of_a_feature_pyramid_lie_where_strides_put_them() -> None:
    output = scalespaces.convert(build("torchvision/fpn"), Lift(3)).eval().outputs(images(256, 320))
    assert list(output) == ["0", "1", "2", "3", "pool"]
    assert [space.unit for space in output.values()] == [(n, n) for n in (4.0, 8.0, 16.0, 32.0, 64.0)]
    assert all(origin == (0.0, 0.0) for space in output.values() for origin in space.origins)


@pytest.mark.parametrize("name", ["timm/vit", "timm/deit", "timm/swin", "torchvision/swin", "lite0"])
@torch.no_grad()
def test_any_model_on_levels_is_equivariant(name: str) -> None:
    scalespaces.assert_equivariant(scalespaces.convert(build(name), Lift(3)).eval(), images(256, 256, model=name))


@torch.no_grad()
def test_a_real_network_interacts_with_its_own_padding() -> None:
    original, image = build("lite0"), images(256, 256, model="lite0")
    converted = scalespaces.convert(original, Lift(3), interaction=["_conv_stem", "_blocks.10.*"]).eval()
    assert len(converted.config["interaction"]) == 4
    plain = scalespaces.convert(original, Lift(3)).eval().outputs(image)
    assert max(error(levels(converted.outputs(image), k), levels(plain, k)) for k in range(3)) <= 1e-5


class Output(nn.Module):
    """One of the outputs of a converted model."""

    def __init__(self, converted: Converted, index: int) -> None:
        super().__init__()
        self.converted, self.index = converted, index

    def forward(self, image: Tensor) -> ScaleSpace:
        return leaves(self.converted.outputs(image))[self.index]


def equivariance_error(converted: Converted, image: Tensor) -> float:
    number = len(leaves(converted.outputs(image)))
    tables = [scalespaces.equivariance_error(Output(converted, i), image, shifts=[1]) for i in range(number)]
    return max(float(table.errors[0, :-1].max()) for table in tables)


@all_models
@torch.no_grad()
def test_a_pyramid_is_equivariant(name: str) -> None:
    converted = scalespaces.convert(build(name), Lift(3)).eval()
    assert equivariance_error(converted, images(256, 256)) <= 1e-4


@pytest.mark.parametrize("name", ["timm/resnet18/features", "unet/resnet18"])
@torch.no_grad()
def test_dense_sampling_is_equivariant_without_global_poolings(name: str) -> None:
    """A mean over all pixels is another one than that over every second: squeeze-and-excite is left out."""
    converted = scalespaces.convert(build(name), Lift(3, sampling="dense", padding_mode="zeros")).eval()
    assert equivariance_error(converted, images(257, 257)) <= 1e-4


@all_models
@torch.no_grad()
def test_interactions_change_nothing_at_first(name: str) -> None:
    original, image = build(name), images(128, 128)
    plain = scalespaces.convert(original, Lift(2)).eval().outputs(image)
    converted = scalespaces.convert(original, Lift(2), interaction="all").eval()
    assert len(scale_convs(converted)) > 10
    output = converted.outputs(image)
    assert max(error(levels(output, k), levels(plain, k)) for k in range(2)) <= 1e-5


def scale_convs(model: nn.Module) -> dict[str, Any]:
    return {name: m for name, m in model.named_modules() if isinstance(m, scalespaces.nn.ScaleConv2d)}


@all_models
def test_a_step_of_training_reaches_every_parameter_and_decreases_the_loss(name: str) -> None:
    converted = scalespaces.convert(build(name), Lift(2), interaction="all").train()
    image = images(64, 64, 4)
    with torch.no_grad():
        targets = [torch.randn_like(output) for output in leaves(converted(image))]

    def loss() -> Tensor:
        torch.manual_seed(0)  # of dropout
        outputs = leaves(converted(image))
        return torch.stack([F.mse_loss(o, t) for o, t in zip(outputs, targets, strict=True)]).sum()

    before = loss()
    before.backward()
    gradients = {key: torch.zeros(()) if p.grad is None else p.grad for key, p in converted.named_parameters()}
    assert [key for key, gradient in gradients.items() if not (gradient.isfinite().all() and gradient.any())] == []
    assert [key for key in scale_convs(converted) if not gradients[f"{key}.weight"][:, :, 1].any()] == []
    slope = sum(float(gradient.square().sum()) for gradient in gradients.values())
    with torch.no_grad():
        for key, p in converted.named_parameters():
            p -= 0.01 * before / slope * gradients[key]  # to first order, one per cent less
        assert loss() < before


@all_models
@torch.no_grad()
def test_the_state_dict_of_the_original_loads(name: str) -> None:
    original, image = build(name), images(64, 64)
    converted = scalespaces.convert(MODELS[name](), Lift(2)).eval()  # other random weights
    converted.model.load_state_dict(original.state_dict())
    assert error(levels(converted.outputs(image), 0), leaves(original(image))) <= 1e-5
    interacting = scalespaces.convert(original, Lift(2), interaction="all")
    assert interacting.model.state_dict().keys() == original.state_dict().keys()


def test_a_branch_that_levels_take_differently_is_refused() -> None:
    converted = scalespaces.convert(build("timm/vgg16_bn"), Lift(2), interaction="features.0")
    refusal = r"pre_logits \(ConvMlp\), \S+vgg\.py:\d+: if x\.shape.+\n.+ branch differently"
    with pytest.raises(ConversionError, match=refusal):
        converted(images(256, 256))


@pytest.mark.parametrize("name", ["timm/vit", "timm/swin", "torchvision/swin"])
@torch.no_grad()
def test_what_looks_at_a_map_of_one_size_is_refused_in_dense_sampling(name: str) -> None:
    model = build(name)
    with pytest.raises(ConversionError) as refusal:
        scalespaces.convert(model, Lift(2, sampling="dense")).eval().scores(images(224, 224))
    said = str(refusal.value)
    module, kind = re.findall(r"(\S+) \((\w+)\)", said)[0]
    assert type(model if module == "model" else model.get_submodule(module)).__name__ == kind
    file, line, code, hint = re.findall(r", (\S+\.py):(\d+): (.+)\n\w+: .+; (.+)", said)[0]
    assert linecache.getline(file, int(line)).strip() == code
    assert re.match("use|pool|give", hint)


@pytest.mark.parametrize("name", ONE_SIZE)
@torch.no_grad()
def test_models_for_one_size_are_refused_with_a_remedy(name: str) -> None:
    make, remedy = ONE_SIZE[name]
    model, image = make().eval(), images(224, 224)
    converted = scalespaces.convert(model, Lift(4)).eval()
    assert torch.equal(converted(image), model(image))  # the image itself it does take
    with pytest.raises(ConversionError, match=rf"(?s)at level \d.*takes images of .*, but not of .*{remedy}"):
        converted.scores(image)
