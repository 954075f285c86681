"""The end of a thread of the agent: a wait for it goes on after an exception of a signal handler."""

import signal
import subprocess
import sys
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


def test_a_signal_that_the_script_waits_for_does_not_come_to_a_thread_of_ours() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", WAITS], capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )
    assert (ended.returncode, ended.stdout) == (0, "SIGTERM\n"), ended.stderr


WAITS = """
import os, signal, threading
from rankscope.agent.own_thread import OwnThread

class Raised(Exception): pass
def interrupt(*_): raise Raised

OwnThread(target=threading.Event().wait, daemon=True).start()
signal.signal(signal.SIGUSR1, interrupt)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
os.kill(os.getpid(), signal.SIGTERM)
try:
    os.kill(os.getpid(), signal.SIGUSR1)
except Raised:
    print(signal.Signals(signal.sigwait({signal.SIGTERM})).name)
"""


def test_a_fault_in_a_thread_of_ours_is_heard() -> None:
    told = "import faulthandler; faulthandler.enable(); from rankscope.agent.own_thread import OwnThread; import ctypes"
    code = f"{told}; thread = OwnThread(target=ctypes.string_at, args=(0,)); thread.start(); thread.wait_for_end(60)"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )
    assert ended.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in ended.stderr


def test_the_mask_of_the_thread_that_starts_it_stays() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        OwnThread(target=int, daemon=True).start()
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before | {signal.SIGUSR2}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
