"""Faults in the collector's own code stay contained, and no message is acknowledged that no run has handled."""

import contextlib
import re
import threading
from collections.abc import Callable, Iterator

import pytest

from rankscope.collector.config import CollectorConfig
from rankscope.collector.ingest.receiver import Received, Receiver
from rankscope.collector.ingest.router import Ready
from rankscope.collector.relay.config import RelayConfig
from rankscope.collector.relay.service import Relay
from rankscope.collector.runs.events import RankJoined, ReportAdmitted, RunEffect, RunEvent
from rankscope.collector.runs.lazy_snapshot import LazyRunSnapshot
from rankscope.collector.runs.run import RunState
from rankscope.collector.service import Service
from rankscope.measure.clock import SystemClock
from rankscope.measure.messages import Ack, Goodbye, HelloWanted, Report
from tests.integration.serving import serving, wait_for
from tests.integration.wire_peer import connected

Fails = Callable[[RunEvent], bool]


@contextlib.contextmanager
def failing(fails: Fails) -> Iterator[Service]:
    """A collector whose runs raise at the events for which `fails` holds."""
    with pytest.MonkeyPatch.context() as patch:
        apply = RunState.apply

        def apply_or_fail(job: RunState, event: RunEvent) -> list[RunEffect]:
            if fails(event):
                raise ZeroDivisionError
            return apply(job, event)

        patch.setattr(RunState, "apply", apply_or_fail)
        service = Service(
            CollectorConfig(listen="tcp://127.0.0.1:0", http_listen="127.0.0.1:0", store=""), SystemClock()
        )
        thread = threading.Thread(target=service.run)
        thread.start()
        try:
            yield service
        finally:
            service.stop()
            thread.join()


def first(kind: type[object]) -> Fails:
    """Whether an event is the first one of a kind."""
    seen: list[RunEvent] = []

    def is_first(event: RunEvent) -> bool:
        if isinstance(event, kind):
            seen.append(event)
        return isinstance(event, kind) and len(seen) == 1

    return is_first


def test_rank_whose_hello_failed_is_asked_for_another(caplog: pytest.LogCaptureFixture) -> None:
    with failing(first(RankJoined)) as service, connected(service.endpoint, "boot-one") as peer:
        peer.join()
        for sequence in range(1, 4):
            peer.send(Report(sequence=sequence, host_ns=sequence))
        peer.await_answer(HelloWanted)
        peer.join().report(3)  # from the first one on: none of the three was acknowledged
        run = wait_for(lambda: next((run for run in service.snapshot.runs if run.ranks), None), lambda: "no run came")
        assert [rank.reports_admitted for rank in run.ranks] == [3]
        assert service._faults.counts == {"run_state": 1}
    assert re.search(r"run 'good@\w+': RankJoined could not be handled", caplog.text)
    assert "ZeroDivisionError" in caplog.text


def test_report_that_fails_is_acknowledged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    def is_second_report(event: RunEvent) -> bool:
        return isinstance(event, ReportAdmitted) and event.report.sequence == 2

    with failing(is_second_report) as service, connected(service.endpoint, "boot-one") as peer:
        peer.join().report(3)
        assert service._faults.counts == {"run_state": 1}
    assert re.search(r"run 'good@\w+': ReportAdmitted could not be handled", caplog.text)


def test_fault_of_one_run_leaves_the_others_alone() -> None:
    def is_of_bad_run(event: RunEvent) -> bool:
        return isinstance(event, RankJoined) and event.hello.identity.run == "bad"

    with (
        failing(is_of_bad_run) as service,
        connected(service.endpoint, "boot-bad") as bad,
        connected(service.endpoint, "boot-good") as good,
    ):
        bad.identity = type(bad.identity)(
            run="bad", rank=0, local_rank=0, world_size=1, node="n", restart_count=0, boot_id="boot-bad", pid=1
        )
        good.join().report(2)
        for _ in range(3):
            bad.join()
            bad.await_answer(HelloWanted)
        good.report(2)
        assert service._faults.counts == {"run_state": 3}


def test_snapshot_that_fails_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    lazy_snapshot = RunState.lazy_snapshot
    failures: list[str] = []

    def fail_first(job: RunState, now_collector_ns: int) -> LazyRunSnapshot:
        if not failures:
            failures.append(job.run)
            raise ZeroDivisionError
        return lazy_snapshot(job, now_collector_ns)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunState, "lazy_snapshot", fail_first)
        with failing(lambda _event: False) as service, connected(service.endpoint, "boot-one") as peer:
            peer.join().report(3)
            wait_for(lambda: service.snapshot.runs or None, lambda: "no run came")
            peer.report(3)
            assert sum(service._faults.counts.values()) == 1
    assert [run.partition("@")[0] for run in failures] == ["good"]
    assert "ZeroDivisionError" in caplog.text


def test_fault_in_reading_messages_does_not_end_a_relay(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_receiver: Receiver, _ready: Ready, _batch_max: int) -> Iterator[Received]:
        raise ZeroDivisionError
        yield

    config = RelayConfig(listen="tcp://127.0.0.1:0", collector="tcp://127.0.0.1:1")  # nothing listens there
    with pytest.MonkeyPatch.context() as patch, contextlib.closing(Relay(config, SystemClock())) as relay:
        patch.setattr(Receiver, "receive", fail)
        relay.run_once(0)
    assert "messages could not be read" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_verbose_logs_joins_ends_and_snapshots() -> None:
    with serving("-v") as served, connected(served.endpoint, "boot-one") as peer:
        peer.join().report()
        peer.send(Goodbye(sequence=2, reason="finished"))
        peer.await_answer(Ack)
        said = wait_for(lambda: _find_all(served.read_stderr()), served.read_stderr)
    assert said == 3


def _find_all(text: str) -> int | None:
    found = [
        re.search(said, text) is not None
        for said in (
            r"run 'good@\w+': Hello of rank 0 of 1 on node n, restart 0, process 1",
            r"run 'good@\w+': the rank process with boot id boot-one ended: finished",
            "a snapshot of 1 runs took ",
        )
    ]
    return sum(found) if all(found) else None
