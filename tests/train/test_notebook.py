"""What notebooks use: five names that load what they need when they are used, and one function that predicts."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pictures import save_picture
from torch import Tensor, nn
from torch.testing import assert_close
from training import small_run, write_noise

import scalespaces
import scalespaces.train
from scalespaces.data._idx import read_idx_images
from scalespaces.models import Card, create_model
from scalespaces.train._levels import answer
from scalespaces.train._predict import predict_mask
from scalespaces.train._recipe import load_recipe

NAMES = ["Recipe", "evaluate", "load_recipe", "predict", "train"]


def test_there_are_five_names():
    assert scalespaces.train.__all__ == NAMES
    assert [getattr(scalespaces.train, name).__name__ for name in dir(scalespaces.train) if name in NAMES] == NAMES
    with pytest.raises(AttributeError, match=r"module 'scalespaces\.train' has no attribute 'fit'"):
        scalespaces.train.__getattr__("fit")


@pytest.mark.parametrize(("name", "module"), [("train", "lightning.pytorch"), ("load_recipe", "yaml")])
def test_a_missing_extra_is_named(name, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    message = rf"{module} is needed for this and is not installed; install it with: pip install 'scalespaces\[train\]'"
    with pytest.raises(ImportError, match=message):
        getattr(scalespaces.train, name)


def test_a_recipe_or_its_file_is_trained_by(tmp_path):
    images = read_idx_images(write_noise(tmp_path / "data", train=12, valid=12), "valid")
    file = tmp_path / "recipe.yaml"
    load_recipe(None, small_run(tmp_path / "data", 4, "--trainer.max_steps=2")).save(file)
    recipe = scalespaces.train.load_recipe(file, ["--trainer.max_steps", "2"])
    assert isinstance(recipe, scalespaces.train.Recipe)
    results = [scalespaces.train.train(given, tmp_path / str(n)) for n, given in enumerate((recipe, file, str(file)))]
    networks = [scalespaces.models.load(result.folder / "model.safetensors") for result in results]
    assert [result.steps for result in results] == [2, 2, 2]
    for network in networks[1:]:
        assert_close(network.state_dict(), networks[0].state_dict(), rtol=0, atol=0)
    found = scalespaces.train.evaluate(networks[0], images)
    assert found.rows[0].images == 12
    probabilities = scalespaces.train.predict(networks[0], images.images)
    assert_close((probabilities.argmax(1) == images.labels).double().mean().item(), found.rows[0].value("accuracy"))
    with pytest.raises(FileNotFoundError, match=r"no recipe 'absent\.yaml'"):
        scalespaces.train.train("absent.yaml", tmp_path / "out")


predict: Any = scalespaces.train.predict


def network(kind: str) -> Any:
    torch.manual_seed(0)
    if kind in ("s_densenet", "s_resnet"):
        small: dict[str, Any] = {"growth": (2, 2), "num_layers": 1} if kind == "s_densenet" else {"width": 3}
        model: Any = create_model(kind, num_classes=3, init="he", lift={"num_levels": 2}, filter_levels=2, **small)
    elif kind == "pixels":
        model = nn.Conv2d(3, 3, 3, padding=1)
    else:
        layers = [nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        cnn = nn.Sequential(*layers, nn.Linear(4, 3))
        model = cnn if kind == "cnn" else scalespaces.convert(cnn, {"num_levels": 2})
    model.card = Card(["a", "b", "c"], [0.5, 0.4, 0.3], [0.2, 0.3, 0.4])
    return model


def pixels(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


def files(folder: Path, images: Tensor) -> list[Path]:
    return [save_picture(folder / f"{n}.png", image.permute(1, 2, 0).numpy()) for n, image in enumerate(images)]


@pytest.mark.parametrize("kind", ["s_densenet", "s_resnet", "pixels", "cnn", "converted"])
def test_probabilities_are_the_networks(kind, tmp_path):
    """Of tensors and files alike, one or many, normalized by the card, in evaluation mode."""
    model, images = network(kind), pixels(5, 3, 24, 28)
    with torch.no_grad():
        expected = answer(model.eval(), model.card.normalize(images / 255)).softmax(1)
    model.train()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    paths = files(tmp_path, images)
    for given in (images, images / 255, paths, [str(path) for path in paths]):
        assert_close(predict(model, given, batch=2), expected, rtol=1e-4, atol=1e-5)
    if kind in ("s_densenet", "s_resnet", "converted"):
        with torch.no_grad():
            largest = answer(model.eval(), model.card.normalize(images / 255), "max").softmax(1)
        assert_close(predict(model.train(), images, pool="max"), largest, rtol=1e-4, atol=1e-5)
    if kind == "s_resnet":
        windows = predict_mask(model.eval(), model.card.normalize(images[0] / 255), tile=16)
        assert_close(predict(model.train(), images[0], tile=16)[0], windows, rtol=1e-4, atol=1e-5)
    for one in (images[1], images[1:2], images[1] / 255, paths[1], str(paths[1]), [paths[1]]):
        assert_close(predict(model, one), expected[1:2], rtol=1e-4, atol=1e-5)
    assert model.training
    assert_close(model.state_dict(), state, rtol=0, atol=0)
    assert_close(expected.sum(1), torch.ones_like(expected[:, 0]))


def test_files_may_differ_in_size_and_hold_the_network(tmp_path):
    paths = files(tmp_path, pixels(2, 3, 24, 28)) + files(tmp_path / "more", pixels(1, 3, 30, 20))
    model = network("s_densenet")
    assert_close(predict(model, paths), torch.cat([predict(model, path) for path in paths]))
    assert predict(model, paths, size=(16, 16)).shape == (3, 3)
    model = network("s_resnet")
    masks = predict(model, paths)
    assert [mask.shape for mask in masks] == [(3, 24, 28), (3, 24, 28), (3, 30, 20)]
    for mask, path in zip(masks, paths, strict=True):
        assert_close(mask, predict(model, path)[0])
    assert predict(model, paths, size=(16, 24)).shape == (3, 3, 16, 24)
    model, images = network("s_densenet"), pixels(2, 3, 24, 28)  # the network may come from a file, too
    scalespaces.models.save(model, tmp_path / "model.safetensors")
    for file in (tmp_path / "model.safetensors", str(tmp_path / "model.safetensors")):
        assert_close(predict(file, images), predict(model, images))
    found = predict(model.double(), images)
    assert (found.dtype, found.device.type) == (torch.float64, "cpu")


@pytest.mark.parametrize(
    ("images", "options", "message"),
    [
        ([], {}, "a file, or several files, got none"),
        (torch.zeros(0, 3, 8, 8), {}, r"or several files, got shape \(0, 3, 8, 8\)"),
        (torch.zeros(8, 8), {}, r"a tensor \(B, C, H, W\) or \(C, H, W\), .*got shape \(8, 8\)"),
        (torch.zeros(3, 8, 8, dtype=torch.int64), {}, "images are uint8 or floating point"),
        (torch.full((3, 8, 8), torch.nan), {}, "its scores are not finite"),
        (torch.zeros(3, 8, 8), {"size": (4, 4)}, r"size is for files, got \(4, 4\); resize the tensor first"),
        (torch.zeros(3, 8, 8), {"tile": 4}, "tile is for networks that answer for every pixel, got 4"),
        ("absent.png", {}, "cannot read 'absent.png'"),
    ],
)
def test_what_cannot_be_predicted(images, options, message):
    model = network("cnn")
    with pytest.raises(ValueError, match=message):
        predict(model, images, **options)
    assert model.training
