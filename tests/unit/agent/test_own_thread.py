"""The end of a thread of the agent: a wait for it goes on after an exception of a signal handler."""

import signal
import threading
from types import FrameType

import pytest

from rankscope.agent.own_thread import OwnThread

DEADLINE_S = 60.0


class InterruptError(Exception):
    """What the handler raises."""


def interrupt(_number: int, _frame: FrameType | None) -> None:
    raise InterruptError


def test_a_wait_that_a_signal_has_interrupted_can_be_made_again() -> None:
    may_end, left = threading.Event(), []
    thread = OwnThread(target=lambda: left.append(may_end.wait(DEADLINE_S)), daemon=True)
    thread.wait_for_end(DEADLINE_S)  # it has not begun
    thread.start()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(2):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(InterruptError):
                thread.wait_for_end(DEADLINE_S)
    finally:
        signal.signal(signal.SIGALRM, before)
    may_end.set()
    thread.wait_for_end(DEADLINE_S)
    assert left == [True]
