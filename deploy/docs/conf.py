"""Settings of Sphinx for the site of docs/, which `make docs` builds.

The pages stay plain Markdown, readable where they lie. What a site needs besides is added while they are read: the
navigation, which is the order of the table in docs/README.md; links that leave docs/, which lead to the project's
`Source` URL; and the reference of a Python module in place of `<!-- reference: MODULE -->`. A page that is not in the
navigation, a link or an anchor that leads nowhere is a warning of Sphinx, and an error here.
"""

import shutil
import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parents[2]))
from deploy.docs.pages import add_parts, mark_examples, read_setting

project = "rankscope"
version = release = read_setting("version")
author = copyright = "the authors of rankscope"  # noqa: A001 - Sphinx's name for it
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "README"
myst_heading_anchors = 6
highlight_language = "none"
suppress_warnings = ["misc.highlighting_failure"]  # Pygments does not know the colons of recording rules
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
html_theme = "alabaster"
html_theme_options = {"description": read_setting("description"), "fixed_sidebar": True, "page_width": "72rem"}
html_title = f"rankscope {release}"
html_copy_source = False
html_show_sphinx = False


def add_to_source(app: Sphinx, name: str, source: list[str]) -> None:
    """Give Sphinx the page `name` with its parts for the site."""
    source[0] = add_parts(Path(app.srcdir, f"{name}.md"), source[0])


def mark_in_docstring(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:  # noqa: ARG001, PLR0917 - Sphinx's
    """Give Sphinx a docstring with its examples marked."""
    lines[:] = mark_examples(lines)


def write_index(app: Sphinx, error: Exception | None) -> None:
    """Copy the first page to where a web server looks for it."""
    if error is None and app.builder.format == "html":
        shutil.copy(Path(app.outdir, "README.html"), Path(app.outdir, "index.html"))


def setup(app: Sphinx) -> None:
    """Connect all of them."""
    app.connect("source-read", add_to_source)
    app.connect("autodoc-process-docstring", mark_in_docstring)
    app.connect("build-finished", write_index)
