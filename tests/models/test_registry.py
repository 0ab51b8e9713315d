"""The registry, and what holds for every network in it."""

import copy
import inspect
import json
import os
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from models.networks import NAMES, PARAMETERS, PRESETS, RESNETS, small
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import scalespaces
from scalespaces.models import ConvNet, DenseNet, ResNet, ScaleNetwork, create_model, register_model
from scalespaces.models._registry import build, entry
from scalespaces.nn import Lift

EVERY = pytest.mark.parametrize("name", NAMES)


def classifies(name):
    return "resnet" not in name


def loss(model, image, target):
    return F.cross_entropy(model(image), target)


def example(name, side=64):
    torch.manual_seed(1)
    image = torch.rand(2, 3, side, side)
    target = torch.arange(2) if classifies(name) else (image.mean(1) > 0.5).long()
    return image, target


@PRESETS
@EVERY
def test_parameters(name, preset):
    assert sum(p.numel() for p in create_model(name, preset=preset).parameters()) == PARAMETERS[name]


def test_the_papers_settings_have_names():
    """[k, S, N] of the supplement, zero-scale and base of the paper's section on the implementation."""
    assert sorted(PARAMETERS) == NAMES
    assert scalespaces.models.list_models("s_*") == ["s_cnn", "s_densenet", "s_resnet", "s_resnet_no_interaction"]
    assert scalespaces.models.list_models("vgg*") == []
    settings = {name: create_model(name, preset="paper").config for name in NAMES if "net" in name}
    found = {name: (c["filter_levels"], c["lift"]["num_levels"], c.get("width")) for name, c in settings.items()}
    densenets = {"densenet": (1, 1, None), "p4m_densenet": (1, 1, None), "s_densenet": (3, 4, None)}
    assert found == RESNETS | densenets
    lift = {"base": 2.0, "zero_scale": 0.25, "method": "direct", "sampling": "dense"}
    for name, config in settings.items():
        assert config["lift"].items() >= lift.items()
        assert config.items() >= {"scale_padding": "zeros", "window": "plain", "scale_pool": "mean"}.items()
        assert config["num_classes"] == (2 if "dense" in name else 19)


@EVERY
def test_the_recommended_settings_differ_in_the_lift_and_the_windows_alone(name):
    recommended, paper = create_model(name).config, create_model(name, preset="paper").config
    assert {key for key in paper if recommended[key] != paper[key]} == {"lift", "window"}
    assert {key for key in paper["lift"] if recommended["lift"][key] != paper["lift"][key]} == {"sampling", "method"}
    assert recommended["lift"].items() >= {"sampling": "pyramid", "method": "cascade"}.items()
    assert recommended["window"] == "dilated"


@PRESETS
@EVERY
def test_a_config_rebuilds_the_model(name, preset):
    model = small(name, preset=preset, lift={"num_levels": 3}, scale_padding="replicate", scale_pool="max")
    config = json.loads(json.dumps(model.config))
    assert (config, set(config)) == (model.config, {"name", *inspect.signature(type(model)).parameters})
    again = create_model(**config)
    assert (again.config, again.lift.config) == (config, model.lift.config)
    again.load_state_dict(model.state_dict())
    image, _ = example(name)
    assert_close(again.eval()(image), model.eval()(image), rtol=0, atol=0)
    assert copy.deepcopy(model).config == config


def test_unknown_names_and_arguments():
    with pytest.raises(ValueError, match="no model is called 's_resent'; did you mean 's_resnet'"):
        create_model("s_resent")
    message = r"no model is called 'vgg' \(there are cnn, s_cnn, densenet, .*s_resnet_no_interaction"
    with pytest.raises(ValueError, match=message):
        create_model("vgg")
    message = "s_resnet takes no argument 'widht'; did you mean 'width'.* .there are num_classes, in_channels, width"
    with pytest.raises(TypeError, match=message):
        create_model("s_resnet", widht=3)
    with pytest.raises(TypeError, match=r"num_levels is an argument of the lift, so .*: lift=\{'num_levels': "):
        create_model("cnn", num_levels=3)
    with pytest.raises(ValueError, match="preset is one of recommended, paper, got 'fast'"):
        create_model("s_resnet", preset="fast")


def test_arguments_of_a_lift_are_merged_over_the_names_own_and_a_lift_replaces_it():
    lift = Lift(5, 1.5, zero_scale=0.5)
    for preset in ("recommended", "paper"):
        model = create_model("s_cnn", preset=preset, lift=lift)
        assert model.lift.config == model.config["lift"] == lift.config
        assert model.lift is not lift
    valid = create_model("s_densenet", lift=lift, scale_padding="valid")
    assert (valid.lift.num_levels, valid.config["lift"], lift.num_levels) == (5 + 4, lift.config, 5)
    assert ConvNet(lift=lift).lift.config == lift.config
    assert create_model("s_cnn", lift={"num_levels": 5}).lift.config == Lift(5, 2**0.5).config
    assert create_model("s_densenet", lift={"base": 1.5}).lift.config == Lift(4, 1.5).config
    paper = create_model("s_densenet", preset="paper", lift={"base": 1.5})
    assert paper.lift.config == Lift.paper(4, 1.5).config
    assert create_model("s_densenet", preset="paper", lift={"sampling": 2}).lift.sampling == 2
    assert create_model("cnn", lift={"zero_scale": 0.5}).lift.config == Lift(1, zero_scale=0.5).config
    assert ResNet(lift={"base": 1.5}).lift.config == Lift(1, 1.5).config
    assert ResNet().lift.config == Lift(1).config


@pytest.mark.parametrize(
    ("lift", "error", "message"),
    [
        ({"levels": 3, "sampeling": 2}, TypeError, "a lift takes no levels, sampeling; it takes num_levels, base"),
        (3, TypeError, "lift must be a Lift or a dict of its arguments, got int"),
        ({"sampling": "thin"}, ValueError, "sampling is"),
        ({"dims": 1}, ValueError, "which have 2 spatial axes, got a lift with dims=1"),
        (Lift(dims=3), ValueError, "2 spatial axes, got a lift with dims=3"),
        ({"first_level": -2, "num_levels": 2}, ValueError, "level 0 still among the 2 levels"),
    ],
    ids=str,
)
@pytest.mark.parametrize("build", [partial(create_model, "s_cnn"), ConvNet], ids=["name", "class"])
def test_wrong_lifts(build, lift, error, message):
    with pytest.raises(error, match=message):
        build(lift=lift)


def test_registering(monkeypatch):
    class Deeper(ConvNet):
        def __init__(self, num_classes=10, in_channels=1, lift={"num_levels": 3}, window="dilated"):  # noqa: B006
            super().__init__(num_classes, in_channels, lift=lift, window=window)

    monkeypatch.setattr("scalespaces.models._registry._ENTRIES", {})
    register_model("mine", DenseNet, "a narrow one", {"growth": (1, 1)}, input_shape=(3, 32, 32))
    register_model("deeper", Deeper, "a lift of its own")
    register_model("given", Deeper, "a lift by its name", {"lift": Lift(2)})
    assert scalespaces.models.list_models() == ["deeper", "given", "mine"]
    assert (create_model("mine").config["growth"], entry("mine").input_shape) == ([1, 1], (3, 32, 32))
    assert create_model("deeper", lift={"base": 1.5}).config["lift"]["num_levels"] == 3
    assert create_model("given").lift.num_levels == 2
    with pytest.raises(ValueError, match="a model called 'mine' already exists"):
        register_model("mine", DenseNet, "another")
    with pytest.raises(TypeError, match="DenseNet takes no setting 'grwth'; did you mean 'growth'"):
        register_model("other", DenseNet, "another", {"grwth": (1, 1)})


@pytest.mark.parametrize(
    ("build", "arguments", "message"),
    [
        (DenseNet, {"lift": {"num_levels": 2}, "filter_levels": 3}, "never meets its last one in a space of 2"),
        (DenseNet, {"filter_levels": (1, 2)}, "filter_levels must be a number, or one for each of 5 places, got"),
        (DenseNet, {"filter_levels": 0}, "filter_levels must be an integer >= 1"),
        (DenseNet, {"scale_padding": "none"}, "scale_padding is one of zeros, replicate, valid"),
        (DenseNet, {"window": "round"}, "window is one of dilated, plain"),
        (ConvNet, {"scale_pool": "median"}, "mode is one of image, mean, max, logsumexp, probabilities"),
        (DenseNet, {"init": "ones"}, "init is one of paper, he"),
        *((build, {"num_classes": 0}, "num_classes must be an integer >= 1") for build in (DenseNet, ResNet, ConvNet)),
        (DenseNet, {"group": "p6"}, "group is one of p4, p4m"),
        (DenseNet, {"growth": ()}, "growth needs one number for each dense block"),
        (DenseNet, {"num_layers": 0}, "num_layers must be an integer >= 1"),
        (ResNet, {"in_channels": 20}, "width must be at least in_channels, got 16 and 20"),
        (ResNet, {"width": 0}, "width must be an integer >= 1"),
        (ConvNet, {"channels": ()}, "channels needs one number for each convolution, got none"),
        *((ConvNet, {name: 0}, f"{name} must be an integer >= 1") for name in ("kernel_size", "grid", "hidden")),
        (ConvNet, {"dropout": 1}, "dropout must be a finite number from 0 to below 1, got 1"),
    ],
    ids=str,
)
def test_wrong_arguments(build, arguments, message):
    with pytest.raises(ValueError, match=message):
        build(**arguments)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current directory with a module in it, of which nothing is left behind."""
    (tmp_path / "nets_of_the_day.py").write_text(
        "import torch\n"
        "def net(channels=3):\n"
        "    import beside_nets\n"  # what is imported later is found as well
        "    return torch.nn.Conv2d(channels, beside_nets.WIDTH, 1)\n"
        "class Holder:\n"
        "    inner = torch.nn.Identity\n"
    )
    (tmp_path / "beside_nets.py").write_text("WIDTH = 5\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    yield tmp_path
    for name in ("nets_of_the_day", "beside_nets"):
        sys.modules.pop(name, None)


HERE = ["nets_of_the_day", "torch"]


def test_a_function_in_the_current_directory(here):
    path = list(sys.path)
    model = build("nets_of_the_day:net", {"channels": 2}, HERE)
    assert isinstance(model, nn.Conv2d)
    assert (model.in_channels, model.out_channels, sys.path) == (2, 5, path)
    assert isinstance(build("nets_of_the_day:Holder.inner", allow=HERE), nn.Identity)
    conv = build("torch.nn:Conv2d(in_channels=1, out_channels=2, kernel_size=(3, 5))", {"bias": False}, HERE)
    assert isinstance(conv, nn.Conv2d)
    assert (conv.kernel_size, conv.bias) == ((3, 5), None)


@pytest.mark.parametrize(
    ("place", "arguments", "message"),
    [
        ("torch.nn", None, "a function of no arguments, MODULE:FUNCTION, got 'torch.nn'"),
        ("torch.nn:", None, "MODULE:FUNCTION, got 'torch.nn:'"),
        ("torch.nn:Conv2d(in_channels=f())", None, "MODULE:FUNCTION(name=value"),
        ("no_such_module:net", None, "No module named 'no_such_module'"),
        ("torch.nn:NoSuchNet", None, "NoSuchNet"),
        ("torch.nn:Conv2d", None, "missing 3 required"),
        ("nets_of_the_day:net", {"width": 3}, "a function of the arguments width, MODULE:FUNCTION"),
        ("builtins:dict", None, "what makes an nn.Module, got 'builtins:dict', a dict"),
    ],
)
def test_what_is_no_model_is_named(place, arguments, message, here):
    path = list(sys.path)
    with pytest.raises(ValueError, match=r"a model is named by") as error:
        build(place, arguments, [*HERE, "no_such_module", "builtins"])
    assert message in str(error.value)
    assert sys.path == path


@pytest.mark.parametrize(
    ("place", "arguments"),
    [
        ("os:system", {"command": "touch ran"}),
        ("os:system(command='touch ran')", None),
        ("subprocess:Popen", {"args": ["touch", "ran"]}),
        ("builtins:exec", None),
        ("torch.hub:load", {"repo_or_dir": ".", "model": "net", "source": "local"}),
        ("runs_when_imported:net", None),
        ("timmy:create_model", None),
        (":system", None),
        ("scalespaces.cli:sys.exit", None),  # imported there, not defined
        ("scalespaces.models._registry:os.system", {"command": "touch ran"}),
    ],
)
def test_strings_run_code_of_few_packages_only(place, arguments, here):
    (here / "runs_when_imported.py").write_text("open('ran', 'w').close()\n")
    with pytest.raises(ValueError, match=r"a function of timm, .*code of .*; if you trust that package, use --allow-"):
        build(place, arguments)
    with pytest.raises(ValueError, match="code of"):
        build(place, arguments, ["runs_when_imported.models", "o"])
    assert not (here / "ran").exists()


@pytest.mark.parametrize(
    ("place", "arguments"),
    [
        ("scalespaces.cli:main", {"argv": ["export"]}),
        ("scalespaces.train:train", {"recipe": "recipe.yaml", "out": "out"}),
        (
            "scalespaces.models._registry:build",
            {"place": "os:system", "arguments": {"command": "touch ran"}, "allow": ["os"]},
        ),
        ("scalespaces:models._registry.build", {"place": "os:system", "arguments": {"command": "touch ran"}}),
        ("scalespaces.data:photograph", None),
        ("scalespaces:__version__.format", None),
    ],
)
def test_known_packages_give_networks_and_run_nothing_else(place, arguments, here):
    with pytest.raises(ValueError, match=r"not a public class of networks|code of"):
        build(place, arguments)
    assert not (here / "ran").exists()


def test_known_packages_are_not_taken_from_the_current_directory(here):
    for name in ("timm", "segmentation_models_pytorch"):
        (here / f"{name}.py").write_text("open('ran', 'w').close()\n")
        with suppress(ValueError):  # it may be installed
            build(f"{name}:no_such_network")
    assert not (here / "ran").exists()
    assert isinstance(build("scalespaces.models:create_model", {"name": "cnn"}), nn.Module)
    assert isinstance(build("scalespaces.models:ConvNet(num_classes=3)"), nn.Module)


def test_factories_of_known_packages_unpickle_no_code(here, monkeypatch):
    package = ModuleType("timm")

    def create_model(path):
        return torch.load(path, weights_only=False)

    create_model.__module__ = "timm"
    monkeypatch.setattr(package, "create_model", create_model, raising=False)
    monkeypatch.setitem(sys.modules, "timm", package)
    torch.save(Path("x"), here / "weights.pt")
    before = dict(os.environ)
    with pytest.raises(ValueError, match=r"a model is named by .*[Ww]eights"):
        build("timm:create_model", {"path": str(here / "weights.pt")})
    assert dict(os.environ) == before


@pytest.mark.parametrize("number", [10**9, 1e9, 2**200])
def test_absurd_numbers_of_classes_are_refused_before_memory_is_taken(number, here, monkeypatch):
    for make in (
        lambda: create_model("s_cnn", num_classes=number),
        lambda: build("nets_of_the_day:net", {"num_classes": number}, HERE),
    ):
        with pytest.raises(ValueError, match=r"num_classes is at most 32,768, got .*set SCALESPACES_MAX_CLASSES"):
            make()
    with pytest.raises(ValueError, match=r"num_classes is at most 32,768"):
        build(f"nets_of_the_day:net(num_classes={number})", allow=HERE)
    monkeypatch.setenv("SCALESPACES_MAX_CLASSES", "40000")
    assert create_model("cnn", num_classes=40000).config["num_classes"] == 40000


@pytest.mark.parametrize("init", ["paper", "he"])
@EVERY
def test_a_step_decreases_the_loss_by_as_much_as_the_gradient_says(name, init):
    model = small(name, init=init)
    image, target = example(name)
    before = loss(model, image, target)
    before.backward()
    slope = sum(p.grad.square().sum().item() for p in model.parameters() if p.grad is not None)
    expected = 1e-3 * before.item()
    torch.optim.SGD(model.parameters(), expected / slope).step()
    decrease = before.item() - loss(model, image, target).item()
    assert 0.5 * expected < decrease < 1.5 * expected


@pytest.mark.parametrize("scale_padding", ["zeros", "replicate", "valid"])
@EVERY
def test_gradients_reach_every_level_of_every_filter(name, scale_padding):
    model = small(name, preset="paper", scale_padding=scale_padding)
    image, target = example(name, 24)
    loss(model, image, target).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        axes = [axis for axis in range(parameter.ndim) if axis != 2] if parameter.ndim == 5 else []
        assert (parameter.grad.abs().sum(axes) > 0).all(), key  # at each level of deep filters; any element of fields


@EVERY
def test_initializations(name):
    """The paper's: one at the center for paired channels, noise of 0.01 elsewhere. He's: as wide as the fan-in says."""
    for init in ("paper", "he"):
        model: Any = create_model(name, init=init)
        weights = [p for key, p in model.named_parameters() if "conv" in key and p.ndim > 1]
        for weight in weights[2:]:
            fan_in = weight[0].numel()
            spread = weight.detach().flatten()
            if init == "he":
                assert abs(spread.std().item() * (fan_in / 2) ** 0.5 - 1) < 0.1
            else:
                assert abs(spread[spread.abs() < 0.05].std().item() - 0.01) < 1e-3


@pytest.mark.parametrize("scale_padding", ["zeros", "replicate", "valid"])
@pytest.mark.parametrize(
    ("name", "deep", "lost", "expected"),
    [
        ("s_cnn", (2, 1, 3), 3, {"blocks.0": 2, "blocks.2": 3}),
        ("s_densenet", (2, 1, 1, 3, 2), 8, {"blocks.0": 2, "blocks.2": 2, "transitions.1": 3}),
        ("s_resnet", (2, 1, 1, 1, 1, 1, 1, 1, 3), 3, {"blocks.0": 2, "blocks.8": 3}),
    ],
)
def test_deep_filters_anywhere(name, deep, lost, expected, scale_padding):
    model = small(name, lift={"num_levels": 3, "base": 1.3}, filter_levels=deep, scale_padding=scale_padding)
    found = {".".join(key.split(".")[:2]): p.shape[2] for key, p in model.named_parameters() if p.ndim == 5}
    assert (found, model.lift.num_levels) == (expected, 3 + lost if scale_padding == "valid" else 3)
    assert model.features(torch.rand(1, 3, model.smallest_side, model.smallest_side)).num_levels == 3


@pytest.mark.parametrize("base", [2.0, 1.5])
@pytest.mark.parametrize("name", [name for name in NAMES if classifies(name)])
def test_a_downscaled_image_is_answered_by_the_level_above(name, base):
    model = small(name, lift={"num_levels": 3, "base": base}, filter_levels=1).double().eval()
    image = torch.rand(2, 3, 85, 71, dtype=torch.float64)
    scores, shifted = model.scores(image), model.scores(scalespaces.downscale(image, 1, base))
    assert_close(shifted.levels[:-1], scores.levels[1:])


@EVERY
def test_autocast(name):
    model = small(name).eval()
    image, target = example(name)
    expected = model(image)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(image)
        value = loss(model.train(), image, target)
    assert_close(out.float(), expected, rtol=0.1, atol=0.1)
    value.float().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@PRESETS
@EVERY
def test_channels_last(name, preset):
    model = small(name, preset=preset).eval()
    image, _ = example(name)
    expected = model(image)
    layout: Any = {"memory_format": torch.channels_last}
    model, image = model.to(**layout), image.to(**layout)
    assert_close(model(image), expected, rtol=1e-4, atol=1e-5)
    levels = model.features(image).levels
    assert all(level.is_contiguous(memory_format=torch.channels_last) for level in levels)


@EVERY
def test_state_dicts_hold_parameters_and_statistics_only(name):
    model = small(name)
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    assert {key for key in model.state_dict() if not key.endswith(statistics)} == set(dict(model.named_parameters()))


@pytest.mark.slow
@EVERY
def test_compile_whole_graph(name):
    torch._dynamo.reset()
    depth = min(entry(name).arguments["filter_levels"], 2)
    fewer = {"lift": {"num_levels": 2}, "filter_levels": depth}  # compiles faster
    model = small(name, **(fewer if name.startswith("s_") else {}))
    twin: ScaleNetwork = copy.deepcopy(model)
    image, target = example(name)
    compiled: Any = torch.compile(twin, fullgraph=True)
    got, expected = loss(compiled, image, target), loss(model, image, target)
    assert_close(got, expected, rtol=1e-4, atol=1e-4)
    got.backward()
    expected.backward()
    for (key, ours), theirs in zip(twin.named_parameters(), model.parameters(), strict=True):
        assert ours.grad is not None, key
        assert_close(ours.grad, theirs.grad, rtol=1e-2, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("train", [False, True])
@EVERY
def test_other_batch_sizes_compile_at_most_once_more(name, train):
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(small(name).train(train), fullgraph=True, backend=counter)
    image, _ = example(name)
    with torch.set_grad_enabled(train):
        for batch in (2, 3, 5, 4):
            compiled(image[:1].expand(batch, -1, -1, -1).contiguous())
    assert counter.frame_count <= 2
