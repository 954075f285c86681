"""A collector whose store cannot be used at first, in this process and with a clock that the test drives."""

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from rankscope.collector.config import CollectorConfig
from rankscope.collector.ingest.receiver import Received
from rankscope.collector.runs.events import RankJoined, ReportAdmitted
from rankscope.collector.service import Service
from rankscope.collector.storage.database import Database
from rankscope.collector.storage.run_reader import opening_run
from rankscope.collector.storage.run_store import HistoryStore
from rankscope.collector.storage.store_calls import RETRY_S
from rankscope.collector.storage.write_batch import WriteBatch
from rankscope.measure.codec import decode
from rankscope.measure.messages import Hello
from tests.driven_clock import DrivenClock
from tests.integration.serving import wait_for
from tests.unit.collector.runs.kept_runs import life_of, run_of
from tests.unit.collector.runs.run_stories import Story


class Direct:
    """Stands for a run: passes the events of a story to the collector as if they had come over a connection."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def apply(self, event: object) -> list[object]:
        match event:
            case RankJoined(hello):
                self._hello(hello)
            case ReportAdmitted(boot_id, report):
                self._receive(Received(boot_id.encode(), decode(report.frame), frame=report.frame))
        return []

    def tick(self, _now_ns: int, _wall_s: float) -> list[object]:
        """Do nothing: the collector ticks by itself."""
        return []

    def view(self, _now_ns: int) -> None:
        """Return no view: the collector runs the detectors."""

    def _hello(self, hello: Hello) -> None:
        self._receive(Received(hello.identity.boot_id.encode(), hello))

    def _receive(self, received: Received) -> None:
        self._service._updates.process_batch(self._service._receive_thread.messages.admit([received]))


@contextlib.contextmanager
def collecting(path: Path, clock: DrivenClock) -> Iterator[Service]:
    """A collector that ticks only when the test calls `_tick`."""
    config = CollectorConfig(listen="tcp://127.0.0.1:0", http_listen="127.0.0.1:0", store=str(path))
    service = Service(config, clock)
    try:
        yield service
    finally:
        service.stop()
        service.run()  # which only closes everything


def test_store_usable_only_later_gets_the_runs_and_steps(tmp_path: Path) -> None:
    path, clock, story = tmp_path / "later" / "store.db", DrivenClock(), Story(2)
    with collecting(path, clock) as service:
        story.run = Direct(service)  # type: ignore[assignment]  # it handles the events of a story
        story.join().train(10)
        service._tick()
        weakness = service._recording.find_degradation()
        assert weakness is not None
        assert weakness.startswith("nothing is written to the store, and all is kept in memory: the store ")
        assert service.snapshot.counts.store_writable is False
        path.parent.mkdir()
        clock.now_s += RETRY_S
        story.train(10)
        service._tick()
        assert service._recording.find_degradation() is None
    with opening_run(path, "story") as history:
        assert [step.step for step in history.read_steps()] == list(range(20))
    with collecting(path, clock) as again:
        again._tick()
        assert [run.run for run in again.snapshot.runs] == ["story"]


def test_invalid_run_keeps_no_collector_from_starting(tmp_path: Path) -> None:
    """One run has a world of -1 ranks."""
    path = tmp_path / "store.db"
    batch = WriteBatch()
    for name, world_size in (("odd", -1), ("sound", 2)):
        batch.put_run(msgspec.structs.replace(run_of(name), world_size=world_size))
        batch.ranks[name, 0] = 0, life_of(name, 0)
    with contextlib.closing(Database(path)) as database, contextlib.closing(HistoryStore(database)) as store:
        store.write(batch)
    with collecting(path, DrivenClock()) as service:
        service._tick()
        assert [run.run for run in service.snapshot.runs] == ["sound"]
        assert service._faults.counts == {"history_run": 1}
        assert service._admission.world_size("odd") is None


def test_missing_folder_of_the_store_costs_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = DrivenClock()
    with collecting(tmp_path / "never" / "store.db", clock) as service:
        for _ in range(4):
            clock.now_s += RETRY_S
            service._tick()
        assert service._faults.counts == {"incident_store": 5}
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1


def test_store_gets_the_runs_when_its_folder_is_back(tmp_path: Path) -> None:
    path, clock, story = tmp_path / "folder" / "store.db", DrivenClock(), Story(2)
    path.parent.mkdir()

    def tick_until(service: Service, is_so: Callable[[], bool]) -> None:
        def tick() -> bool | None:
            clock.now_s += 0.1
            service._tick()
            return is_so() or None

        wait_for(tick, lambda: f"{service._recording.find_degradation()}", 30)

    with collecting(path, clock) as service:
        story.run = Direct(service)  # type: ignore[assignment]  # it handles the events of a story
        story.join().train(10)
        tick_until(service, lambda: service.snapshot.counts.store_bytes not in (None, 0))
        path.parent.rename(tmp_path / "away")
        tick_until(service, lambda: service.snapshot.counts.store_writable is False)
        story.train(10)
        tick_until(service, lambda: service._journal.database is None)
        path.parent.mkdir()
        clock.now_s += RETRY_S
        tick_until(service, lambda: service.snapshot.counts.store_writable is True)
        assert service.snapshot.counts.stores_lost == {"removed": 1}
        weakness = service._recording.find_degradation()
        assert weakness is not None
        # Its files are looked up one after the other, and the folder may go between any two.
        assert re.match(rf"{path}(-\w+)? was removed while the collector had it open as its store\. At ", weakness)
        story.train(10)
        service._tick()
    with collecting(path, clock) as again:
        again._tick()
        (run,) = again.snapshot.runs
        assert [rank.totals.steps for rank in run.ranks] == [30, 30]
    with opening_run(path, "story") as history:
        steps = [step.step for step in history.read_steps()]
        assert steps == list(range(steps[0], 30))
        assert steps[0] <= 10  # those before are in the folder that was moved away
