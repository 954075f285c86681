"""The collector's answers to pre-flights: from the store, or why there is none. No socket."""

import select
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from rankscope.collector import preflights
from rankscope.collector.config import CollectorConfig
from rankscope.collector.fault_log import FaultLog
from rankscope.collector.ingest.exchange import Answer, Exchange, SendToPeer
from rankscope.collector.preflights import NO_STORE, NOT_OPEN, OVERFLOW, Preflights
from rankscope.collector.storage.database import Database
from rankscope.measure.clock import SystemClock
from rankscope.measure.node_messages import PreflightAnswer, PreflightEnded, PreflightPastWanted
from rankscope.measure.preflights import NodeDevice, NodeOutcome

WAIT_S_MAX = 300.0
WANTED = PreflightPastWanted(number=7, nodes=(NodeDevice("a", "EPYC"),))
ENDED = PreflightEnded(
    number=8,
    preflight="p1",
    outcomes=(NodeOutcome(node="a", device="EPYC", status="not_named", rates={"memory": 4.0}),),
)


class Journal(NamedTuple):
    """Who has the store open."""

    database: Database | None


class Answering:
    """Pre-flights of a collector, and what it sends."""

    def __init__(self, database: Database | None, store: str = "store.db") -> None:
        self.exchange = Exchange()
        self.faults = FaultLog(SystemClock())
        config = CollectorConfig(store=store)
        self.preflights = Preflights(config, Journal(database), self.exchange, SystemClock(), self.faults)

    def wait_for_answers(self, count: int) -> list[Answer]:
        """The next answers, so many."""
        found: list[Answer] = []
        while len(found) < count:
            readable, _, _ = select.select([self.exchange.wakeup.fd], [], [], WAIT_S_MAX)
            assert readable, found
            found += self.exchange.get_answers()
        return found


@pytest.fixture
def storeless() -> Iterator[Answering]:
    """Without a store that is open."""
    found = Answering(None)
    yield found
    found.preflights.stop()
    found.exchange.close()


@pytest.fixture
def answering(tmp_path: Path) -> Iterator[Answering]:
    """With a new store."""
    with closing(Database(tmp_path / "store.db")) as database:
        found = Answering(database)
        yield found
        found.preflights.stop()
    found.exchange.close()


def test_kept_outcomes_are_the_past_of_the_next_question(answering: Answering) -> None:
    assert answering.preflights.answer(WANTED) == PreflightAnswer(number=7)
    assert answering.preflights.answer(ENDED) == PreflightAnswer(number=8)


def test_collector_without_a_store_says_so_at_once() -> None:
    found = Answering(None, store="")
    found.preflights.start()
    found.preflights.handle(b"peer", WANTED)
    found.preflights.stop()
    assert found.exchange.get_answers() == [SendToPeer(b"peer", PreflightAnswer(number=7, problem=NO_STORE))]
    found.exchange.close()


def test_store_that_is_not_open_is_a_problem(storeless: Answering) -> None:
    assert storeless.preflights.answer(ENDED) == PreflightAnswer(number=8, problem=NOT_OPEN)


def test_store_that_is_gone_is_a_problem(answering: Answering, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.unlink()
    assert answering.preflights.answer(ENDED).problem.startswith(
        f"the store {path} cannot be used: unable to open database file."
    )


def test_messages_are_answered_by_the_thread_in_order(answering: Answering) -> None:
    answering.preflights.start()
    answering.preflights.handle(b"one", WANTED)
    answering.preflights.handle(b"two", ENDED)
    assert answering.wait_for_answers(2) == [
        SendToPeer(b"one", PreflightAnswer(number=7)), SendToPeer(b"two", PreflightAnswer(number=8)),
    ]  # fmt: skip


def test_message_without_room_is_counted(storeless: Answering) -> None:
    for _ in range(preflights.MESSAGES_MAX + 2):
        storeless.preflights.handle(b"peer", WANTED)
    assert storeless.faults.counts == {OVERFLOW: 2}
