"""What users call things is text and never markup; numbers on the page are the ones computed."""

import base64
import io
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

from scalespaces.app import _render as render
from scalespaces.app._errors import LIFT, equivariance
from scalespaces.app._explore import Level, scale_space
from scalespaces.app._images import Picture
from scalespaces.app._predictions import LevelAnswer, Prediction, load_network, over_zooms, predict
from scalespaces.data import photograph
from scalespaces.models import Card

EVIL = '<script>alert("1")</script>'
IMAGE = photograph(96)


def pictures(html: str) -> list[Image.Image]:
    found = re.findall(r"data:image/(?:png|jpeg);base64,([^\"]+)", html)
    return [Image.open(io.BytesIO(base64.b64decode(data))) for data in found]


def drawing(html: str) -> str:
    """The comments of the figure, where matplotlib writes what it draws as shapes."""
    (data,) = re.findall(r"data:image/svg\+xml;base64,([^\"]+)", html)
    text = base64.b64decode(data).decode()
    assert ElementTree.fromstring(text).tag.endswith("svg")
    return " ".join(re.findall(r"<!-- (.+?) -->", text))


def test_nothing_of_a_users_is_markup(saved):
    card = Card(classes=[EVIL, "$\\frac", "_hidden", "a" * 99, *"bcdefg"])
    network = load_network(saved("s_cnn", card))
    found = predict(network, IMAGE, 1, 28)
    parts = [render.problem(EVIL), render.preview(Picture(IMAGE, EVIL)), render.network(network)]
    parts += [render.prediction(found), render.curve(over_zooms(network, IMAGE, 28))]
    parts += [render.curve({name: [(1.0, 0.5)] for name in card.classes})]
    assert [part for part in parts if "<script" in part] == []
    assert "&lt;script&gt;" in parts[0]


def test_control_characters_of_names_are_not_drawn():
    html = render.curve({name: [(1.0, 0.5)] for name in ("a\x00b\x0bc", "d\x1b\ud800\uffffe", "\u200b_f", "a ü")})
    names = drawing(html)
    assert "abc" in names
    assert "de" in names


@pytest.mark.parametrize(("network", "drawn"), [(LIFT, r"a$\bad$x"), ("1 random layer", r"a\$\bad\$x")])
def test_dollars_in_the_name_of_a_file_are_drawn(arguments, network, drawn):
    """As they are, and escaped in a title that has a formula, too: where the truncation begins."""
    found = equivariance(IMAGE, arguments(), network, 65)
    assert drawn in drawing(render.errors(replace(found, network=r"a$\bad$x")))


def test_levels_are_drawn_as_they_are_gray_ones_in_gray(arguments):
    levels, _ = scale_space(IMAGE, arguments())
    html = render.levels(levels)
    drawn = pictures(html)
    assert [picture.size for picture in drawn] == [(96, 96), (48, 48), (24, 24), (12, 12)]
    for picture, level in zip(drawn, levels, strict=True):  # small ones are lossless
        np.testing.assert_array_equal(np.array(picture), (255 * level.pixels).round().byte().permute(1, 2, 0))
    captions = re.findall(r"<b>level (\d)</b><span>(\d+) × \d+</span><span>step (\d)</span>", html)
    assert captions == [("0", "96", "1"), ("1", "48", "2"), ("2", "24", "4"), ("3", "12", "8")]
    assert "blur 0.866 px" in html
    (picture,) = pictures(render.levels([Level(0, torch.tensor([[[0.0, 1.0], [0.5, 2.0]]]), 1.0, 0.0)]))
    assert (picture.mode, np.array(picture).tolist()) == ("L", [[0, 255], [128, 255]])


def test_the_table_has_every_error(arguments):
    found = equivariance(IMAGE, arguments(method="direct"), "1 random layer", 65)
    html = render.errors(found)
    cells = re.findall(r'<td class="(\w*-?\w*)" style="--shade:([\d.]+)">([^<]+)</td>', html)
    errors = [(e, i, j) for i, row in enumerate(found.table.errors) for j, e in enumerate(row) if not np.isnan(e)]
    assert [float(text) for *_, text in cells] == pytest.approx([e for e, *_ in errors], rel=0.05)
    assert [kind == "ss-past" for kind, *_ in cells] == [i + 1 + j >= 3 for _, i, j in errors]
    assert found.sentence.replace("'", "&#x27;") in html
    assert "image/svg+xml" in html
    assert render.errors(equivariance(IMAGE, arguments(), LIFT, 65)).count('--shade:0.00">0</td>') == 6


def test_a_map_shows_the_level_of_each_pixel_and_the_shares():
    chosen = torch.tensor([[-1, -1, -1, 1], [-1, -1, -1, 1]])
    levels = tuple(LevelAnswer(n, 2.0**n, "a", 1.0, 1.0) for n in (-1, 0, 1))
    html = render.seen(Prediction((("a", 1.0),), levels, torch.zeros(3, 2, 4), chosen))
    _, drawn = pictures(html)
    found = np.asarray(drawn.convert("RGB"))
    assert len(np.unique(found.reshape(-1, 3), axis=0)) == 2  # on black, a color for each level
    assert (found[:, :3] == found[0, 0]).all()
    assert [text in html for text in ("level -1: 75 %", "level 0: 0 %", "level 1: 25 %")] == [True] * 3
    drawn_color, named_color = found[0, 3] / 0.6, re.findall(r"rgb\((\d+),(\d+),(\d+)\)", html)[2]
    np.testing.assert_allclose(drawn_color, np.array(named_color, float), atol=1)  # the legend's
