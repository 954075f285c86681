"""Serve the files of the live page, with the rules under which a browser runs them.

With them come the runbooks of this release, as text, for links of findings.

The files contain nothing about any run and need no token: the page gets its data from the API, with the token where one
is required. `curl` at / gets the list of paths instead.
"""

from functools import cache
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from typing import Final

from rankscope.collector.publish.routes import Response

FOLDER: Final = "live_page"
HTML: Final = "text/html; charset=utf-8"
KINDS: Final = {
    ".html": HTML,
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Content types by file extension; `nosniff` makes browsers keep to them."""
PREFIX: Final = "/live/"
RUNBOOKS_PREFIX: Final = "/live/runbooks/"
TEXT: Final = "text/plain; charset=utf-8"
"""Type of a runbook: browsers show Markdown as text, and download it under its own type."""

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Content-Security-Policy: own files and own API, nothing inline, nothing from elsewhere, in no frame. With trusted
types the browser refuses to turn text into markup, whatever a name contains."""
HEADERS: Final = {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"}


def find_page_file(path: str, accept: str) -> Response | None:
    """Return the response to a GET of `path` with this header Accept; None if it is not part of the page."""
    if path == "/":
        return _serve("index.html", {"Vary": "Accept"}) if "text/html" in accept.lower() else None
    if path.startswith(RUNBOOKS_PREFIX):
        page = read_runbooks().get(path.removeprefix(RUNBOOKS_PREFIX))
        return None if page is None else Response(HTTPStatus.OK, TEXT, page, HEADERS)
    name = path.removeprefix(PREFIX)
    return _serve(name, {}) if path.startswith(PREFIX) and name in read_page_files() else None


@cache
def read_page_files() -> dict[str, bytes]:
    """Return all files, by name."""
    folder = files(__package__).joinpath(FOLDER)
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name.endswith(tuple(KINDS))}


@cache
def read_runbooks() -> dict[str, bytes]:
    """Return the runbooks of this release by the names of their files; none where the installation has no documents.

    An installation has them in `shipped`, a checkout in its own folder.
    """
    package = Path(__file__).resolve().parents[2]
    folders = (root / "docs" / "runbooks" for root in (package / "shipped", package))
    found = next((folder for folder in folders if folder.is_dir()), None)
    return {} if found is None else {file.name: file.read_bytes() for file in found.glob("*.md")}


def _serve(name: str, headers: dict[str, str]) -> Response:
    kind = next(kind for ending, kind in KINDS.items() if name.endswith(ending))
    return Response(HTTPStatus.OK, kind, read_page_files()[name], {**HEADERS, **headers})
