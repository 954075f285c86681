"""Answer the API about runs, as JSON and, for the heat map, in binary; without any socket.

    GET /api/v1/runs/RUN?ranks=none          a run without its ranks
    GET /api/v1/runs/RUN/status              a run in a few facts, with its worst ranks; ?worst=N, 0 for none
    GET /api/v1/runs/RUN/ranks               its ranks; ?order=ORDER&reversed=yes&offset=N&limit=N
    GET /api/v1/runs/RUN/ranks/RANK          one rank beside those that do the same work
    GET /api/v1/runs/RUN/findings            what was found: open, and past
    GET /api/v1/runs/RUN/history             where its time went and how long its steps were; ?points=N, 0 for none;
                                             since_wall_s=S for steps that ended then or later
    GET /api/v1/runs/RUN/heatmap             ranks x time (heat_map.py); ?source=steps|intervals
    GET /api/v1/runs/RUN/machines            its machines with GPUs and memory, and its collectives (machine_views.py)
    GET /api/v1/runs/RUN/settings            its settings that were changed while it goes on (setting_routes.py)
    GET /api/v1/nodes                        nodes by how often they have held up a run, from the store
    GET /api/v1/nodes/NODE                   one of them; one that no stored run used has zeros
    GET /api/v1/gpus                         GPUs that are held and do nothing, of the nodes with a relay
    GET /api/v1/openapi.json                 all of it, described for programs

RUN is percent-encoded: the id of a run, or a name, for the latest run of that name. The rest of the API is in routes.py
and event_stream.py; docs/api.md has it together.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote

import msgspec

from rankscope.collector.captures.incident_views import NO_LINKS, CaptureLinks, FindingView, view_run, view_status
from rankscope.collector.publish.api import heat_map, machine_views
from rankscope.collector.publish.api.rank_views import list_ranks, show_rank
from rankscope.collector.publish.api.setting_routes import ShownSettings
from rankscope.collector.publish.api.step_breakdown import TimeSlice
from rankscope.collector.publish.routes import JSON, RUNS_PATH, Response, refuse
from rankscope.collector.run_ids import read_run_name
from rankscope.collector.runs.heat_map import HeatMapSteps
from rankscope.collector.runs.rank_orders import ORDERS
from rankscope.collector.runs.run_status import build_status
from rankscope.collector.runs.snapshot import RunSnapshot, Snapshot
from rankscope.collector.runs.window_effect import read_windows
from rankscope.collector.storage.run_reader import CurvePoint, opening_run
from rankscope.collector.store_address import StoreAddress
from rankscope.collector.valid_answers import encode_valid
from rankscope.measure.errors import UnavailableError

NODES_PATH: Final = "/api/v1/nodes"
GPUS_PATH: Final = "/api/v1/gpus"
OPENAPI_PATH: Final = "/api/v1/openapi.json"
OPENAPI_FILE: Final = "openapi.json"
BYTES: Final = "application/octet-stream"

RANKS_DEFAULT: Final = 100
RANKS_MAX: Final = 16_384
"""Ranks in one response: those of the largest supported run."""
WORST_DEFAULT: Final = 10
WORST_MAX: Final = 1_000
POINTS_DEFAULT: Final = 400
"""Points of a curve; a screen shows no more."""
POINTS_MAX: Final = 5_000
INTERVALS_SHOWN_MAX: Final = 480
"""Eight hours at an interval of a minute; of 16,384 ranks 8 MB of cells."""
NUMBER_MAX: Final = 2**31 - 1
NO_GPUS: Final = "no relay reports the GPUs of its node: start `rankscope relay` on each node (docs/idle-gpus.md)"
NO_STORE: Final = "this collector keeps no history; set `store` to a file to keep it"


class FindingList(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of a run: those of this moment, and those that have ended, the latest first."""

    run: str
    run_id: str
    open: tuple[FindingView, ...]
    past: tuple[FindingView, ...]


class RunHistory(msgspec.Struct, frozen=True, kw_only=True):
    """History of a run. `run` is its name, `run_id` is unique. `shares` is the breakdown of its time since this
    collector process first knew the run. `steps` are step durations from the store; None without a store, for a run
    that is not in it, and for `points=0`.
    """

    run: str
    run_id: str
    shares: tuple[TimeSlice, ...]
    steps: tuple[CurvePoint, ...] | None = None


class _RefusedError(Exception):
    """A refusal, raised from any depth."""

    def __init__(self, status: HTTPStatus, error: str) -> None:
        super().__init__(error)
        self.response = refuse(status, error)


class _Query(NamedTuple):
    """The parameters of a query, by name."""

    asked: Mapping[str, str]

    @classmethod
    def parse(cls, text: str, *known: str) -> "_Query":
        asked = dict(parse_qsl(text, keep_blank_values=True))
        unknown = sorted(asked.keys() - set(known))
        if unknown:
            means = f"; {' and '.join(known)} {'is' if len(known) == 1 else 'are'}" if known else ""
            raise _RefusedError(HTTPStatus.BAD_REQUEST, f"{unknown[0][:80]!r} is no parameter here{means}")
        return cls(asked)

    def choose(self, name: str, choices: Sequence[str]) -> str:
        """Return one of the choices, the first by default."""
        value = self.asked.get(name, choices[0])
        if value not in choices:
            raise _RefusedError(
                HTTPStatus.BAD_REQUEST,
                f"{name} is {value[:80]!r}; it must be {', '.join(choices[:-1])} or {choices[-1]}",
            )
        return value

    def number(self, name: str, default: int, *, least: int, most: int) -> int:
        """Return a whole number within limits."""
        text = self.asked.get(name)
        value = default if text is None else _to_number(text)
        if value is None or not least <= value <= most:
            error = f"{name} is {(text or '')[:80]!r}; it must be a whole number from {least} to {most}"
            raise _RefusedError(HTTPStatus.BAD_REQUEST, error)
        return value


class _RenderedHeatMap(NamedTuple):
    """The heat map that was rendered last."""

    steps: HeatMapSteps
    body: bytes


class Api:
    """Answers from the latest snapshot; no socket, any thread. `read_time_slices` returns where the time of a run went,
    `store` is the collector's file, None without one; then `read_nodes` is, which returns the nodes in it. `links`
    finds the captures about findings.
    """

    def __init__(
        self,
        read_snapshot: Callable[[], Snapshot],
        read_time_slices: Callable[[str], tuple[TimeSlice, ...]],
        store: StoreAddress | None = None,
        read_nodes: Callable[[str | None], msgspec.Struct] | None = None,
        links: CaptureLinks = NO_LINKS,
    ) -> None:
        self._read_snapshot = read_snapshot
        self._read_time_slices = read_time_slices
        self._store = store
        self._rendered: _RenderedHeatMap | None = None
        self._read_nodes = read_nodes
        self._links = links
        self._of_run: Mapping[str, Callable[[str, str], Response]] = {
            "status": self._show_status,
            "ranks": self._list_ranks,
            "findings": self._list_findings,
            "history": self._show_history,
            "heatmap": self._show_heat_map,
            "machines": self._list_machines,
            "settings": self._show_settings,
        }

    def answer(self, target: str) -> Response | None:
        """Return the response to a GET of `target`, a path with or without a query; None for other paths."""
        path, _, query = target.partition("?")
        if path == OPENAPI_PATH:
            return Response(HTTPStatus.OK, JSON, read_openapi())
        if path == GPUS_PATH:
            held = self._read_snapshot().counts.gpus
            return refuse(HTTPStatus.NOT_FOUND, NO_GPUS) if held is None else _as_json(held)
        if path != NODES_PATH and not path.startswith((f"{NODES_PATH}/", f"{RUNS_PATH}/")):
            return None
        try:
            if not path.startswith(f"{RUNS_PATH}/"):
                return self._show_nodes(path.removeprefix(NODES_PATH), query)
            return self._answer_about_a_run(path.removeprefix(f"{RUNS_PATH}/").split("/"), query)
        except _RefusedError as refused:
            return refused.response

    def _show_nodes(self, node: str, text: str) -> Response:
        """Return all nodes; the one whose name follows the slash, where there is one."""
        _Query.parse(text)
        if self._read_nodes is None:
            raise _RefusedError(HTTPStatus.NOT_FOUND, NO_STORE)
        try:
            return _as_json(self._read_nodes(unquote(node[1:]) if node else None))
        except UnavailableError as error:
            raise _RefusedError(HTTPStatus.NOT_FOUND, str(error)) from error

    def _answer_about_a_run(self, parts: Sequence[str], query: str) -> Response | None:
        match [unquote(part) for part in parts]:
            case [run] if query:
                return self._show_run(run, query)
            case [run, view] if view in self._of_run:
                return self._of_run[view](run, query)
            case [run, "ranks", rank]:
                return self._show_rank(run, rank, query)
            case _:
                return None

    def _show_settings(self, name: str, text: str) -> Response:
        _Query.parse(text)
        run = self._find(name)
        settings = run.settings
        return _as_json(ShownSettings(changed=settings.changed, past=settings.past, ranks=run.settings_taken))

    def _show_run(self, name: str, text: str) -> Response:
        query = _Query.parse(text, "ranks")
        run = self._find(name)
        if query.choose("ranks", ("all", "none")) == "none":
            run = msgspec.structs.replace(run, ranks=())
        return _as_json(view_run(run, self._links))

    def _show_status(self, name: str, text: str) -> Response:
        worst = _Query.parse(text, "worst").number("worst", WORST_DEFAULT, least=0, most=WORST_MAX)
        snapshot = self._read_snapshot()
        run = self._find(name, snapshot)
        status = build_status(run, worst, snapshot.compute_once(run, read_windows))
        return _as_json(view_status(status, self._links))

    def _list_ranks(self, name: str, text: str) -> Response:
        query = _Query.parse(text, "order", "reversed", "offset", "limit")
        order = query.choose("order", ORDERS)
        offset = query.number("offset", 0, least=0, most=NUMBER_MAX)
        limit = query.number("limit", RANKS_DEFAULT, least=1, most=RANKS_MAX)
        is_reversed = query.choose("reversed", ("no", "yes")) == "yes"
        return _as_json(list_ranks(self._find(name), order, offset, limit, is_reversed=is_reversed))

    def _show_rank(self, name: str, text: str, query: str) -> Response:
        _Query.parse(query)
        run = self._find(name)
        number = _to_number(text)
        if number is None:
            raise _RefusedError(HTTPStatus.BAD_REQUEST, f"{text[:80]!r} is no rank; a rank is a whole number from 0")
        found = show_rank(run, number, self._read_snapshot().steps.get(run.run_id))
        if found is None:
            error = f"run {name[:80]!r} has no rank {number} yet; its world size is {run.world_size}"
            raise _RefusedError(HTTPStatus.NOT_FOUND, error)
        return _as_json(found)

    def _list_findings(self, name: str, text: str) -> Response:
        _Query.parse(text)
        run = self._find(name)
        is_open = {finding.number for finding in run.open_findings}
        past = [finding for finding in reversed(run.findings) if finding.number not in is_open]
        found = FindingList(
            run=run.run, run_id=run.run_id,
            open=self._links.of_findings(run, run.open_findings),
            past=self._links.of_findings(run, past),
        )  # fmt: skip
        return _as_json(found)

    def _show_history(self, name: str, text: str) -> Response:
        query = _Query.parse(text, "points", "since_wall_s")
        points = query.number("points", POINTS_DEFAULT, least=0, most=POINTS_MAX)
        since_wall_s = query.number("since_wall_s", 0, least=0, most=NUMBER_MAX)
        known = self._find_or_none(name)
        run_id = name if known is None else known.run_id
        shares = self._read_time_slices(run_id)
        steps: tuple[CurvePoint, ...] | None = None
        if self._store is not None and points:
            try:
                with opening_run(self._store, run_id) as history:
                    steps = tuple(history.read_curve(points, since_wall_s))
                    run_id = history.kept.run.run
            except UnavailableError as error:
                if known is None:
                    raise _RefusedError(HTTPStatus.NOT_FOUND, str(error)) from error
        else:
            self._find(name)
        return _as_json(RunHistory(run=read_run_name(run_id), run_id=run_id, shares=shares, steps=steps))

    def _list_machines(self, name: str, text: str) -> Response:
        _Query.parse(text)
        snapshot = self._read_snapshot()
        return _as_json(snapshot.compute_once(self._find(name, snapshot), machine_views.list_machines))

    def _show_heat_map(self, name: str, text: str) -> Response:
        source = _Query.parse(text, "source").choose("source", (heat_map.OF_STEPS, heat_map.OF_INTERVALS))
        if source == heat_map.OF_INTERVALS:
            return Response(HTTPStatus.OK, BYTES, self._render_intervals(name))
        run = self._find(name)
        steps = self._read_snapshot().steps.get(run.run_id)
        if steps is None:
            error = f"no step of run {name[:80]!r} has been compared yet; try again after the next detection pass"
            raise _RefusedError(HTTPStatus.NOT_FOUND, error)
        return Response(HTTPStatus.OK, BYTES, self._render_steps(run, steps))

    def _render_steps(self, run: RunSnapshot, steps: HeatMapSteps) -> bytes:
        """Return the heat map of the last steps, rendered once for all readers of a run."""
        rendered = self._rendered
        if rendered is None or rendered.steps is not steps:
            rendered = self._rendered = _RenderedHeatMap(steps, heat_map.of_steps(run.run, run.world_size, steps))
        return rendered.body

    def _render_intervals(self, name: str) -> bytes:
        if self._store is None:
            raise _RefusedError(HTTPStatus.NOT_FOUND, NO_STORE)
        try:
            with opening_run(self._store, name) as history:
                world_size = history.kept.run.world_size
                return heat_map.of_intervals(name, world_size, list(history.read_intervals(INTERVALS_SHOWN_MAX)))
        except UnavailableError as error:
            raise _RefusedError(HTTPStatus.NOT_FOUND, str(error)) from error

    def _find_or_none(self, name: str) -> RunSnapshot | None:
        return self._read_snapshot().find_run(name)

    def _find(self, name: str, snapshot: Snapshot | None = None) -> RunSnapshot:
        snapshot = snapshot or self._read_snapshot()
        run = snapshot.find_run(name)
        if run is None:
            raise _RefusedError(HTTPStatus.NOT_FOUND, snapshot.describe_unknown(name))
        return run


@cache
def read_openapi() -> bytes:
    """Return the OpenAPI 3.1 description of the API."""
    return files(__package__).joinpath(OPENAPI_FILE).read_bytes()


def _as_json(found: msgspec.Struct) -> Response:
    return Response(HTTPStatus.OK, JSON, encode_valid(found))


def _to_number(text: str) -> int | None:
    """Return a whole number of at most ten ASCII digits, or None."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(NUMBER_MAX)) else None
