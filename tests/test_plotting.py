"""The figures: that they say what the numbers say, and that files are whole."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference import refusals

from scalespaces import ScaleSpace, lift
from scalespaces._files import replacing
from scalespaces.nn import Lift, ScaleConv2d
from scalespaces.plotting import plot_correlation, plot_equivariance, plot_over_scales, plot_scale_space
from scalespaces.testing import EquivarianceTable, equivariance_error

pytest.importorskip("matplotlib")
image_module = pytest.importorskip("PIL.Image")


def table(*errors: list[float], left_out: tuple[int, ...] = ()) -> EquivarianceTable:
    values, levels = np.array(errors), tuple(range(len(errors[0])))
    rows = tuple(range(1, len(values) + 1))
    return EquivarianceTable(values, values, rows, levels, "l", dict.fromkeys(left_out, "past the end"))


ONE = table([1e-3, 2e-3, np.nan], [0.0, np.nan, np.nan])


def assert_is_a_picture(path: Path) -> None:
    with image_module.open(path) as picture:
        assert picture.format == "PNG"
        values = np.array(picture.convert("RGB"))
    assert min(values.shape[:2]) > 150
    assert values.std() > 5
    assert len(np.unique(values.reshape(-1, 3), axis=0)) > 20
    border = np.concatenate([values[0], values[-1], values[:, 0], values[:, -1]])
    assert (border == 255).all()  # nothing is cut off at the edge


def markers(ax) -> list:
    return [line for line in ax.get_lines() if line.get_marker() not in ("", "None")]


def points(ax) -> set[tuple[int, float]]:
    """The (k, error) that are drawn with markers, the offsets along k undone."""
    return {(round(float(x)), float(y)) for line in markers(ax) for x, y in zip(*line.get_data(), strict=True)}


def drawn(ax) -> np.ndarray:
    return np.asarray(ax.get_images()[0].get_array())


def test_every_error_is_drawn_at_its_level():
    """And those below the floor are counted."""
    (ax,) = plot_equivariance([ONE]).axes
    assert points(ax) == {(0, 1e-3), (1, 2e-3), (0, 1e-17)}
    assert (ax.get_yscale(), ax.get_title()) == ("log", "1 layer")
    for drawn, note in (
        (ONE, "\n(1 error of 0 is drawn at 1e-17)"),
        (table([1e-19, 1e-18, np.nan]), "\n(2 errors below 1e-17 drawn at 1e-17)"),
        (table([1e-3, 1e-2, np.nan]), ""),
    ):
        assert plot_equivariance([drawn]).axes[0].get_xlabel() == "level $k$" + note


def test_points_past_the_boundary_are_hollow():
    nan = np.nan
    errors = table([1e-3, 2e-3, 1.0, nan], [3e-3, 2.0, nan, nan], [3.0, nan, nan, nan], left_out=(3,))
    (ax,) = plot_equivariance([errors]).axes
    for white, expected in ((True, {1.0, 2.0, 3.0}), (False, {1e-3, 2e-3, 3e-3})):
        lines = [line for line in markers(ax) if (str(line.get_markerfacecolor()) == "white") == white]
        assert {y for line in lines for y in line.get_ydata()} == expected
    assert ax.get_title().endswith("= 3")
    finer = equivariance_error(Lift(4, first_level=-1), torch.rand(1, 1, 33, 33))
    assert plot_equivariance([finer]).axes[0].get_title() == "1 layer"  # left out, but not at the end


def test_rows_and_columns(tmp_path):
    cut = table([1e-3, 1.0, np.nan], [0.0, np.nan, np.nan], left_out=(2,))
    rows = {"direct (the paper)": [ONE, ONE, cut], "cascade (exact)": [ONE, ONE]}
    path = tmp_path / "new" / "folder" / "figure.png"
    figure = plot_equivariance(rows, path, title="Two lifts")
    titles = [ax.get_title().split(",")[0] for ax in figure.axes]
    assert titles == ["1 layer", "2 layers", "3 layers", "1 layer", "2 layers", ""]
    assert [ax.get_ylabel().split("\n")[0] for ax in figure.axes[::3]] == list(rows)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == [r"$\ell$ = 1", r"$\ell$ = 2", "past the\ntruncation\nboundary", "0.01 (the paper)"]
    assert_is_a_picture(path)


def test_levels_are_drawn_as_they_are(tmp_path):
    image = torch.rand(2, 3, 24, 32)
    space = lift(image, num_levels=3)
    figure = plot_scale_space(space[1:], tmp_path / "levels.png", zero_scale=0.25)
    for ax, level in zip(figure.axes, space.levels, strict=True):
        np.testing.assert_allclose(drawn(ax), level[1].permute(1, 2, 0), atol=1e-6)
    titles = [ax.get_title(loc="left").split("\n") for ax in figure.axes]
    assert titles[0] == ["level 0", "32 × 24, step 1", "σ = 0 px"]
    assert titles[2] == ["level 2", "8 × 6, step 4", "σ = 1.94 px"]
    assert_is_a_picture(tmp_path / "levels.png")


def test_features_share_one_range_of_gray():
    space = ScaleSpace((torch.tensor([[[[-1.0, 0.0]], [[5.0, 5.0]]]]), torch.tensor([[[[3.0, 1.0]], [[5.0, 5.0]]]])))
    first = plot_scale_space(space)
    assert [drawn(ax).tolist() for ax in first.axes] == [[[0.0, 0.25]], [[1.0, 0.5]]]
    constant = plot_scale_space(space, channel=1)
    assert [drawn(ax).tolist() for ax in constant.axes] == [[[0.0, 0.0]], [[0.0, 0.0]]]


def test_physical_size_puts_samples_where_they_lie():
    space = ScaleSpace(
        (torch.rand(1, 1, 8, 8), torch.rand(1, 1, 4, 4)), steps=(1, 2), origins=((0, 0), (0.5, 0.25)), unit=(2, 2)
    )
    left, right, bottom, top = plot_scale_space(space, size="physical").axes[1].get_images()[0].get_extent()
    assert (left, right) == (2 * (0.25 - 1), 2 * (0.25 + 2 * 3 + 1))
    assert (top, bottom) == (2 * (0.5 - 1), 2 * (0.5 + 2 * 3 + 1))


def test_a_level_of_a_pyramid_is_drawn_half_as_large():
    figure = plot_scale_space(lift(torch.rand(1, 1, 64, 64), num_levels=2))
    figure.draw_without_rendering()
    sizes = []
    for ax in figure.axes:
        left, right, bottom, top = ax.get_images()[0].get_extent()
        (x0, y0), (x1, y1) = ax.transData.transform([(left, top), (right, bottom)])
        sizes.append((x1 - x0, y0 - y1))
    np.testing.assert_allclose(np.divide(*np.array(sizes)), [2, 2], rtol=0.05)


def test_two_rows_of_unequal_length(tmp_path):
    image = torch.rand(1, 1, 33, 20)
    spaces = {"dense": lift(image, num_levels=2, sampling="dense"), "pyramid": lift(image, num_levels=3, base=1.5)}
    for size in ("grid", "physical"):
        figure = plot_scale_space(spaces, tmp_path / "rows.png", size=size, title="two")
        assert [len(ax.get_images()) for ax in figure.axes] == [1, 1, 0, 1, 1, 1]
        assert_is_a_picture(tmp_path / "rows.png")


IMAGE, SIGNAL = lift(torch.rand(1, 1, 8, 8), num_levels=2), lift(torch.rand(1, 1, 8), num_levels=2, dims=1)


test_what_cannot_be_drawn = refusals(
    *[(lambda tables=tables: plot_equivariance(tables), "nothing to draw") for tables in ([], {}, {"a": []})],
    (lambda: plot_equivariance([ONE, ONE], columns=["a"]), "columns needs one entry for each of 2 panels, got 1"),
    (lambda: plot_scale_space(SIGNAL), "two spatial axes"),
    (lambda: plot_correlation(lambda x: x, SIGNAL), "two spatial axes"),
    (lambda: plot_scale_space(IMAGE, size="huge"), "size is one of grid, physical, got 'huge'"),
    (lambda: plot_scale_space(IMAGE, channel=1), "index into 1 channels, got 1"),
    (lambda: plot_scale_space({}), "nothing to draw"),
    (lambda: plot_scale_space(torch.rand(1, 1, 8, 8)), "expected a ScaleSpace, got a tensor"),  # pyright: ignore
    error=(ValueError, TypeError),
)


def test_formats(tmp_path):
    for suffix, start in (("pdf", b"%PDF"), ("SVG", b"<?xml"), ("png", b"\x89PNG")):
        plot_equivariance([ONE], tmp_path / f"figure.{suffix}")
        assert (tmp_path / f"figure.{suffix}").read_bytes().startswith(start)
    assert len(list(tmp_path.iterdir())) == 3


NO_FORMAT = r"matplotlib writes .*png.*use \.png or \.pdf"


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("figure.docx", ValueError, NO_FORMAT),
        ("figure", ValueError, NO_FORMAT),
        ("folder.png", IsADirectoryError, "is a folder; name a file in it"),
        ("file/figure.png", NotADirectoryError, "is not a folder"),
        ("file/below/figure.png", NotADirectoryError, "below' is not a folder"),
    ],
)
def test_where_nothing_can_be_written(path, error, message, tmp_path):
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(error, match=message):
        plot_equivariance([ONE], tmp_path / path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.png"]


def test_a_failure_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError), replacing(path) as draft:  # noqa: PT012
        draft.write_text("half of the n")
        raise RuntimeError
    assert path.read_text() == "old"
    with replacing(path) as draft:
        draft.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_importing_loads_no_matplotlib_and_drawing_no_pyplot():
    script = """
import sys
from scalespaces import plotting, lift
assert not {"matplotlib", "PIL"} & set(sys.modules)
import torch
plotting.plot_scale_space(lift(torch.rand(1, 1, 8, 8), num_levels=2))
assert "matplotlib" in sys.modules and "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'scalespaces\[plot\]'"):
        plot_scale_space(IMAGE)


def colorfulness(sheet) -> np.ndarray:
    """How far each tile of a sheet is from gray, rows after rows."""
    return np.ptp(np.asarray(sheet.get_facecolor())[:, :3], axis=1)


def colored(ax) -> list[int]:
    """How many tiles of each sheet are colored, finest level first."""
    return [int((colorfulness(sheet) > 0.01).sum()) for sheet in ax.collections]


@pytest.mark.parametrize("sampling", ["dense", "pyramid"])
def test_correlation_colors_the_taps_and_nothing_else(sampling):
    x = lift(torch.zeros(1, 1, 17, 17), num_levels=4, sampling=sampling)
    figure = plot_correlation(ScaleConv2d(1, 1, (2, 3, 3)), x, levels=3)
    *panels, output = figure.axes
    for k, ax in enumerate(panels):
        expected = [0] * 4
        expected[k : k + 2] = [9, 9]  # 3 x 3 taps; read between the samples of a grid twice as coarse, 3 x 3 of these
        assert colored(ax) == expected
    assert colored(output) == [1, 1, 1, 0]
    if sampling == "dense":  # taps are 2^k apart
        rows, columns = np.nonzero(colorfulness(panels[2].collections[2]).reshape(17, 17) > 0.01)
        assert sorted(set(rows)) == sorted(set(columns)) == [4, 8, 12]


def test_lighter_weights_are_paler():
    layer = ScaleConv2d(1, 1, (1, 1, 3), bias=False)
    layer.weight.data = torch.tensor([0.1, 1.0, 0.0]).reshape(layer.weight.shape)
    ax = plot_correlation(layer, lift(torch.zeros(1, 1, 5, 5), num_levels=1)).axes[0]
    left, middle, right = colorfulness(ax.collections[0]).reshape(5, 5)[2, 1:4]
    assert middle > left > 0.01
    assert right < 1e-6


def test_pictures_are_drawn_into_a_given_figure():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    cases: Any = {plot_scale_space: [IMAGE], plot_equivariance: [[ONE]], plot_correlation: [lambda x: x, IMAGE]}
    for plot, drawn in (cases | {plot_over_scales: [{"a": [(1, 0.5)]}]}).items():
        into = pyplot.figure()
        assert plot(*drawn, into=into) is into
        assert into.axes
    pyplot.close("all")


# The pages that show figures invert them in the dark, with the filters invert(1) and hue-rotate(180deg) of CSS.
TURNED = np.array([[-0.574, 1.43, 0.144], [0.426, 0.43, 0.144], [0.426, 1.43, -0.856]])


def contrast(one: np.ndarray, other: str) -> float:
    """WCAG's contrast of two colors."""
    to_rgb = pytest.importorskip("matplotlib.colors").to_rgb
    values = np.stack([np.clip(one, 0, 1), to_rgb(other)])
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    dark, light = sorted(linear @ [0.2126, 0.7152, 0.0722])
    return (light + 0.05) / (dark + 0.05)


def test_lines_stand_out_from_light_pages_and_inverted_from_dark_ones():
    to_rgb = pytest.importorskip("matplotlib.colors").to_rgb
    errors = table(*([0.1] * (8 - n) + [np.nan] * n for n in range(1, 8)))
    over_scales = plot_over_scales({str(n): [(1, n), (2, n)] for n in range(7)})
    for figure, kinds in ((plot_equivariance([errors]), 7), (over_scales, 7)):
        colors = {to_rgb(line.get_color()) for line in figure.axes[0].lines if np.size(line.get_xdata())}
        assert len(colors) >= kinds
        for color in colors:
            assert contrast(np.array(color), "#fcfcfa") >= 3
            assert contrast(TURNED @ (1 - np.array(color)), "#1e293b") >= 3
