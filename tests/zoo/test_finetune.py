"""The recipe that fine-tunes a converted network, with the network it names."""

from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from pictures import noise, save_picture

from scalespaces import models
from scalespaces.train._recipe import load_recipe
from scalespaces.train._run import train

timm: Any = import_module("timm")
RECIPE = Path(__file__).parents[2] / "recipes" / "finetune_converted.yaml"


def test_recipe_runs(tmp_path):
    for n in range(24):
        save_picture(tmp_path / "photos" / f"class_{n % 3}" / f"{n}.png", noise(80, 70 + n, n))
    said = ["--data.root", str(tmp_path / "photos"), "--data.batch_size=4", "--data.size=[64, 64]", "--data.workers=0"]
    said += ["--trainer.max_steps=2", "--model.arguments.pretrained=false", "--model.arguments.num_classes=3"]
    result = train(load_recipe(RECIPE, said), tmp_path / "out")
    assert result.steps == 2
    network = models.load(result.folder / "model.safetensors", timm.create_model("resnet18", num_classes=3))
    assert network.card.classes == ("class_0", "class_1", "class_2")
    with torch.no_grad():
        assert network(torch.rand(1, 3, 64, 64)).shape == (1, 3)
