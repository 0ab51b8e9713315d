"""scalespaces models and scalespaces info: the tables are the paper's and the library's."""

import json
import re

import pytest
from command import fails

import scalespaces
from scalespaces.cli import main


def test_models_are_listed(capsys):
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == scalespaces.models.list_models()
    assert (main(["models", "s_*"]), len(capsys.readouterr().out.splitlines())) == (0, 4)
    assert "no model matches 'vgg*'; there are cnn" in fails(capsys, "models", "vgg*")


def test_info_prints_the_papers_table(capsys):
    assert main(["info", "s_resnet", "--preset", "paper", "--input", "3", "992", "992"]) == 0
    out = capsys.readouterr().out
    table = re.findall(r"^(\S+)  +(\[.*?\])", out, re.MULTILINE)
    assert [shape for layer, shape in table if "res[" in layer] == [
        f"[4, {side}, {side}, {16 * times}]"
        for side, times in [(992, 1), (496, 2), (248, 4), (248, 4), *[(124, 8)] * 5]
    ]
    assert re.search(r"^s_resnet +1,895,427 ", out, re.MULTILINE)
    assert re.search(r"^resnet +1,552,131 ", out, re.MULTILINE)
    assert re.search(r"^times resnet +1\.22 +4\.96 +3\.80$", out, re.MULTILINE)


def test_info_as_json(tmp_path, capsys):
    said = "--input 1 64 48 --sampling 2 --method direct --num-levels 3 --filter-levels 1 2 1 2 1 --scale-padding valid"
    said += " --base 1.5 --zero-scale 0.5 --first-level -1 --window dilated --classes 7"
    arguments = ["info", "s_densenet", *said.split()]
    assert main([*arguments, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    path = tmp_path / "a" / "info.json"
    assert main([*arguments, "--json", str(path)]) == 0
    assert capsys.readouterr().out.endswith(f"wrote {path}\n")
    assert json.loads(path.read_text()) == printed
    model = scalespaces.models.create_model(**printed["config"])
    lift = {"sampling": 2.0, "num_levels": 3, "base": 1.5, "zero_scale": 0.5, "first_level": -1, "method": "direct"}
    expected = {"filter_levels": [1, 2, 1, 2, 1], "scale_padding": "valid", "window": "dilated", "num_classes": 7}
    assert model.config["lift"].items() >= lift.items()
    assert model.config.items() >= (expected | {"in_channels": 1}).items()
    summary = scalespaces.models.summarize(model, (1, 64, 48))
    assert (printed["total"], printed["layers"]) == (summary.total, summary.to_json()["layers"])
    plain = scalespaces.models.create_model("densenet", in_channels=1, num_classes=7)
    assert printed["baseline"] == {"densenet": scalespaces.models.summarize(plain, (1, 64, 48)).total}


@pytest.mark.parametrize("preset", ["recommended", "paper"])
@pytest.mark.parametrize("name", scalespaces.models.list_models())
def test_info_of_every_model_at_the_papers_size(name, preset, capsys):
    assert main(["info", name, "--preset", preset]) == 0
    out = capsys.readouterr().out
    number = sum(p.numel() for p in scalespaces.models.create_model(name).parameters())
    assert re.search(rf"^{name} +{number:,} ", out, re.MULTILINE)
    settings = out.splitlines()[1]
    assert "num_levels" in settings
    assert f"sampling {'pyramid' if preset == 'recommended' else 'dense'}" in settings
    assert "{" not in settings


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["s_resent"], "no model is called 's_resent'; did you mean 's_resnet'?"),
        (["s_resnet", "--input", "3", "32", "32"], "images of at least 57 pixels"),
        (["s_resnet", "--filter-levels", "2", "2"], "one for each of 9 places"),
        ([], "the following arguments are required: MODEL"),
    ],
    ids=str,
)
def test_info_errors(arguments, message, capsys):
    assert message in fails(capsys, "info", *arguments)
