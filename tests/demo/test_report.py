"""The report has every number, fetches nothing, and can be read without seeing it."""

import base64
import json
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from demo_results import errors, made

from scalespaces.demo import _report
from scalespaces.demo._report import guide, render
from scalespaces.demo._result import SIZES, Result, verdicts

VOID = {"meta", "link", "img", "input", "br"}


class Page(HTMLParser):
    """What is in a page: elements with their attributes, words, and whether all that opens closes."""

    def __init__(self, result: Result, *guide: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.words = ""
        self.scripts: list[str] = []
        self.html = render(result, *guide)
        self.feed(self.html)
        self.close()
        self.words = re.sub(r"\s+", " ", self.words)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("script", "style"):
            self.scripts.append(data)
        else:
            self.words += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


FEW = {"direct, dense": {1: errors(1, 0.004)}}  # one panel is drawn faster than six


@cache
def usual(seeds: int = 1) -> Page:
    return Page(made(seeds))


@pytest.mark.parametrize("seeds", [1, 3])
def test_every_number_is_in_the_page(seeds):
    result, words = made(seeds), usual(seeds).words
    for method in result.methods:
        cost = method.cost
        expected = [*map(method.per_cent, SIZES), f"{cost.parameters:,}", method.about]
        expected += [f"{r:.1f}×" for r in (cost.predict, cost.train, cost.predict_memory, cost.train_memory)]
        assert [text for text in expected if text not in words] == []
    for verdict in verdicts(result):
        assert verdict.promise in words
        assert verdict.measured in words
    for fact in ("1297", "500", "72 × 72", "112 × 112", "171.3", "2.13.0", "3.11.7", "Some <CPU> & more"):
        assert fact in words
    for k, blur in enumerate(("0.00", "0.87", "1.94", "3.97", "7.98")):
        assert f"64 × 64, step 1, blur {blur}" in words
        assert f"{64 // 2**k} × {64 // 2**k}, step {2**k}, blur {blur}" in words
    for size in result.activations:
        assert all(f"{100 * share:.0f} %" in words for share in result.shown(size).shares)
    assert ("One seed (0): a single run" if seeds == 1 else "Means over 3 seeds") in words
    if seeds == 1:
        assert re.search(r"trained at all sizes gets 92\.9\s% to 98\.3\s% right", words)


def test_verdicts_are_those_of_the_result():
    methods = tuple(replace(m, accuracy=((0.1,) * len(SIZES),)) if m.key == "ours" else m for m in made().methods)
    bad = made(methods=methods, equivariance=FEW)
    for result, words in ((made(), usual().words), (bad, Page(bad).words)):
        kept = sum(verdict.kept for verdict in verdicts(result))
        assert words.count("✓ kept") == kept < 6
        assert words.count("✗ not kept") == 6 - kept
        assert f"{kept} of 6 kept" in words
        assert ("as many parameters gets 10.0 % right" in words) == (result is bad)


def test_means_of_errors_and_the_key_number():
    words = usual().words
    assert "The paper's lift (direct, dense)4.0e-034.0e-034.0e-03" in words
    assert "This library's (cascade, pyramid)000" in words
    assert "0 equivariance error: how far the features are from a pure shift; the paper's lift 4.0e-03" in words
    words = Page(made(equivariance={"another lift": {n: errors(n, n / 10) for n in (1, 2, 8)}})).words
    assert "1 layer2 layers8 layers" in words
    assert "Lift (another lift)1.0e-012.0e-01none" in words  # after 8 layers, nothing is before the boundary
    assert "the paper's lift none" in words


def test_the_data_are_whole():
    result = made()
    data = next(script for script in usual().scripts if script.startswith("{"))
    found = json.loads(data)
    assert "<" not in data
    assert found["levels"] == [f"level {k}, ÷{small:g}" for k, small in enumerate(result.downscalings)]
    assert [one["label"] for one in found["series"]] == list(range(10))
    for one in found["series"]:
        for got, frame in zip(one["frames"], result.series[one["label"]], strict=True):
            assert base64.b64decode(got.pop("picture").removeprefix("data:image/png;base64,")) == frame.picture
            expected = {key: list(getattr(frame, key)) for key in ("cnn", "ours", "shares")}
            assert got == {"size": frame.size, **expected}


def test_nothing_is_fetched():
    assert [text for text in ("http:", "https:", "@import", "url(") if text in usual().html] == []
    for tag, attributes in usual().elements:
        for name in ("src", "href"):
            assert tag == "a" or attributes.get(name, "data:").startswith("data:")
        assert not [name for name in attributes if name.startswith("on")]


def test_links_lead_to_the_documentation(tmp_path, monkeypatch):
    found = Page(made(equivariance=FEW), guide(Path("out/demo")))
    for link in found.all("a"):
        assert (Path("out/demo") / link["href"]).resolve().is_file()
    monkeypatch.setattr(_report, "__file__", str(tmp_path / "a/b/c/d.py"))  # not in a checkout
    assert re.fullmatch(r"https://.*/docs/\{\}\.md", guide(tmp_path))


def test_odd_names_stay_text():
    odd, result = '</script><img src=x onerror="alert(1)">&amp;', made()
    methods = tuple(replace(method, name=odd, about=odd) for method in result.methods)
    space = {odd: result.scale_space["dense"]}
    facts = result.facts | {"cpu": odd}
    found = Page(replace(result, methods=methods, facts=facts, scale_space=space, equivariance=FEW))
    assert odd in found.words
    assert "x" not in [image.get("src") for image in found.all("img")]
    assert len(found.all("script")) == 2


def test_headings_are_in_order_all_is_closed_and_everything_has_a_name():
    found = usual()
    assert found.open == []
    levels = [int(tag[1]) for tag, _ in found.elements if re.fullmatch("h[1-6]", tag)]
    assert (levels[0], levels.count(1)) == (1, 1)
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert all("alt" in image for image in found.all("img"))
    assert all(button["type"] == "button" for button in found.all("button"))
    assert len(found.all("caption")) == len(found.all("table"))
    assert all("scope" in head for head in found.all("th"))
    assert all(svg.get("aria-label") or svg.get("aria-hidden") for svg in found.all("svg"))
    assert all(region.get("aria-label") for _, region in found.elements if region.get("role") == "region")
    ids = [attributes["id"] for _, attributes in found.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_pictures_have_their_relative_size_and_the_answer_moves_up_the_levels():
    parts = [image["style"] for image in usual().all("img") if "style" in image]
    assert parts == ["--part:1"] * 5 + [f"--part:{1 / 2**k:g}" for k in range(5)]
    assert len([cell for cell in usual().all("td") if cell.get("class") == "most"]) == 4
    assert "0.6 at size 1/2, 2.2 at size 1, 3.8 at size 2, 5.4 at size 4" in usual().words
    assert "2 levels higher" in usual().words
    downscalings = tuple(2.0**k for k in range(-1, 6))
    octaves = Page(made(downscalings=downscalings, first_level=-1, equivariance=FEW)).words
    assert "1 level higher" in octaves
    assert "level -1×2" in octaves  # finer than the image
