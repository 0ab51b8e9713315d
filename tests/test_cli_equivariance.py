"""scalespaces equivariance: its numbers are the library's, its files are whole, its errors are one line."""

import json
import sys

import numpy as np
import pytest
import torch
from command import fails

from scalespaces.cli import main, parse
from scalespaces.data import photograph
from scalespaces.models._convnet import random_network
from scalespaces.testing import equivariance_error, translation_error

image_module = pytest.importorskip("PIL.Image")

SMALL = ("equivariance", "--size", "33", "--num-levels", "4", "--layers", "1", "--channels", "2")
REFLECT = ("--padding-mode", "reflect")


@pytest.fixture
def measure(tmp_path):
    """Run the command, and return the document that it writes."""

    def run(*arguments: str) -> dict:
        path = tmp_path / "a" / "errors.json"
        assert main([*arguments, "--json", str(path)]) == 0
        return json.loads(path.read_text())

    return run


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
def test_presets_fill_in_what_is_not_said(options, method, sampling, measure):
    document = measure(*SMALL, *options, *REFLECT)
    assert (document["settings"]["method"], document["settings"]["sampling"]) == (method, sampling)
    assert document["equivariance"][0]["downscaling"] == method
    args = parse(["equivariance"])  # all but the lift is the paper's
    assert (args.num_levels, args.zero_scale, args.base) == (8, 0.25, 2.0)
    assert (args.kernel, args.layers) == ("discrete_gaussian", [1, 2, 3])


def test_random_networks_follow_from_their_seed():
    state = torch.random.get_rng_state()
    first, again, other = (next(random_network(3, seed=seed).parameters()) for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_json_holds_what_the_library_measures(tmp_path, capsys, measure):
    plot = tmp_path / "b" / "errors.png"
    arguments = ["--size", "49", "--num-levels", "5", "--layers", "1", "2", "--channels", "3", "--seed", "5"]
    arguments += ["--double", "--downscaling", "cascade", "direct", "pillow", "--translations", "--zero-scale", "0.5"]
    document = measure("equivariance", *arguments, "--padding-mode", "zeros", "--plot", str(plot))
    out, err = capsys.readouterr()
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
        assert min(picture.size) > 400
        assert np.array(picture.convert("RGB")).std() > 5
    assert sorted(p.name for p in tmp_path.rglob("*.*")) == ["errors.json", "errors.png"]


@pytest.mark.parametrize(
    ("sampling", "padding"), [("dense", "zeros"), ("pyramid", "reflect"), ("2", "reflect"), ("dense", "reflect")]
)
def test_the_cascade_is_exact_and_valid_levels_are_not_truncated(sampling, padding, measure, capsys):
    said = [*SMALL, "--double", "--sampling", sampling, "--padding-mode", padding]
    (table,), (valid,) = (measure(*said, *more)["equivariance"] for more in ([], ["--scale-padding", "valid"]))
    assert table["downscaling"] == "cascade"
    assert max(table["mean_before"], valid["mean_before"]) < 1e-14
    assert table["largest_behind"] > 1e-3
    assert (valid["levels"], valid["largest_behind"]) == ([0, 1, 2], None)
    assert "largest behind it: nothing" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "side", "exact", "note"),
    [
        (["40"], 41, True, "extended by reflection from 40 x 40 to 41 x 41 pixels"),
        (["40", "--no-fit"], 40, False, "they vanish for sides that leave 1 when divided by 8: try --size 33"),
        (["34"], 34, False, "try --size 33"),  # too far from 41
        (["33"], 33, True, None),
    ],
)
def test_images_are_fitted_to_sizes_without_border_errors(options, side, exact, note, capsys, measure):
    document = measure(*SMALL, "--sampling", "dense", "--double", "--size", *options)
    assert document["image_shape"][2:] == [side, side]
    error, said = document["equivariance"][0]["mean_before"], capsys.readouterr().err
    assert error < 1e-14 if exact else error > 1e-3
    assert note in said if note else "note:" not in said


def test_paddings_side_by_side(capsys, measure):
    tables = measure(*SMALL, "--preset", "paper", "--padding-mode", "zeros", "reflect", "zeros")["equivariance"]
    assert [table["padding_mode"] for table in tables] == ["zeros", "reflect"]
    assert numbers(tables[0])[0, 0] != numbers(tables[1])[0, 0]
    assert "1 layer, reflect padding, image downscaled by direct" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nonsense"], "unrecognized arguments: --nonsense"),
        (["--num-levels", "0"], "expected a whole number of at least 1, got '0'"),
        (["--seed", "-1"], "expected a whole number from 0 to 2**63 - 1, got '-1'"),
        (["--sampling", "sparse"], "expected dense, pyramid or a number >= 1, got 'sparse'"),
        (["--sampling", "0.5"], "got 0.5"),
        (["--method", "other"], "invalid choice: 'other'"),
        (["--num-levels", "4"], "before the truncation boundary of 4 levels; use --num-levels 5 or more"),
        (["--num-levels", "5000"], "use --num-levels 9 at most, or a larger image"),
        (["--size", "100"], "8 levels of base 2 are too many for an image of 100 x 100 pixels"),
        (["--size", "129", "--translations"], "use --num-levels 7 at most"),
        (["--size", "600"], "size must be from 1 to 512"),
        (["--kernel", "gaussian"], "kernel must be a Kernel or one of"),
        (["--base", "1"], "base must be a finite number > 1, got 1.0"),
        (["--plot", "figure.docx"], "matplotlib writes"),
        (["--image", "missing.png"], "cannot read 'missing.png': No such file or directory"),
        (["--image", "."], "cannot read '.': Is a directory"),
        (["--image", __file__], "is not an image that Pillow reads"),
        (["--json", "."], "'.' is a folder; name a file in it"),
    ],
)
def test_bad_arguments(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in fails(capsys, "equivariance", *arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("module", "arguments"), [("PIL.Image", ["--image", "image.png"]), ("matplotlib.figure", ["--plot", "figure.png"])]
)
def test_a_missing_extra_is_named(module, arguments, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    message = f"{module} is needed for this and is not installed; install it with: pip install 'scalespaces[plot]'\n"
    assert fails(capsys, *SMALL, *arguments).endswith(message)
