"""The explorer in a real browser: images, networks, mistakes, and no word to any other machine."""

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch
from explorer import serving
from PIL import Image

from scalespaces import models

pytestmark = pytest.mark.extra("gradio")
WAIT = 90_000  # milliseconds, on a machine with other things to do
EDGES = "[type=number], [type=radio]:not(:checked), label > * > input, .wrap:has(> .wrap-inner), .ss-drop, .secondary"


@contextmanager
def served(*arguments: str) -> Iterator[str]:
    """The address of the page; the command ends as Ctrl-C ends it, without a complaint."""
    with serving(*arguments) as (process, found):
        yield found
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=WAIT / 1000)
        assert (process.returncode, errors) == (0, "")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served() as found:
        yield found


@pytest.fixture
def visit(open_page: Callable[..., Any], address: str) -> Callable[..., Any]:
    """Open the page once it shows the first levels; whoever else it asks for something is noted on it."""

    def visit(width: int = 1440, dark: bool = False) -> Any:
        page = open_page("about:blank", width, dark)
        page.asked = []
        page.on("request", lambda request: page.asked.append(request.url))
        page.set_default_timeout(WAIT)
        page.goto(address)
        page.wait_for_selector("#levels figure")
        return page

    return visit


def hosts(page: Any) -> set[str | None]:
    return {urlsplit(url).hostname for url in page.asked if urlsplit(url).scheme not in ("data", "blob")}


def drop(page: Any, field: str, file: Path) -> None:
    page.locator(f"#{field} input[type=file]").set_input_files(str(file))


def open_tab(page: Any, name: str) -> None:
    page.get_by_role("tab", name=name).click()


def sizes(page: Any) -> list[str]:
    return page.locator("#levels figcaption span:nth-of-type(1)").all_inner_texts()


def choose(page: Any, field: str, name: str) -> None:
    page.locator(f"#{field}").get_by_text(name, exact=True).click()


def write(page: Any, field: str, text: str, kind: str = ":is(input, textarea)") -> None:
    """Type into a field and press Enter."""
    page.locator(f"#{field} {kind}").fill(text)
    page.locator(f"#{field} {kind}").press("Enter")


def await_sizes(page: Any, *expected: str) -> None:
    """Wait until the levels have these sizes."""
    script = "text => [...document.querySelectorAll('#levels figcaption')].map(e => e.children[1].innerText) == text"
    try:
        page.wait_for_function(script, arg=",".join(expected))
    except Exception as error:
        pytest.fail(f"expected levels of {expected}, got {sizes(page)}: {error}")


def await_text(page: Any, field: str, text: str) -> None:
    """Wait until a part of the page contains this text; an empty one, until it is empty."""
    script = """([id, text]) => { const found = document.querySelector(id)?.innerText ?? null;
        return text ? found?.includes(text) : found?.trim() === ''; }"""
    page.wait_for_function(script, arg=[f"#{field}", text])


def settle(page: Any) -> None:
    """Wait until nothing is computed and nothing fades in or out."""
    page.wait_for_function("""() => !document.querySelector('.pending, [data-testid=status-tracker]:not(.hide)')
        && document.getAnimations().every(a => a.timeline !== document.timeline || a.playState === 'finished')""")


def track_contrast(slider: Any) -> float:
    """The contrast of a slider with the ground above it, by WCAG: that of its faintest column of pixels."""
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    inside = {"x": box["x"] + 3, "y": box["y"] - 6, "width": box["width"] - 6, "height": box["height"] + 12}
    pixels = np.asarray(Image.open(BytesIO(slider.page.screenshot(clip=inside))).convert("RGB")) / 255
    light = np.where(pixels <= 0.04045, pixels / 12.92, ((pixels + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]
    light, ground = light + 0.05, light[0, 0] + 0.05
    return (np.maximum(light, ground) / np.minimum(light, ground)).max(axis=0).min()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    colors = np.random.default_rng(0).integers(0, 256, (96, 160, 3), dtype=np.uint8)
    Image.fromarray(colors).save(folder / "mine.png")
    Image.fromarray(colors).resize((3000, 1800)).save(folder / "large.jpg")
    Image.new("RGB", (1, 1)).save(folder / "pixel.png")
    (folder / "words.png").write_text("these are words")
    (folder / "cut.png").write_bytes((folder / "mine.png").read_bytes()[:2000])
    model = models.create_model("s_cnn")
    model.card = models.Card(classes=["<i>zero</i>", "${one}", *"23456789"])
    models.save(model, folder / "digits.safetensors")
    (folder / "cut.safetensors").write_bytes((folder / "digits.safetensors").read_bytes()[:5000])
    return folder


def test_levels_follow_the_image_and_the_fields(visit, files):
    page = visit()
    assert sizes(page) == ["512 × 512", "256 × 256", "128 × 128", "64 × 64", "32 × 32"]
    assert "times the image" in page.inner_text("#cost")
    drop(page, "image", files / "mine.png")
    await_sizes(page, "160 × 96", "80 × 48", "40 × 24", "20 × 12", "10 × 6")
    assert "mine.png" in page.inner_text("#preview")
    before = page.locator("#levels img").nth(2).get_attribute("src")
    write(page, "base", "3")
    await_sizes(page, "160 × 96", "54 × 32", "18 × 11", "6 × 4", "2 × 2")
    assert page.locator("#levels img").nth(2).get_attribute("src") != before
    choose(page, "sampling", "dense")
    await_sizes(page, *["160 × 96"] * 5)
    choose(page, "sampling", "oversampled")
    page.wait_for_selector("#oversampling input")
    await_sizes(page, "160 × 96", "107 × 64", "36 × 22", "12 × 8", "4 × 3")
    assert hosts(page) == {"127.0.0.1"}


def test_errors_are_measured(visit):
    page = visit()
    open_tab(page, "Equivariance")
    page.wait_for_selector("#errors table")  # it opens on a network: not all its errors are 0
    assert page.inner_text("#errors .ss-verdict").startswith("Exact: ")
    assert "2 random layers" in page.inner_text("#errors")
    assert page.locator("#errors td.ss-past").count() > 0
    choose(page, "method", "direct")
    await_text(page, "errors", "The button measures")
    page.click("#network input")
    page.get_by_role("option", name="1 random layer").click()
    page.click("#measure")
    await_text(page, "errors .ss-verdict", "Not exact")
    assert "blurs the image separately" in page.inner_text("#errors .ss-verdict")
    assert page.locator("#errors img").count() == 1


def test_a_network_answers_while_the_image_is_zoomed(visit, files):
    page = visit()
    open_tab(page, "Predictions")
    drop(page, "model", files / "digits.safetensors")
    page.wait_for_selector("#answer .ss-bar")
    page.wait_for_selector("#curve img")
    assert "digits.safetensors" in page.inner_text("#facts")
    assert "<i>zero</i>, ${one}, 2" in page.inner_text("#facts")
    assert page.locator("#answer .ss-chosen").count() == 1
    assert page.locator("#side input").input_value() == "28"
    seen, answer = page.locator("#seen img").get_attribute("src"), page.inner_text("#answer")
    write(page, "zoom", "0.5", "input[type=number]")
    page.wait_for_function("seen => document.querySelector('#seen img').src !== seen", arg=seen)
    page.wait_for_function("answer => document.querySelector('#answer').innerText !== answer", arg=answer)
    open_tab(page, "Equivariance")
    page.click("#network input")
    page.get_by_role("option", name="the loaded network").click()
    page.click("#measure")
    await_text(page, "errors", "digits.safetensors, on ")


def test_tabs_do_not_share_what_they_hold(visit, files):
    first, second = visit(), visit()
    drop(first, "image", files / "mine.png")
    await_sizes(first, "160 × 96", "80 × 48", "40 × 24", "20 × 12", "10 × 6")
    choose(second, "sampling", "dense")
    await_sizes(second, *["512 × 512"] * 5)


def test_mistakes_get_a_message_and_the_page_lives_on(visit, files):
    page = visit()
    for name, message in (("words.png", "'words.png' is not an image"), ("cut.png", "'cut.png' is not an image that")):
        drop(page, "image", files / name)
        await_text(page, "image-status", message)
        for part in ("preview", "levels", "cost"):  # nothing of the image before
            await_text(page, part, "")
        assert page.locator("#preview img, #levels img").count() == 0
    drop(page, "image", files / "large.jpg")
    await_text(page, "preview", "reduced from 3000 × 1800 pixels")
    await_text(page, "image-status", "")
    drop(page, "image", files / "pixel.png")
    await_text(page, "space-status", "choose 1 at most")
    await_text(page, "levels", "")
    page.get_by_text("Use the photograph").click()
    await_text(page, "preview", "512 × 512")
    await_text(page, "space-status", "")

    write(page, "base", "two")
    await_text(page, "space-status", "base must be a number such as")
    write(page, "base", "2")
    for text, message in (("99", "from 1 to 12, got 99"), ("5", "")):
        write(page, "number", text, "input[type=number]")
        await_text(page, "space-status", message)

    open_tab(page, "Predictions")
    for name in ("cut.safetensors", "words.png"):
        drop(page, "model", files / name)
        await_text(page, "model-status", f"'{name}' is not a safetensors file")
    drop(page, "model", files / "digits.safetensors")
    page.wait_for_selector("#answer .ss-bar")
    write(page, "side", "3")
    await_text(page, "model-status", "the side must be")
    write(page, "side", "32")
    await_text(page, "seen", "32 × 32")
    assert page.locator("text=Traceback").count() == 0


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_sticks_out_and_everything_stands_out(visit, overflow, faint, files, width, dark):
    page = visit(width, dark)

    def check() -> None:
        settle(page)
        assert (overflow(page), faint(page, edges=EDGES)) == ([], [])
        for slider in page.locator("input[type=range]:visible").all():
            assert track_contrast(slider) >= 3

    check()
    open_tab(page, "Equivariance")
    page.wait_for_selector("#errors table")
    check()
    parts = page.locator(".ss-scroll:visible").all()  # what continues to the right fades until it is scrolled there
    hidden = [part.evaluate("e => e.scrollWidth > e.clientWidth") for part in parts]
    assert [part.evaluate("e => getComputedStyle(e).maskImage !== 'none'") for part in parts] == hidden
    assert any(hidden) == (width < 600)
    for part in parts:
        part.evaluate("e => e.scrollTo(e.scrollWidth, 0)")
        page.wait_for_function("e => getComputedStyle(e).maskImage === 'none'", arg=part.element_handle())
    open_tab(page, "Predictions")
    drop(page, "model", files / "digits.safetensors")
    page.wait_for_selector("#curve img")
    check()
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background)[:3])) < 200) == dark
    assert hosts(page) == {"127.0.0.1"}


# Controls in the order of the key Tab, the keys to press there, and what must then become true of some element.
LEVELS, FIRST, ZOOM = (f"#{name} input[type=number]" for name in ("number", "first", "zoom"))
KEYS = {
    "": [
        ("#photograph", "Enter", "#preview", "e.innerText.includes('512')"),
        ("#lift > button", "Enter", "#base", "!e.checkVisibility()"),
        ("#lift > button", "Space", "#base", "e.checkVisibility()"),
        ("#kernel input", "ArrowDown Enter", "#kernel input", "e.value !== 'discrete gaussian'"),
        ("#base input", "Control+a 4 Enter", "#levels", "e.innerText.includes('step 64')"),
        ("#zero-scale input", "Control+a 1 Enter", "#levels", "e.innerText.includes('blur 3.87 px')"),
        (LEVELS, "ArrowUp", LEVELS, "e.value === '6'"),
        ("#number button", "Enter", LEVELS, "e.value === '5'"),
        ("#number input[type=range]", "ArrowLeft ArrowLeft", LEVELS, "e.value === '3'"),
        (FIRST, "ArrowDown", FIRST, "e.value === '-1'"),
        ("#first button", "Space", FIRST, "e.value === '0'"),
        ("#first input[type=range]", "ArrowLeft", FIRST, "e.value === '-1'"),
        ("#sampling [value=dense]", "Space", "#sampling [value=dense]", "e.checked"),
        ("#sampling [value=oversampled]", "Space", "#oversampling input", "e.checkVisibility()"),
        ("#sampling [value=pyramid]", "", "#sampling [value=oversampled]", "e.checked"),
        ("#oversampling input", "ArrowUp", "#oversampling input", "e.value === '3'"),
        ("#method [value=direct]", "Space", "#method [value=direct]", "e.checked"),
    ],
    "Equivariance": [
        ("#network input", "ArrowDown Enter", "#network input", "e.value !== '2 random layers'"),
        ("#measured-side input", "ArrowUp Enter", "#measured-side input", "e.value !== '257 pixels'"),
        ("#measure", "Enter", "#errors", "e.querySelector('table')"),
    ],
    "Predictions": [
        (ZOOM, "Control+a 2 Enter", "#zoom input[type=range]", "e.value === '2'"),
        ("#zoom button", "Enter", ZOOM, "e.value === '1'"),
        ("#zoom input[type=range]", "ArrowRight", ZOOM, "e.value === '1.01'"),
        ("#side input", "ArrowUp", "#side input", "e.value === '29'"),
    ],
}


def test_every_control_is_reached_and_used_with_the_keyboard(visit, files):
    page = visit()
    page.on("filechooser", lambda _: None)  # from now on, and not only while one is awaited

    def reach(control: str) -> None:
        """Press Tab until a control has the focus, which must be seen."""
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("control => document.activeElement.matches(control)", control):
                assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid", control
                return
        pytest.fail(f"Tab does not lead to {control}")

    def choose_file(control: str, name: str) -> None:
        reach(control)
        with page.expect_file_chooser() as chooser:
            page.keyboard.press("Enter")
        chooser.value.set_files(str(files / name))

    choose_file("#image button", "mine.png")
    await_text(page, "preview", "mine.png")
    for tab, steps in KEYS.items():
        if tab:
            name = page.get_by_role("tab", name=tab)
            name.evaluate("e => e.id = 'next-tab'")
            reach("#next-tab")
            page.keyboard.press("Enter")
            name.evaluate("e => e.id = ''")
            page.wait_for_selector(steps[0][0])
        if tab == "Predictions":
            choose_file("#model button", "digits.safetensors")
            await_text(page, "facts", "digits.safetensors")
        for control, keys, seen, state in steps:
            if not page.evaluate("control => document.activeElement.matches(control)", control):
                reach(control)
            for key in keys.split():
                page.keyboard.press(key)
            page.wait_for_function(f"s => {{ const e = document.querySelector(s); return e && {state}; }}", arg=seen)
        controls = """() => [...document.querySelectorAll('button, input, textarea, select')]
            .filter(e => e.checkVisibility() && !e.disabled && !e.closest('.visually-hidden') && !e.dataset.reached)
            .map(e => e.outerHTML)"""
        for _ in range(60):
            page.keyboard.press("Tab")
            page.evaluate("document.activeElement.dataset.reached = 1")
        assert page.evaluate(controls) == []


def test_it_begins_with_what_it_is_given_and_ends_when_told(open_page, files):
    with served("--model", str(files / "digits.safetensors"), "--image", str(files / "mine.png")) as address:
        page = open_page(address)
        page.set_default_timeout(WAIT)
        page.wait_for_selector("#levels figure")
        assert sizes(page)[0] == "160 × 96"
        open_tab(page, "Predictions")
        page.wait_for_selector("#answer .ss-bar")
        assert page.locator("#side input").input_value() == "96"
        page.click("#photograph")
        await_text(page, "preview", "512 × 512")
        open_tab(page, "Equivariance")
        page.click("#network input")
        page.get_by_role("option", name="s_densenet, untrained").click()
        page.click("#measure")
        await_text(page, "errors", "images seen")  # it is told to end while it computes, for seconds
        page.close()


def test_it_begins_with_an_example_of_the_network_and_maps_levels(open_page, files):
    torch.manual_seed(0)
    (files / "examples").mkdir()
    Image.open(files / "mine.png").save(files / "examples" / "street.png")
    network = models.create_model("s_resnet", num_classes=4, lift={"num_levels": 2})
    models.save(network, files / "pixels.safetensors")
    with served("--model", str(files / "pixels.safetensors")) as address:
        page = open_page(address)
        page.set_default_timeout(WAIT)
        await_text(page, "preview", "street.png")
        open_tab(page, "Predictions")
        page.wait_for_selector("#seen .ss-legend")
        assert page.locator("#seen img").count() == 2
        shares = [int(text) for text in re.findall(r"level \d: (\d+) %", page.inner_text("#seen"))]
        assert len(shares) == 2
        assert sum(shares) in (99, 100, 101)
        page.close()
