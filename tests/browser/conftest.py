"""A real browser for the pages that people look at: Chromium as Debian and others package it, driven by playwright."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDTHS = {390: 844, 1440: 900}  # a phone and a laptop
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test of this folder is slow and needs playwright."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.extra("playwright"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, without a window; one for each module, because playwright's event loop allows no other meanwhile."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no browser to look at the page with: install one of {', '.join(NAMES)}")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open an address in a window of some width; the test fails if the page logs an error or throws one."""
    problems: list[str] = []
    contexts = []

    def open_(address: str, width: int = 1440, dark: bool = False) -> Any:
        size = {"width": width, "height": WIDTHS[width]}
        context = browser.new_context(viewport=size, color_scheme="dark" if dark else "light")
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: message.type == "error" and problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(address)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture
def overflow() -> Callable[[Any], list[str]]:
    """The elements of a page that stick out to the right of it, unless one around them scrolls or cuts them off."""
    script = """() => {
        const wide = document.documentElement.clientWidth;
        const held = e => { for (let p = e.parentElement; p && p !== document.body; p = p.parentElement)
            if (['auto', 'scroll', 'hidden', 'clip'].includes(getComputedStyle(p).overflowX)) return true; };
        const out = [...document.body.querySelectorAll('*')].filter(e => e.getBoundingClientRect().right > wide + 1);
        const found = out.filter(e => !held(e)).map(e => e.outerHTML.slice(0, 120));
        return document.documentElement.scrollWidth > wide + 1 ? ['the page scrolls sideways', ...found] : found;
    }"""
    return lambda page: page.evaluate(script)


@pytest.fixture
def faint() -> Callable[..., list[Any]]:
    """Text with a contrast below 4.5 to 1, as WCAG's level AA asks; shapes and edges, by selector, below 3 to 1."""
    script = """([lines, edges]) => {
        const context = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
        const over = (color, ground) => { context.clearRect(0, 0, 1, 1); context.fillStyle = `rgb(${ground})`;
            context.fillRect(0, 0, 1, 1); context.fillStyle = color; context.fillRect(0, 0, 1, 1);
            return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3); };
        const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
        const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
        const ground = e => e ? over(getComputedStyle(e).backgroundColor, ground(e.parentElement)) : [255, 255, 255];
        const shown = e => e.getClientRects().length && e.checkVisibility({ visibilityProperty: true });
        const opacity = e => e ? getComputedStyle(e).opacity * opacity(e.parentElement) : 1;
        const found = [];
        const look = (e, color, below, least) => {
            const part = opacity(e), mixed = over(color, below).map((v, n) => part * v + (1 - part) * below[n]);
            const [a, b] = [mixed, below].map(light);
            const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
            if (ratio < least) found.push([e.outerHTML.slice(0, 100), ratio]);
        };
        for (const e of document.querySelectorAll('body *')) {
            const words = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
            const skipped = ['TITLE', 'title', 'STYLE', 'SCRIPT', 'NOSCRIPT'].includes(e.tagName);
            if (!words || skipped || !shown(e) || !opacity(e) || e.closest('.unseen, [disabled]')) continue;
            const style = getComputedStyle(e);
            look(e, e instanceof SVGElement ? style.fill : style.color, ground(e), 4.5);
        }
        for (const e of lines ? document.querySelectorAll(lines) : []) {
            if (!shown(e)) continue;
            const style = getComputedStyle(e);
            const drawn = style.fill !== 'none' ? style.fill : style.stroke;
            look(e, e instanceof SVGElement ? drawn : style.backgroundColor, ground(e.parentElement), 3);
        }
        for (const e of edges ? document.querySelectorAll(edges) : [])
            if (shown(e)) look(e, getComputedStyle(e).borderTopColor, ground(e.parentElement), 3);
        return found;
    }"""
    return lambda page, lines="", edges="": page.evaluate(script, [lines, edges])
