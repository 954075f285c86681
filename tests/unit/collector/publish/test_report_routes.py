"""What the collector answers about its store: reports about runs, and what it does without. No socket."""

from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import quote

import msgspec
import pytest

from rankscope.collector.publish.routes import Response, Routes
from rankscope.collector.runs.snapshot import CollectorCounts, Snapshot
from rankscope.measure.errors import UnavailableError

NAMED = "bert/report 100% ü"


def read_report(run: str) -> bytes:
    """A report about every run but one."""
    if run == "nobody":
        raise UnavailableError("no run 'nobody' is in store.db")
    return msgspec.json.encode({"run": run})


def snapshot_of(frames: int) -> Snapshot:
    return Snapshot(wall_s=0.0, version="0", counts=CollectorCounts(frames_received=frames))


def ask(
    target: str,
    *,
    reports: Callable[[str], bytes] | None = read_report,
    unready: str | None = None,
    degradation: str | None = None,
) -> Response:
    """The answer of a collector like this."""
    routes = Routes(
        lambda: snapshot_of(2), tuple, is_healthy=lambda: None, is_ready=lambda: unready,
        find_degradation=lambda: degradation, read_report=reports,
    )  # fmt: skip
    return routes.answer(target)


@pytest.mark.parametrize("run", ["bert", NAMED, "<script>"])
def test_a_report_is_found_by_the_name_of_its_run(run: str) -> None:
    answer = ask(f"/api/v1/runs/{quote(run, safe='')}/report")
    assert (answer.status, answer.content_type) == (HTTPStatus.OK, "application/json")
    assert msgspec.json.decode(answer.body) == {"run": run}


def test_a_run_that_the_store_has_not_is_not_found() -> None:
    answer = ask("/api/v1/runs/nobody/report")
    assert answer.status == HTTPStatus.NOT_FOUND
    assert msgspec.json.decode(answer.body) == {"error": "no run 'nobody' is in store.db"}


def test_a_collector_without_a_store_has_no_report_and_says_why() -> None:
    answer = ask("/api/v1/runs/bert/report", reports=None)
    assert answer.status == HTTPStatus.NOT_FOUND
    assert "this collector keeps no history; set `store` to a file to keep it" in answer.body.decode()


def test_readiness_names_what_is_degraded_and_stays_good() -> None:
    assert ask("/readyz").body == b"ok\n"
    answer = ask("/readyz", degradation="the disk is full")
    assert (answer.status, answer.body) == (HTTPStatus.OK, b"ok, but the disk is full\n")


def test_unready_collector_is_unready_whatever_else_is_degraded() -> None:
    answer = ask("/readyz", unready="stopping", degradation="the disk is full")
    assert answer.status == HTTPStatus.SERVICE_UNAVAILABLE
    assert msgspec.json.decode(answer.body) == {"error": "stopping"}


def test_health_asks_for_no_store() -> None:
    assert ask("/healthz", degradation="the disk is full").body == b"ok\n"
