"""From the store of a collector to the runs in its memory: which earlier runs of the same work there were."""

import threading
from contextlib import closing
from pathlib import Path

from rankscope.collector.config import CollectorConfig
from rankscope.collector.fault_log import FaultLog
from rankscope.collector.incidents.journal import Journal
from rankscope.collector.recording import Recording
from rankscope.collector.runs.clock_alignment import Clocks
from rankscope.collector.runs.runs import Runs
from rankscope.collector.runs.snapshot import Snapshot
from rankscope.collector.storage.database import Database
from rankscope.collector.storage.earlier_runs import find_earlier_runs
from rankscope.measure.clock import SystemClock
from tests.unit.collector.storage.test_earlier_runs import id_of, keep_starts, start_at

CLOCKS = Clocks(0, 1_900_000_000.0)


def test_earlier_runs_are_read_from_the_store_of_the_collector(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    keep_starts(path, {id_of(1): start_at(10.0), id_of(2): start_at(20.0)})
    config = CollectorConfig(store=str(path))
    faults = FaultLog(SystemClock())
    journal = Journal(config, CLOCKS.wall_s, faults.count)
    runs = Runs(config)
    recording = Recording(config, journal, faults, on_written=lambda: None)
    recording.open(runs)
    run = runs.begin("bert", CLOCKS.wall_s)
    run.speed.start = start_at(1_000.0)
    snapshot = Snapshot(wall_s=CLOCKS.wall_s, version="test")
    recording.record(runs, snapshot, CLOCKS)
    for thread in threading.enumerate():
        if thread.name == "rankscope-earlier-runs":
            thread.join(10.0)
    ((run_id, read),) = recording.pop_earlier_runs()
    assert (run_id, [one.run_id for one in read.runs]) == (run.run, [id_of(2), id_of(1)])
    run.apply(read)
    recording.record(runs, snapshot, CLOCKS)
    assert recording.pop_earlier_runs() == []
    recording.shut_down(runs, lambda: snapshot, CLOCKS)
    journal.shut_down(CLOCKS.wall_s)
    assert run.speed.earlier_runs == find_earlier_runs(path, run.run, start_at(1_000.0))
    with closing(Database(path)):
        pass  # the collector has closed its store
