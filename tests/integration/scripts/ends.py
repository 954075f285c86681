"""Imports torch and ends, in one of the ways a training script ends."""

import os
import signal
import sys
import time
from collections.abc import Callable

import torch


def fail() -> None:
    raise ValueError("the loss is not a number")


def fail_with_a_hook_of_its_own() -> None:
    sys.excepthook = lambda kind, _error, _trace: print(f"shown in its own way: {kind.__name__}")
    fail()


def wait() -> None:
    """In short turns, as a training waits. Python itself can lose an interruption that comes while the interpreter's
    lock is handed over for a wait without an end: 9 of 300 processes with busy threads, without torch and the agent.
    """
    while True:
        time.sleep(0.1)


ENDS: dict[str, Callable[[], object]] = {
    "return": lambda: None,
    "raise": fail,
    "raise-hooked": fail_with_a_hook_of_its_own,
    "exit-2": lambda: sys.exit(2),
    "exit-text": lambda: sys.exit("no readings"),
    "wait": wait,
    "os-exit": lambda: os._exit(7),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
}

print("torch", torch.__version__, flush=True)
ENDS[sys.argv[1]]()
