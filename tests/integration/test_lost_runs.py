"""Runs that are over or lost, in a collector in this process and with a clock that the test drives."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from rankscope.collector.config import CollectorConfig
from rankscope.collector.incidents.incident import Incident
from rankscope.collector.ingest.receiver import Received
from rankscope.collector.service import Service
from rankscope.collector.storage.store_calls import RETRY_S
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Goodbye, Hello, Message, Report
from tests.driven_clock import DrivenClock
from tests.integration.serving import wait_for
from tests.integration.test_late_store import Direct
from tests.unit.collector.runs.run_stories import Story

SILENT_S = 15.0
"""The default of `rank_silent_s`."""


@contextlib.contextmanager
def collecting(clock: DrivenClock, store: Path | None = None) -> Iterator[Service]:
    """A collector that ticks only when the test calls `_tick`."""
    path = "" if store is None else str(store)
    service = Service(CollectorConfig(listen="tcp://127.0.0.1:0", http_listen="127.0.0.1:0", store=path), clock)
    try:
        yield service
    finally:
        service.stop()
        service.run()  # which only closes everything


def find_slow_rank(service: Service) -> Incident:
    """The incident of a rank that is slow from step 40 on."""
    story = Story(4)
    story.run = Direct(service)  # type: ignore[assignment]  # it handles the events of a story
    story.join().train(40).train(60, forward={2: 30.0})
    service._tick()
    (incident,) = service._journal.incidents
    assert incident.headline.startswith("Rank 2 (node-a): 1.57x slower than its 3 peers since step 40 (")
    return incident


def read_slow_rank(service: Service) -> Incident:
    """The same incident now, beside that of the run's end."""
    return next(one for one in service._journal.incidents if one.kind == "straggler")


def test_findings_of_a_lost_run_are_in_the_past_tense() -> None:
    clock = DrivenClock()
    with collecting(clock) as service:
        find_slow_rank(service)
        clock.now_s += SILENT_S + 1.0
        service._tick()
        incident = read_slow_rank(service)
    assert incident.headline.startswith("Rank 2 (node-a): 1.57x slower than its 3 peers, steps 40-99 (")
    assert (incident.is_open, incident.resolved_reason) == (False, "no longer found")


def test_findings_before_a_restart_are_in_the_past_tense(tmp_path: Path) -> None:
    clock, store = DrivenClock(), tmp_path / "store.db"
    with collecting(clock, store) as service:
        find_slow_rank(service)
    with collecting(clock, store) as again:
        again._tick()
        assert read_slow_rank(again).is_open
        clock.now_s += SILENT_S + 1.0
        again._tick()
        incident = read_slow_rank(again)
    assert incident.headline.startswith("Rank 2 (node-a): 1.57x slower than its 3 peers, steps 40-99 (")
    assert (incident.is_open, incident.resolved_reason) == (False, "collector restarted")


def test_each_short_run_of_a_name_may_have_its_own_key() -> None:
    """The first two begin and end between two ticks: at each tick the latest run of the name is over."""
    clock = DrivenClock()
    with collecting(clock) as service:
        for number, key in enumerate(("key one", "key one", "key two")):
            begin_and_finish(service, f"boot-of-{number}", key)
            clock.now_s += 1.0
            service._tick()
        refused = service.snapshot.counts.peers_refused
        assert (len(service.snapshot.runs), refused) == (3, {})


def begin_and_finish(service: Service, boot_id: str, key: str) -> None:
    """A run of one rank that sends Hello and Goodbye at once."""
    identity = RankIdentity(
        run="bert", rank=0, local_rank=0, world_size=1, node="n", restart_count=0, boot_id=boot_id, pid=1
    )
    hello = Hello(identity=identity, first_sequence=1, host_ns=0, wall_ns=0, report_interval_ns=1)
    messages: tuple[Message, ...] = (hello, Goodbye(sequence=1, reason="finished"))
    batch = service._receive_thread.messages.admit(
        [Received(boot_id.encode(), message, key=key) for message in messages]
    )
    service._updates.process_batch(batch)


def test_run_forgotten_without_a_store_stays_forgotten(tmp_path: Path) -> None:
    clock, folder = DrivenClock(), tmp_path / "data"
    folder.mkdir()
    with collecting(clock, folder / "store.db") as service:
        begin_and_finish(service, "boot-of-0", "")
        folder.rename(tmp_path / "moved")
        service._tick()
        recorder = service._recording._recorder
        assert recorder is not None
        wait_for(lambda: recorder.lost, lambda: "the recorder has not noticed")
        service._tick()
        assert service.snapshot.counts.store_writable is False
        clock.now_s += 7200.0  # `run_kept_s` is an hour
        service._tick()
        assert service.snapshot.runs == ()
        folder.mkdir()
        clock.now_s += RETRY_S
        service._tick()
        assert service.snapshot.counts.store_writable is True
    with collecting(clock, folder / "store.db") as again:
        assert again.snapshot.runs == ()


def report_in(service: Service, run: str) -> None:
    """A run of one rank that says Hello and reports nothing more."""
    identity = RankIdentity(
        run=run,
        rank=0,
        local_rank=0,
        world_size=1,
        node=f"node-of-{run}",
        restart_count=0,
        boot_id=f"boot-{run}",
        pid=1,
    )
    hello = Hello(identity=identity, first_sequence=1, host_ns=0, wall_ns=0, report_interval_ns=1)
    batch = service._receive_thread.messages.admit([Received(identity.boot_id.encode(), hello)])
    service._updates.process_batch(batch)


def keep_alive(service: Service, run: str, sequence: int) -> None:
    received = Received(f"boot-{run}".encode(), Report(sequence=sequence, host_ns=0))
    service._updates.process_batch(service._receive_thread.messages.admit([received]))


def open_incidents(service: Service) -> list[tuple[str, str]]:
    return [(one.run, one.kind) for one in service._journal.incidents if one.is_open]


def test_collector_hearing_nobody_has_one_incident_no_failed_run() -> None:
    clock = DrivenClock()
    with collecting(clock) as service:
        for run in ("a", "b", "c"):
            report_in(service, run)
        for _ in range(25):
            clock.now_s += 1.0
            service._tick()
        assert [(one.run, one.kind) for one in service._journal.incidents] == [("a", "nothing_heard")]
        for run in ("a", "b", "c"):  # the network is back
            keep_alive(service, run, 1)
        service._tick()
        assert open_incidents(service) == []


def test_run_that_dies_whole_beside_others_is_told() -> None:
    clock = DrivenClock()
    with collecting(clock) as service:
        for run in ("dies", "goes on"):
            report_in(service, run)
        for second in range(25):
            clock.now_s += 1.0
            keep_alive(service, "goes on", second + 1)
            service._tick()
        assert open_incidents(service) == [("dies", "run_failure")]
