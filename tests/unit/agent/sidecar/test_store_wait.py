"""waits_in_store: a real store, asked about by a real worker server of this process."""

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from rankscope.agent.captures.called_name import HAS_POSITIONS
from rankscope.agent.sidecar.store_wait import waits_in_store
from rankscope.agent.sidecar.worker_server import open_server

WAIT = timedelta(seconds=10)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The worker server of this process."""
    path = str(tmp_path_factory.mktemp("server") / "s")
    open_server(path)
    yield path
    Path(path).unlink()


class Stores(NamedTuple):
    """Two clients of one store: a client that waits lets nobody else use it."""

    waits: Store
    sets: Store


@pytest.fixture(scope="module")
def stores() -> Stores:
    first = TCPStore("127.0.0.1", 0, 1, is_master=True)
    return Stores(PrefixStore("test", TCPStore("127.0.0.1", first.port)), PrefixStore("test", first))


def is_said(call: Callable[[], object], end: Callable[[], object], path: str) -> bool:
    """Whether it is said within a second while another thread, taken for the main one, is in this call; `end` lets it
    return. The server counts a wait a moment after its call.
    """
    thread = threading.Thread(target=call)
    thread.start()
    number, main = thread.ident or 0, threading.main_thread().ident or 0
    end_s = time.monotonic() + 1
    try:
        while time.monotonic() < end_s:
            if waits_in_store(path, lambda: {main: sys._current_frames()[number]}):
                return True
    finally:
        end()
        thread.join()
    return False


def test_thread_that_waits_for_a_key_waits_in_the_store(server: str, stores: Stores) -> None:
    def wait() -> None:
        stores.waits.wait(["first"], WAIT)

    def get() -> None:
        stores.waits.get("second")

    assert is_said(wait, lambda: stores.sets.set("first", "1"), server)
    assert is_said(get, lambda: stores.sets.set("second", "1"), server)


def test_thread_that_waits_for_a_queue_does_not(server: str) -> None:
    items = queue.SimpleQueue[int]()

    def get() -> None:
        items.get()

    assert not is_said(get, lambda: items.put(1), server)


@pytest.mark.skipif(not HAS_POSITIONS, reason="what a frame calls cannot be told before CPython 3.11")
def test_wait_of_another_thread_is_none_of_the_main_one(server: str, stores: Stores) -> None:
    lock = threading.Lock()
    lock.acquire()

    def stand() -> None:
        lock.acquire()

    def wait() -> None:
        stores.waits.wait(["third"], WAIT)

    other = threading.Thread(target=wait)
    other.start()
    try:
        assert not is_said(stand, lock.release, server)
    finally:
        stores.sets.set("third", "1")
        other.join()


def test_without_a_server_nothing_is_said(tmp_path: Path) -> None:
    assert not waits_in_store(str(tmp_path / "nobody"), dict)
