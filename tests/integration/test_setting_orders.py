"""Changes of settings over HTTP and over the wire: who may change them, what is refused, and what ranks are asked."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from rankscope.collector.publish.http_auth import HttpAuth
from rankscope.collector.publish.http_listener import listen_http
from rankscope.collector.publish.http_server import HttpServer
from rankscope.collector.runs.live_settings import RunSettings, SettingChange, SettingsRefusal, WantedChange
from rankscope.collector.runs.snapshot import RunSnapshot, Snapshot
from rankscope.measure.errors import UnavailableError
from rankscope.measure.messages import SettingsOrder, SettingsTaken
from tests.integration.ordering_collectors import running
from tests.integration.relaying import relaying
from tests.integration.serving import wait_for
from tests.integration.test_capture_orders import ALLOWED, CONTROL, CONTROLLED, JSON, READ, Answer, ask
from tests.integration.wire_peer import connected

ORDERS: Final = "/api/v1/runs/bert/settings"
CHANGE: Final = SettingChange(name="detect_steps_min", value=20, before=12, own=12, by="anna", wall_s=50_520.0)
CHANGED: Final = RunSettings(changed=(CHANGE,), past=(CHANGE,))
BODY: Final = {"set": {"detect_steps_min": 20}, "for_s": 60, "by": "anna", "host": "login-1"}


class Service:
    """What changes settings in a collector."""

    def __init__(self) -> None:
        self.wanted: list[WantedChange] = []

    def order(self, wanted: WantedChange) -> RunSettings | SettingsRefusal:
        self.wanted.append(wanted)
        if wanted.run == "silent":
            raise UnavailableError("the collector's service has not answered within 10 s")
        return (
            CHANGED
            if wanted.run == "bert"
            else SettingsRefusal(422, "detect_steps_min is 2; the smallest allowed is 4.")
        )


@pytest.fixture
def service() -> Service:
    return Service()


@contextlib.contextmanager
def serve(service: Service, access: HttpAuth = CONTROLLED) -> Iterator[HttpServer]:
    run = RunSnapshot(run="bert", world_size=1, restart_count=0, ranks=(), settings=CHANGED)
    server = HttpServer(
        listen_http("127.0.0.1:0"), lambda: Snapshot(wall_s=0.0, version="0", runs=(run,)), tuple,
        is_healthy=lambda: None, is_ready=lambda: None, access=access, order_settings=service.order,
    )  # fmt: skip
    try:
        yield server
    finally:
        server.close()


def test_change_is_answered_with_the_settings_as_they_are_then(service: Service) -> None:
    with serve(service) as server:
        answer = ask(server, ORDERS, "POST", BODY, ALLOWED)
    assert answer.status == 200
    assert b'"text":"detect_steps_min 20 instead of 12, set by anna, 1970-01-01 14:02 UTC"' in answer.body
    assert service.wanted == [
        WantedChange(
            run="bert", values={"detect_steps_min": 20}, for_s=60.0, by="anna", host="login-1", asked_by="127.0.0.1"
        )
    ]


@pytest.mark.parametrize(("authorization", "status"), [("", 401), (f"Bearer {READ}", 403), (f"Bearer {CONTROL}x", 403)])
def test_missing_or_wrong_token_changes_nothing(service: Service, authorization: str, status: int) -> None:
    with serve(service, HttpAuth(READ, None, CONTROL)) as server:
        headers = {**JSON, **({"Authorization": authorization} if authorization else {})}
        assert ask(server, ORDERS, "POST", BODY, headers).status == status
    assert service.wanted == []


def test_whoever_may_read_is_shown_what_is_changed(service: Service) -> None:
    with serve(service, HttpAuth(READ, None, CONTROL)) as server:
        answers = [ask(server, ORDERS, headers={"Authorization": f"Bearer {token}"}) for token in (READ, CONTROL)]
        assert ask(server, ORDERS).status == 401
        assert ask(server, f"{ORDERS}?x=1", headers=ALLOWED).status == 400
        assert ask(server, "/api/v1/runs/gpt/settings", headers=ALLOWED).status == 404
    assert [one.status for one in answers] == [200, 200]
    assert b'"changeable":["slowdown_ratio_min",' in answers[0].body


def test_other_methods_are_refused_with_those_that_are_allowed(service: Service) -> None:
    with serve(service) as server:
        answer = ask(server, ORDERS, "DELETE", headers=ALLOWED)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD, POST")
    assert answer.error == "DELETE is not allowed; GET, HEAD and POST are"


@pytest.mark.parametrize(
    ("path", "body", "status", "error"),
    [
        (ORDERS, {}, 422, "nothing is to change: give `set` or `reset`"),
        (ORDERS, {"set": {"detect_steps_min": [1]}}, 400, "the body is no change of settings as JSON"),
        (ORDERS, {"sets": {}}, 400, "unknown field `sets`"),
        (ORDERS, b"\xff", 400, "the body is no change of settings as JSON"),
        (f"{ORDERS}?x=1", BODY, 405, "it is for /api/v1/runs/RUN/captures and /api/v1/runs/RUN/settings only"),
        ("/api/v1/runs/gpt/settings", BODY, 422, "the smallest allowed is 4."),
        ("/api/v1/runs/silent/settings", BODY, 503, "They may have been changed all the same: a GET shows them."),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(
    service: Service, path: str, body: Mapping[str, Any] | bytes, status: int, error: str
) -> None:
    with serve(service) as server:
        answer: Answer = ask(server, path, "POST", body, ALLOWED)
    assert answer.status == status
    assert error in answer.error


# -- a whole collector, and a rank that answers as the agent does -----------------------------------------------------


@pytest.mark.parametrize("through_relay", [False, True])
def test_rank_is_ordered_what_is_changed_and_its_answer_is_kept(tmp_path: Path, through_relay: bool) -> None:
    with contextlib.ExitStack() as ends:
        service = ends.enter_context(running(tmp_path))
        endpoint = ends.enter_context(relaying(service.endpoint)).endpoint if through_relay else service.endpoint
        peer = ends.enter_context(connected(endpoint, "boot-one"))
        _ = peer.rejoin() if through_relay else peer.join()
        wait_for(lambda: service.snapshot.runs or None, lambda: "no run")
        wanted = WantedChange(run="good", values={"line_samples": "off", "notify_severity_min": "critical"}, for_s=60.0)
        changed = service._updates.order_settings(wanted)
        assert isinstance(changed, RunSettings)
        assert [one.name for one in changed.changed] == ["line_samples", "notify_severity_min"]
        order = peer.await_answer(SettingsOrder)
        assert (order.values, set(order.lasts_ns)) == ({"line_samples": "false"}, {"line_samples"})
        peer.send(SettingsTaken(id=order.id))
        wait_for(lambda: service.snapshot.runs[0].settings_taken.taken or None, lambda: str(service.snapshot.runs))
        run_id = service.snapshot.runs[0].run_id
        wait_for(lambda: service._updates.severities or None, lambda: "no severity")
        assert service._updates.severities == {run_id: "critical"}
        service._updates.order_settings(WantedChange(run="good", reset=("notify_severity_min",)))
        wait_for(lambda: True if not service._updates.severities else None, lambda: str(service._updates.severities))
        refused = service._updates.order_settings(WantedChange(run="goof", reset=("line_samples",)))
        assert isinstance(refused, SettingsRefusal)
        assert refused.status == 404
