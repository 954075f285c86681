"""Which runs of a store did the same work before."""

import threading
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from rankscope.collector.config import CollectorConfig
from rankscope.collector.fault_log import FaultLog
from rankscope.collector.runs.events import EarlierRunsRead
from rankscope.collector.runs.run import RunState
from rankscope.collector.runs.saved_runs import SavedStory
from rankscope.collector.steps.equal_work import Work
from rankscope.collector.steps.run_start import EarlierRun, RunStart
from rankscope.collector.storage.database import Database
from rankscope.collector.storage.earlier_runs import EARLIER_RUNS, EARLIER_RUNS_MAX, EarlierRunReader, find_earlier_runs
from rankscope.collector.storage.run_store import HistoryStore
from rankscope.collector.storage.write_batch import WriteBatch
from rankscope.collector.store_address import StoreAddress
from rankscope.measure.clock import SystemClock
from tests.unit.collector.runs.kept_runs import run_of

WORK = Work(2, samples_per_step=8.0, model_flops_per_step=1e15, script="train.py", peak_type="bf16")
RUN = "bert@20261125T103005Z"


def id_of(second: int) -> str:
    return f"bert@20261120T1000{second:02d}Z"


def start_at(begun_wall_s: float, work: Work = WORK) -> RunStart:
    return RunStart(begun_wall_s=begun_wall_s, work=work, first_step=10, last_step=137, steps=128, step_ns=1e8)


def keep_starts(path: Path, starts: dict[str, RunStart | None]) -> None:
    """Add runs with these starts to a store."""
    batch = WriteBatch()
    for run, start in starts.items():
        batch.put_run(run_of(run))
        batch.stories[run] = SavedStory(start=start)
    with closing(Database(path)) as database, closing(HistoryStore(database)) as store:
        store.write(batch)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where there is no file yet."""
    return tmp_path / "store.db"


def find_ids(path: Path, work: Work = WORK) -> list[str]:
    return [run for run, _ in find_earlier_runs(path, RUN, start_at(1_000.0, work))]


def test_earlier_runs_of_the_name_come_latest_first(path: Path) -> None:
    keep_starts(path, {id_of(1): start_at(10.0), id_of(3): start_at(30.0), id_of(2): start_at(20.0), id_of(0): None,
                       id_of(9): start_at(1_001.0), RUN: start_at(1_000.0)})  # fmt: skip
    found = find_earlier_runs(path, RUN, start_at(1_000.0))
    assert found == (EarlierRun(id_of(3), start_at(30.0)), EarlierRun(id_of(2), start_at(20.0)),
                     EarlierRun(id_of(1), start_at(10.0)))  # fmt: skip


@pytest.mark.parametrize(
    "other",
    [
        WORK._replace(world_size=4), WORK._replace(samples_per_step=9.0), WORK._replace(script="eval.py"),
        WORK._replace(model_flops_per_step=1.1e15), WORK._replace(peak_type="fp32"),
    ],
)  # fmt: skip
def test_run_of_the_name_with_other_work_does_not_count(path: Path, other: Work) -> None:
    keep_starts(path, {id_of(1): start_at(10.0, other), id_of(2): start_at(20.0, Work(2))})
    assert find_ids(path) == [id_of(2)]  # of which nothing else is known


def test_run_of_another_name_counts_by_script_and_flops(path: Path) -> None:
    keep_starts(path, {"job-1": start_at(10.0), "job-2": start_at(20.0, WORK._replace(script="")),
                       "job-3": start_at(30.0, WORK._replace(model_flops_per_step=None))})  # fmt: skip
    assert find_ids(path) == ["job-1"]
    assert find_ids(path, WORK._replace(model_flops_per_step=1.01e15)) == ["job-1"]
    assert find_ids(path, Work(2, script="train.py")) == []


def test_number_of_earlier_runs_is_bounded(path: Path) -> None:
    keep_starts(path, {id_of(place): start_at(float(place)) for place in range(EARLIER_RUNS_MAX + 5)})
    found = find_ids(path)
    assert (len(found), found[0]) == (EARLIER_RUNS_MAX, id_of(EARLIER_RUNS_MAX + 4))


def test_story_that_cannot_be_read_is_left_out(path: Path) -> None:
    keep_starts(path, {id_of(1): start_at(10.0), id_of(2): start_at(20.0)})
    with closing(Database(path)) as database, closing(database.open_connection()) as connection:
        connection.execute("UPDATE runs SET story = '{\"start\": 3}' WHERE run = ?", (id_of(2),))
    assert find_ids(path) == [id_of(1)]


def run_with(start: RunStart | None, run_id: str = RUN) -> RunState:
    run = RunState(run_id, CollectorConfig())
    run.speed.start = start
    return run


def read_all(reader: EarlierRunReader) -> list[tuple[str, int]]:
    assert reader.thread is not None
    reader.thread.join(10.0)
    return [(run_id, len(read.runs)) for run_id, read in reader.pop_found()]


def test_each_attempt_is_read_once(path: Path) -> None:
    keep_starts(path, {id_of(1): start_at(10.0)})
    reader, run = EarlierRunReader(FaultLog(SystemClock())), run_with(start_at(100.0))
    unknown = run_with(None, id_of(2))
    reader.request(path, [unknown, run])
    assert read_all(reader) == [(RUN, 1)]
    reader.request(path, [unknown, run])
    assert read_all(reader) == []
    run.speed.start = start_at(5.0)  # another attempt
    reader.request(path, [run])
    assert read_all(reader) == [(RUN, 0)]
    run.speed.earlier_runs = ()
    reader.forget(RUN)
    reader.request(path, [run])
    assert read_all(reader) == []


def test_answer_that_takes_longer_than_a_tick_is_not_lost(path: Path) -> None:
    may_answer, answers = threading.Event(), (EarlierRun(id_of(1), start_at(10.0)),)

    def find(_address: StoreAddress, _run_id: str, _start: RunStart) -> tuple[EarlierRun, ...]:
        assert may_answer.wait(10.0)
        return answers

    reader = EarlierRunReader(FaultLog(SystemClock()), find)
    reader.request(path, [run_with(start_at(100.0))])
    assert reader.pop_found() == []
    may_answer.set()
    assert read_all(reader) == [(RUN, 1)]


def test_answer_to_the_attempt_before_is_ignored_and_read_anew(path: Path) -> None:
    four = WORK._replace(world_size=4)
    keep_starts(path, {id_of(1): start_at(10.0), id_of(2): start_at(20.0, four)})
    reader, run = EarlierRunReader(FaultLog(SystemClock())), run_with(start_at(100.0))
    reader.request(path, [run])
    run.speed.start = None  # an elastic restart with four ranks, before the answer is popped
    apply_all(reader, run)
    assert run.speed.earlier_runs is None
    run.speed.start = start_at(200.0, four)
    run.apply(EarlierRunsRead(100.0, (EarlierRun(id_of(1), start_at(10.0)),)))
    assert run.speed.earlier_runs is None
    reader.request(path, [run])
    apply_all(reader, run)
    assert run.speed.earlier_runs == (EarlierRun(id_of(2), start_at(20.0, four)),)


def apply_all(reader: EarlierRunReader, run: RunState) -> None:
    assert reader.thread is not None
    reader.thread.join(10.0)
    for _, read in reader.pop_found():
        run.apply(read)


def test_store_that_cannot_be_read_is_counted_once(path: Path) -> None:
    path.write_bytes(b"no store at all")
    faults = FaultLog(SystemClock())
    reader, run = EarlierRunReader(faults), run_with(start_at(100.0))
    for _ in range(2):
        reader.request(path, [run])
        assert read_all(reader) == []
    assert faults.counts == {EARLIER_RUNS: 1}


def test_start_survives_the_json_of_a_story() -> None:
    story = SavedStory(start=start_at(10.0))
    assert msgspec.json.decode(msgspec.json.encode(story), type=SavedStory) == story
