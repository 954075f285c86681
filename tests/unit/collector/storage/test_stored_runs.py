"""The list of the runs in a store, and its table."""

from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from rankscope.collector.reports.stored_runs_table import render_runs
from rankscope.collector.runs.run_end import RunEnd
from rankscope.collector.storage.database import Database
from rankscope.collector.storage.run_store import HistoryStore
from rankscope.collector.storage.stored_runs import StoredRuns, read_runs
from rankscope.collector.storage.write_batch import WriteBatch
from rankscope.measure.errors import UnavailableError
from tests.unit.collector.runs.kept_runs import WALL_S, run_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with three runs, of which one has ended and one cannot be read."""
    batch = WriteBatch()
    for number, run in enumerate(("a@20270115T080000Z", "a@20270115T090000Z", "b@20270115T080000Z")):
        batch.put_run(run_of(run, changed_wall_s=WALL_S + number))
    ended = batch.runs["a@20270115T080000Z"]
    batch.put_run(msgspec.structs.replace(ended, end=RunEnd(reason="finished")))
    with closing(Database(tmp_path / "store.db")) as database, closing(HistoryStore(database)) as store:
        store.write(batch)
        store._connection.execute("UPDATE runs SET body = '{}' WHERE run LIKE 'b%'")
    return tmp_path / "store.db"


def test_runs_that_changed_last_come_first(path: Path) -> None:
    found = read_runs(path)
    assert [(one.run, one.run_id[-7:], one.end, one.collector) for one in found.runs] == [
        ("a", "090000Z", None, ""), ("a", "080000Z", "finished", ""),
    ]  # fmt: skip
    assert (found.others, found.rows_unreadable) == (0, 1)


def test_run_is_asked_for_by_its_name_or_id(path: Path) -> None:
    assert len(read_runs(path, "a").runs) == 2
    assert [one.end for one in read_runs(path, "a@20270115T080000Z").runs] == ["finished"]
    with pytest.raises(UnavailableError, match=r"no run 'c' is known to .*store\.db\. It has 'b', 'a'\."):
        read_runs(path, "c")


def test_table_says_what_it_leaves_out(path: Path) -> None:
    lines = render_runs(read_runs(path, runs_max=1)).splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["run", "a@20270115T090000Z"]
    assert lines[2] == "1 run and 1 that changed earlier and 1 that cannot be read"
    assert render_runs(StoredRuns((), 0, 0)) == "no run is in this store"
