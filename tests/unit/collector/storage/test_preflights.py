"""What the store keeps of pre-flights: once each, the latest of a node, and what counts as its past."""

import json
import math
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from rankscope.collector.storage import preflights
from rankscope.collector.storage.database import BUSY_S, Database
from rankscope.collector.storage.migrations import MIGRATIONS
from rankscope.collector.storage.preflights import read_last_preflights, read_past, write_outcomes
from rankscope.measure.errors import UnavailableError
from rankscope.measure.preflights import PAST_MAX, LastPreflight, NodeDevice, NodeOutcome, NodePast

WALL_S = 100.0
ASKED = (NodeDevice("a", "EPYC"), NodeDevice("b", "EPYC"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    """A new store that a collector has open."""
    with closing(Database(path)) as database:
        yield database


def outcome(node: str, rate: float, *, status: str = "not_named", device: str = "EPYC") -> NodeOutcome:
    reasons = ("matmul: slow",) if status == "named" else ()
    return NodeOutcome(node=node, device=device, status=status, rates={"memory": rate}, reasons=reasons)


def write(database: Database, *outcomes: NodeOutcome, name: str, wall_s: float = WALL_S) -> None:
    write_outcomes(database, name, outcomes, wall_s)


def test_past_of_a_node_is_in_the_order_of_arrival(database: Database, path: Path) -> None:
    write(database, outcome("a", 4.0), outcome("b", 7.0), name="first")
    write(database, outcome("a", 5.0), name="second", wall_s=WALL_S - 50.0)  # the clock was set back
    assert read_past(path, ASKED) == (
        NodePast("a", ({"memory": 4.0}, {"memory": 5.0})),
        NodePast("b", ({"memory": 7.0},)),
    )


def test_outcomes_that_are_sent_again_are_kept_once(database: Database, path: Path) -> None:
    for wall_s in (WALL_S, WALL_S + 1.0):
        write(database, outcome("a", 4.0), name="same", wall_s=wall_s)
    assert read_past(path, ASKED) == (NodePast("a", ({"memory": 4.0},)),)
    assert read_last_preflights(path)["a"].wall_s == WALL_S


def test_named_and_other_devices_are_no_past(database: Database, path: Path) -> None:
    write(database, outcome("a", 4.0, status="named"), outcome("b", 7.0, device="Xeon"), name="first")
    assert read_past(path, ASKED) == ()


def test_not_judged_is_a_past(database: Database, path: Path) -> None:
    # Two nodes have too few peers to be judged; their rates are what a later one is judged with.
    write(database, outcome("a", 4.0, status="not_judged"), name="first")
    assert read_past(path, ASKED) == (NodePast("a", ({"memory": 4.0},)),)


def test_past_is_the_last_twenty(database: Database, path: Path) -> None:
    for number in range(PAST_MAX + 3):
        write(database, outcome("a", 1.0 + number), name=str(number))
    (past,) = read_past(path, ASKED)
    assert [rates["memory"] for rates in past.rates] == [4.0 + number for number in range(PAST_MAX)]


@pytest.mark.parametrize(("limit", "kept"), [("KEPT_OF_NODE_MAX", [6.0, 7.0]), ("KEPT_MAX", [7.0])])
def test_beyond_a_limit_the_oldest_are_deleted(
    database: Database, path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, kept: list[float]
) -> None:
    monkeypatch.setattr(preflights, limit, 2)
    for number in range(3):
        write(database, outcome("a", 5.0 + number), outcome("b", 1.0), name=str(number))
    (past, _) = read_past(path, ASKED)
    assert [rates["memory"] for rates in past.rates] == kept


def test_what_is_no_rate_or_no_status_is_left_out(database: Database, path: Path) -> None:
    for number, rate in enumerate((0.0, -1.0, math.nan, math.inf)):
        write(database, outcome("a", rate), name=str(number))
    write(database, outcome("b", 1.0, status="made up"), outcome("", 1.0), name="unknown")
    assert read_past(path, ASKED) == ()
    assert list(read_last_preflights(path)) == ["a"]


def test_forgotten_past_is_that_of_the_same_nodes(database: Database, path: Path) -> None:
    write(database, outcome("a", 4.0), outcome("b", 7.0), name="first")
    for _ in range(2):  # sent again
        write_outcomes(database, "second", (outcome("a", 3.0),), WALL_S, forgets_past=True)
    past = (NodePast("a", ({"memory": 3.0},)), NodePast("b", ({"memory": 7.0},)))
    assert read_past(path, ASKED) == past


def test_last_preflight_of_each_node_says_why_it_is_named(database: Database, path: Path) -> None:
    write(database, outcome("a", 4.0), outcome("b", 7.0), name="first")
    write(database, outcome("b", 2.0, status="named"), name="second", wall_s=WALL_S + 5.0)
    assert read_last_preflights(path) == {
        "a": LastPreflight(wall_s=WALL_S, status="not_named", device="EPYC"),
        "b": LastPreflight(wall_s=WALL_S + 5.0, status="named", device="EPYC", reasons=("matmul: slow",)),
    }


def test_unreadable_row_is_no_past(database: Database, path: Path) -> None:
    write(database, outcome("a", 4.0), name="first")
    with closing(database.open_connection()) as connection:
        connection.execute("UPDATE preflights SET body = ?", (json.dumps({"rates": 3}),))
    assert read_past(path, ASKED) == ()
    assert read_last_preflights(path)["a"].reasons == ()


def test_store_of_an_earlier_version_has_none(path: Path) -> None:
    with closing(Database(path, MIGRATIONS[:3])):
        assert read_past(path, ASKED) == ()
        assert read_last_preflights(path) == {}


def test_outcomes_wait_for_a_slow_transaction_of_the_store(
    database: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflights, "BUSY_S", 60.0)  # however busy this machine is
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as slow:
        slow.execute("BEGIN IMMEDIATE")
        ending = threading.Timer(2 * BUSY_S, slow.execute, ("COMMIT",))  # longer than others wait
        ending.start()
        write(database, outcome("a", 4.0), name="first")
        ending.join()
    assert read_past(path, ASKED) == (NodePast("a", ({"memory": 4.0},)),)


def test_store_that_is_gone_is_said_with_the_cure(database: Database, path: Path) -> None:
    path.unlink()
    with pytest.raises(UnavailableError, match="cannot be used"):
        write(database, outcome("a", 4.0), name="first")
