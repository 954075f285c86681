"""The files of the live page, and under what rules a browser runs them.

They hold nothing about any run: what the page shows it asks the API for, with the token where there is one. So they are
served without it, to whoever asks as a browser does. (`curl` at / gets the list of what there is, as it always did.)
"""

from functools import cache
from http import HTTPStatus
from importlib.resources import files
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
"""By ending. `nosniff` holds browsers to it."""
PREFIX: Final = "/live/"

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Content-Security-Policy: own files and own API, nothing inline, nothing from elsewhere, in nobody's frame. With
trusted types the browser refuses to make markup of text: a name can be nothing but text, whatever is in it."""
HEADERS: Final = {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"}


def find_page_file(path: str, accept: str) -> Response | None:
    """The answer to a GET of `path`, given the header Accept; None for what is no part of the page."""
    if path == "/":
        return _serve("index.html", {"Vary": "Accept"}) if "text/html" in accept.lower() else None
    name = path.removeprefix(PREFIX)
    return _serve(name, {}) if path.startswith(PREFIX) and name in read_page_files() else None


@cache
def read_page_files() -> dict[str, bytes]:
    """All of them, by name."""
    folder = files(__package__).joinpath(FOLDER)
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name.endswith(tuple(KINDS))}


def _serve(name: str, headers: dict[str, str]) -> Response:
    kind = next(kind for ending, kind in KINDS.items() if name.endswith(ending))
    return Response(HTTPStatus.OK, kind, read_page_files()[name], {**HEADERS, **headers})
