"""GET /api/v1/debug/runs/RUN, without a socket."""

from http import HTTPStatus
from urllib.parse import quote

import msgspec

from rankscope.collector.publish.routes import Response, Routes
from rankscope.collector.run_ids import make_run_id
from rankscope.collector.runs.run_dump import RunDump, dump_run
from rankscope.collector.runs.snapshot import Snapshot
from tests.unit.collector.runs.run_stories import Story


def ask(run: str) -> Response:
    story = Story(2).join().train(1)

    def read_dump(asked: str) -> bytes | None:
        return msgspec.json.encode(dump_run(story.run, story.now_ns)) if asked == "story" else None

    snapshot = Snapshot(wall_s=0.0, version="0")
    routes = Routes(
        lambda: snapshot, tuple, is_healthy=lambda: None, is_ready=lambda: None, read_dump=read_dump
    )  # fmt: skip
    return routes.answer(f"/api/v1/debug/runs/{quote(run, safe='')}")


def test_dump_of_a_run_is_shown_as_json() -> None:
    answer = ask("story")
    assert (answer.status, answer.content_type) == (HTTPStatus.OK, "application/json")
    found = msgspec.json.decode(answer.body, type=RunDump)
    assert (found.run_id, found.ranks, found.event_counts["ReportAdmitted"]) == ("story", {"up": 2}, 2)


def test_dump_of_an_unknown_run_is_not_found() -> None:
    answer = ask(make_run_id("other", 0.0, latest_id=None))
    assert answer.status == HTTPStatus.NOT_FOUND
    assert "is known to this collector." in answer.body.decode()
