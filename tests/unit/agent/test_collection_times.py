"""Collections as they are noted in C, and that no signal is lost amid one."""

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rankscope.agent.collection_times import CollectionTimes
from rankscope.measure.units import s_to_ns

LONG_S = 0.01
"""Time after which a signal comes, amid a collection that takes several times as long."""


class LateError(Exception):
    """What the handler of a signal raises."""


@pytest.fixture
def times() -> Iterator[CollectionTimes]:
    made = CollectionTimes()
    gc.disable()
    # Hypothesis has a callback in Python, within which a signal is lost.
    others, gc.callbacks[:] = list(gc.callbacks), []
    made.install()
    yield made
    made.remove()
    gc.callbacks[:] = others
    gc.enable()


def collect_with_a_signal() -> None:
    signal.setitimer(signal.ITIMER_REAL, LONG_S)
    gc.collect()


def test_what_a_handler_raises_reaches_the_script_from_amid_a_collection(
    times: CollectionTimes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def handle(*_arguments: object) -> None:
        raise LateError

    ignored: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    kept = [[] for _ in range(1_000_000)]  # type: list[list[int]]
    before = signal.signal(signal.SIGALRM, handle)
    try:
        with pytest.raises(LateError):
            collect_with_a_signal()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not ignored
    assert len(kept) == 1_000_000
    assert sum(one.duration_ns for one in times.take()) > s_to_ns(LONG_S)


def test_collection_has_its_thread(times: CollectionTimes) -> None:
    thread = threading.Thread(target=gc.collect)
    thread.start()
    number = thread.ident
    thread.join()
    gc.collect()
    first, second = times.take()
    assert (first.thread, second.thread) == (number, threading.get_ident())
    assert first.begin_ns < first.end_ns <= second.begin_ns < second.end_ns
    assert times.take() == []


def test_a_half_of_a_collection_is_left_out(times: CollectionTimes) -> None:
    class Remover:
        def __init__(self) -> None:
            self.itself = self  # a cycle, so that only the collector frees it

        def __del__(self) -> None:
            times.remove()

    Remover()
    gc.collect()
    times.install()
    gc.collect()
    assert len(times.take()) == 1


def test_callbacks_of_others_are_not_compared(times: CollectionTimes) -> None:
    class Rude:
        def __call__(self, *_arguments: object) -> None: ...

        def __eq__(self, other: object) -> bool:
            raise RuntimeError

        __hash__ = None  # type: ignore[assignment]

    rude = Rude()
    gc.callbacks.insert(0, rude)
    try:
        times.remove()
        assert gc.callbacks[0] is rude
    finally:
        del gc.callbacks[0]


def test_forked_child_notes_nothing(times: CollectionTimes) -> None:
    count = len(gc.callbacks)
    child = os.fork()
    if child == 0:
        os._exit(len(gc.callbacks))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == count - 1
    gc.collect()
    assert len(times.take()) == 1
