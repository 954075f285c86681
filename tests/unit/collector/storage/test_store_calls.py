"""Calls to a store that may take long: at once for a file, beside the caller for a server."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.collector.storage import store_calls
from rankscope.collector.storage.store_calls import StoreCalls
from rankscope.collector.store_address import ServerAddress

SERVER = ServerAddress("postgresql://db/rankscope", "west")


@pytest.fixture
def may_return() -> Iterator[threading.Event]:
    """What a call waits for; no thread waits after the test."""
    event = threading.Event()
    yield event
    event.set()


def test_call_to_a_file_is_made_at_once_by_the_caller(tmp_path: Path) -> None:
    calls: StoreCalls[threading.Thread] = StoreCalls(tmp_path / "store.db")
    calls.begin(threading.current_thread)
    assert (calls.is_busy, calls.take()) == (True, threading.current_thread())
    assert (calls.is_busy, calls.take()) == (False, None)


def test_caller_of_a_server_goes_on_and_takes_the_result_later(may_return: threading.Event) -> None:
    calls: StoreCalls[bool] = StoreCalls(SERVER)
    calls.begin(lambda: may_return.wait(60.0))
    assert (calls.take(), calls.is_busy) == (None, True)
    may_return.set()
    assert (calls.take(60.0), calls.is_busy) == (True, False)


def test_error_of_a_call_is_raised_where_its_result_is_taken() -> None:
    calls: StoreCalls[int] = StoreCalls(SERVER)
    calls.begin(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        calls.take(60.0)
    assert not calls.is_busy


def test_result_of_a_dropped_call_is_never_taken(may_return: threading.Event) -> None:
    calls: StoreCalls[bool] = StoreCalls(SERVER)
    calls.begin(lambda: may_return.wait(60.0))
    calls.drop()
    calls.begin(lambda: False)
    may_return.set()
    assert calls.take(60.0) is False
    assert calls.take() is None


def test_call_that_takes_too_long_is_a_problem(may_return: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: StoreCalls[bool] = StoreCalls(SERVER)
    calls.begin(lambda: may_return.wait(60.0))
    assert calls.find_problem() is None
    monkeypatch.setattr(store_calls, "STUCK_S", 0.0)
    assert calls.find_problem() == "the store has not answered for 0 s"
    may_return.set()
    assert calls.take(60.0) is True
    assert calls.find_problem() is None
