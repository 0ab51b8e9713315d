"""scalespaces equivariance: its numbers are the library's, its files are whole, its errors are one line."""

import json
import sys

import numpy as np
import pytest
import torch
from command import fails

from scalespaces.cli import main, parse
from scalespaces.data import photograph
from scalespaces.models._random import random_network
from scalespaces.testing import equivariance_error, translation_error

image_module = pytest.importorskip("PIL.Image")
pytest.importorskip("matplotlib")

SMALL = ("equivariance", "--size", "33", "--levels", "4", "--layers", "1", "--channels", "2")
REFLECT = ("--padding-mode", "reflect")


def numbers(table: dict) -> np.ndarray:
    return np.array([[np.nan if e is None else e for e in row] for row in table["errors"]])


@pytest.mark.parametrize(
    ("options", "method", "sampling"),
    [
        ((), "cascade", "pyramid"),
        (("--preset", "paper"), "direct", "dense"),
        (("--preset", "paper", "--method", "cascade"), "cascade", "dense"),
        (("--sampling", "2"), "cascade", 2.0),
    ],
)
def test_presets_fill_in_what_is_not_said(options, method, sampling, tmp_path):
    path = tmp_path / "errors.json"
    assert main([*SMALL, *options, *REFLECT, "--json", str(path)]) == 0
    document = json.loads(path.read_text())
    assert (document["settings"]["method"], document["settings"]["sampling"]) == (method, sampling)
    assert document["equivariance"][0]["downscaling"] == method


def test_all_but_the_lift_is_the_papers():
    args = parse(["equivariance"])
    assert (args.levels, args.zero_scale) == (8, 0.25)
    assert (args.base, args.kernel, args.layers) == (2.0, "discrete_gaussian", [1, 2, 3])


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
            assert found["boundary"] == table.boundary == 5 - layers
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
        ["--padding-mode", "zeros", "--sampling", "dense"],
        ["--sampling", "pyramid", *REFLECT],
        ["--sampling", "2", *REFLECT],
        ["--sampling", "dense", *REFLECT],
    ):
        assert main([*SMALL, "--double", "--json", str(path), *options]) == 0
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
    options = ["--layers", "1", "--channels", "1", "--levels", "4", "--sampling", "dense", "--double"]

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
    assert main([*SMALL, "--preset", "paper", "--padding-mode", "zeros", "reflect", "zeros", "--json", str(path)]) == 0
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

    monkeypatch.setattr("scalespaces.cli._equivariance.equivariance_error", interrupt)
    assert main(SMALL) == 130
    assert capsys.readouterr().err.endswith("scalespaces equivariance: interrupted\n")
