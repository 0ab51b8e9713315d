"""The command: its numbers are the library's, its files are whole, its errors are one line."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import scalespaces
from scalespaces.cli import build_parser, main, random_network
from scalespaces.data import photograph
from scalespaces.testing import equivariance_error, translation_error

image_module = pytest.importorskip("PIL.Image")
pytest.importorskip("matplotlib")

DEMO = Path(__file__).parents[1] / "examples" / "demo.py"
SMALL = ("equivariance", "--size", "33", "--levels", "4", "--layers", "1", "--channels", "2")
REFLECT = ("--padding-mode", "reflect")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "scalespaces", *arguments], capture_output=True, text=True)


def numbers(table: dict) -> np.ndarray:
    return np.array([[np.nan if e is None else e for e in row] for row in table["errors"]])


def fails(capsys, *arguments: str) -> str:
    """The one line of a command that fails."""
    try:
        code = main(arguments)
    except SystemExit as exit:
        code = exit.code
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert err.startswith("scalespaces")
    assert ": error: " in err
    assert err.count("\n") == 1
    assert err.endswith("\n")
    return err


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [["--help"], ["equivariance", "--help"], ["models", "--help"], ["info", "--help"]]
)
def test_help(arguments, capsys):
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: scalespaces")
    assert arguments[0] == "--help" or arguments[0] in out
    assert "None" not in out
    assert "SUPPRESS" not in out


def test_version(capsys):
    with pytest.raises(SystemExit) as exit:
        main(["--version"])
    assert exit.value.code == 0
    assert capsys.readouterr().out == f"scalespaces {scalespaces.__version__}\n"


def test_no_command_prints_the_help(capsys):
    assert main([]) == 0
    assert capsys.readouterr().out == build_parser().format_help()


def test_python_m():
    assert run("--version").stdout == f"scalespaces {scalespaces.__version__}\n"
    wrong = run("equivariance", "--image", "no such file.png")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == (
        "scalespaces equivariance: error: cannot read 'no such file.png': No such file or directory\n"
    )


def test_the_defaults_are_the_papers():
    args = build_parser().parse_args(["equivariance"])
    assert (args.method, args.sampling, args.levels, args.zero_scale) == ("direct", "dense", 8, 0.25)
    assert (args.base, args.kernel, args.layers) == (2.0, "discrete_gaussian", [1, 2, 3])


# --- equivariance ----------------------------------------------------------------------------------------------------


def test_random_networks():
    state = torch.random.get_rng_state()
    network = random_network(3, in_channels=1, channels=4, filter_levels=2, seed=3, num_levels=5)
    assert torch.equal(torch.random.get_rng_state(), state)
    shapes = [tuple(weight.shape) for weight in network.parameters()]
    assert shapes == [(4, 1, 2, 3, 3), (4, 4, 2, 3, 3), (4, 4, 2, 3, 3)]
    padded = random_network(1, padding_mode="circular", scale_padding="valid")
    assert [module.padding_mode for module in list(padded)[:2]] == ["circular", "circular"]
    assert padded[1].scale_padding == "valid"
    again, other = (random_network(3, in_channels=1, channels=4, seed=seed) for seed in (3, 4))
    weights = [next(net.parameters()) for net in (network, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    # He: activations keep their size.
    wide = random_network(3, channels=256, num_levels=5, padding_mode="circular")
    with torch.no_grad():
        first = wide[:2](torch.randn(1, 3, 16, 16))
        second = wide[2:4](first)
    assert 0.5 < second.level(0).square().mean() / first.level(0).square().mean() < 2


def test_json_holds_what_the_library_measures(tmp_path, capsys):
    path, plot = tmp_path / "a" / "errors.json", tmp_path / "b" / "errors.png"
    arguments = ["--size", "49", "--levels", "5", "--layers", "1", "2", "--channels", "3", "--seed", "5", "--double"]
    arguments += ["--downscaling", "cascade", "direct", "pillow", "--translations", "--zero-scale", "0.5"]
    arguments += ["--padding-mode", "zeros", "--json", str(path), "--plot", str(plot)]
    assert main(["equivariance", *arguments]) == 0
    out, err = capsys.readouterr()
    document = json.loads(path.read_text())
    assert document["settings"]["downscaling"] == ["cascade", "direct", "pillow"]
    assert document["image_shape"] == [1, 3, 49, 49]

    image, measured = photograph(49).double(), iter(document["equivariance"])
    for layers, moved in zip((1, 2), document["translation"], strict=True):
        options: dict = {"channels": 3, "seed": 5, "num_levels": 5, "zero_scale": 0.5, "padding_mode": "zeros"}
        network = random_network(layers, **options).double()
        for downscaling in ("cascade", "direct", "pillow"):
            table, found = equivariance_error(network, image, downscaling=downscaling), next(measured)
            np.testing.assert_allclose(numbers(found), table.errors, rtol=1e-9, atol=1e-14)
            assert (found["layers"], found["downscaling"]) == (layers, downscaling)
            k, shift = np.meshgrid(found["levels"], found["rows"])
            before = table.errors[(k + shift < 5 - layers) & ~np.isnan(table.errors)]
            behind = table.errors[(k + shift >= 5 - layers) & ~np.isnan(table.errors)]
            assert found["mean_before"] == pytest.approx(before.mean())
            assert found["largest_behind"] == pytest.approx(behind.max())
            assert f"(k + l < {5 - layers}): {before.mean():.3e}; largest behind it: {behind.max():.3e}" in out
            assert str(table).splitlines()[2] in out
        np.testing.assert_allclose(numbers(moved), translation_error(network, image).errors, rtol=1e-9, atol=1e-14)
    assert next(measured, None) is None
    means = [f"{table['mean_before']:9.2e}" for table in document["equivariance"]]
    assert f"2 layers, zeros padding        | {' '.join(means[3:])}" in out
    assert "2 layers, zeros padding, image downscaled by pillow ..." in err

    with image_module.open(plot) as picture:
        values = np.array(picture.convert("RGB"))
    assert picture.format == "PNG"
    assert min(values.shape[:2]) > 400
    assert values.std() > 5
    assert sorted(p.name for p in tmp_path.rglob("*.*")) == ["errors.json", "errors.png"]


def test_the_cascade_is_exact_and_downscaling_follows_the_method(tmp_path):
    path = tmp_path / "errors.json"
    for options in (
        ["--padding-mode", "zeros"],
        ["--sampling", "pyramid", *REFLECT],
        ["--sampling", "2", *REFLECT],
        REFLECT,
    ):
        assert main([*SMALL, "--method", "cascade", "--double", "--json", str(path), *options]) == 0
        document = json.loads(path.read_text())
        (table,) = document["equivariance"]
        assert table["downscaling"] == "cascade"
        assert table["mean_before"] < 1e-14
        assert table["largest_behind"] > 1e-3


def test_valid_scale_padding_leaves_nothing_behind_the_boundary(tmp_path, capsys):
    path = tmp_path / "errors.json"
    options = ["--method", "cascade", "--double", "--scale-padding", "valid", "--json", str(path), *REFLECT]
    assert main([*SMALL, *options]) == 0
    (table,) = json.loads(path.read_text())["equivariance"]
    assert table["levels"] == [0, 1, 2]
    assert table["largest_behind"] is None
    assert "largest behind it: nothing" in capsys.readouterr().out


def test_images_are_fitted_to_sizes_without_border_errors(capsys, tmp_path):
    path = tmp_path / "errors.json"
    options = ["--layers", "1", "--channels", "1", "--levels", "4", "--method", "cascade", "--double"]

    def measure(size, *more):
        assert main(["equivariance", "--size", size, *options, *more, "--json", str(path)]) == 0
        document = json.loads(path.read_text())
        return document["image_shape"][2:], document["equivariance"][0]["mean_before"], capsys.readouterr().err

    shape, error, said = measure("40")
    assert (shape, error < 1e-14) == ([41, 41], True)
    assert "extended by reflection from 40 x 40 to 41 x 41 pixels" in said
    shape, error, said = measure("40", "--no-fit")
    assert (shape, error > 1e-3) == ([40, 40], True)
    assert "they vanish for sides that leave 1 when divided by 8: try --size 33" in said
    shape, error, said = measure("34")  # too far from 41
    assert (shape, "try --size 33" in said) == ([34, 34], True)
    shape, error, said = measure("33")
    assert (shape, error < 1e-14, "note:" in said) == ([33, 33], True, False)


def test_paddings_side_by_side(capsys, tmp_path):
    path = tmp_path / "errors.json"
    assert main([*SMALL, "--padding-mode", "zeros", "reflect", "zeros", "--json", str(path)]) == 0
    tables = json.loads(path.read_text())["equivariance"]
    assert [table["padding_mode"] for table in tables] == ["zeros", "reflect"]
    assert numbers(tables[0])[0, 0] != numbers(tables[1])[0, 0]
    assert "1 layer, reflect padding, image downscaled by direct" in capsys.readouterr().out


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("L", 3), ("RGBA", 3), ("P", 3), ("I;16", 1), ("F", 1)])
def test_any_image_is_read(mode, channels, tmp_path):
    values = (photograph(40)[0, 0].numpy() * 255).astype(np.uint8)
    if mode == "I;16":
        picture = image_module.fromarray(values.astype(np.uint16) * 250)
    else:
        picture = image_module.fromarray(values).convert(mode)
    file, path = tmp_path / "image.tiff", tmp_path / "errors.json"
    picture.save(file)
    assert main([*SMALL, "--image", str(file), "--json", str(path)]) == 0
    document = json.loads(path.read_text())
    assert document["image_shape"] == [1, channels, 33, 33]
    assert document["equivariance"][0]["mean_before"] < 0.1


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "invalid choice: 'nonsense'"),
        (["equivariance", "--nonsense"], "unrecognized arguments: --nonsense"),
        (["equivariance", "--levels", "0"], "expected a whole number of at least 1, got '0'"),
        (["equivariance", "--levels", "x"], "expected a whole number of at least 1, got 'x'"),
        (["equivariance", "--seed", "-1"], "expected a whole number from 0 to 2**63 - 1, got '-1'"),
        (["equivariance", "--sampling", "sparse"], "expected dense, pyramid or a number >= 1, got 'sparse'"),
        (["equivariance", "--sampling", "0.5"], "got 0.5"),
        (["equivariance", "--method", "other"], "invalid choice: 'other'"),
        (["equivariance", "--downscaling", "other"], "invalid choice: 'other'"),
        (["equivariance", "--padding-mode", "other"], "invalid choice: 'other'"),
        (["equivariance", "--levels", "4"], "3 layers of filters of 2 levels leave nothing"),
        (["equivariance", "--levels", "4"], "use --levels 5 or more"),
        (["equivariance", "--levels", "5000"], "use --levels 9 at most, or a larger image"),
        (["equivariance", "--size", "100"], "8 levels of base 2 are too many for an image of 100 x 100 pixels"),
        (["equivariance", "--size", "129", "--translations"], "use --levels 7 at most"),
        (["equivariance", "--size", "600"], "size must be from 1 to 512"),
        (["equivariance", "--kernel", "gaussian"], "kernel must be a Kernel or one of"),
        (["equivariance", "--base", "1"], "base must be a finite number > 1, got 1.0"),
        (["equivariance", "--zero-scale", "-1"], "zero_scale must be a finite number >= 0"),
        (["equivariance", "--plot", "figure.docx"], "matplotlib writes"),
        (["equivariance", "--image", "missing.png"], "cannot read 'missing.png': No such file or directory"),
        (["equivariance", "--image", "."], "cannot read '.': Is a directory"),
        (["equivariance", "--json", "."], "'.' is a folder; name a file in it"),
    ],
)
def test_bad_arguments(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in fails(capsys, *arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", b"GIF89a\x01\0\x01\0"])
def test_files_that_are_not_images(content, capsys, tmp_path):
    file = tmp_path / "file.png"
    file.write_bytes(content)
    assert f"'{file}' is not an image that Pillow reads" in fails(capsys, "equivariance", "--image", str(file))


def test_a_broken_image(capsys, tmp_path):
    file = tmp_path / "file.png"
    image_module.fromarray((photograph(64)[0].permute(1, 2, 0).numpy() * 255).astype(np.uint8)).save(file)
    file.write_bytes(file.read_bytes()[:2000])
    assert "is not an image that Pillow reads" in fails(capsys, *SMALL, "--image", str(file))


def test_a_crop_larger_than_the_image(capsys, tmp_path):
    file = tmp_path / "file.png"
    image_module.new("RGB", (40, 30)).save(file)
    message = "size must be from 1 to 30, the image's smaller side, got 33"
    assert message in fails(capsys, *SMALL, "--image", str(file))


@pytest.mark.parametrize(
    ("module", "arguments"),
    [("PIL.Image", []), ("PIL.Image", ["--image", "image.png"]), ("matplotlib.figure", ["--plot", "figure.png"])],
)
def test_a_missing_extra_is_named(module, arguments, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    message = f"{module} is needed for this and is not installed; install it with: pip install 'scalespaces[plot]'\n"
    assert fails(capsys, *SMALL, *arguments).endswith(message)


def test_an_interrupt_is_quiet(capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("scalespaces.cli.equivariance_error", interrupt)
    assert main(SMALL) == 130
    assert capsys.readouterr().err.endswith("scalespaces equivariance: interrupted\n")


# --- the demo --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_demo(tmp_path):
    command = [sys.executable, "-W", "error", str(DEMO), "--out", str(tmp_path / "out")]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    errors = [float(number) for number in re.findall(r"mean error ([^,]+),", result.stdout)]
    assert len(errors) == 6
    assert all(1e-4 < error < 0.01 for error in errors[:3])  # the paper: below 0.01
    assert all(error < 1e-15 for error in errors[3:])
    for name in ("scale_space.png", "equivariance.png"):
        with image_module.open(tmp_path / "out" / name) as picture:
            assert min(picture.size) > 600
        assert str(tmp_path / "out" / name) in result.stdout


# --- models and info -------------------------------------------------------------------------------------------------


def test_models_are_listed(capsys):
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == scalespaces.models.list()
    assert main(["models", "s_*"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert "no model matches 'vgg*'; there are densenet" in fails(capsys, "models", "vgg*")


def test_info_prints_the_papers_table(capsys):
    assert main(["info", "s_resnet", "--input", "3", "992", "992"]) == 0
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
    arguments = ["info", "s_densenet", "--input", "1", "64", "48", "--sampling", "pyramid", "--method", "cascade"]
    arguments += ["--levels", "3", "--filter-levels", "1", "2", "1", "2", "1", "--scale-padding", "valid"]
    arguments += [
        "--base",
        "1.5",
        "--zero-scale",
        "0.5",
        "--first-level",
        "-1",
        "--window",
        "dilated",
        "--classes",
        "7",
    ]
    assert main([*arguments, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    path = tmp_path / "a" / "info.json"
    assert main([*arguments, "--json", str(path)]) == 0
    assert capsys.readouterr().out.endswith(f"wrote {path}\n")
    assert json.loads(path.read_text()) == printed
    model = scalespaces.models.create(**printed["config"])
    expected = {"sampling": "pyramid", "num_levels": 3, "filter_levels": [1, 2, 1, 2, 1], "scale_padding": "valid"}
    expected |= {"base": 1.5, "zero_scale": 0.5, "first_level": -1, "window": "dilated", "num_classes": 7}
    assert model.config.items() >= (expected | {"method": "cascade", "in_channels": 1}).items()
    summary = scalespaces.models.summarise(model, (1, 64, 48))
    assert printed["total"] == summary.total
    assert printed["layers"] == summary.to_json()["layers"]
    plain = scalespaces.models.create("densenet", in_channels=1, num_classes=7)
    assert printed["baseline"] == {"densenet": scalespaces.models.summarise(plain, (1, 64, 48)).total}


@pytest.mark.parametrize("name", scalespaces.models.list())
def test_info_of_every_model_at_the_papers_size(name, capsys):
    assert main(["info", name]) == 0
    out = capsys.readouterr().out
    number = sum(p.numel() for p in scalespaces.models.create(name).parameters())
    assert re.search(rf"^{name} +{number:,} ", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["s_resent"], "no model is called 's_resent'; did you mean 's_resnet'?"),
        (["s_resnet", "--sampling", "pyramid", "--input", "3", "32", "32"], "images of at least 57 pixels"),
        (["s_resnet", "--filter-levels", "2", "2"], "one for each of 9 places"),
        (["s_resnet", "--levels", "1"], "never meets its last one"),
        (["s_resnet", "--input", "3", "32"], "--input: expected 3 arguments"),
        (["s_resnet", "--base", "1"], "base"),
        ([], "the following arguments are required: MODEL"),
    ],
    ids=str,
)
def test_info_errors(arguments, message, capsys):
    assert message in fails(capsys, "info", *arguments)


# --- export ----------------------------------------------------------------------------------------------------------


def saved(path: Path, **arguments: Any) -> Any:
    pytest.importorskip("safetensors")
    small: dict[str, Any] = {"growth": (2,), "num_layers": 1, "num_levels": 2, "filter_levels": [2]}
    model: Any = scalespaces.models.create("s_densenet", **{**small, **arguments})
    model.card = scalespaces.models.Card(["a", "b"], [0.5, 0.5, 0.5], [0.25, 0.25, 0.25])
    scalespaces.models.save(model, path)
    return model.eval()


def other_model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def test_export_of_fixed_sizes_says_so(tmp_path, capsys):
    source, path = tmp_path / "model.safetensors", tmp_path / "out" / "model.pt2"
    model = saved(source)
    arguments = ["export", str(source), str(path), "--size", "12", "17", "--batch", "2", "--levels", "--normalise"]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"wrote {path}: image (2, 3, 12, 17) -> output, level_0, level_1; differs from PyTorch by ")
    assert "note: batch, height and width are fixed at 2, 12 and 17: they are free in pyramid sampling" in err
    assert "normalised" not in err
    image = torch.rand(2, 3, 12, 17)
    found = torch.export.load(path).module()(image)
    answer, levels = model((image - 0.5) / 0.25, return_levels=True)
    torch.testing.assert_close(list(found.values()), [answer, *levels.levels], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["onnx", "pt2"])
def test_export_of_free_sizes(suffix, tmp_path):
    source, path = tmp_path / "model.safetensors", tmp_path / f"model.{suffix}"
    saved(source, sampling="pyramid", method="cascade")
    result = run("export", str(source), str(path))
    assert result.returncode == 0
    assert result.stdout.startswith(f"wrote {path}: image (batch, 3, height, width), height and width from 3 -> output")
    notes = [line for line in result.stderr.splitlines() if not line.startswith("exporting to")]
    assert notes == ["note: images must come in normalised; --normalise puts it into the graph"]


def test_export_of_a_converted_model(tmp_path, capsys, monkeypatch):
    pytest.importorskip("safetensors")
    source, path = tmp_path / "model.safetensors", tmp_path / "model.pt2"
    converted = scalespaces.convert(other_model(), num_levels=2).eval()
    scalespaces.models.save(converted, source)
    assert "load(path, model=...)" in fails(capsys, "export", str(source), str(path))
    for wrong in ("no_such_module:net", "torch.nn:NoSuchNet", "torch.nn:Conv2d", "torch.nn", "builtins:dict"):
        assert "--model names" in fails(capsys, "export", str(source), str(path), "--model", wrong)
    monkeypatch.setattr(torch.nn, "other_model", other_model, raising=False)
    size = ("--static", "--size", "16", "20")
    assert main(["export", str(source), str(path), "--model", "torch.nn:other_model", *size]) == 0
    image = torch.rand(1, 3, 16, 20)
    torch.testing.assert_close(torch.export.load(path).module()(image), converted(image))


def test_export_errors(tmp_path, capsys):
    source = tmp_path / "model.safetensors"
    saved(source)
    cases = [
        ((str(source), "model.png"), "one of .onnx, .pt2, got '.png'"),
        ((str(tmp_path / "absent.safetensors"), "model.pt2"), "does not exist"),
        ((__file__, "model.pt2"), "is no safetensors file"),
        ((str(source), "model.pt2", "--size", "12"), "--size: expected 2 arguments"),
        ((str(source), "model.pt2", "--batch", "0"), "expected a whole number of at least 1"),
        ((str(source), "model.pt2", "--model", "torch.nn:Identity"), "leave out the model"),
        ((str(source), str(tmp_path)), "one of .onnx, .pt2"),
        ((str(source),), "required: OUT"),
    ]
    for arguments, message in cases:
        assert message in fails(capsys, "export", *arguments)
