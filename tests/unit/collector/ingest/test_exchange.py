"""The compute slot of the collector's two threads."""

import threading
from collections.abc import Iterator

import pytest

from rankscope.collector.ingest import exchange as exchange_module
from rankscope.collector.ingest.exchange import Exchange

LONG_S = 60.0


@pytest.fixture
def exchange() -> Iterator[Exchange]:
    found = Exchange()
    yield found
    found.close()


def start_thread(exchange: Exchange, seen: list[str], name: str) -> threading.Thread:
    """Another thread that wants a slot."""

    def work() -> None:
        with exchange.compute_slot():
            seen.append(name)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_slot_waits_for_that_of_the_other_thread(exchange: Exchange, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_module, "SLOT_WAIT_S", LONG_S)
    seen: list[str] = []
    with exchange.compute_slot():
        other = start_thread(exchange, seen, "other")
        seen.append("first")
    other.join(LONG_S)
    assert seen == ["first", "other"]


def test_second_thread_proceeds_after_slot_timeout(exchange: Exchange, monkeypatch: pytest.MonkeyPatch) -> None:
    """And does not end the slot of the first one."""
    monkeypatch.setattr(exchange_module, "SLOT_WAIT_S", 0.0)
    seen: list[str] = []
    with exchange.compute_slot():
        start_thread(exchange, seen, "other").join(LONG_S)
        assert seen == ["other"]
        monkeypatch.setattr(exchange_module, "SLOT_WAIT_S", LONG_S)
        third = start_thread(exchange, seen, "third")
        seen.append("first")
    third.join(LONG_S)
    assert seen == ["other", "first", "third"]


def test_slot_that_ends_with_an_error_is_over(exchange: Exchange) -> None:
    with pytest.raises(KeyError), exchange.compute_slot():
        raise KeyError
    seen: list[str] = []
    start_thread(exchange, seen, "other").join(LONG_S)
    assert seen == ["other"]
