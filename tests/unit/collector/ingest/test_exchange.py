"""Turns: which of the collector's two threads computes."""

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


def take_turn(exchange: Exchange, seen: list[str], name: str) -> threading.Thread:
    """Another thread that wants a turn."""

    def work() -> None:
        with exchange.turn():
            seen.append(name)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_turn_waits_for_that_of_the_other_thread(exchange: Exchange, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_module, "TURN_WAIT_S", LONG_S)
    seen: list[str] = []
    with exchange.turn():
        other = take_turn(exchange, seen, "other")
        seen.append("first")
    other.join(LONG_S)
    assert seen == ["first", "other"]


def test_who_has_waited_long_enough_computes_too_and_ends_nobodys_turn(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange_module, "TURN_WAIT_S", 0.0)
    seen: list[str] = []
    with exchange.turn():
        take_turn(exchange, seen, "other").join(LONG_S)
        assert seen == ["other"]
        monkeypatch.setattr(exchange_module, "TURN_WAIT_S", LONG_S)
        third = take_turn(exchange, seen, "third")
        seen.append("first")
    third.join(LONG_S)
    assert seen == ["other", "first", "third"]


def test_turn_that_ends_with_an_error_is_over(exchange: Exchange) -> None:
    with pytest.raises(KeyError), exchange.turn():
        raise KeyError
    seen: list[str] = []
    take_turn(exchange, seen, "other").join(LONG_S)
    assert seen == ["other"]
