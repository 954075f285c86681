"""What GET /api/v1/incidents answers, without a socket."""

from http import HTTPStatus

import msgspec
import pytest

from rankscope.collector.incidents.incident import Incident, begin, resolve
from rankscope.collector.publish.routes import Response, Routes
from rankscope.collector.runs.snapshot import Snapshot
from tests.unit.collector.detect.findings import slow

PATH = "/api/v1/incidents"
NAMED = "bert/large 100% ü"
KEPT = (
    resolve(begin(1, NAMED, slow(), 0.0), "passed", 60.0, lost_rank_seconds=2.0),
    begin(2, "gpt", slow(3), 10.0),
    begin(3, NAMED, slow(1), 20.0),
)


def ask(target: str, *incidents: Incident) -> Response:
    """The answer of a collector with these incidents."""
    snapshot = Snapshot(wall_s=0.0, version="0")
    routes = Routes(lambda: snapshot, lambda: incidents, is_healthy=lambda: None, is_ready=lambda: None)
    return routes.answer(target)


def ids(target: str) -> list[int]:
    """Of the incidents in the answer."""
    answer = ask(target, *KEPT)
    assert (answer.status, answer.content_type) == (HTTPStatus.OK, "application/json")
    return [incident["id"] for incident in msgspec.json.decode(answer.body)["incidents"]]


def test_incidents_come_whole_and_newest_first() -> None:
    page = msgspec.json.decode(ask(PATH, *KEPT).body, type=dict[str, list[Incident]])
    assert page == {"incidents": list(reversed(KEPT))}


@pytest.mark.parametrize(
    ("query", "left"),
    [
        ("", [3, 2, 1]),
        ("state=open", [3, 2]),
        ("state=resolved", [1]),
        ("run=gpt", [2]),
        ("run=bert%2Flarge%20100%25%20%C3%BC", [3, 1]),
        ("run=bert%2Flarge%20100%25%20%C3%BC&state=open", [3]),
        ("run=nobody", []),
        ("run=", []),
    ],
)
def test_a_query_leaves_others_out(query: str, left: list[int]) -> None:
    assert ids(f"{PATH}?{query}") == left


def test_without_incidents_there_is_an_empty_list() -> None:
    assert ask(PATH).body == b'{"incidents":[]}'


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("state=closed", "state is 'closed'; it must be open or resolved"),
        ("state=", "state is ''; it must be open or resolved"),
        ("stat=open", "'stat' is no filter here; run and state are"),
    ],
)
def test_a_query_that_means_nothing_is_refused_with_what_would(query: str, error: str) -> None:
    answer = ask(f"{PATH}?{query}", *KEPT)
    assert answer.status == HTTPStatus.BAD_REQUEST
    assert msgspec.json.decode(answer.body) == {"error": error}
