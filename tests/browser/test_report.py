"""The report in a real browser: it fits, it can be read, and the viewer does what it says."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from demo_results import made

from scalespaces.demo._charts import named
from scalespaces.demo._report import render
from scalespaces.demo._result import SIZES

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render(made(seeds=3)), encoding="utf-8")
    return path.as_uri()


def state(page: Any) -> dict[str, Any]:
    """What the viewer shows."""
    return {
        "picture": page.get_attribute("#picture", "src"),
        "alt": page.get_attribute("#picture", "alt"),
        "size": page.text_content("#chosen"),
        "cnn": page.text_content("#cnn .said"),
        "ours": page.text_content("#ours .said"),
        "level": page.text_content("#levels .most span"),
    }


def press(page: Any, key: str, times: int = 1) -> dict[str, Any]:
    page.focus("#size")
    for _ in range(times):
        page.keyboard.press(key)
    return state(page)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1440])
def test_nothing_sticks_out_and_every_picture_loads(address, open_page: Open, overflow, width, dark):
    page = open_page(address, width, dark)
    assert overflow(page) == []
    assert page.evaluate("[...document.images].filter(i => !i.complete || !i.naturalWidth).length") == 0
    background = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    lightness = sum(map(int, background.removeprefix("rgb(").rstrip(")").split(","))) / 3
    assert (lightness < 64) == dark
    assert lightness < 64 or lightness > 192


def test_the_first_screen_has_the_plot_and_on_a_laptop_the_numbers(address, open_page: Open):
    laptop, phone = ("h1", ".lede", ".plot svg.wide", ".keys"), (".plot svg.narrow",)
    for width, height, parts, other in ((1440, 900, laptop, "narrow"), (390, 844, phone, "wide")):
        page = open_page(address, width)
        for what in parts:
            box = page.locator(what).bounding_box()
            assert box["y"] >= 0
            assert box["y"] + box["height"] <= height
        assert not page.locator(f".plot svg.{other}").is_visible()


@pytest.mark.parametrize("width", [390, 1440])
def test_text_of_charts_can_be_read(address, open_page: Open, width):
    """No letter of a chart is smaller than 10.5 pixels, whatever the chart is scaled to."""
    page = open_page(address, width)
    script = """() => [...document.querySelectorAll('svg.chart text')].filter(e => e.getClientRects().length)
        .map(e => parseFloat(getComputedStyle(e).fontSize) * e.getScreenCTM().a)"""
    assert min(page.evaluate(script)) >= 10.5


def test_the_keyboard_changes_the_size_and_answers_are_spoken(address, open_page: Open):
    page = open_page(address)
    before = state(page)
    assert before["size"] == "1"
    assert "right" in before["cnn"]
    assert before["level"] == "level 2, ÷2"
    half_octave = press(page, "ArrowRight", 4)
    assert half_octave["level"] == "level 3, ÷2.83"
    assert half_octave["picture"] != before["picture"]
    last = press(page, "End")
    assert last["size"] == "4"
    assert "wrong" in last["cnn"]
    assert "right" in last["ours"]
    assert last["level"] == "level 6, ÷8"
    assert last["alt"] == "a 5 at size 4"
    assert page.get_attribute("#size", "aria-valuetext") == "size 4"
    said = "Size 4. CNN answers 6, wrong. Scale-space answers 5, right. It is level 6, ÷8 that answers."
    page.wait_for_function(f"document.querySelector('#spoken[aria-live=polite]').textContent === {said!r}")
    first = press(page, "Home")
    assert first["size"] == "1/2"
    assert first["level"] == "level 0, ÷1"


@pytest.mark.parametrize("width", [390, 1440])
def test_the_strip_tells_right_from_wrong_below_the_slider(address, open_page: Open, width):
    page = open_page(address, width)
    strip = page.locator("#strip div.cnn > svg")
    assert strip.count() == 25
    right = [strip.nth(n).locator("circle").count() for n in range(25)]
    assert right == [int(0.7 < 2 ** ((n - 8) / 8) < 1.5) for n in range(25)]
    # A click on the slider above a dot chooses that dot's size.
    page.locator("#strip").scroll_into_view_if_needed()
    for n in (0, 13, 24):
        box, track = strip.nth(n).bounding_box(), page.locator("#size").bounding_box()
        page.mouse.click(box["x"] + box["width"] / 2, track["y"] + track["height"] / 2)
        assert page.input_value("#size") == str(n)
        assert "now" in (strip.nth(n).get_attribute("class") or "")


def test_another_digit_by_mouse_and_by_keyboard(address, open_page: Open):
    page = open_page(address)
    press(page, "End")
    page.get_by_role("button", name="digit 3").click()
    assert state(page)["alt"] == "a 3 at size 4"
    assert state(page)["cnn"].startswith("4")
    page.get_by_role("button", name="digit 7").focus()
    page.keyboard.press("Enter")
    assert state(page)["alt"] == "a 7 at size 4"
    assert page.locator("#digits [aria-pressed=true]").get_attribute("aria-label") == "digit 7"


@pytest.mark.parametrize("width", [390, 1440])
def test_tab_leads_to_every_control_and_shows_where_it_is(address, open_page: Open, width):
    page = open_page(address, width)
    controls = """() => [...document.querySelectorAll('a, button, input, [tabindex]')]
        .filter(e => e.checkVisibility() && !e.dataset.reached).map(e => e.outerHTML.slice(0, 100))"""
    for _ in page.evaluate(controls):
        page.keyboard.press("Tab")
        page.evaluate("document.activeElement.dataset.reached = 1")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert page.evaluate(controls) == []
    page.focus("#play")
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelector('#size').value !== '8'")


def test_the_theme_is_chosen_and_remembered(address, open_page: Open):
    page = open_page(address)
    background = "getComputedStyle(document.documentElement).backgroundColor"
    light = page.evaluate(background)
    page.click("#theme")
    dark = page.evaluate(background)
    assert dark != light
    assert page.text_content("#theme") == "Light"
    page.reload()
    assert page.evaluate(background) == dark
    page.click("#theme")
    assert page.evaluate(background) == light


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1440])
def test_text_and_lines_stand_out_from_their_ground(address, open_page: Open, faint, width, dark):
    page = open_page(address, width, dark)
    page.focus(f"svg.{'wide' if width > 800 else 'narrow'}")  # with the numbers at one size
    assert faint(page, ".line, .mark, .chance, .marker, .bars i, .levels i, .strip svg > *") == []


@pytest.mark.parametrize("width", [390, 1440])
def test_charts_tell_their_numbers_to_the_pointer_and_to_the_keyboard(address, open_page: Open, overflow, width):
    page, numbers = open_page(address, width), made(seeds=3)
    chart = page.locator(f"svg.{'wide' if width > 800 else 'narrow'}")

    def told() -> list[str]:
        return page.locator(".tip > *").all_inner_texts()

    chart.focus()
    for key, n in ((None, 2), ("ArrowLeft", 1), ("Home", 0), ("End", 6), ("ArrowRight", 6)):
        if key:
            page.keyboard.press(key)
        first, *rows = told()
        assert first == f"size {named(SIZES[n])}"
        expected = sorted(numbers.methods, key=lambda method: -method.mean(SIZES[n]))
        assert [row.split("\n") for row in rows] == [[m.name, f"{m.per_cent(SIZES[n])} %"] for m in expected]
        assert overflow(page) == []
    page.keyboard.press("Escape")
    assert not page.locator(".tip").is_visible()
    page.evaluate("document.activeElement.blur()")
    marker = chart.locator("g.cnn .marker").nth(4).bounding_box()
    page.mouse.move(marker["x"] + 4, marker["y"] + 4)
    assert told()[0] == "size 2"
    page.mouse.move(2, 2)
    assert not page.locator(".tip").is_visible()


def test_what_continues_to_the_right_fades_until_it_is_scrolled_there(address, open_page: Open):
    page = open_page(address, 390)
    for n in range(page.locator(".scroll").count()):
        part = page.locator(".scroll").nth(n)
        hidden, faded = part.evaluate(
            "e => [e.scrollWidth > e.clientWidth + 1, getComputedStyle(e).maskImage !== 'none']"
        )
        assert hidden == faded
        part.evaluate("e => e.scrollTo(e.scrollWidth, 0)")
        page.wait_for_function("e => !e.classList.contains('more')", arg=part.element_handle())
    assert page.locator(".scroll").count() >= 5
    assert open_page(address, 1440).locator(".scroll.more").count() == 0


def test_the_legend_is_one_row_on_a_laptop_and_one_column_on_a_phone(address, open_page: Open):
    for width, side in ((1440, "y"), (390, "x")):
        entries = open_page(address, width).locator(".legend li")
        assert len({entries.nth(n).bounding_box()[side] for n in range(entries.count())}) == 1


def test_without_scripts_all_but_the_viewer_shows_and_only_the_file_is_asked_for(address, browser):
    for scripts in (True, False):
        context = browser.new_context(java_script_enabled=scripts, viewport={"width": 1440, "height": 900})
        page, asked = context.new_page(), []
        page.on("request", lambda request, asked=asked: asked.append(request.url))
        page.goto(address)
        page.wait_for_load_state("networkidle")
        assert [url for url in asked if not url.startswith("data:")] == [address]
        for what in (".plot svg.wide", ".verdicts", ".features", ".drawn img"):
            assert page.locator(what).is_visible()
        for what in ("#viewer", "#theme"):
            assert page.locator(what).is_visible() == scripts
        assert page.locator(".noscript").is_visible() != scripts
        context.close()
