"""The description of the API is held against a server: questions that mean something, and questions that do not."""

import copy
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import hypothesis
import pytest

from rankscope.collector.captures.capture import Capture, CaptureFile
from rankscope.collector.publish.api.compare_route import COMPARE_PATH
from rankscope.collector.publish.api.event_stream import EVENTS_PATH
from rankscope.collector.publish.api.routes_api import read_openapi
from rankscope.collector.publish.http_auth import HttpAuth
from rankscope.collector.publish.http_server import HttpServer
from tests.full_snapshot import full_snapshot
from tests.integration.live_worlds import LiveWorld, slow_story
from tests.unit.collector.runs.kept_runs import keep_run

pytest.importorskip("schemathesis", reason="Python 3.10 has no release of it that knows this description")
import schemathesis
from schemathesis import Case
from schemathesis.core.failures import FailureGroup

NAMED = "bert/large 100% ü"
EXAMPLES = 25
"""Of each kind of question to each path; with the seed of hypothesis they are the same ones every time."""

DESCRIPTION = schemathesis.openapi.from_dict(json.loads(read_openapi()))
OF_ANSWERS = DESCRIPTION.exclude(path=EVENTS_PATH)
"""All but the events, whose answer has no end; they have tests of their own below."""
READ_PATHS = {path for path, methods in DESCRIPTION.raw_schema["paths"].items() if "get" in methods}
TRACE = "rank-2.pt.trace.json.gz"
CAPTURE = Capture(
    id="c1", run="bert", run_id="bert@1", state="complete", asked_wall_s=1.0, changed_wall_s=2.0,
    files=(CaptureFile(TRACE, 5),),
)  # fmt: skip
BOUNDED = hypothesis.settings(max_examples=EXAMPLES, derandomize=True, database=None, deadline=None)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    """A collector with one run of four ranks, whose past is in its store."""
    world = LiveWorld()
    world.counts = full_snapshot().counts
    world.tell(slow_story(), NAMED)
    folder = tmp_path_factory.mktemp("api")
    (folder / CAPTURE.id).mkdir()
    (folder / CAPTURE.id / TRACE).write_bytes(b"trace")
    access = HttpAuth(control_token="0123456789abcdef")  # noqa: S106 - of this test only
    store = keep_run(folder, NAMED, steps=240)
    world.captures = (CAPTURE,)
    with world.serve(access, store=store, captures_folder=folder) as server:
        yield server


@OF_ANSWERS.parametrize()
@BOUNDED
def test_every_answer_is_one_the_description_has(case: "Case[Any]", server: HttpServer) -> None:
    case.call_and_validate(base_url=server.url)


@OF_ANSWERS.include(path_regex="{run}").parametrize()
@BOUNDED
def test_every_answer_about_a_known_run_fits_the_description(case: "Case[Any]", server: HttpServer) -> None:
    case.path_parameters["run"] = quote(NAMED, safe="")
    case.call_and_validate(base_url=server.url)


@pytest.mark.parametrize("path", sorted(READ_PATHS - {EVENTS_PATH}))
def test_every_path_of_the_description_leads_to_an_answer(path: str, server: HttpServer) -> None:
    assert ask(DESCRIPTION, path, server).status_code == 200


def test_description_that_is_wrong_is_noticed(server: HttpServer) -> None:
    # A test of the tests above: one field is said to be a text, and is a number.
    wrong: dict[str, Any] = copy.deepcopy(json.loads(read_openapi()))
    wrong["components"]["schemas"]["RankList"]["properties"]["ranks_known"] = {"type": "string"}
    with pytest.raises(FailureGroup, match="Response violates schema"):
        ask(schemathesis.openapi.from_dict(wrong), "/api/v1/runs/{run}/ranks", server)


def ask(description: schemathesis.BaseSchema, path: str, server: HttpServer) -> Any:
    """The answer about the run that is known and its rank 2, which the description must have."""
    parameters = {"run": quote(NAMED, safe=""), "rank": 2, "id": CAPTURE.id, "name": TRACE, "node": "node-1"}
    named = {name: value for name, value in parameters.items() if f"{{{name}}}" in path}
    both = {"a": f"{NAMED}@steps 0:120", "b": f"{NAMED}@steps 120:"} if path == COMPARE_PATH else {}
    case = description[path]["GET"].Case(path_parameters=named, query=both)
    return case.call_and_validate(base_url=server.url)
