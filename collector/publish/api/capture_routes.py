"""Answer the API about captures that the collector orders, without any socket.

    GET  /api/v1/captures                    the captures that are kept, newest first; ?run=RUN
    GET  /api/v1/captures/ID                 one of them
    GET  /api/v1/captures/ID/files/NAME      a file of it: a trace, the merged timeline, the analysis
    POST /api/v1/runs/RUN/captures           take one; needs the control token (http_auth.py)

The paths of files are made of an id and a name that the service has listed, never of what a client sends.
"""

import os
import stat
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote

import msgspec

from rankscope.collector.captures.capture import SLOWEST, Around, Capture, CaptureRefusal, CaptureRequest
from rankscope.collector.publish.routes import JSON, RUNS_PATH, Response, refuse
from rankscope.measure.errors import UnavailableError

CAPTURES_PATH: Final = "/api/v1/captures"
CAPTURES_SUFFIX: Final = "/captures"
ORDER_ALLOWED: Final = {"Allow": "POST"}
BODY_BYTES_MAX: Final = 65_536
"""Longest body of a request, bytes: a list of 10,000 ranks fits."""
CONTENT_TYPES: Final = {".html": "text/html; charset=utf-8", ".json": JSON, ".gz": "application/gzip"}
SANDBOX: Final = {
    "Content-Security-Policy": "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; img-src data:"
}
"""A report has an origin of its own in a browser: it cannot read the token of the live page, or ask this server."""


class CaptureList(msgspec.Struct, frozen=True, kw_only=True):
    """The captures that are kept, newest first."""

    captures: tuple[Capture, ...]


class CaptureOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to capture. `ranks`: rank numbers, or `{"around": RANK}` (that rank, its healthiest peer, and a neighbor on
    its node) or `slowest` (the same around the slowest rank) or `all`. `options`: `shapes`, `stacks`, `memory`,
    `modules`. `force`: also where it is expected to stop training for longer than `capture_pause_s_max` of the
    collector or of the agent.
    """

    ranks: tuple[int, ...] | Around | str = SLOWEST
    steps: int = 3
    options: tuple[str, ...] = ()
    force: bool = False


class FileAnswer(NamedTuple):
    """A file that is open for reading, and its size in bytes. The one who gets it closes `fd`."""

    fd: int
    size_bytes: int
    content_type: str
    headers: dict[str, str]


class CaptureRoutes:
    """Answers about captures; any thread. `read_captures` returns those that are kept, newest first. `order_capture`
    begins one, and raises UnavailableError where it is not known whether it has. `folder` has the files of each by its
    id; None without a store.
    """

    def __init__(
        self,
        order_capture: Callable[[CaptureRequest], Capture | CaptureRefusal],
        read_captures: Callable[[], tuple[Capture, ...]],
        folder: Path | None,
    ) -> None:
        self._order_capture = order_capture
        self._read_captures = read_captures
        self._folder = folder

    def answer(self, target: str) -> Response | FileAnswer | None:
        """Return the answer to a GET of `target`; None for paths that are not about captures."""
        path, _, query = target.partition("?")
        if path == CAPTURES_PATH:
            return self._list(query)
        if find_ordered_run(target) is not None:
            error = f"captures are ordered here, by POST; {CAPTURES_PATH}?run=RUN lists them"
            return refuse(HTTPStatus.METHOD_NOT_ALLOWED, error, ORDER_ALLOWED)
        if not path.startswith(f"{CAPTURES_PATH}/"):
            return None
        match [unquote(part) for part in path.removeprefix(f"{CAPTURES_PATH}/").split("/")]:
            case [asked]:
                found = self._find(asked)
                return _refuse_unknown(asked) if found is None else _as_json(HTTPStatus.OK, found)
            case [asked, "files", name]:
                return self._open(asked, name)
            case _:
                return None

    def order(self, target: str, body: bytes, asked_by: str) -> Response:
        """Return the answer to an admitted POST to `target`. `asked_by` is the address that it came from."""
        run = find_ordered_run(target)
        if run is None:
            return refuse(HTTPStatus.NOT_FOUND, f"nothing can be posted to {target[:80]}; {RUNS_PATH}/RUN/captures can")
        try:
            wanted = msgspec.json.decode(body or b"{}", type=CaptureOptions)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return refuse(HTTPStatus.BAD_REQUEST, f"the body is no order of a capture as JSON: {error}")
        request = CaptureRequest(
            run=run, ranks=wanted.ranks, steps=wanted.steps, options=wanted.options, is_forced=wanted.force,
            asked_by=asked_by,
        )  # fmt: skip
        return self._order(request)

    def _order(self, request: CaptureRequest) -> Response:
        try:
            answer = self._order_capture(request)
        except UnavailableError as error:
            text = f"{error}. The capture may have been ordered all the same: {CAPTURES_PATH} lists them."
            return refuse(HTTPStatus.SERVICE_UNAVAILABLE, text)
        if isinstance(answer, CaptureRefusal):
            return refuse(HTTPStatus(answer.status), answer.error)
        return _as_json(HTTPStatus.ACCEPTED, answer)

    def _list(self, query: str) -> Response:
        asked = dict(parse_qsl(query, keep_blank_values=True))
        unknown = sorted(asked.keys() - {"run"})
        if unknown:
            return refuse(HTTPStatus.BAD_REQUEST, f"{unknown[0][:80]!r} is no parameter here; run is")
        run = asked.get("run")
        found = tuple(one for one in self._read_captures() if run is None or run in {one.run, one.run_id})
        return _as_json(HTTPStatus.OK, CaptureList(captures=found))

    def _find(self, asked: str) -> Capture | None:
        return next((one for one in self._read_captures() if one.id == asked), None)

    def _open(self, asked: str, name: str) -> Response | FileAnswer:
        found = self._find(asked)
        if found is None or self._folder is None:
            return _refuse_unknown(asked)
        if name not in {file.name for file in found.files} or Path(name).name != name:
            error = f"capture {asked[:80]!r} has no file {name[:80]!r}; {CAPTURES_PATH}/ID lists its files"
            return refuse(HTTPStatus.NOT_FOUND, error)
        try:
            return _open_file(self._folder / found.id / name)
        except OSError as error:
            text = f"{name[:80]!r} of capture {asked[:80]!r} cannot be read: {error.strerror}"
            return refuse(HTTPStatus.NOT_FOUND, text)


def find_ordered_run(target: str, suffix: str = CAPTURES_SUFFIX) -> str | None:
    """Return the run that a POST to this path, which ends in `suffix`, orders something of; None for other paths.

    >>> find_ordered_run("/api/v1/runs/bert%2F2/captures")
    'bert/2'
    >>> find_ordered_run("/api/v1/runs")
    """
    path, _, query = target.partition("?")
    middle = path.removeprefix(f"{RUNS_PATH}/").removesuffix(suffix)
    is_whole = path == f"{RUNS_PATH}/{middle}{suffix}" and "/" not in middle
    return unquote(middle) if is_whole and middle and not query else None


def _open_file(path: Path) -> FileAnswer:
    """Open a regular file. Raises OSError; a symbolic link is an error."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise FileNotFoundError(0, "it is no file")
    if path.suffix == ".html":
        return FileAnswer(fd, found.st_size, CONTENT_TYPES[".html"], SANDBOX)
    quoted = path.name.replace("\\", "_").replace('"', "_")
    attached = {"Content-Disposition": f'attachment; filename="{quoted}"'}
    return FileAnswer(fd, found.st_size, CONTENT_TYPES.get(path.suffix, "application/octet-stream"), attached)


def _refuse_unknown(asked: str) -> Response:
    return refuse(HTTPStatus.NOT_FOUND, f"no capture {asked[:80]!r} is kept; {CAPTURES_PATH} lists those that are")


def _as_json(status: HTTPStatus, found: msgspec.Struct) -> Response:
    return Response(status, JSON, msgspec.json.encode(found))
