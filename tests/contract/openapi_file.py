"""Write the description of the API, OpenAPI 3.1: `python -m tests.contract.openapi_file`.

Schemas of answers come from the structs of the code; paths and parameters are listed here. `test_openapi.py` holds the
file to this, and `tests/integration/test_api_description.py` the server to the file.
"""

import json
from pathlib import Path
from typing import Any, Final

import msgspec

from rankscope.collector.captures.capture import Capture
from rankscope.collector.captures.incident_views import IncidentRunView, IncidentView, StatusView
from rankscope.collector.comparison import compared_runs
from rankscope.collector.comparison.run_comparison import RunComparison
from rankscope.collector.incidents.incident import STATES
from rankscope.collector.incidents.nodes import NodeList, NodeRecord
from rankscope.collector.publish import routes
from rankscope.collector.publish.api import (
    capture_routes,
    compare_route,
    event_stream,
    heat_map,
    live_snapshot,
    machine_views,
    rank_views,
    routes_api,
    setting_routes,
)
from rankscope.collector.reports.run_report import RunReport
from rankscope.collector.runs import rank_orders
from rankscope.collector.runs.held_gpus import HeldGpus
from rankscope.collector.runs.run_dump import RunDump
from rankscope.measure import __version__
from tests.contract.schema_text import settle

FILE: Final = Path(__file__).parents[2] / "collector" / "publish" / "api" / routes_api.OPENAPI_FILE
TEMPLATE: Final = "#/components/schemas/{name}"

Json = dict[str, Any]


class RunSummaries(msgspec.Struct, frozen=True):
    """The runs that are known."""

    runs: tuple[routes.ListedRun, ...]


class Incidents(msgspec.Struct, frozen=True):
    """The incidents, newest first."""

    incidents: tuple[IncidentView, ...]


class Error(msgspec.Struct, frozen=True):
    """Error and its cure."""

    error: str


ANSWERS: Final = (
    RunSummaries, IncidentRunView, StatusView, RunDump,
    rank_views.RankList, rank_views.RankAnswer, routes_api.FindingList, routes_api.RunHistory,
    machine_views.MachineList, RunReport, RunComparison, Incidents, NodeList, HeldGpus, live_snapshot.LiveSnapshot,
    heat_map.HeatMapHead, Error,
    capture_routes.CaptureList, capture_routes.CaptureOptions, Capture,
    setting_routes.SettingOptions, setting_routes.ShownSettings,
)  # fmt: skip

RUN: Final = {
    "name": "run", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1},
    "description": "The name of a run, percent-encoded.",
}  # fmt: skip
RANK: Final = {
    "name": "rank", "in": "path", "required": True,
    "schema": {"type": "integer", "minimum": 0, "maximum": routes_api.NUMBER_MAX},
    "description": "The global rank.",
}  # fmt: skip


def build() -> Json:
    """Return the whole description."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "rankscope collector",
            "version": __version__,
            "description": "What a rankscope collector knows about training runs, and orders of captures; docs/api.md.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "The collector itself."}],
        "security": [{"bearer": []}, {"basic": []}, {}],
        "paths": {**_paths_of_all(), **_paths_of_a_run()},
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "The token of `http_token_file`."},
                "control": {
                    "type": "http", "scheme": "bearer", "description": "The token of `http_control_token_file`.",
                },
                "basic": {"type": "http", "scheme": "basic", "description": "The token as password, any user."},
            },
        },
    }  # fmt: skip


def render() -> str:
    """Return the file."""
    return json.dumps(build(), indent=1, ensure_ascii=False) + "\n"


def _paths_of_all() -> Json:
    state = _query("state", {"type": "string", "enum": list(STATES)}, "Only these.")
    run = _query("run", {"type": "string"}, "Only those of this run; a run that has none has an empty list.")
    followed = _query("run", {"type": "string"}, "Run whose full status is sent.")
    count = _query(
        "count", {"type": "integer", "minimum": 1, "maximum": event_stream.COUNT_MAX}, "End after this many events."
    )
    stream = {event_stream.EVENT_STREAM: {"schema": {"type": "string"}}}
    description = (
        "Snapshots as they are made, and when a capture has changed: server-sent events `snapshot`, each a "
        "LiveSnapshot in JSON.\n\n"
        "Their ids count them: a gap means that this reader was too slow."
    )
    events = _operation("followRuns", description, stream, [followed, count], 400, 503)
    described = {routes.JSON: {"schema": {"type": "object", "required": ["openapi", "paths"]}}}
    return {
        routes.RUNS_PATH: _operation("listRuns", "The runs that are known.", _json(RunSummaries)),
        routes.INCIDENTS_PATH: _operation("listIncidents", "The incidents.", _json(Incidents), [run, state], 400),
        routes_api.NODES_PATH: _operation(
            "listNodes", "The nodes, those that hold runs up first.", _json(NodeList), [], 400, 404
        ),
        f"{routes_api.NODES_PATH}/{{node}}": _operation(
            "showNode", "One node.", _json(NodeRecord), [_in_path("node", "The name that its ranks report.")], 400, 404
        ),
        routes_api.GPUS_PATH: _operation(
            "listHeldGpus", "GPUs that are held and do nothing, on nodes with a relay.", _json(HeldGpus), [], 404
        ),
        compare_route.COMPARE_PATH: _compare(),
        **_paths_of_captures(run),
        event_stream.EVENTS_PATH: events,
        routes_api.OPENAPI_PATH: _operation("describeApi", "This description.", described),
    }


def _compare() -> Json:
    a = {**_query("a", {"type": "string", "minLength": 1}, "What B is compared with: a run, or RUN@steps FIRST:END.")}
    b = {**_query("b", {"type": "string", "minLength": 1}, "The run that is compared.")}
    margin = _query(
        "margin",
        {"type": "number", "exclusiveMinimum": 0, "maximum": compared_runs.MARGIN_MAX},
        "Share that counts as none.",
    )
    force = _query("force", {"type": "string", "enum": ["yes", "no"]}, "Compare unequal work too.")
    parameters = [{**a, "required": True}, {**b, "required": True}, margin, force]
    return _operation(
        "compareRuns", "B compared with A, from the store.", _json(RunComparison), parameters, 400, 404, 503
    )


def _paths_of_captures(run: Json) -> Json:
    identity = _in_path("id", "The id of a capture.")
    file = {capture_routes.CONTENT_TYPES[".gz"]: {"schema": {"type": "string", "format": "binary"}}}
    listed = _json(capture_routes.CaptureList)
    of = f"{capture_routes.CAPTURES_PATH}/{{id}}"
    return {
        capture_routes.CAPTURES_PATH: _operation("listCaptures", "The captures, newest first.", listed, [run], 400),
        of: _operation("showCapture", "One capture.", _json(Capture), [identity], 404),
        f"{of}/files/{{name}}": _operation(
            "fetchCaptureFile", "A file of a capture; its type is that of its name.", file,
            [identity, _in_path("name", "A name of its list of files.")], 404,
        ),
        f"{routes.RUNS_PATH}/{{run}}{capture_routes.CAPTURES_SUFFIX}": {"post": _order_capture()},
    }  # fmt: skip


def _order_capture() -> Json:
    reasons = {
        409: "Another capture of the run has not ended.",
        503: "This collector keeps no captures, or has not answered.",
    }
    summary = "Take a capture of the same steps on some ranks."
    answer = {"202": {"description": "It is ordered.", "content": _json(Capture)}}
    return _order("orderCapture", summary, capture_routes.CaptureOptions, answer, reasons)


def _change_settings() -> Json:
    summary = "Change settings while the run goes on, or change them back."
    answer = {"200": {"description": "They are changed.", "content": _json(setting_routes.ShownSettings)}}
    reasons = {503: "The collector has not answered."}
    return _order("changeSettings", summary, setting_routes.SettingOptions, answer, reasons)


def _order(name: str, summary: str, body: type[msgspec.Struct], answer: Json, reasons: dict[int, str]) -> Json:
    known = {
        400: "The body is no order.", 401: "The control token is missing.",
        403: "It is wrong, or this collector has none.", 404: "No such run.",
        411: "No Content-Length.", 413: "The body is too long.",
        415: "The body is not said to be JSON.", 422: "What is asked for cannot be.", **reasons,
    }  # fmt: skip
    return {
        "operationId": name,
        "summary": summary,
        "security": [{"control": []}],
        "parameters": [RUN],
        "requestBody": {"required": True, "content": _json(body)},
        "responses": {
            **answer,
            **{str(status): {"description": known[status], "content": _json(Error)} for status in sorted(known)},
        },
    }


def _in_path(name: str, description: str) -> Json:
    schema = {"type": "string", "minLength": 1}
    return {"name": name, "in": "path", "required": True, "schema": schema, "description": description}


def _paths_of_a_run() -> Json:
    number = {"type": "integer"}
    order = _query(
        "order", {"type": "string", "enum": list(rank_orders.ORDERS)}, "The largest first; by rank the lowest number."
    )
    is_reversed = _query("reversed", {"type": "string", "enum": ["no", "yes"]}, "Turn the order round.")
    offset = _query("offset", {**number, "minimum": 0, "maximum": routes_api.NUMBER_MAX}, "Leave out so many.")
    limit = _query("limit", {**number, "minimum": 1, "maximum": routes_api.RANKS_MAX}, "At most so many.")
    points = _query(
        "points", {**number, "minimum": 0, "maximum": routes_api.POINTS_MAX}, "Draw steps together to so many."
    )
    since = _query("since_wall_s", {**number, "minimum": 0, "maximum": routes_api.NUMBER_MAX}, "Later steps only.")
    worst = _query(
        "worst", {**number, "minimum": 0, "maximum": routes_api.WORST_MAX}, "At most so many of its worst ranks."
    )
    ranks = _query("ranks", {"type": "string", "enum": ["all", "none"]}, "`none`: leave them out.")
    sources = [heat_map.OF_STEPS, heat_map.OF_INTERVALS]
    source = _query("source", {"type": "string", "enum": sources}, "The last steps, or the past from the store.")
    cells = {routes_api.BYTES: {"schema": {"type": "string", "format": "binary"}}}
    of = f"{routes.RUNS_PATH}/{{run}}"
    return {
        of: _operation("showRun", "Everything about one run.", _json(IncidentRunView), [RUN, ranks], 400, 404),
        f"{of}/status": _operation(
            "showStatus", "The run in a few facts, and its worst ranks.", _json(StatusView), [RUN, worst], 400, 404
        ),
        f"{of}/ranks": _operation(
            "listRanks", "Its ranks.", _json(rank_views.RankList), [RUN, order, is_reversed, offset, limit], 400, 404
        ),
        f"{of}/ranks/{{rank}}": _operation(
            "showRank", "One rank beside those that do the same work.", _json(rank_views.RankAnswer), [RUN, RANK],
            400, 404,
        ),
        f"{of}/findings": _operation("listFindings", "What was found.", _json(routes_api.FindingList), [RUN], 400, 404),
        f"{of}/history": _operation(
            "showHistory", "Its past.", _json(routes_api.RunHistory), [RUN, points, since], 400, 404
        ),
        f"{of}/machines": _operation(
            "listMachines", "What it runs on.", _json(machine_views.MachineList), [RUN], 400, 404
        ),
        f"{of}/heatmap": _operation(
            "showHeatMap", f"Ranks x time in bytes.\n\n{heat_map.__doc__ or ''}", cells, [RUN, source], 400, 404
        ),
        f"{routes.DEBUG_RUNS_PATH}/{{run}}": _operation(
            "dumpRun", "The inside of a run and its last events, for debugging.", _json(RunDump), [RUN], 404
        ),
        f"{of}/settings": {
            **_operation(
                "showSettings", "Its settings that were changed while it goes on.",
                _json(setting_routes.ShownSettings), [RUN], 400, 404,
            ),
            "post": _change_settings(),
        },
        f"{of}/report": _operation("showReport", "How it went, from the store.", _json(RunReport), [RUN], 404),
    }  # fmt: skip


def _operation(name: str, summary: str, content: Json, parameters: list[Json] | None = None, *refusals: int) -> Json:
    reasons = {400: "Invalid request.", 404: "Unknown here.", 503: "Too many requests at this time."}
    refused = {str(status): {"description": reasons[status], "content": _json(Error)} for status in refusals}
    head, _, text = summary.partition("\n\n")
    return {
        "get": {
            "operationId": name,
            "summary": head,
            **({"description": text} if text else {}),
            "parameters": parameters or [],
            "responses": {
                "200": {"description": "The answer.", "content": content},
                "401": {"description": "The token is missing or wrong.", "content": _json(Error)},
                **refused,
            },
        }
    }


def _query(name: str, schema: Json, description: str) -> Json:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": description}


def _json(answer: type[msgspec.Struct]) -> Json:
    return {routes.JSON: {"schema": {"$ref": TEMPLATE.format(name=answer.__name__)}}}


def _schemas() -> Json:
    _, components = msgspec.json.schema_components(ANSWERS, ref_template=TEMPLATE)
    settle(components)
    return {name: components[name] for name in sorted(components)}


if __name__ == "__main__":
    FILE.write_text(render(), encoding="utf-8")
