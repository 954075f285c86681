"""Incidents of a collector whose disk may fail: what it keeps, counts and logs."""

import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect.finding import Finding
from rankscope.collector.incidents.incident import begin
from rankscope.collector.incidents.journal import Journal
from rankscope.collector.incidents.ledger import ComparedRun
from rankscope.collector.incidents.store import IncidentStore, read_store
from rankscope.collector.storage.store_calls import RETRY_S
from tests.unit.collector.detect.findings import RUN, slow


class Collector:
    """A journal, and what it has counted."""

    def __init__(self, store: Path | None, now_s: float = 0.0, incidents_max: int = 100) -> None:
        self.counted: list[str] = []
        config = CollectorConfig(store=str(store or ""), incidents_max=incidents_max)
        self.journal = Journal(config, now_s, self.counted.append)

    def tick(self, now_s: float, *findings: Finding) -> None:
        """A look at the one run."""
        self.journal.tick([ComparedRun(RUN, findings, is_over=False, is_judged=True)], now_s)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where there is no file yet."""
    return tmp_path / "incidents.db"


def fill_up(collector: Collector, pages_more: int = 0) -> None:
    """Let the disk have room for so many pages more than there are."""
    store = collector.journal._store
    assert store is not None
    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    store._connection.execute(f"PRAGMA max_page_count = {pages + pages_more}")


def test_incidents_without_a_store_are_in_memory_and_not_counted() -> None:
    collector = Collector(None)
    collector.tick(1.0, slow())
    collector.journal.shut_down(2.0)
    assert ([incident.id for incident in collector.journal.incidents], collector.counted) == ([1], [])


def test_every_tick_writes_what_has_changed(path: Path) -> None:
    collector = Collector(path)
    collector.journal.open(RUN, slow(), 0.5)
    collector.tick(1.0, slow())
    assert read_store(path).incidents == collector.journal.incidents
    collector.journal.close(RUN, slow(), "passed", 1.5)
    collector.tick(2.0)
    assert [incident.resolved_reason for incident in read_store(path).incidents] == ["passed"]
    collector.journal.shut_down(3.0)


def test_next_collector_continues_open_incidents(path: Path) -> None:
    first = Collector(path)
    first.tick(1.0, slow())
    first.journal.update(RUN, slow(cause="data_loading"), 2.0)
    first.journal.shut_down(2.0)
    second = Collector(path, 10.0)
    second.tick(11.0, slow(cause="data_loading"))
    (incident,) = second.journal.incidents
    assert [change.what for change in incident.changes] == ["opened", "updated", "continued"]
    second.journal.shut_down(12.0)
    assert read_store(path).incidents == (incident,)


def test_forgotten_incident_is_deleted_from_the_file(path: Path) -> None:
    collector = Collector(path, incidents_max=1)
    collector.tick(1.0, slow(2, number=1))
    collector.tick(2.0)
    collector.tick(3.0, slow(3, number=2))
    assert [incident.id for incident in read_store(path).incidents] == [2]
    collector.journal.shut_down(4.0)


def test_unusable_file_is_counted_and_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_bytes(b"not a database " * 1_000)
    collector = Collector(path)
    collector.tick(1.0, slow())
    collector.journal.shut_down(2.0)
    assert ([incident.id for incident in collector.journal.incidents], collector.counted) == ([1], ["incident_store"])
    (said,) = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert said.startswith(f"the store {path} is damaged or not a database: ")
    assert said.endswith("Until then incidents are kept in memory.")


def test_file_with_an_unreadable_table_is_closed(path: Path) -> None:
    IncidentStore(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE incidents RENAME COLUMN body TO theirs")
    collector = Collector(path)
    collector.tick(1.0, slow())
    assert ([incident.id for incident in collector.journal.incidents], collector.counted) == ([1], ["incident_store"])
    IncidentStore(path).close()


def test_unreadable_rows_are_counted_and_others_kept(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = Collector(path)
    first.tick(1.0, slow(2, number=1), slow(3, number=2))
    first.journal.shut_down(2.0)
    with closing(IncidentStore(path)) as store:
        store._connection.execute("UPDATE incidents SET body = '' WHERE id = 1")
    second = Collector(path, 3.0)
    assert ([incident.id for incident in second.journal.incidents], second.counted) == ([2], ["incident_store"])
    assert f"skipped 1 unreadable incidents in {path}" in caplog.messages
    second.journal.shut_down(4.0)


def test_full_disk_is_logged_once_and_tried_again(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    collector = Collector(path)
    collector.tick(1.0, slow())
    fill_up(collector)
    dear = slow(sentence="x" * 100_000)
    for second in (2.0, 3.0, 2.0 + RETRY_S):
        collector.tick(second, dear)
    assert collector.counted == ["incident_store"] * 2
    assert len([message for message in caplog.messages if "database or disk is full" in message]) == 1
    assert read_store(path).incidents[0].sentence == slow().sentence
    fill_up(collector, pages_more=100)
    collector.tick(2.0 + 2 * RETRY_S, dear)
    assert read_store(path).incidents == collector.journal.incidents
    assert "the store is writable again; incidents are written to it" in caplog.messages
    collector.journal.shut_down(500.0)


def test_clock_that_was_set_back_does_not_delay_the_next_try(path: Path) -> None:
    collector = Collector(path, 5_000.0)
    collector.tick(5_000.0, slow())
    fill_up(collector)
    collector.tick(5_001.0, slow(sentence="x" * 100_000))
    fill_up(collector, pages_more=100)
    collector.tick(1_400.0, slow(sentence="x" * 100_000))
    assert read_store(path).incidents == collector.journal.incidents
    collector.journal.shut_down(1_401.0)


def test_unwritten_incident_need_not_be_deleted(path: Path) -> None:
    collector = Collector(path, incidents_max=1)
    collector.tick(1.0, slow(2, number=1))
    fill_up(collector)
    for number in range(2, 50):
        collector.tick(float(number))
        collector.tick(number + 0.5, slow(number, number=number, sentence="x" * 100_000))
    assert len(collector.journal._to_forget) == 1
    assert len(collector.journal._to_write) == 1
    collector.journal.shut_down(500.0)


def test_last_changes_are_written_before_the_next_try_is_due(path: Path) -> None:
    collector = Collector(path)
    collector.tick(1.0, slow())
    fill_up(collector)
    collector.tick(2.0, slow(sentence="x" * 100_000))
    fill_up(collector, pages_more=100)
    collector.journal.shut_down(3.0)
    assert read_store(path).incidents == collector.journal.incidents


def test_finding_without_room_is_counted() -> None:
    collector = Collector(None, incidents_max=1)
    collector.tick(1.0, slow(2, number=1), slow(3, number=2))
    collector.tick(2.0, slow(2, number=1), slow(3, number=2))
    assert collector.counted == ["incident_refused"]


def test_changes_of_an_incident_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    collector = Collector(None)
    collector.tick(1.0, slow())
    collector.tick(2.0, slow(severity="critical"))
    collector.tick(3.0)
    collector.tick(4.0, slow(number=2))
    said = [(record.levelname, record.message) for record in caplog.records]
    assert said == [
        ("INFO", "run 'bert': incident 1, rank 2, is opened: Rank 2 is slow."),
        ("WARNING", "run 'bert': incident 1, rank 2, is escalated: warning -> critical: by its finding"),
        ("INFO", "run 'bert': incident 1, rank 2, is resolved: no longer found"),
        ("WARNING", "run 'bert': incident 1, rank 2, is reopened: it recurred after 1 s"),
    ]


# -- a file that can be used only later -------------------------------------------------------------------------------


def test_store_opened_later_gets_all_incidents(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "later" / "incidents.db"
    collector = Collector(path)
    collector.tick(1.0, slow())
    collector.tick(RETRY_S, slow())
    assert (collector.journal.problem is not None, collector.journal.database) == (True, None)
    path.parent.mkdir()
    collector.tick(RETRY_S + 1.0, slow())
    assert (collector.journal.problem is not None, path.exists()) == (True, False)
    collector.tick(2 * RETRY_S, slow())
    assert collector.journal.problem is None
    assert collector.journal.database is not None
    assert [incident.id for incident in read_store(path).incidents] == [1]
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1
    assert f"the store {path} is usable now; incidents are written to it" in caplog.messages
    collector.journal.shut_down(200.0)


def test_incidents_begun_meanwhile_come_after_those_of_the_store(path: Path) -> None:
    with closing(IncidentStore(path)) as store:
        store.write([begin(7, "gpt", slow(5), 0.0)], ())
        collector = Collector(path)
        collector.tick(1.0, slow(2, number=1), slow(3, number=2))
        collector.journal.close(RUN, slow(3, number=2), "part of finding 1", 2.0, 1)
        collector.tick(2.0, slow(2, number=1))
    collector.tick(RETRY_S, slow(2, number=1))
    first, second, third = collector.journal.incidents
    assert [(one.id, one.run, one.merged_into) for one in (first, second, third)] == [
        (7, "gpt", None), (8, RUN, None), (9, RUN, 8),
    ]  # fmt: skip
    assert read_store(path).incidents == (first, second, third)
    collector.tick(RETRY_S + 1.0, slow(2, number=1), slow(6, number=3))
    collector.tick(RETRY_S + 2.0)
    assert [(one.id, one.is_open) for one in collector.journal.incidents] == [
        (7, True), (8, False), (9, False), (10, False),
    ]  # fmt: skip
    collector.journal.shut_down(100.0)


def test_new_store_after_a_loss_gets_all_incidents(path: Path) -> None:
    collector = Collector(path)
    collector.tick(1.0, slow(2, number=1))
    collector.tick(2.0, slow(2, number=1), slow(3, number=2))
    assert collector.journal.database is not None
    path.unlink()
    lost = collector.journal.database.find_loss()
    assert lost is not None
    collector.journal.replace_store(lost, 3.0)
    collector.tick(3.0, slow(2, number=1), slow(3, number=2))
    assert [incident.id for incident in read_store(path).incidents] == [1, 2]
    assert collector.journal.stores_lost == {"removed": 1}
    assert collector.journal.store_note == (
        f"{path} was removed while the collector had it open as its store. At 1970-01-01 00:00:03 UTC a new file was "
        f"created; all incidents and runs in memory are written to {path}."
    )
    collector.journal.shut_down(4.0)


def test_lost_store_that_cannot_be_replaced_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "incidents.db"
    path.parent.mkdir()
    collector = Collector(path)
    collector.tick(1.0, slow())
    assert collector.journal.database is not None
    path.parent.rename(tmp_path / "away")
    lost = collector.journal.database.find_loss()
    assert lost is not None
    collector.journal.replace_store(lost, 2.0)
    collector.tick(3.0, slow())
    assert collector.journal.problem is not None
    path.parent.mkdir()
    collector.tick(2.0 + RETRY_S, slow())
    assert collector.journal.problem is None
    assert collector.journal.stores_lost == {"removed": 1}
    assert [incident.id for incident in read_store(path).incidents] == [1]
    assert [incident.id for incident in read_store(tmp_path / "away" / path.name).incidents] == [1]
    collector.journal.shut_down(100.0)
