"""Which events a receiver gets, when, and how often: with retries, over restarts, for incidents that flap."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from rankscope.collector.incidents.incident import Incident, escalate, reopen, resolve
from rankscope.collector.incidents.incident import Rules as IncidentRules
from rankscope.collector.notifications.channel import (
    DELIVERED,
    DROPPED,
    FAILED,
    FAULT,
    PAUSE_S_MAX,
    RETRIED,
    TRIES_MAX,
    TryResult,
)
from rankscope.collector.notifications.event import IncidentEvent
from tests.driven_clock import WALL_S
from tests.unit.collector.detect.findings import slow
from tests.unit.collector.notifications.worlds import INTERVAL_S, Receiver, World, opened, resolved


def replaced(incident: Incident, **known: object) -> Incident:
    return msgspec.structs.replace(incident, **known)


def test_opened_incident_is_delivered_once() -> None:
    world = World().show(opened()).show(opened()).wait(3_600)
    assert world.receiver.kinds == ["opened"]
    assert world.channel.counts.outcomes == {DELIVERED: 1, RETRIED: 0, FAILED: 0, DROPPED: 0}


def test_change_of_cause_and_end_are_delivered_in_order() -> None:
    world = World().show(opened()).wait(INTERVAL_S)
    other = opened(cause="data_loading")
    world.show(other).wait(INTERVAL_S).show(resolved(other))
    assert [(event.kind, event.number) for event in world.receiver.events] == [
        ("opened", 1), ("changed", 2), ("resolved", 3),
    ]  # fmt: skip


def test_rising_severity_is_a_change() -> None:
    world = World().show(opened()).wait(INTERVAL_S)
    world.show(escalate(opened(), IncidentRules(), WALL_S + 2_000.0 + 86_400.0))
    assert world.receiver.kinds == ["opened", "changed"]
    assert world.receiver.events[1].incident.severity == "critical"


def test_numbers_that_change_are_no_event() -> None:
    world = World().show(opened()).wait(INTERVAL_S).show(replaced(opened(), lost_rank_seconds=5.0))
    assert world.receiver.kinds == ["opened"]


def test_severity_that_was_changed_for_a_run_counts_for_that_run() -> None:
    world = World(severity_min="critical")
    world.severities = {"another": "info"}
    assert world.show(opened()).receiver.kinds == []
    world.severities = {opened().run_id: "warning"}
    assert world.deliver().receiver.kinds == ["opened"]


def test_incident_below_the_lowest_severity_is_not_sent() -> None:
    assert World(severity_min="critical").show(opened()).receiver.kinds == []
    assert World(severity_min="info").show(opened(severity="info")).receiver.kinds == ["opened"]


def test_events_of_one_incident_keep_their_distance() -> None:
    world = World().show(opened()).wait(1.0).show(resolved(opened()))
    assert (world.receiver.kinds, world.channel.counts.waiting) == (["opened"], 0)
    world.wait(INTERVAL_S - 1.1)
    assert world.receiver.kinds == ["opened"]
    world.wait(0.2)
    assert world.receiver.kinds == ["opened", "resolved"]


def test_event_that_is_tried_again_is_counted_as_waiting() -> None:
    world = World()
    world.receiver.answers = [TryResult(RETRIED, "away")]
    assert world.show(opened()).channel.counts.waiting == 1
    assert world.wait(1.0).channel.counts.waiting == 0


def test_flapping_incident_that_is_what_it_was_is_no_event() -> None:
    world = World().show(opened()).wait(1.0)
    for _ in range(20):
        over = resolved(opened())
        world.show(over).wait(1.0).show(reopen(over, slow(), WALL_S + 3_001.0)).wait(1.0)
    assert world.wait(3_600).receiver.kinds == ["opened"]


def test_incident_flapping_for_an_hour_is_bounded_by_interval() -> None:
    world = World()
    for _ in range(360):  # 3,600 s, a change every 10 s; at most one event in 60 s
        world.show(opened(cause="gpu_slow")).wait(5.0).show(opened(cause="data_loading")).wait(5.0)
    assert len(world.receiver.events) <= 1 + 3_600 / INTERVAL_S


def test_reopened_incident_is_opened_again_with_another_id() -> None:
    world = World().show(opened()).wait(INTERVAL_S)
    over = resolved(opened())
    world.show(over).wait(INTERVAL_S).show(reopen(over, slow(), WALL_S + 3_100.0))
    assert world.receiver.kinds == ["opened", "resolved", "opened"]
    assert len({event.id for event in world.receiver.events}) == 3


def test_wall_clock_that_was_set_back_delays_nothing() -> None:
    world = World().show(opened())
    world.clock.now_s -= 500.0
    assert world.show(resolved(opened())).receiver.kinds == ["opened", "resolved"]


# -- retries ----------------------------------------------------------------------------------------------------------


def test_failed_try_is_repeated_at_growing_pauses_with_its_id() -> None:
    world = World()
    world.receiver.answers = [TryResult(RETRIED, "away")] * 3
    world.show(opened()).wait(0.9)
    assert len(world.receiver.events) == 1
    world.wait(0.2)  # 1 s after the first try
    world.wait(1.9)
    assert len(world.receiver.events) == 2
    world.wait(0.2).wait(4.1)  # 2 s after the second, 4 s after the third
    assert len({event.id for event in world.receiver.events}) == 1
    assert world.channel.counts.outcomes == {DELIVERED: 1, RETRIED: 3, FAILED: 0, DROPPED: 0}


def test_event_is_given_up_after_so_many_tries() -> None:
    world = World()
    world.receiver.answers = [TryResult(RETRIED, "away")] * 100
    world.show(opened())
    for _ in range(3_510):  # the pauses are 1 + 2 + ... + 256 = 511 s, and 10 of 300 s
        world.wait(1.0)
    assert len(world.receiver.events) == TRIES_MAX - 1
    world.wait(1.0).wait(PAUSE_S_MAX).wait(PAUSE_S_MAX)
    assert len(world.receiver.events) == TRIES_MAX
    assert world.channel.counts.outcomes == {DELIVERED: 0, RETRIED: TRIES_MAX - 1, FAILED: 1, DROPPED: 0}
    world.receiver.answers = []
    assert world.show(resolved(opened())).receiver.kinds[-1] == "resolved"


def test_receiver_can_ask_for_a_longer_pause_up_to_a_limit() -> None:
    world = World()
    world.receiver.answers = [TryResult(RETRIED, "busy", retry_after_s=1e9)]
    world.show(opened(1), opened(2, run="gpt")).wait(PAUSE_S_MAX - 1.0)
    assert len(world.receiver.events) == 1  # all events wait, not only this one
    world.wait(1.0)
    assert [event.incident.id for event in world.receiver.events] == [1, 2, 1]


def test_refused_event_is_not_retried_and_does_not_hold_others() -> None:
    world = World()
    world.receiver.answers = [TryResult(FAILED, "answers 400")]
    world.show(opened(1), opened(2, run="gpt")).wait(3_600)
    assert [event.incident.id for event in world.receiver.events] == [1, 2]
    assert world.channel.counts.outcomes == {DELIVERED: 1, RETRIED: 0, FAILED: 1, DROPPED: 0}


def test_event_that_fails_again_and_again_does_not_hold_others() -> None:
    world = World()
    world.receiver.answers = [TryResult(RETRIED, "answers 500")]
    world.show(opened(1)).wait(0.5).show(opened(1), opened(2, run="gpt"))
    assert [event.incident.id for event in world.receiver.events] == [1, 2]


def test_incident_over_before_receiver_is_back_is_one_event() -> None:
    world = World()
    world.receiver.answers = [TryResult(RETRIED, "away")]
    world.show(opened()).show(resolved(opened())).wait(3_600)
    assert world.receiver.kinds == ["opened", "resolved"]
    assert world.channel.counts.outcomes[DELIVERED] == 1


def test_part_of_another_incident_never_told_is_no_event() -> None:
    part = resolve(opened(), "part of incident 2", WALL_S + 3_000.0, lost_rank_seconds=None, merged_into=2)
    assert World().show(part).receiver.kinds == []


def test_incident_forgotten_before_it_is_delivered_is_counted() -> None:
    world = World()
    world.receiver.answers = [TryResult(RETRIED, "away")]
    world.show(opened()).show()
    assert world.channel.counts.outcomes[DROPPED] == 1
    assert world.channel.counts.waiting == 0


class Broken(Receiver):
    """A receiver with a bug."""

    def __call__(self, event: IncidentEvent, cancelled: threading.Event) -> TryResult:
        raise RuntimeError("a bug", event, cancelled)


def test_raising_receiver_is_contained_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    world = World()

    world.channel._deliver = Broken()
    world.show(opened())
    assert world.channel.counts.outcomes[FAILED] == 1
    assert world.faults.counts == {FAULT: 1}
    assert "webhook: event 'opened' of incident 1 is lost: it raised RuntimeError" in caplog.text


def test_problem_is_logged_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world = World()
    world.receiver.answers = [TryResult(RETRIED, "away")] * 3
    world.show(opened()).wait(1.0).wait(2.0).wait(4.0)
    assert caplog.text.count("webhook: away; trying again") == 1
    assert caplog.text.count("webhook: events are delivered again") == 1


# -- over a restart ---------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db-notified-webhook.json"


def test_next_collector_does_not_deliver_again_and_goes_on(path: Path) -> None:
    World(path).show(opened())
    second = World(path, now_s=2_100.0).show(opened())
    assert second.receiver.kinds == []
    assert second.show(resolved(opened())).receiver.kinds == ["resolved"]
    assert second.receiver.events[0].number == 2


def test_undelivered_event_is_delivered_by_the_next_collector(path: Path) -> None:
    first = World(path)
    first.receiver.answers = [TryResult(RETRIED, "away")]
    first.show(opened())
    second = World(path, now_s=2_100.0).show(opened())
    assert [event.id for event in second.receiver.events] == [event.id for event in first.receiver.events]


def test_without_a_file_a_new_collector_delivers_what_is_open() -> None:
    World().show(opened())
    assert World(now_s=2_100.0).show(opened()).receiver.kinds == ["opened"]


def test_first_use_with_an_old_store_delivers_only_what_is_open(path: Path) -> None:
    old = resolved(opened(1, at_s=WALL_S + 100.0), WALL_S + 200.0)
    world = World(path, now_s=2_000.0).show(old, opened(2, run="gpt", at_s=WALL_S + 100.0))
    assert [event.incident.id for event in world.receiver.events] == [2]


def test_incident_begun_and_ended_between_passes_is_an_event(path: Path) -> None:
    world = World(path, now_s=2_000.0).show(resolved(opened(at_s=WALL_S + 2_001.0)))
    assert [(event.kind, event.number) for event in world.receiver.events] == [("resolved", 1)]


def test_incident_of_another_store_with_the_same_id_is_new(path: Path) -> None:
    World(path).show(opened())
    assert World(path).show(opened(at_s=WALL_S + 2_500.0)).receiver.kinds == ["opened"]


def test_forgotten_incidents_leave_the_file(path: Path) -> None:
    world = World(path).show(opened(1), opened(2, run="gpt")).show(opened(2, run="gpt"), opened(3, run="t5"))
    assert sorted(msgspec.json.decode(path.read_bytes())["notified"]) == ["2", "3"]
    assert world.faults.counts == {}


@pytest.mark.parametrize("text", ["", "{", '{"schema": 1, "since_wall_s": 0, "notified": {"x": 1}}'])
def test_damaged_file_is_said_and_written_anew(path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    path.write_text(text)
    world = World(path).show(opened())
    assert (world.receiver.kinds, world.faults.counts) == (["opened"], {FAULT: 1})
    assert f"webhook: {path} cannot be read: " in caplog.text
    assert World(path).show(opened()).receiver.kinds == []


def test_file_that_cannot_be_written_is_contained(tmp_path: Path) -> None:
    world = World(tmp_path / "nowhere" / "runs.db-notified-webhook.json").show(opened())
    assert (world.receiver.kinds, world.faults.counts) == (["opened"], {FAULT: 1})
    assert world.show(opened()).receiver.kinds == ["opened"]


# -- the thread -------------------------------------------------------------------------------------------------------


class Gate:
    """A receiver that blocks until the test lets it go on, or until it is cancelled where it heeds that."""

    def __init__(self, wait: Callable[["Gate", threading.Event], object]) -> None:
        self.entered, self.open = threading.Event(), threading.Event()
        self._wait = wait

    def prepare(self) -> None: ...

    def __call__(self, _event: IncidentEvent, cancelled: threading.Event) -> TryResult:
        self.entered.set()
        self._wait(self, cancelled)
        return TryResult(FAILED if cancelled.is_set() else DELIVERED, "cancelled" if cancelled.is_set() else "")


def test_end_delivers_untried_events_even_within_the_interval() -> None:
    world = World().show(opened())
    world.incidents = (resolved(opened()),)
    world.channel.begin_stop()
    world.channel.start()
    assert world.channel.finish_stop(60.0) == 0
    assert world.receiver.kinds == ["opened", "resolved"]


def test_end_does_not_wait_for_a_receiver_that_is_away() -> None:
    world = World()
    world.receiver.answers = [TryResult(RETRIED, "away")]
    world.show(opened())
    world.channel.begin_stop()
    world.channel.start()
    assert world.channel.finish_stop(60.0) == 1
    assert len(world.receiver.events) == 1


def test_delivery_that_is_cancelled_is_left_and_no_failure() -> None:
    world = World()
    gate = Gate(lambda _, cancelled: cancelled.wait())
    world.channel._deliver = gate
    world.incidents = (opened(),)
    world.channel.start()
    assert gate.entered.wait(60.0)
    world.channel.begin_stop()
    assert world.channel.finish_stop(0.0) == 1
    assert world.channel.counts.outcomes == {DELIVERED: 0, RETRIED: 0, FAILED: 0, DROPPED: 0}


def test_receiver_that_never_returns_does_not_hold_the_end() -> None:
    world = World()
    gate = Gate(lambda gate, _: gate.open.wait())
    world.channel._deliver = gate
    world.incidents = (opened(),)
    world.channel.start()
    assert gate.entered.wait(60.0)
    world.channel.begin_stop()
    assert world.channel.finish_stop(0.0) == 1
    gate.open.set()
