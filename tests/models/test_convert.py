"""Converted networks compute at every level what the plain ones compute."""

import copy
import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from models.cnns import ALONE, NETWORKS, DynamicSame, Renamed, ResNet, Same2d, ViT, Zoo, build, same, spaces
from torch import nn
from torch.testing import assert_close

from scalespaces import ScaleSpace, assert_equivariant, convert, equivariance_error, resample
from scalespaces.data import photograph
from scalespaces.nn import ScaleBatchNorm, ScaleConv2d

NOT_DENSE = {"zoo", "same"}  # their padding is computed from sizes: samples where taps are meant

# --- what they compute -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*NETWORKS, *ALONE])
@pytest.mark.filterwarnings("ignore:.*torch.jit")
@torch.no_grad()
def test_level_k_is_the_network_on_the_downscaled_image(name):
    network, image = build(name)
    converted = convert(network, {"num_levels": 3})
    output = spaces(converted.outputs(image))
    for k, level in enumerate(converted.lift(image).levels):
        for got, wanted in zip(output, spaces(network(level)), strict=True):
            assert torch.equal(got.levels[k], wanted)
        expected = spaces(network(converted.lift.downscale(image, k)))
        assert len(expected) == len(output)
        for got, wanted in zip(output, expected, strict=True):
            assert_close(got.levels[k], wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [*NETWORKS, *ALONE])
@pytest.mark.parametrize("lift", [{}, {"sampling": "dense"}, {"first_level": -1}], ids=str)
@pytest.mark.filterwarnings("ignore:.*torch.jit")
@torch.no_grad()
def test_the_answer_is_the_networks_own_and_nothing_else_runs(name, lift, monkeypatch):
    if name in ALONE and "sampling" in lift:
        return
    network, image = build(name)
    converted, calls = convert(nn.Sequential(network), {"num_levels": 3, **lift}).eval(), []
    converted.model.register_forward_pre_hook(lambda *_: calls.append(name))
    monkeypatch.setattr(converted.lift, "forward", None)
    for got, wanted in zip(spaces(converted(image)), spaces(network(image)), strict=True):
        assert torch.equal(got, wanted)
    assert calls == [name]
    assert "answers with level 0" in repr(converted)


@pytest.mark.parametrize("sampling", ["dense", 2])
@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in NOT_DENSE])
@torch.no_grad()
def test_level_0_is_the_network(name, sampling):
    network, image = build(name)
    output = spaces(convert(network, {"num_levels": 3, "sampling": sampling}).outputs(image))
    for got, wanted in zip(output, spaces(network(image)), strict=True):
        assert_close(got.levels[0], wanted, rtol=1e-12, atol=1e-12)
        assert all(level.isfinite().all() for level in got.levels)


@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in ("signals", "volumes")])
@torch.no_grad()
def test_interactions_start_at_nothing_and_then_matter(name):
    network, image = build(name)
    plain = spaces(convert(network, {"num_levels": 3}).outputs(image))
    converted = convert(network, {"num_levels": 3}, interaction="all")
    for got, wanted in zip(spaces(converted.outputs(image)), plain, strict=True):
        assert_close(got.levels, wanted.levels, rtol=1e-12, atol=1e-12)
    filters = [parameter for parameter in converted.parameters() if parameter.ndim == 5]
    assert len(filters) == sum(type(module) in (nn.Conv2d, DynamicSame) for module in network.modules())
    for weight in filters:
        weight[:, :, 1].normal_(0, 0.3)
    for got, wanted in zip(spaces(converted.outputs(image)), plain, strict=True):
        assert (got.levels[0] - wanted.levels[0]).abs().max() > 1e-6


@pytest.mark.parametrize("name", ["resnet", "unet", "unet, interpolate"])
def test_is_equivariant(name):
    network, image = build(name)[0], photograph(256).double()
    assert_equivariant(convert(network), image)
    two_layers = ["layer2.0.conv2", "layer2.1.body.2.0"] if name == "resnet" else ["out", "down1.0"]
    converted = convert(network, interaction=two_layers)
    with torch.no_grad():
        for layer in converted.modules():
            if isinstance(layer, ScaleConv2d):
                layer.weight[:, :, 1].normal_(0, 0.3)
    assert_equivariant(converted, image)
    table = equivariance_error(converted, image)
    assert table.boundary == 2
    assert table.errors[0, 2] > 1e-6  # the filters of the last levels do see past the end


def test_a_dense_unet_is_equivariant():
    """Where no level is averaged as a whole: a mean over all samples is another one than over every second."""
    converted = convert(build("unet, interpolate")[0], {"num_levels": 3, "sampling": "dense", "padding_mode": "zeros"})
    image = torch.randn(1, 3, 65, 65, dtype=torch.float64)
    assert np.nanmax(equivariance_error(converted, image).errors) < 1e-12


# --- the module ------------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Record:
    logits: Any
    name: str = "record"


class Nests(nn.Module):
    def forward(self, x: Any) -> Any:
        y = x.mean((2, 3))
        return Pair(x, [y, (y, 1)]), Record(y), OrderedDict(a={"b": y}), None


class TestScores:
    @torch.no_grad()
    def test_samples_that_stay_where_the_pixels_are_are_interpolated(self):
        network, image = build("unet, interpolate")
        scores = convert(network, {"num_levels": 3}).scores(image)
        for k, level in enumerate(resample(scores).levels):
            assert_close(level[:, :, :: 2**k, :: 2**k], scores.levels[k])

    @torch.no_grad()
    def test_with_finer_levels_and_pooling_inside(self):
        network, image = build("resnet")
        converted = convert(network, {"num_levels": 3, "first_level": -1}, pool_before="fc", scale_pool="mean")
        answer, scores = converted.answer_and_scores(image)
        assert_close(torch.stack(scores.levels).mean(0), answer)
        assert_close(converted(image), answer)
        assert_close(scores.level(0), network(image))

    def test_nests_are_refused(self):
        with pytest.raises(TypeError, match=r"with a single output, got a tuple; .*network\.outputs\("):
            convert(Nests(), {"num_levels": 2}).scores(torch.rand(1, 3, 64, 64))


class TestFeatures:
    @torch.no_grad()
    def test_without_a_linear_layer_they_are_what_the_last_convolution_sees(self):
        network, image = build("unet")
        converted = convert(network, {"num_levels": 2}, interaction=["out"])
        features = converted.features(image)
        assert_close(network.out(features.levels[0]), network(image))
        assert [shape[2:] for shape in features.shapes] == [(32, 64), (16, 32)]

    @torch.no_grad()
    def test_any_module_can_be_named(self):
        network, image = build("resnet")
        converted = convert(network, {"num_levels": 3}, features="layer2", pool_before="fc")
        features = converted.features(image)
        for k, level in enumerate(features.levels):
            seen = network.maxpool(network.relu(network.bn1(network.conv1(converted.lift.downscale(image, k)))))
            assert_close(level, network.layer1(seen))
        assert converted.config["features"] == "layer2"
        assert not network.layer2._forward_pre_hooks
        model: Any = converted.model
        assert not model.layer2._forward_pre_hooks
        assert list(converted.pyramid(image)) == ["0", "1", "2"]

    def test_what_cannot_be(self):
        network = build("resnet")[0]
        with pytest.raises(ValueError, match="features is the name of a module, got 'layer9'; did you mean 'layer"):
            convert(network, features="layer9")
        with pytest.raises(ValueError, match=r"the model has no linear layer .*convert\(features=...\)"):
            convert(nn.ReLU()).features(torch.rand(1, 3, 8, 8))
        unused = nn.ModuleDict({"used": nn.Conv2d(3, 2, 1), "unused": nn.Linear(3, 2)})
        unused.forward = unused["used"].forward  # pyright: ignore[reportAttributeAccessIssue]
        with pytest.raises(ValueError, match="'unused' is not called with one tensor; name another module"):
            convert(unused, {"num_levels": 2}).features(torch.rand(1, 3, 8, 8))


@pytest.mark.parametrize(("name", "dims"), [("signals", 1), ("resnet", 2), ("volumes", 3)])
def test_axes_and_precision_of_the_lift_are_the_models(name, dims):
    network = build(name)[0]
    assert (convert(network).lift.dims, convert(network).lift.taps0.dtype) == (dims, torch.float64)
    assert convert(network.float(), {"num_levels": 2}).config["lift"]["dims"] == dims
    interacting = convert(network, interaction="all").model
    lift = convert(interacting).lift
    assert (lift.dims, lift.taps0.dtype) == (dims, torch.float32)  # also of our own convolutions


class TestModule:
    def test_outputs_are_pooled_wherever_they_are(self):
        image = torch.rand(2, 3, 32, 32)
        pair, record, tree, none = convert(Nests(), {"num_levels": 3}, scale_pool="mean")(image)
        levels = convert(Nests(), {"num_levels": 3}).outputs(image)
        assert (type(pair), type(record), type(tree), none) == (Pair, Record, OrderedDict, None)
        assert pair.first.shape == image.shape
        expected = torch.stack(levels[1].logits.levels).mean(0)
        for got in (pair.second[0], pair.second[1][0], record.logits, tree["a"]["b"]):
            assert_close(got, expected)
        assert (pair.second[1][1], record.name) == (1, "record")
        assert isinstance(levels[0].first, ScaleSpace)

    def test_pools_features_instead_of_logits(self):
        network, image = build("vgg")
        converted = convert(network, {"num_levels": 3}, scale_pool="max", pool_before="classifier")
        features = [network.avgpool(network.features(converted.lift.downscale(image, k))) for k in range(3)]
        expected = network.classifier(torch.stack(features).amax(0).flatten(1))
        assert_close(converted(image), expected)
        assert converted.outputs(image).num_levels == 3
        assert_close(copy.deepcopy(converted)(image), expected)
        with pytest.raises(ValueError, match="pool_before is the name of a module, got 'clasifier'; did you mean"):
            convert(network, pool_before="clasifier")

    def test_the_network_is_copied_and_its_parameters_keep_their_names(self):
        network, image = build("resnet")
        before = copy.deepcopy(network.state_dict())
        converted = convert(network, {"num_levels": 3}, interaction=["layer1.*"])
        assert {key.removeprefix("model.") for key in converted.state_dict()} == set(before)
        with torch.no_grad():
            for parameter in converted.parameters():
                parameter.zero_()
        assert_close(network.state_dict(), before)
        plain = convert(network, {"num_levels": 3})
        plain.model.load_state_dict(before)
        twin = convert(ResNet().double().eval(), {"num_levels": 3})
        twin.load_state_dict(plain.state_dict())
        assert_close(twin(image), plain(image))
        assert_close(copy.deepcopy(plain)(image), plain(image))

    def test_the_arguments_rebuild_it(self):
        network, image = build("resnet")
        options: Any = {"interaction": lambda name, module: "conv2" in name, "scale_pool": "max", "features": "layer2"}
        converted = convert(network, {"num_levels": 3, "sampling": 2}, **options)
        config = json.loads(json.dumps(converted.config))
        assert config["interaction"] == [f"layer1.{i}.conv2" for i in (0, 1)] + ["layer2.0.conv2"]
        twin = convert(network, **config)
        assert twin.config == converted.config == config
        earlier = {name: value for name, value in config.items() if name != "smallest_level"}  # of older files
        assert convert(network, **earlier).config == config
        twin.load_state_dict(converted.state_dict())
        assert_close(twin(image), converted(image))

    def test_which_convolutions_see_two_levels(self):
        network = build("resnet")[0]
        convs = [name for name, module in network.named_modules() if isinstance(module, nn.Conv2d)]

        def chosen(interaction: Any) -> list[str]:
            model = convert(network, {"num_levels": 2}, interaction=interaction).model
            return [name for name, module in model.named_modules() if isinstance(module, ScaleConv2d)]

        assert chosen(None) == []
        assert chosen("all") == convs
        assert chosen("conv1") == ["conv1"]
        assert chosen(["layer1.*.conv1", "conv1"]) == ["conv1", "layer1.0.conv1", "layer1.1.conv1"]

    def test_parameters_that_are_shared_stay_so(self):
        conv = nn.Conv2d(3, 3, 3, padding=1)
        other = nn.Conv2d(3, 3, 3, padding=1)
        other.weight = conv.weight
        model: Any = convert(nn.Sequential(conv, conv, other), {"num_levels": 2}, interaction="all").model
        assert model[0] is model[1]
        assert model[0].weight is model[2].weight
        lone: Any = convert(conv, {"num_levels": 2}, interaction="all").model
        assert isinstance(lone, ScaleConv2d)

    @pytest.mark.parametrize("kind", [Renamed, DynamicSame])
    @torch.no_grad()
    def test_subclasses_of_convolutions_keep_what_they_do(self, kind):
        network, image = same(kind).double().eval(), torch.rand(2, 3, 64, 48, dtype=torch.float64)
        converted = convert(network, {"num_levels": 3}, interaction="all", scale_pool="mean")
        assert converted.config["interaction"] == ["0", "4"]  # and not "3.conv", which slides over the channels
        for k, level in enumerate(converted.scores(image).levels):
            assert_close(level, network(converted.lift.downscale(image, k)))
        first: Any = converted.model.get_submodule("0")
        first.weight[:, :, 1].normal_()
        answer = converted(image)
        assert (answer - convert(network, {"num_levels": 3}, scale_pool="mean")(image)).abs().max() > 1e-6
        layout: Any = {"memory_format": torch.channels_last}
        assert_close(copy.deepcopy(converted).to(**layout)(image.to(**layout)), answer)

    def test_convolutions_that_cannot_see_two_levels(self):
        assert convert(Zoo(), {"num_levels": 2}, interaction="all").config["interaction"] == ["gate", "mix"]
        parametrized = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 8, 3))
        cases: list[tuple[nn.Module, Any, str, str]] = [
            (Zoo(), "stem", "zeros", r"'stem', which chooses none; .*\(Same2d\) has a forward .* changes the weight"),
            (same(Same2d), "all", "zeros", r"'3\.conv' \(Conv1d\) slides over 1 axes, and images have 2"),
            (same(), "all", "replicate", r"\(DynamicSame\) .*takes scale_padding='zeros' only"),
            (same(), "3.conv", "zeros", r"'3\.conv', which chooses none; .*: it is not over space"),
            (parametrized, "all", "zeros", "computes its weight from others"),
            (nn.ReLU(), "all", "zeros", "the model has no convolutions"),
            (same(), lambda name, module: False, "zeros", "the function chooses none; .*'0' can be chosen"),
            (ResNet(), "conv9", "zeros", "got 'conv9', which matches none; did you mean 'conv1'"),
            (ResNet(), ["conv1", "bn1"], "zeros", "got 'bn1', which is a BatchNorm2d; of the model's convolutions"),
        ]
        for network, interaction, scale_padding, message in cases:
            with pytest.raises(ValueError, match=message):
                convert(network, interaction=interaction, scale_padding=scale_padding)

    def test_synchronized_batch_norms_are_ours(self):
        network = nn.SyncBatchNorm.convert_sync_batchnorm(build("resnet")[0])
        converted = convert(network, {"num_levels": 2})
        assert sum(isinstance(m, ScaleBatchNorm) and m.sync for m in converted.modules()) > 5
        image = build("resnet")[1]
        assert_close(converted(image), convert(build("resnet")[0], {"num_levels": 2})(image))

    def test_training_updates_the_statistics_once_and_every_parameter(self):
        network, image = build("efficientnet")
        converted = convert(network, {"num_levels": 3}, interaction="all").train()
        norm: Any = converted.model.get_submodule("stem.1")
        before = norm.running_mean.clone()
        stem: Any = converted.model.get_submodule("stem.0")
        x = stem(converted.lift(image))
        loss = converted(image).square().sum()
        loss.backward()
        mean = torch.stack([level.mean((0, 2, 3)) for level in x.levels]).mean(0)
        assert_close(norm.running_mean, 0.9 * before + 0.1 * mean)
        assert int(norm.num_batches_tracked) == 1
        assert all(p.grad is not None and p.grad.isfinite().all() for p in converted.parameters())
        assert stem.weight.grad[:, :, 1].abs().max() > 0

    def test_training_without_batch_norms_is_level_by_level(self):
        converted = convert(ViT().double().train(), {"num_levels": 3})
        image, model = torch.rand(1, 3, 64, 64, dtype=torch.float64), converted.model
        outputs, levels = converted(image), converted.lift(image).levels
        answer = outputs["scores"]
        assert_close(answer, sum(model(level)["scores"] for level in levels) / 3)
        assert_close(outputs["tokens"], model(levels[0])["tokens"])  # which have no mean over levels
        answer.sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in converted.parameters())

    def test_in_training_the_image_network_learns_from_all_levels(self):
        network, image = build("resnet")
        converted, mean = (convert(network, {"num_levels": 3}, scale_pool=mode).train() for mode in ("image", "mean"))
        assert_close(converted(image), mean(image))
        assert_close(converted.eval()(image), converted.scores(image).levels[0])

    @pytest.mark.parametrize("name", ["zoo", "signals", "volumes", "convnext"])
    @torch.no_grad()
    def test_grids_are_those_of_a_run_on_the_scale_space(self, name):
        network, image = build(name)
        converted = convert(network, {"num_levels": 3}, features="3" if name in ("signals", "volumes") else None)
        apart = spaces(converted.outputs(image)), [*converted.scores_and_features(image)] if name != "zoo" else []
        together = convert(network, {"num_levels": 3}, features=converted.config["features"], pool_before="")
        whole = spaces(together.outputs(image)), [*together.scores_and_features(image)] if name != "zoo" else []
        for got, wanted in zip((*apart[0], *apart[1]), (*whole[0], *whole[1]), strict=True):
            assert got.grid == wanted.grid
            assert_close(got.levels, wanted.levels)


@pytest.mark.parametrize("sampling", ["pyramid", "dense"])
class TestTorch:
    def test_autocast(self, sampling):
        network, image = build("resnet")
        converted = convert(network.float(), {"num_levels": 3, "sampling": sampling}, scale_pool="mean")
        expected = converted(image.float())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = converted(image.float())
        assert_close(out.float(), expected, rtol=0.1, atol=0.2)

    def test_channels_last(self, sampling):
        network, image = build("unet, interpolate")
        converted = convert(network, {"num_levels": 3, "sampling": sampling}, scale_pool="mean")
        expected = converted(image)
        layout: Any = {"memory_format": torch.channels_last}
        assert_close(converted.to(**layout)(image.to(**layout)), expected)

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["resnet", "convnext", "unet, interpolate"])
    def test_compile_whole_graph(self, sampling, name):
        torch._dynamo.reset()
        network, image = build(name)
        converted = convert(network.float(), {"num_levels": 3, "sampling": sampling}, scale_pool="mean")
        compiled: Any = torch.compile(converted, fullgraph=True)
        for got, wanted in zip(spaces(compiled(image.float())), spaces(converted(image.float())), strict=True):
            assert_close(got, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_compile_with_nests_and_pooling_inside():
    torch._dynamo.reset()

    class Two(nn.Linear):
        def forward(self, input: Any) -> Any:
            return {"scores": super().forward(input.mean((2, 3))), "rest": [input.sum((2, 3))]}

    converted, image = convert(Two(3, 2), {"num_levels": 2}, pool_before="", scale_pool="max"), torch.rand(1, 3, 16, 16)
    compiled: Any = torch.compile(converted, fullgraph=True, backend="eager")
    assert_close(compiled(image), converted(image))
