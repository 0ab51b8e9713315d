"""The site that make docs builds: its pages, its reference, and that it asks nobody else for anything."""

import ast
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MADE = ("gallery", "tutorial", "figures")  # pages that sphinx-gallery makes, and what it makes them of


@pytest.fixture(scope="module")
def conf() -> dict:
    return runpy.run_path(str(DOCS / "conf.py"))


def reachable(page: Path) -> Iterator[Path]:
    """A page, and those in its tables of contents, and so on."""
    yield page
    for body in re.findall(r"```\{toctree\}\n(.*?)```|\.\. toctree::\n(.*)", page.read_text(), re.DOTALL):
        for entry in filter(None, map(str.strip, "".join(body).splitlines())):
            name = re.sub(r".*<(.*)>", r"\1", entry)
            if not name.startswith(":") and name.split("/")[0] not in MADE:
                markdown = page.parent / f"{name}.md"
                yield from reachable(markdown if markdown.exists() else markdown.with_suffix(".rst"))


def test_every_page_is_in_a_table_of_contents_and_static_files_exist(conf):
    pages = {page for suffix in ("md", "rst") for page in DOCS.rglob(f"*.{suffix}")}
    pages = {page for page in pages if page.relative_to(DOCS).parts[0] not in MADE}
    assert set(reachable(DOCS / "index.md")) == pages
    assert [path for path in conf["html_static_path"] if not (DOCS / path).exists()] == []
    assert any(Path(path).name == conf["mathjax_path"] for path in conf["html_static_path"])


def test_pages_as_github_shows_them_become_pages_of_the_site(conf):
    app = SimpleNamespace(env=SimpleNamespace(doc2path=lambda name: DOCS / "howto" / f"{name}.md"))
    source = [
        "$`t > 0`$ [`scalespaces.nn.Lift`](../../src/scalespaces/nn/_lift.py) [recipes](../../recipes) "
        "[a test](../../tests/test_site.py) [page](../tutorial/2_correlation.py) [figures](../figures) "
        "[b](../theory.md)"
    ]
    conf["read_as_github"](app, "sample", source)
    assert source == [
        "$t > 0$ {py:obj}`scalespaces.nn.Lift` recipes "
        "[a test](../../tests/test_site.py) [page](../gallery/tutorial/2_correlation.rst) "
        "[figures](../gallery/figures/index.rst) [b](../theory.md)"
    ]


def remote(html: str) -> list[str]:
    """What a browser would fetch from elsewhere to show a page; links that people click are none of it."""
    tags = re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", html)
    return [tag for tag in tags if re.search(r"(?:src|href|srcset)=[\"']?(?:https?:)?//", tag)]


def test_the_check_sees_requests():
    assert remote('<script src="_static/a.js"></script><a href="https://example.org">b</a>') == []
    for html in ('<script defer src="https://example.org/a.js">', "<img alt='' src='//example.org/a.png'>"):
        assert remote(html) == [html]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site without what galleries compute, built of a copy: sphinx-gallery writes beside its sources."""
    tmp_path = tmp_path_factory.mktemp("site")
    for entry in ROOT.iterdir():
        if not entry.name.startswith(".") and entry.name not in ("docs", "out"):
            (tmp_path / entry.name).symlink_to(entry)
    shutil.copytree(DOCS, tmp_path / "docs", ignore=shutil.ignore_patterns("gallery"))
    command = [sys.executable, "-m", "sphinx", "-q", "-n", "-W", "--keep-going", "-D", "plot_gallery=0", "docs", "html"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    result = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return tmp_path / "html"


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_asks_nobody_for_anything(site):
    """Its formulas are drawn, and it links into the reference."""
    pages = list(site.rglob("*.html"))
    assert {site / "index.html", site / "api" / "nn.html", site / "gallery" / "tutorial" / "index.html"} <= set(pages)
    assert {page.name: found for page in pages if (found := remote(page.read_text()))} == {}
    styles = "".join(style.read_text() for style in (site / "_static").rglob("*.css"))
    assert re.findall(r"(?:@import|url\()[\s\"']*(?:url\()?[\"']?(?:https?:)?//[^)\"']*", styles) == []
    theory = (site / "theory.html").read_text()
    assert 'src="_static/tex-svg.js' in theory
    assert "`" not in "".join(re.findall(r'<span class="math notranslate nohighlight">(.*?)</span>', theory))
    assert 'href="api/functional.html#scalespaces.functional.lift"' in theory


@pytest.mark.slow
def test_every_page_of_the_tutorial_is_a_notebook_that_installs_what_it_needs(site):
    for script in sorted((DOCS / "tutorial").glob("*.py")):
        (file,) = site.glob(f"_downloads/*/{script.stem}.ipynb")
        page = (site / "gallery" / "tutorial" / f"{script.stem}.html").read_text()
        assert f"{file.parent.name}/{file.name}" in page  # the link to it
        install, *cells = json.loads(file.read_text())["cells"]
        assert "%pip install" in "".join(install["source"])
        assert sum("%pip" in "".join(cell["source"]) for cell in cells) == 0
        code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        assert ast.dump(ast.parse(code)) == ast.dump(ast.Module(ast.parse(script.read_text()).body[1:], []))
