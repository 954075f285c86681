"""A store of the version in which findings kept in their evidence what detectors remember of them now.

`store_before_memory.sql` is such a file, as statements, written by that version: a run with four findings about a slow
rank, a slower run, an intermittently slow rank and a slow link, the last one in an incident, too. Never to be changed.
"""

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from rankscope.collector.incidents.store import IncidentStore, read_store
from rankscope.collector.runs.saved_memories import SavedMemories
from rankscope.collector.storage.database import APPLICATION_ID, Database
from rankscope.collector.storage.run_reader import opening_run
from rankscope.collector.storage.run_store import HistoryStore

SCRIPT = Path(__file__).parent / "store_before_memory.sql"
SINCE_KEPT = {
    "gap_known_steps", "past_transfer_ns", "step_before_ns", "steps_to_close", "tokens_before", "transfer_excess_ns",
    "usual_log_excess",
}  # fmt: skip
"""Names that are in no evidence any more, without the group or rank after them."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SCRIPT.read_text(encoding="utf-8"))
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 4")
    return path


def names_in(evidence: Iterable[Mapping[str, float]]) -> set[str]:
    return {name.partition("/")[0] for one in evidence for name in one}


def stored_in(path: Path, statement: str) -> dict[str, object]:
    with closing(sqlite3.connect(path)) as connection:
        (text,) = connection.execute(statement).fetchone()
    found: dict[str, object] = msgspec.json.decode(text)
    return found


def test_findings_are_read_without_what_was_private(path: Path) -> None:
    before = stored_in(path, "SELECT story FROM runs")["findings"]
    assert isinstance(before, list)
    assert names_in(one["evidence"] for one in before) >= SINCE_KEPT - {"tokens_before", "usual_log_excess"}
    with closing(Database(path)) as database, closing(HistoryStore(database)) as store:
        (kept,), unreadable = store.load()
    assert unreadable == 0
    assert [one.kind for one in kept.story.findings] == ["straggler", "run_slowdown", "straggler", "slow_link"]
    assert names_in(one.evidence for one in kept.story.findings).isdisjoint(SINCE_KEPT)
    assert kept.story.memories is None
    for old, new in zip(before, kept.story.findings, strict=True):
        public = {name: value for name, value in old["evidence"].items() if name.partition("/")[0] not in SINCE_KEPT}
        assert new.evidence == public
        assert (new.number, new.sentence, new.since_step) == (old["number"], old["sentence"], old["since_step"])
    with opening_run(path, "story") as history:
        assert history.kept.story == kept.story


def test_incidents_are_read_without_what_was_private(path: Path) -> None:
    before = stored_in(path, "SELECT body FROM incidents")["evidence"]
    assert isinstance(before, dict)
    with closing(IncidentStore(path)) as store:
        (incident,) = store.load().incidents
    assert incident.evidence == {
        name: value for name, value in before.items() if name.partition("/")[0] not in SINCE_KEPT
    }
    assert 0 < len(incident.evidence) < len(before)
    assert read_store(path).incidents == (incident,)


def test_what_is_written_then_is_read_as_it_is(path: Path) -> None:
    with closing(Database(path)) as database, closing(HistoryStore(database)) as store:
        (kept,), _ = store.load()
        story = msgspec.structs.replace(kept.story, memories=SavedMemories())
        assert msgspec.json.decode(msgspec.json.encode(story), type=type(story)) == story
