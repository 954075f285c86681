"""Pushes of metrics: what is counted and logged, what a dead receiver costs, and how they end."""

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rankscope.collector.config import CollectorConfig
from rankscope.collector.publish import otlp_push
from rankscope.collector.publish.otlp_push import MetricsPush, make_push
from rankscope.collector.runs.snapshot import Snapshot
from tests.otlp_receivers import DEADLINE_S, find_series, receiving_http

REFUSED = "it answers HTTP status 401"


class Sender:
    """A sender whose answers are the test's. `gate`: while it is not set, sending waits."""

    def __init__(self, *problems: str) -> None:
        self.problems = list(problems)
        self.sent: list[Any] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.is_closed = False
        self.partials: list[tuple[int, str]] = []
        self.partial = (0, "")

    def send(self, data: Any) -> str:
        """Keep a request."""
        self.entered.set()
        assert self.gate.wait(DEADLINE_S)
        self.sent.append(data)
        self.partial = self.partials.pop(0) if self.partials else (0, "")
        return self.problems.pop(0) if self.problems else ""

    def close(self) -> None:
        """Let what waits go on."""
        self.is_closed = True
        self.gate.set()


class World:
    """A push of three requests a snapshot, and what it pushes."""

    def __init__(self, *problems: str, interval_s: float = 3600.0) -> None:
        self.sender = Sender(*problems)
        self.snapshot = Snapshot(wall_s=0.0, version="0")
        self.is_broken = False
        self.push = MetricsPush(
            self.sender, self.build, lambda: self.snapshot, interval_s=interval_s, shown="otel.example:4318"
        )

    def build(self, _snapshot: Snapshot) -> Iterator[str]:
        """Yield three requests."""
        if self.is_broken:
            raise ZeroDivisionError
        yield from ("first", "second", "third")

    def tick(self) -> None:
        """Make a new snapshot."""
        self.snapshot = Snapshot(wall_s=self.snapshot.wall_s + 1, version="0")


def test_push_is_delivered_when_all_requests_are() -> None:
    world = World()
    assert world.push.counts.success_wall_s is None
    assert world.push.push() == "delivered"
    assert world.sender.sent == ["first", "second", "third"]
    assert world.push.counts.outcomes == {"delivered": 1, "failed": 0, "skipped": 0}
    assert world.push.counts.success_wall_s is not None


def test_points_left_out_are_summed_and_logged_once_a_while(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.sender.partials = [(3, ""), (0, ""), (4, "too old")] * 2
    with caplog.at_level(logging.INFO):
        assert [world.push.push() for _ in range(4)] == ["delivered"] * 4
    assert caplog.messages == [
        "OTLP: otel.example:4318 accepts metrics, but left out 7 points of this push: too old",
        "OTLP: otel.example:4318 accepts all points now, without a warning",
    ]


def test_receiver_that_only_warns_has_left_out_nothing(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.sender.partials = [(0, "use gRPC")] * 6
    with caplog.at_level(logging.INFO):
        assert [world.push.push() for _ in range(2)] == ["delivered"] * 2
    assert caplog.messages == ["OTLP: otel.example:4318 accepts metrics, but warns: use gRPC"]


def test_rest_of_a_push_is_not_tried_after_a_failure() -> None:
    world = World("", REFUSED)
    assert world.push.push() == "failed"
    assert world.sender.sent == ["first", "second"]
    assert world.push.counts.outcomes == {"delivered": 0, "failed": 1, "skipped": 0}


def test_problem_is_logged_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    world = World(REFUSED, REFUSED)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            world.push.push()
    assert caplog.messages == [
        "OTLP: metrics are not pushed to otel.example:4318: it answers HTTP status 401; trying again every 3600 s",
        "OTLP: metrics are pushed to otel.example:4318 again",
    ]


def test_error_in_the_collector_is_contained(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.is_broken = True
    assert world.push.push() == "failed"
    assert "metrics could not be pushed by OTLP; continuing" in caplog.text
    world.is_broken = False
    assert world.push.push() == "delivered"


def test_last_snapshot_is_pushed_at_the_end() -> None:
    world = World()
    world.push.start()
    assert world.sender.entered.wait(DEADLINE_S)
    while not world.push.counts.outcomes["delivered"]:
        threading.Event().wait(0.01)
    world.tick()
    world.push.close(DEADLINE_S)
    assert world.push.counts.outcomes["delivered"] == 2
    assert world.sender.is_closed


def test_snapshot_that_was_pushed_is_not_pushed_again_at_the_end() -> None:
    world = World()
    world.push.start()
    assert world.sender.entered.wait(DEADLINE_S)
    world.push.close(DEADLINE_S)
    assert world.push.counts.outcomes["delivered"] == 1


def test_end_cuts_off_a_receiver_that_does_not_answer() -> None:
    world = World("it does not answer in time")
    world.sender.gate.clear()
    world.push.start()
    assert world.sender.entered.wait(DEADLINE_S)
    world.push.close(seconds=0.0)
    assert world.sender.is_closed
    assert world.push.counts.outcomes == {"delivered": 0, "failed": 0, "skipped": 0}


def test_intervals_that_a_slow_push_took_are_counted() -> None:
    world = World()
    now_ns = [0]
    moved = threading.Event()

    def build(_snapshot: Snapshot) -> Iterator[str]:
        now_ns[0] += 25_000_000_000 if not moved.is_set() else 0
        moved.set()
        yield "slow"

    push = MetricsPush(
        world.sender, build, lambda: world.snapshot, interval_s=10.0, shown="x", read_ns=lambda: now_ns[0]
    )
    push.start()
    assert moved.wait(DEADLINE_S)
    push.close(DEADLINE_S)
    assert push.counts.outcomes["skipped"] == 2


def test_nothing_is_pushed_without_or_with_a_wrong_setting() -> None:
    assert make_push(CollectorConfig(), 1, lambda: Snapshot(wall_s=0.0, version="0")) is None
    wrong = CollectorConfig(otlp=True, otlp_endpoint="no-address")
    assert make_push(wrong, 1, lambda: Snapshot(wall_s=0.0, version="0")) is None


@pytest.mark.parametrize("problem", ["of the variable", "of the packages"])
def test_no_problem_of_otlp_keeps_a_publisher_from_starting(problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    if problem == "of the variable":
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://[::1:4318")
    else:
        monkeypatch.setattr(otlp_push, "import_exporters", fail)
    assert make_push(CollectorConfig(otlp=True), 1, lambda: Snapshot(wall_s=0.0, version="0")) is None


def test_push_of_the_settings_reaches_its_receiver() -> None:
    with receiving_http() as receiver:
        config = CollectorConfig(otlp=True, otlp_endpoint=receiver.url)
        push = make_push(config, 18491, lambda: Snapshot(wall_s=1_800_000_001.5, version="0.1.0"))
        assert push is not None
        assert push.push() == "delivered"
        push.close()
        series = find_series(receiver.received.metrics)
    assert series["rankscope_collector_info", (("version", "0.1.0"),)] == 1.0
